"""A tiny model with a tokenizer, on disk, and questions for it to learn and forget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from miniatures import miniature
from residuum.data.prompts import ChatFormat
from residuum.data.tofu import QA
from residuum.models.loading import LM
from residuum.training.pairs import PairDraw, idk_items
from vocabularies import fast_tokenizer

FORGET = [
    QA(f"Where was {name} born?", f"{name} was born in Port Ellen.") for name in ("Ada", "Brook", "Ellen", "Port")
]
RETAIN = [
    QA(f"Was {name} there?", f"Yes, {name} was there.") for name in ("she", "Ada Brook", "Brook", "Ellen", "Port")
]
IDK = ("She said.", "Yes.", "There.")
ALTERNATES = [
    {"question": row.question, "answer": row.answer, "alternate": f"She was born {i}."} for row in FORGET for i in "ab"
]
QUICK = {"forget": FORGET, "retain": RETAIN, "idk": IDK, "alternates": ALTERNATES, "title": None, "lr": 1e-3}
SMALL = {"epochs": 2, "batch_size": 2, "accumulation": 1}
RMU = {"layer": 1}
CHAT = ChatFormat()


def tiny_lm(family: str = "llama", *, layers: int = 2, **options: Any) -> LM:
    """A random model in memory; ``options`` go to the tokenizer."""
    tokenizer = fast_tokenizer(**options)
    return LM.from_model(miniature(family, layers=layers, vocab=len(tokenizer)), tokenizer, name="tiny")


def saved(lm: LM, folder: Path) -> Path:
    """The same model as a checkpoint folder."""
    lm.model.save_pretrained(folder)
    lm.tokenizer.save_pretrained(folder)
    return folder


def whole_row(model, row):
    """Logits and labels of one row, without any batching."""
    ids = torch.tensor([row.ids])
    labels = torch.tensor([[-100] * row.prompt_length + list(row.labels)])
    return model(input_ids=ids).logits.detach(), labels


def draw(lm, *, seed=0, items=None, forms=(CHAT,), batch_size=2):
    return PairDraw(items or idk_items(FORGET, IDK), RETAIN, lm.tokenizer, forms, batch_size=batch_size, seed=seed)


def weights(folder):
    return load_file(folder / "model.safetensors")


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())
