"""Checkpoints of a running training: weights, optimizer state, step; written whole or not at all.

``folder/checkpoints/latest/`` holds ``weights.safetensors`` (trained tensors only), ``optimizer.pt`` (plain tensors,
read back without executing anything) and ``state.json``. A new checkpoint is built beside it and swapped in by rename.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from residuum.errors import StoreError


def save(
    folder: Path,
    model: nn.Module,
    trained: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    step: int,
    signature: str,
) -> None:
    """Write the checkpoint of ``step`` and drop the one before it."""
    root = folder / "checkpoints"
    fresh, latest, old = root / "fresh", root / "latest", root / "old"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    state = model.state_dict()
    save_file({name: state[name].contiguous() for name in trained}, fresh / "weights.safetensors")
    torch.save(optimizer.state_dict(), fresh / "optimizer.pt")
    (fresh / "state.json").write_text(json.dumps({"step": step, "signature": signature}), encoding="utf-8")
    for path in fresh.iterdir():
        _sync(path)
    if latest.exists():
        shutil.rmtree(old, ignore_errors=True)
        latest.rename(old)
    fresh.rename(latest)
    _sync(root)
    shutil.rmtree(old, ignore_errors=True)


def restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, *, signature: str) -> int:
    """Load the latest checkpoint into model and optimizer and return its step; 0 when there is none.

    Raises:
        StoreError: the checkpoint belongs to a run with other settings.
    """
    for place in ("latest", "old"):  # a kill between the two renames of `save` leaves only `old`
        path = folder / "checkpoints" / place
        if (path / "state.json").exists():
            break
    else:
        return 0
    state = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if state["signature"] != signature:
        raise StoreError(
            f"{path} was written by a training with other settings.\n  There: {state['signature']}\n  Here:  {signature}\n"
            f"  Remove {folder / 'checkpoints'} to start over."
        )
    model.load_state_dict(load_file(path / "weights.safetensors"), strict=False)
    optimizer.load_state_dict(torch.load(path / "optimizer.pt", weights_only=True))
    return int(state["step"])


def discard(folder: Path) -> None:
    """Remove the checkpoints of a finished run."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
