"""What tests do with checkpoints: look at their logits, change their files, be refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from residuum.errors import ModelError
from residuum.models.loading import LM, load

IDS = torch.tensor([[1, 5, 9, 2]])


def logits(lm: LM) -> torch.Tensor:
    with torch.no_grad():
        return lm.model(IDS).logits


def cut_into_shards(folder: Path) -> None:
    model = load(folder, device="cpu").model
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(path: Path | str, **options: object) -> str:
    with pytest.raises(ModelError) as caught:
        load(path, device="cpu", **options)
    return str(caught.value)
