"""The arithmetic of UDS against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from residuum.patching.depth import (
    DepthRules,
    at_threshold,
    depth_profile,
    mean_depth,
    measure_depth,
    over_erased_share,
)

LOGPROB, EM = DepthRules(), DepthRules(metric="em")


def example(s1, s2, full=0.0, rules=LOGPROB, idx=0):
    return measure_depth(idx, list(range(len(s1))), full, [full - d for d in s1], [full - d for d in s2], rules)


def test_the_depth_is_the_weighted_share_of_what_the_layers_held():
    found = example([0.04, 1.0, 3.0], [9.0, 0.5, 3.0])
    assert found.ft_layers == [1, 2]
    assert found.uds == pytest.approx((1.0 * 0.5 + 3.0 * 1.0) / 4.0)
    assert found.udr == found.uds


def test_ratios_are_clipped_on_both_sides():
    assert example([1.0, 1.0], [-5.0, 5.0]).uds == pytest.approx(0.5)


def test_a_delta_equal_to_the_threshold_does_not_count():
    rules = DepthRules(delta_threshold=0.5)
    assert example([0.5, 0.75], [0.5, 0.75], rules=rules).ft_layers == [1]


def test_erased_layers_are_ft_layers_whose_second_delta_is_above_the_threshold():
    found = example([1.0, 1.0, 0.0], [0.04, 0.06, 2.0])
    assert found.erased_layers == [1]


def test_an_example_without_ft_layers_has_no_depth_and_leaves_the_mean():
    nothing, something = example([0.0, 0.01], [1.0, 1.0]), example([1.0], [0.25])
    assert nothing.uds is None
    assert mean_depth([nothing, something])[:2] == (0.25, 1)


def test_the_mean_of_nothing_is_zero_without_an_interval():
    assert mean_depth([]) == (0.0, 0, None)


def test_retain_as_source_is_one_and_full_is_zero():
    deltas = [0.3, 1.7, 0.9]
    assert example(deltas, deltas).uds == 1.0
    assert example(deltas, [0.0, 0.0, 0.0]).uds == 0.0


def test_over_erasure_is_counted_where_the_score_clips_it():
    assert over_erased_share([example([1.0, 1.0, 0.0], [2.0, 0.5, 9.0])]) == 0.5
    assert over_erased_share([example([0.0], [1.0])]) is None


def test_metric_em_counts_lost_layers_and_an_example_without_ft_layers_is_zero():
    lost = measure_depth(0, [0, 1, 2], 1.0, [1.0, 0.5, 0.0], [1.0, 1.0, 0.5], EM, retain_em=1.0)
    assert (lost.ft_layers, lost.erased_layers, lost.uds) == ([1, 2], [2], 0.5)
    assert lost.s1_deltas is None
    assert measure_depth(0, [0], 1.0, [1.0], [0.0], EM).uds == 0.0


def test_exact_em_is_all_or_nothing():
    rules = DepthRules(metric="em", em_type="exact", em_threshold=0.5)
    found = measure_depth(0, [0, 1], 1.0, [0.9, 1.0], [0.9, 1.0], rules)
    assert found.s1_scores == [0.0, 1.0]
    assert found.ft_layers == [0]


def test_a_layer_that_was_not_computed_cannot_enter_the_score():
    found = measure_depth(0, [0, 1], 0.0, [-1.0, -0.03], [-1.0, None], LOGPROB)
    assert found.uds == 1.0
    with pytest.raises(ValueError, match="not computed"):
        at_threshold(found, 0.02)


@given(st.lists(st.tuples(st.floats(0.06, 5), st.floats(-5, 8)), min_size=1, max_size=8))
def test_the_depth_never_leaves_its_range(pairs):
    first, second = zip(*pairs, strict=True)
    found = example(list(first), list(second))
    assert found.uds is not None
    assert -1e-12 <= found.uds <= 1 + 1e-12


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_the_interval_holds_the_mean_and_does_not_depend_on_the_order(depths):
    examples = [example([1.0], [depth], idx=i) for i, depth in enumerate(depths)]
    mean, n, interval = mean_depth(examples)
    assert n == len(depths)
    assert interval is not None
    assert interval[0] - 1e-9 <= mean <= interval[1] + 1e-9 or len(depths) < 10


def test_the_profile_has_means_intervals_and_shares_per_layer():
    rows = depth_profile([example([0.0, 1.0], [0.0, 0.5]), example([0.2, 3.0], [0.1, 1.5])])
    assert [row["ft_share"] for row in rows] == [0.5, 1.0]
    assert [row["s1_delta"] for row in rows] == pytest.approx([0.1, 2.0])
    assert rows[1]["s1_low"] == pytest.approx(1.0)
    assert rows[1]["s1_high"] == pytest.approx(3.0)


def test_the_profile_leaves_cells_out_that_were_not_computed():
    part = measure_depth(0, [0, 1], 0.0, [-1.0, -0.01], [-1.0, None], LOGPROB)
    rows = depth_profile([part, part])
    assert rows[1]["s2_delta"] is None
    assert rows[1]["s2_n"] == 0
    assert not any(value is not None and np.isnan(value) for row in rows for value in row.values())
