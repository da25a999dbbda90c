"""Which engine is taken: the fast one where a check on the model itself agrees, else the hook loop."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from miniatures import FAMILIES
from patchable import RAGGED, assert_same, pair, runs_of, tiny
from residuum.patching.engine import PatchConfig
from residuum.patching.naive import Naive
from residuum.patching.selfcheck import EngineWarning, disagreement, make_engine


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESIDUUM_CACHE", str(tmp_path))
    return tmp_path


def remembered(cache: Path) -> list[Path]:
    return list(cache.glob("engines/*.json"))


@pytest.mark.parametrize("mode", ["layer", "mlp", "attn", "mid"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_staircase_suits_every_family_of_the_table(family: str, mode: Any) -> None:
    assert disagreement(pair(family)[0], PatchConfig(mode=mode), RAGGED[1]) == ""


def test_auto_takes_the_staircase_where_it_agrees(empty_cache: Path) -> None:
    target, source = pair()
    engine = make_engine("auto", target)
    assert engine.name == "auto"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(engine.patched(source, RAGGED), Naive(target, PatchConfig()).patched(source, RAGGED))
    assert engine.name == "staircase"


def test_auto_falls_back_with_a_warning_that_names_the_family(empty_cache: Path) -> None:
    target, source = pair("bloom")
    engine = make_engine("auto", target)
    with pytest.warns(EngineWarning, match='"bloom"'):
        found = engine.unpatched(RAGGED)
    assert engine.name == "naive"
    assert_same(found, Naive(target, PatchConfig()).unpatched(RAGGED))
    assert_same(engine.patched(source, RAGGED), Naive(target, PatchConfig()).patched(source, RAGGED))


def test_auto_notices_scores_that_differ(empty_cache: Path) -> None:
    target = tiny()
    # A block that looks at how many rows it gets is fine in whole sequences, but not in pieces of them.
    target.anatomy.blocks[2].register_forward_hook(lambda _, __, out: out + 0.1 * out.shape[1])
    assert "differ by" in disagreement(target, PatchConfig(), RAGGED[1])


def test_the_outcome_is_remembered_for_the_architecture(empty_cache: Path) -> None:
    target, source = pair()
    make_engine("auto", target).unpatched(RAGGED)
    with runs_of(source.anatomy.lm_head) as heads:
        make_engine("auto", source).unpatched(RAGGED[:1])
    assert heads == [1]
    assert len(remembered(empty_cache)) == 1


def test_a_spoilt_memory_is_made_anew(empty_cache: Path) -> None:
    target, _ = pair()
    make_engine("auto", target).unpatched(RAGGED)
    (file,) = remembered(empty_cache)
    good = file.read_text()
    file.write_text("{")
    make_engine("auto", target).unpatched(RAGGED)
    assert file.read_text() == good


def test_another_attention_is_another_architecture(empty_cache: Path) -> None:
    for attn in ("sdpa", "eager"):
        make_engine("auto", tiny(attn=attn)).unpatched(RAGGED)
    assert len(remembered(empty_cache)) == 2


def test_a_cache_that_cannot_be_written_does_not_stop_the_run(empty_cache: Path) -> None:
    (empty_cache / "engines").write_text("a file where the folder should be")
    engine = make_engine("auto", pair()[0])
    engine.unpatched(RAGGED)
    assert engine.name == "staircase"
