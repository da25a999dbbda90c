"""What the fast engine saves: passes that are not needed, and memory that is bounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from patchable import RAGGED, assert_same, located, pair, runs_of
from residuum.errors import UsageError
from residuum.hooks import capture
from residuum.patching.engine import PatchConfig
from residuum.patching.memory import Shelf, pieces
from residuum.patching.naive import Naive
from residuum.patching.staircase import Staircase

ENGINES = pytest.mark.parametrize("engine", [Naive, Staircase])


def test_a_source_runs_no_further_than_it_must() -> None:
    target, source = pair()
    engine = Staircase(target, PatchConfig(layers=(0, 2)))
    with runs_of(source.anatomy.lm_head) as head, runs_of(source.anatomy.blocks[3]) as after:
        engine.patched(source, RAGGED)
    assert head == after == [0]


def test_rows_after_the_last_evaluated_one_are_never_run() -> None:
    target, source = pair()
    example = located(6, 9, 0, 2)
    with capture(target.anatomy.blocks[:1]) as own, capture(source.anatomy.blocks[:1]) as other:
        Staircase(target, PatchConfig(layers=(0, 1))).patched(source, [example])
    assert own[0].shape[1] == other[0].shape[1] == example.rows.stop


def test_the_target_runs_once_for_several_sources() -> None:
    target, source = pair()
    engine = Staircase(target, PatchConfig())
    with runs_of(target.anatomy.embedding) as passes:
        engine.unpatched(RAGGED)
        first = passes[0]
        engine.patched(source, RAGGED)
        engine.patched(target, RAGGED[2:4])
    # Only the last call runs it again: there it is the source.
    assert first > 0
    assert passes[0] <= first + 2


def test_hooks_and_model_are_left_as_they_were() -> None:
    target, source = pair("gemma2")
    Staircase(target, PatchConfig(mode="mlp")).patched(source, RAGGED)
    for lm in (target, source):
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in lm.model.modules())


# Memory


@ENGINES
def test_a_bound_on_memory_moves_no_score(engine: Any) -> None:
    target, source = pair()
    config = PatchConfig()
    assert_same(
        engine(target, config, max_memory=800_000).patched(source, RAGGED),
        Naive(target, config).patched(source, RAGGED),
    )


def test_what_is_kept_stays_within_its_half() -> None:
    target, source = pair()
    free, bound = Staircase(target, PatchConfig()), Staircase(target, PatchConfig(), max_memory=800_000)
    many = [located(20, 8, 0, 2, idx=i) for i in range(120)]
    free.patched(source, many)
    bound.patched(source, many)
    assert free.kept_bytes > 400_000
    assert 300_000 < bound.kept_bytes <= 400_000


def test_a_batch_that_was_not_kept_is_run_again() -> None:
    target, source = pair()
    engine = Staircase(target, PatchConfig(), max_memory=800_000)
    many = [located(20, 8, 0, 2, idx=i) for i in range(120)]
    engine.patched(source, many)
    with runs_of(target.anatomy.embedding) as passes:
        again = engine.patched(source, many)
    assert passes[0] > 0
    assert_same(again, Staircase(target, PatchConfig()).patched(source, many))


@ENGINES
def test_a_bound_too_tight_for_one_example_says_what_is_needed(engine: Any) -> None:
    target, source = pair()
    with pytest.raises(UsageError, match=r"(?s)20 KB is too little.*at least [\d.]+ KB"):
        engine(target, PatchConfig(), max_memory=20 * 1024).patched(source, RAGGED)


def test_what_is_kept_goes_when_memory_runs_out() -> None:
    target, source = pair()
    engine = Staircase(target, PatchConfig())
    engine.patched(source, RAGGED)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    handle = target.anatomy.blocks[2].register_forward_hook(fail)
    with pytest.raises(torch.OutOfMemoryError):
        engine.patched(source, RAGGED)
    handle.remove()
    assert engine.kept_bytes == 0
    assert_same(engine.patched(source, RAGGED), Naive(target, PatchConfig()).patched(source, RAGGED))


def test_pieces_stay_within_the_budget_and_in_order() -> None:
    assert list(pieces([3, 3, 3, 9, 1], 9)) == [[0, 1, 2], [3], [4]]


def test_a_full_shelf_keeps_what_it_has_and_takes_guests() -> None:
    shelf: Shelf[str, int] = Shelf(10)
    for name in ("one", "two", "three"):
        shelf.put(name, 0, 5)
    assert list(shelf.find(["one", "two", "three"])) == ["one", "two", "three"]
    shelf.dismiss()
    assert list(shelf.find(["one", "two", "three"])) == ["one", "two"]
