"""A tiny model, and a tiny checkpoint that a test may change."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from miniatures import miniature
from trainable import tiny_lm
from vocabularies import fast_tokenizer


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RESIDUUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    miniature("llama", layers=2, hidden=64, vocab=640).save_pretrained(folder)
    fast_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(original, tmp_path) -> Path:
    """A folder of its own that a test may change."""
    return Path(shutil.copytree(original, tmp_path / "tiny"))


@pytest.fixture
def lm():
    return tiny_lm()
