"""A finished checkpoint: an ordinary HF folder plus ``manifest.json``, which is written last and says how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from residuum.errors import InputError, StoreError
from residuum.progress import hush_transformers
from residuum.store.atomic import write_json
from residuum.training import checkpoints

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MANIFEST = "manifest.json"
CLAIM = "training.json"
"""While a training runs: which one it is."""


def is_finished(folder: Path, identity: str) -> bool:
    """Whether ``folder`` holds a whole checkpoint made under this very identity."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(manifest.get("identity") == identity)


def check_free(folder: Path, identity: str, job: Mapping[str, Any]) -> None:
    """Make sure that a folder is empty, or holds a killed run of the very same training.

    Raises:
        InputError: it holds another model, finished or not; says in what it differs.
    """
    for file in (folder / MANIFEST, folder / CLAIM):
        if file.exists():
            found = json.loads(file.read_text(encoding="utf-8"))
            if found.get("identity") == identity:
                return
            there = found.get("job", {})
            differing = [
                f"{key}: {there[key]} there, {job[key]} here" for key in job if there.get(key, job[key]) != job[key]
            ]
            raise InputError(
                f"{folder} holds a model of other settings ({'; '.join(differing) or 'made by something else'}).\n"
                "  Choose another folder with --out, or remove that one."
            )
    if (folder / "config.json").exists():
        raise InputError(f"{folder} holds a checkpoint that was not trained here.\n  Choose another folder with --out.")


def claim(folder: Path, identity: str, job: Mapping[str, Any]) -> None:
    """Make a folder the place of one training."""
    write_json(folder / CLAIM, {"identity": identity, "job": dict(job)})


def finish(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    identity: str,
    manifest: Mapping[str, Any],
) -> None:
    """Save the model where any HF tool finds it, then the manifest, then drop the intermediate checkpoints."""
    hush_transformers()
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:  # so it calls a full disk, which is no OSError there
        raise StoreError(f"{folder}: the checkpoint cannot be written. {error}") from error
    write_json(folder / MANIFEST, {"identity": identity, **manifest})
    (folder / CLAIM).unlink(missing_ok=True)
    checkpoints.discard(folder)
