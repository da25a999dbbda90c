"""Values, intervals, notes: what is put around a number."""

from __future__ import annotations

import numpy as np
import pytest

from residuum.metrics.scores import (
    Separation,
    auc_score,
    composite_score,
    mean_score,
    statistic_score,
)
from residuum.uncertainty import bootstrap_ci


def test_a_mean_has_the_interval_of_the_plain_bootstrap():
    values = np.random.default_rng(1).random(30)
    found = mean_score(values, 7, "more knowledge")
    assert found.value == pytest.approx(values.mean())
    assert found.ci95 == pytest.approx(bootstrap_ci(values, seed=7), abs=1e-12)


def test_undefined_items_are_counted_and_left_out():
    found = mean_score(np.array([1.0, np.nan, 0.0]), 0, "more knowledge")
    assert (found.value, found.n, found.n_undefined, found.values) == (0.5, 2, 1, [1.0, None, 0.0])


def test_no_items_at_all_give_no_value_and_no_interval():
    found = mean_score(np.array([np.nan]), 0, "more knowledge")
    assert (found.value, found.ci95, found.n, found.n_undefined) == (None, None, 0, 1)


def test_one_item_has_a_value_but_no_interval():
    assert mean_score(np.array([0.3]), 0, "more knowledge").ci95 is None


def test_an_auc_resamples_members_and_non_members_apart():
    rng = np.random.default_rng(0)
    pair = Separation(rng.normal(0, 1, 20), rng.normal(1, 1, 12))
    found = auc_score(pair, (1, 2), "two-sided")

    def plain(members, others):
        return np.mean([(o > members).mean() + 0.5 * (o == members).mean() for o in others])

    picks = [np.random.default_rng(seed).integers(0, n, (2000, n)) for seed, n in ((1, 20), (2, 12))]
    redone = [plain(pair.members[i], pair.nonmembers[j]) for i, j in zip(*picks, strict=True)]
    assert found.ci95 == pytest.approx(np.percentile(redone, [2.5, 97.5]), abs=1e-12)
    assert found.n == 32
    assert len(found.values) == 32


def test_an_auc_of_nobody_is_undefined():
    found = auc_score(Separation(np.zeros(0), np.ones(3)), (1, 2), "two-sided")
    assert (found.value, found.ci95) == (None, None)


def test_a_statistic_is_computed_anew_on_resampled_items():
    values = np.random.default_rng(0).normal(size=200)
    found = statistic_score(lambda x: float(np.median(x)), [values], 0, "more knowledge")
    low, high = found.ci95
    assert found.value == np.median(values)
    assert low < found.value < high
    assert high - low < 0.6


def test_a_composite_knows_that_its_parts_rest_on_the_same_items():
    values = np.random.default_rng(0).random(50)
    one, other = mean_score(values, 3, "more knowledge"), mean_score(1 - values, 3, "more knowledge")
    found = composite_score(lambda a, b: a + b, [one, other], "more knowledge")
    assert found.value == pytest.approx(1.0)
    assert found.ci95 == pytest.approx((1.0, 1.0))


def test_a_mean_of_nothing_says_why_it_has_no_value():
    assert "none of the 2 items" in mean_score(np.array([np.nan, np.nan]), 0, "more knowledge").notes[0]


def test_resamples_of_parts_stay_side_by_side_where_some_are_not_defined():
    values = np.random.default_rng(0).random(40)
    one, other = mean_score(values, 3, "more knowledge"), mean_score(-values, 3, "more knowledge")
    holed = composite_score(lambda a: a if a > 0.45 else None, [one], "more knowledge")
    assert np.isnan(holed.resampled).any()
    found = composite_score(lambda a, b: None if a is None else a + b, [holed, other], "more knowledge")
    assert found.ci95 == pytest.approx((0.0, 0.0))


def test_a_composite_that_goes_without_an_undefined_part_keeps_its_interval():
    there, absent = (
        mean_score(np.array([0.2, 0.4]), 0, "more utility"),
        mean_score(np.array([np.nan]), 0, "more utility"),
    )
    found = composite_score(lambda a, b: a if b is None else None, [there, absent], "more utility")
    assert found.value == there.value
    assert found.ci95 == there.ci95


def test_a_composite_without_a_value_says_so():
    part = mean_score(np.ones(3), 0, "more knowledge")
    found = composite_score(lambda a: None, [part], "less knowledge")
    assert (found.value, found.ci95) == (None, None)
    assert "not defined" in found.notes[0]
