"""From values before and after an attack to verdicts: filters, common subset, what diverged or was lost."""

from __future__ import annotations

import json

import numpy as np
import pytest

from attackable import MODELS, RETAIN, model, verdict
from residuum.errors import DataError, MissingExtra, UsageError
from residuum.meta import attacks
from residuum.meta.attacked import Attacked, Rules
from residuum.meta.robustness import (
    Change,
    harmonic_mean,
    harmonic_means,
    measure_robustness,
    quantization_score,
    relearning_score,
)
from residuum.meta.values import robustness_from_values


def test_means_and_harmonic_mean_are_resampled_over_the_same_models():
    changes = [Change(f"m{i}", 0.5, 0.5 + i / 10) for i in range(5)]
    found = measure_robustness("em", changes, changes, Change("retain", 0.5, 0.7))
    assert found.robustness_ci95[0] <= found.robustness <= found.robustness_ci95[1]
    assert found.resampled.shape == (2000,)


def test_a_harmonic_mean_of_columns_is_zero_with_a_zero_and_missing_with_a_gap():
    found = harmonic_means(np.array([0.5, 0.0, np.nan]), np.array([1.0, 1.0, 1.0]))
    assert found[:2] == pytest.approx([harmonic_mean(0.5, 1.0), 0.0])
    assert np.isnan(found[2])


def test_only_models_that_kept_utility_and_look_unlearned_count():
    found = verdict()
    assert found.usable == {"em": ["a"], "uds": ["a", "b"]}
    assert found.counts["em"] == {
        "all": 3, "undefined": 0, "low_utility": 1, "still_knows": 1, "usable": 1, "diverged": 0, "lost": 0,
    }  # fmt: skip
    assert found.metrics["em"].quantization == pytest.approx(quantization_score(0.3, 0.4))
    assert found.metrics["em"].relearning == pytest.approx(relearning_score(0.2, 0.1))
    uds = [quantization_score(0.2, 0.3), quantization_score(0.3, 0.3)]
    assert found.metrics["uds"].quantization == pytest.approx(np.mean(uds)), "in knowledge direction"
    assert found.summary()["utility"] == {"floor": 0.8, "pass": 2, "of": 3}


def test_a_common_subset_judges_all_metrics_on_the_same_models():
    found = verdict(common_subset=True)
    assert found.usable == {"em": ["a"], "uds": ["a"]}
    assert any("1 models are usable for all 2 metrics" in note for note in found.notes)


def test_a_common_subset_leaves_out_models_that_an_attack_left_without_a_value():
    gap = model("d", {"em": 0.3, "uds": 0.8}, {"em": None, "uds": 0.8}, {"em": 0.4, "uds": 0.7})
    found = verdict([*MODELS, gap], common_subset=True)
    assert found.usable == {"em": ["a"], "uds": ["a"]}
    assert (found.counts["em"]["not_common"], found.counts["uds"]["not_common"]) == (1, 2)
    assert found.counts["em"]["lost"] == 0
    for counts in found.counts.values():
        assert counts["all"] == sum(counts[why] for why in ("undefined", "low_utility", "still_knows", "usable", "not_common"))  # fmt: skip


def test_a_metric_without_a_threshold_is_named():
    found = verdict(thresholds={"em": 0.6, "uds": None})
    assert any("no faithfulness threshold" in note and note.endswith(": uds") for note in found.notes)
    assert not any("no faithfulness threshold" in note for note in verdict().notes)


def test_the_one_directional_form_only_punishes_returning_knowledge():
    assert verdict(form="one-directional").metrics["em"].quantization == pytest.approx(0.75)


def test_a_retain_relative_attack_is_filtered_by_its_raw_attack():
    models = [
        RETAIN | {"before": {"mia_loss": 0.5, "s_mia_loss": 1.0}},
        model("a", {"mia_loss": 0.4, "s_mia_loss": 0.1}, {"mia_loss": 0.4, "s_mia_loss": 0.1}, None),
        model("b", {"mia_loss": 0.9, "s_mia_loss": 0.9}, {"mia_loss": 0.9, "s_mia_loss": 0.9}, None),
    ]
    found = verdict(
        models, ["mia_loss", "s_mia_loss"], attacks=("quantization",), thresholds={"mia_loss": 0.6, "s_mia_loss": 0.0},
        directions={"mia_loss": "two-sided", "s_mia_loss": "less knowledge"},
    )  # fmt: skip
    assert found.usable["s_mia_loss"] == ["a"]


def test_without_its_raw_attack_a_retain_relative_one_stands_alone(tmp_path):
    file = tmp_path / "numbers.csv"
    file.write_text("model,metric,attack,before,after\na,s_mia_loss,quantization,0.3,0.4\n")
    found = robustness_from_values(file, Rules(thresholds={"mia_loss": 0.1}))
    assert found.usable == {"s_mia_loss": ["a"]}
    assert any("no values of mia_loss" in note for note in found.notes)


def test_a_diverged_relearning_is_shown_counted_and_has_no_r():
    lost = model("d", {"em": 0.3, "uds": 0.8}, {"em": 0.3, "uds": 0.8}, None, diverged=True)
    found = verdict([*MODELS, lost])
    assert found.metrics["em"].quantization_n == 2
    assert found.metrics["em"].relearning_n == 1
    assert found.counts["em"]["diverged"] == 1
    assert found.summary()["diverged"] == ["d"]
    assert any("diverged for 1 model(s)" in note and "d" in note for note in found.notes)


def test_a_metric_missing_for_some_models_counts_them_as_undefined():
    gap = model("d", {"em": None, "uds": 0.8}, {"em": None, "uds": 0.8}, {"em": None, "uds": 0.7})
    found = verdict([*MODELS, gap])
    assert (found.counts["em"]["undefined"], found.counts["uds"]["undefined"]) == (1, 0)
    assert found.usable["em"] == ["a"]


def test_a_value_lost_in_an_attack_is_counted():
    gap = model("d", {"em": 0.3, "uds": 0.8}, {"em": None, "uds": 0.8}, {"em": 0.4, "uds": 0.7})
    found = verdict([*MODELS, gap])
    assert (found.counts["em"]["lost"], found.counts["uds"]["lost"]) == (1, 0)
    assert (found.metrics["em"].quantization_n, found.metrics["em"].relearning_n) == (1, 2)


def test_without_thresholds_a_note_says_so():
    found = verdict(thresholds=None)
    assert found.usable["em"] == ["a", "b"]
    assert any("no faithfulness thresholds" in note for note in found.notes)


def test_relearning_needs_retain():
    with pytest.raises(UsageError, match="retain"):
        verdict(MODELS[1:])


def test_a_robustness_folder_gives_the_same_verdict_again(tmp_path):
    found = verdict()
    found.save(tmp_path)
    assert {path.name for path in (tmp_path / "logs").iterdir()} == {"retain.log", "a.log", "b.log", "c.log"}
    again = Attacked.load(tmp_path)
    assert again.summary() == json.loads((tmp_path / "summary.json").read_text()) | {
        "metrics": again.summary()["metrics"]
    }
    assert again.metrics == found.metrics
    with pytest.raises(DataError, match="robustness"):
        Attacked.load(tmp_path / "logs")


def test_quantization_without_bitsandbytes_names_the_extra(monkeypatch):
    monkeypatch.setattr(attacks, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"residuum\[quant\]"):
        attacks.check_attacks(["quantization"])
    assert attacks.check_attacks(["relearning"]) == ("relearning",)


def test_an_unknown_attack_is_refused():
    with pytest.raises(UsageError, match="relearning"):
        attacks.check_attacks(["relearn"])
