"""Selection, summary, intervals and cautions of RTT, on invented accuracies."""

from __future__ import annotations

import random

import numpy as np
import pytest

from residuum.errors import UsageError
from residuum.rtt.cautions import cautions
from residuum.rtt.intervals import resample, summary_intervals
from residuum.rtt.selection import Cell, Run, best_global, best_nested, best_per_v, grid_of, read_accuracy
from residuum.rtt.signature import run_id
from residuum.rtt.splits import resolve_eval_split_ids, train_split_ids
from residuum.rtt.summary import Evidence, summarize


def run(split: int, lr: float, accuracies: dict[int, float | None], **more) -> Run:
    return Run(split, "LETTER", lr, max(accuracies), accuracies, **more)


def grid(**by_cell: list[float]):
    """A grid from the accuracies of each rate in V runs 0, 1, ..."""
    runs = [run(v, float(name[1:]), {1: a}) for name, values in by_cell.items() for v, a in enumerate(values)]
    return grid_of(runs)


def test_t_is_every_split_but_the_held_out_one():
    assert train_split_ids(2, 5) == [0, 1, 3, 4]


def test_one_split_cannot_be_retrained_on():
    with pytest.raises(UsageError, match="at least two"):
        train_split_ids(0, 1)


@pytest.mark.parametrize(("given", "kept"), [("0,2", [0, 2]), ("[3, 1]", [3, 1]), ("4", [4]), ([9, 1, 1], [1])])
def test_split_ids_may_be_text_and_are_clipped(given, kept):
    assert resolve_eval_split_ids("X", 5, eval_split_ids=given) == kept


@pytest.mark.parametrize("given", ["", "7", "a,b", [1.5], [True], "[0, 'x']"])
def test_split_ids_that_leave_nothing_are_refused(given):
    with pytest.raises(UsageError, match="eval_split_ids"):
        resolve_eval_split_ids("X", 5, eval_split_ids=given)


def test_max_epoch_leaves_the_state_before_training_out_unless_asked():
    accuracies = {0: 0.9, 1: 0.4, 2: 0.5}
    assert read_accuracy(accuracies, "max_epoch") == (0.5, 2)
    assert read_accuracy(accuracies, "max_epoch", include_epoch0=True) == (0.9, 0)


@pytest.mark.parametrize("accuracies", [{}, {2: None}, {2: float("nan")}])
def test_a_run_without_a_number_is_skipped_and_not_counted_as_zero(accuracies):
    assert read_accuracy(accuracies, "final_epoch") is None


def test_an_unknown_rule_is_refused():
    with pytest.raises(UsageError, match="final_epoch"):
        read_accuracy({1: 0.5}, "last")


def test_per_v_is_never_below_global_with_equal_coverage():
    chance = random.Random(0)
    for _ in range(50):
        found = grid(**{f"r{rate}": [chance.random() for _ in range(4)] for rate in range(1, 6)})
        best = best_global(found)
        assert best is not None
        assert np.mean([b.accuracy for b in best_per_v(found).values()]) >= best[0] - 1e-12


def test_nested_selection_never_looks_at_the_split_it_scores():
    found = grid(r1=[0.9, 0.2, 0.2], r2=[0.1, 0.5, 0.5])
    nested = best_nested(found)
    assert nested[0].cell.lr == 2.0
    assert nested[0].accuracy == 0.1


def test_one_v_run_has_no_nested_estimate():
    assert best_nested(grid(r1=[0.9], r2=[0.1])) == {}


def test_equal_accuracies_are_decided_by_epochs_then_rate_then_name():
    runs = [
        Run(0, "LETTER", 1e-6, 4, {4: 0.5}),
        Run(0, "LETTER", 4e-6, 2, {2: 0.5}),
        Run(0, "LETTER_ANSWER", 1e-6, 2, {2: 0.5}),
        Run(0, "LETTER", 1e-6, 2, {2: 0.5}),
    ]
    for seed in range(5):
        random.Random(seed).shuffle(runs)
        assert best_per_v(grid_of(runs))[0].cell == Cell("LETTER", 1e-6, 2)


def test_of_two_runs_of_one_cell_the_later_counts():
    runs = [run(0, 1.0, {1: 0.7}, time="2025-02"), run(0, 1.0, {1: 0.9}, time="2025-01")]
    assert best_per_v(grid_of(runs))[0].accuracy == 0.7


def test_seeds_are_averaged_before_the_best_cell_is_chosen():
    runs = [run(0, 1.0, {1: 0.9}, seed=0), run(0, 1.0, {1: 0.1}, seed=1), run(0, 2.0, {1: 0.6}, seed=0)]
    assert best_per_v(grid_of(runs))[0].cell.lr == 2.0


def test_a_run_that_stands_for_several_epochs_needs_their_list():
    with pytest.raises(UsageError, match="epochs_lst"):
        grid_of([run(0, 1.0, {1: 0.5, 2: 0.6}, expand=True)])


def test_an_expanded_run_under_max_epoch_looks_no_further_than_its_cell():
    found = grid_of([run(0, 1.0, {1: 0.5, 2: 0.4, 3: 0.6}, expand=True)], rule="max_epoch", epochs_lst=[2, 3])
    assert found[0][Cell("LETTER", 1.0, 2)].accuracy == 0.5
    assert found[0][Cell("LETTER", 1.0, 3)].accuracy == 0.6


def evidence(a=0.3, b=0.6, c=0.8, n=None, splits=(0, 1, 2), **more) -> Evidence:
    """Ten items a split, right from the first on."""

    def runs(accuracy):
        right = [int(i < round(10 * accuracy)) for i in range(10)]
        return [run(v, 1.0, {1: accuracy}, correct={1: right}) for v in splits]

    return Evidence(
        eval_split_ids=splits, base=dict.fromkeys(splits, 0.9), unlearned=dict.fromkeys(splits, a), unlearned_runs=runs(b),
        base_runs=runs(c), naive_runs=runs(n) if n is not None else (), grid_size=1, **more,
    )  # fmt: skip


def test_adjusted_recoveries_follow_their_formulas():
    found = summarize(evidence(n=0.4))
    assert found.recovery_rate == pytest.approx(0.6 / 0.8)
    assert found.gap_closed == pytest.approx((0.6 - 0.3) / (0.8 - 0.3))
    assert found.recovery_above_chance == pytest.approx((0.6 - 0.25) / (0.8 - 0.25))
    assert found.recovery_above_naive == pytest.approx((0.6 - 0.4) / (0.8 - 0.4))


def test_a_gap_that_does_not_exist_cannot_be_closed():
    assert summarize(evidence(a=0.8, c=0.8)).gap_closed is None


def test_without_b_the_status_says_so():
    assert summarize(Evidence([0], {0: 1.0}, {0: 0.3}, [], [run(0, 1.0, {1: 0.5})], grid_size=1)).status == "no_b"


@pytest.mark.parametrize(
    ("asked", "status"), [("AN", "complete"), ("ABN", "no_b"), ("ACN", "no_c"), ("B", "no_b"), ("", "complete")]
)
def test_only_a_condition_that_was_asked_for_is_missing(asked, status):
    known = Evidence([0], {0: 1.0}, {0: 0.3}, [], [], [run(0, 1.0, {1: 0.5})], grid_size=1, asked=asked)
    assert summarize(known).status == status


@pytest.mark.parametrize("letter", "AN")
def test_a_condition_that_was_asked_for_and_failed_is_named(letter):
    known = Evidence([0], {0: 1.0}, {}, [], [run(0, 1.0, {1: 0.5})], grid_size=1, asked={letter, "C"})
    assert summarize(known).status == f"no_{letter.lower()}"


def test_intervals_hold_their_estimates_and_pair_the_conditions():
    found = summarize(evidence(n=0.4))
    items = {v: [1.0] * 9 + [0.0] for v in (0, 1, 2)}
    intervals = summary_intervals(found, items, items)
    for key in ("forget_acc_unlearn_rtt", "forget_acc_baseline_rtt", "forget_acc_naive_rtt_nested", "recovery_rate"):
        low, high = intervals[key]
        assert low < found.plain()[key] < high
    b_low, b_high = intervals["forget_acc_unlearn_rtt"]
    # The same items are right in B and in C, so their ratio is steadier than B alone.
    low, high = intervals["recovery_rate"]
    assert (high - low) / 0.75 < (b_high - b_low) / 0.6


def test_intervals_are_the_same_for_the_same_seed():
    items = {"x": {0: [0.0, 1.0, 1.0], 1: [1.0, 0.0, 0.0]}}
    assert (resample(items, seed=3)["x"] == resample(items, seed=3)["x"]).all()


def test_more_items_make_the_interval_narrower():
    few, many = ({"x": {0: [0.0, 1.0] * size, 1: [0.0, 1.0] * size}} for size in (5, 500))
    assert np.std(resample(many)["x"]) < np.std(resample(few)["x"]) / 5


def test_without_items_there_is_no_interval():
    runs = [run(0, 1.0, {1: 0.5})]
    found = summarize(Evidence([0], {0: 1.0}, {0: 0.3}, runs, runs, grid_size=1))
    assert summary_intervals(found, {}, {}) == {}


@pytest.mark.parametrize(
    ("case", "word"),
    [
        (evidence(a=0.1), "below chance"),
        (evidence(c=1.0), "saturated"),
        (evidence(n=0.5), "N is 0.500"),
        (evidence(), None),
    ],
)
def test_what_is_hard_to_read_is_said(case, word):
    found = cautions(summarize(case), items=300)
    assert (not found) if word is None else any(word in sentence for sentence in found)


def test_a_costly_unlearning_is_said():
    found = cautions(summarize(evidence()), items=300, retain=(0.9, 0.8))
    assert any("retain accuracy" in sentence for sentence in found)


def test_run_ids_differ_in_everything_but_the_number_of_epochs():
    one = run_id("s", "c", "w", 0, loss_type="L", lr=1e-6, seed=0)
    others = {
        run_id("t", "c", "w", 0, loss_type="L", lr=1e-6, seed=0),
        run_id("s", "d", "w", 0, loss_type="L", lr=1e-6, seed=0),
        run_id("s", "c", "x", 0, loss_type="L", lr=1e-6, seed=0),
        run_id("s", "c", "w", 1, loss_type="L", lr=1e-6, seed=0),
        run_id("s", "c", "w", 0, loss_type="M", lr=1e-6, seed=0),
        run_id("s", "c", "w", 0, loss_type="L", lr=2e-6, seed=0),
        run_id("s", "c", "w", 0, loss_type="L", lr=1e-6, seed=1),
    }
    assert len(others) == 7
    assert one not in others
