"""A tiny model, a tiny checkpoint that a test may change, and a report of a made-up store."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from miniatures import miniature
from pages import Page
from reportable import make_store
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


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """A run store with every part of a report in it; to be read only."""
    return make_store(tmp_path_factory.mktemp("whole") / "runs")


@pytest.fixture(scope="session")
def page(store, tmp_path_factory):
    """Its report."""
    from residuum.report.build import build_report

    return Page(build_report(store, tmp_path_factory.mktemp("page") / "report.html"))
