"""Faithfulness and robustness formulas against cases worked out by hand and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from residuum.errors import UsageError
from residuum.meta.faithfulness import auc, best_threshold, compare, measure_faithfulness
from residuum.meta.robustness import (
    Change,
    harmonic_mean,
    measure_robustness,
    quantization_score,
    relearning_score,
    usable_models,
)

values = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9]), min_size=2, max_size=12)


@given(values, values)
def test_the_auc_is_scikit_learns_ties_included(p, n):
    assert auc(p, n) == pytest.approx(roc_auc_score([1] * len(p) + [0] * len(n), p + n))


def named(prefix, numbers):
    return {f"{prefix}{i}": value for i, value in enumerate(numbers)}


def test_a_metric_that_separates_has_auc_one_in_either_direction():
    p, n = [0.7, 0.8, 0.9], [0.1, 0.2, 0.3]
    up = measure_faithfulness("em", named("p", p), named("n", n), "more knowledge")
    down = measure_faithfulness("uds", named("p", n), named("n", p), "less knowledge")
    assert up.auc == down.auc == 1.0
    assert up.accuracy == 1.0
    assert up.threshold == pytest.approx(0.5)
    assert down.threshold == pytest.approx(0.5)
    assert down.p_mean == pytest.approx(0.2), "pool means are raw"


def test_the_threshold_is_the_first_midpoint_with_the_best_accuracy():
    threshold, accuracy = best_threshold(np.array([0.2, 0.6, 0.8]), np.array([0.1, 0.4]))
    # 0.15 and 0.5 both get four of five right.
    assert threshold == pytest.approx(0.15)
    assert accuracy == pytest.approx(0.8)


def test_a_constant_metric_is_said_to_be_one():
    found = measure_faithfulness("em", named("p", [0.5, 0.5]), named("n", [0.5, 0.5]), "more knowledge")
    assert found.constant
    assert (found.auc, found.threshold) == (0.5, None)


def test_undefined_values_are_left_out_and_named():
    found = measure_faithfulness("em", {"a": 0.9, "b": 0.8, "c": None}, named("n", [0.1, 0.2]), "more knowledge")
    assert (found.n_p, found.undefined) == (2, ("c",))


@pytest.mark.parametrize(
    ("p", "n"), [({"a": 1.0}, {"b": 0.0, "c": 0.1}), ({"a": 1.0, "b": None}, {"c": 0.0, "d": 0.1})]
)
def test_one_model_is_no_pool(p, n):
    with pytest.raises(UsageError, match="at least two"):
        measure_faithfulness("em", p, n, "more knowledge")


def test_overlapping_pools_are_refused():
    with pytest.raises(UsageError, match="both pools"):
        measure_faithfulness("em", {"a": 1.0, "b": 1.0}, {"b": 0.0, "c": 0.0}, "more knowledge")


def test_two_metrics_are_compared_on_the_models_they_share():
    good = (named("p", [0.9, 0.8, 0.7, 0.95]), named("n", [0.1, 0.2, 0.3, 0.15]), "more knowledge")
    bad = (named("p", [0.5, 0.1, 0.9, 0.2]), named("n", [0.4, 0.2, 0.8, 0.3]), "more knowledge")
    found = compare(good, bad)
    assert found["difference"] == pytest.approx(
        auc(list(good[0].values()), list(good[1].values())) - auc(list(bad[0].values()), list(bad[1].values()))
    )
    assert found["ci95"][0] <= found["difference"] <= found["ci95"][1]
    assert compare(good, good)["difference"] == 0.0


def test_nothing_changed_is_perfect_stability():
    assert quantization_score(0.4, 0.4) == 1.0
    assert quantization_score(0.0, 0.0) == 1.0
    assert quantization_score(0.4, 0.4, "one-directional") == 1.0


def test_quantization_by_hand():
    assert quantization_score(0.2, 0.6) == pytest.approx(1 - 0.4 / (0.8 + 1e-6))
    assert quantization_score(0.2, 0.6, "one-directional") == pytest.approx(1 / 3)
    assert quantization_score(0.6, 0.2, "one-directional") == 1.0, "losing knowledge is not punished"
    assert quantization_score(-0.5, 0.5) == pytest.approx(0.0, abs=1e-5), "opposite signs"


def test_knowledge_out_of_nothing_is_no_stability_in_the_one_directional_form():
    assert quantization_score(0.0, 0.3, "one-directional") == 0.0
    assert quantization_score(-0.1, 0.3, "one-directional") == 0.0
    assert quantization_score(0.3, -0.1, "one-directional") == 1.0


def test_relearning_by_hand():
    assert relearning_score(0.1, 0.1) == 1.0
    assert relearning_score(0.3, 0.1) == pytest.approx(1 - 0.2 / (0.4 + 1e-6))
    assert relearning_score(0.3, -0.1) == pytest.approx(0.0, abs=1e-5), "opposite shifts"
    assert relearning_score(0.0, 0.0) == 1.0
    assert relearning_score(0.3, 0.1, "one-directional") == pytest.approx(1 / 3)
    assert relearning_score(0.05, 0.1, "one-directional") == 1.0
    assert relearning_score(0.3, -0.1, "one-directional") == 0.0


def test_the_harmonic_mean_is_zero_with_a_zero_and_missing_with_a_gap():
    assert harmonic_mean(0.5, 1.0) == pytest.approx(2 / 3)
    assert harmonic_mean(0.0, 1.0) == 0.0
    assert harmonic_mean(None, 1.0) is None


def test_models_are_filtered_with_a_count_for_every_reason():
    before = {"a": 0.1, "b": 0.9, "c": 0.1, "d": None, "e": 0.5}
    utility = {"a": 0.9, "b": 0.9, "c": 0.5, "d": 1.0, "e": 0.8}
    usable, counts = usable_models(before, utility, 0.5)
    assert usable == ["a", "e"]
    assert counts == {"all": 5, "undefined": 1, "low_utility": 1, "still_knows": 1, "usable": 2}


def test_averages_carry_n_and_an_interval():
    changes = [Change("a", 0.2, 0.2), Change("b", 0.2, 0.6)]
    found = measure_robustness("em", changes, changes, Change("retain", 0.1, 0.3))
    assert found.quantization == pytest.approx((1 + quantization_score(0.2, 0.6)) / 2)
    assert (found.quantization_n, found.relearning_n) == (2, 2)
    assert found.robustness == pytest.approx(harmonic_mean(found.quantization, found.relearning))
    assert found.quantization_ci95[0] <= found.quantization <= found.quantization_ci95[1]


def test_relearning_without_retain_is_refused():
    with pytest.raises(UsageError, match="retain"):
        measure_robustness("em", [], [Change("a", 0.1, 0.2)], None)
