"""Meta-evaluation against the published numbers."""

from __future__ import annotations

import csv
import json

import pytest

from residuum.cli.app import run
from residuum.meta.robustness import harmonic_mean, usable_models


@pytest.fixture(scope="module")
def published(shared_data):
    names = ("published_meta_eval", "published_method_results", "meta_eval_constants")
    return {name: json.loads((shared_data / "published" / f"{name}.json").read_text()) for name in names}


def test_the_harmonic_mean_of_the_published_q_and_r_is_the_published_one(published):
    metrics = published["published_meta_eval"]["metrics"]
    assert len(metrics) == 22
    for name, row in metrics.items():
        assert harmonic_mean(row["R"], row["Q"]) == pytest.approx(row["robust_hm"], abs=1e-4), name
        assert harmonic_mean(row["auc"], row["robust_hm"]) == pytest.approx(row["overall"], abs=1e-9), name


@pytest.fixture(scope="module")
def models(published):
    return [row for row in published["published_method_results"]["models"] if row["method"] not in ("full", "retain")]


def test_the_utility_filter_passes_124_of_150(models):
    assert len(models) == 150
    values = {row["model"] + row["epoch"]: 0.0 for row in models}
    utility = {row["model"] + row["epoch"]: row["utility_rel"] for row in models}
    usable, counts = usable_models(values, utility, None)
    assert len(usable) == 124
    assert counts == {"all": 150, "undefined": 0, "low_utility": 26, "still_knows": 0, "usable": 124}


COLUMNS = {
    "em": ("one_minus_em", "pass_if_le"), "es": ("one_minus_es", "pass_if_le"), "paraprob": ("one_minus_paraprob", "pass_if_le"),
    "truth_ratio": ("one_minus_truth", "pass_if_le"), "uds": ("uds", "pass_if_ge"), "logit_lens": ("logit_lens", "pass_if_ge"),
}  # fmt: skip


@pytest.mark.parametrize("metric", COLUMNS)
def test_the_usable_models_are_as_many_as_published(published, models, metric):
    column, rule = COLUMNS[metric]
    constants = published["meta_eval_constants"]
    threshold = constants[rule][metric]
    # Columns are published turned round (1 - value) or in erasure direction; both become knowledge as 1 - column.
    knowledge = {row["model"] + row["epoch"]: 1 - row[column] for row in models}
    limit = threshold if rule == "pass_if_le" else 1 - threshold
    utility = {row["model"] + row["epoch"]: row["utility_rel"] for row in models}
    assert len(usable_models(knowledge, utility, limit)[0]) == constants["usable_counts"][metric]


def test_the_command_finds_the_same_models_usable(published, models, tmp_path, capsys):
    constants = published["meta_eval_constants"]
    limits = {name: constants[rule][name] for name, (_, rule) in COLUMNS.items()}
    thresholds = {name: limit if COLUMNS[name][1] == "pass_if_le" else 1 - limit for name, limit in limits.items()}
    (tmp_path / "thresholds.json").write_text(
        json.dumps({"metrics": {name: {"threshold": limit} for name, limit in thresholds.items()}})
    )
    with (tmp_path / "numbers.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "metric", "attack", "before", "after", "utility_rel"])
        for row in models:
            for name, (column, _) in COLUMNS.items():
                value = 1 - row[column] if column.startswith("one_minus") else row[column]
                writer.writerow([row["model"], name, "quantization", value, value, row["utility_rel"]])
    words = [
        "meta",
        "robustness",
        "--from-values",
        tmp_path / "numbers.csv",
        "--faithfulness",
        tmp_path / "thresholds.json",
    ]
    with pytest.raises(SystemExit) as stop:
        run([*map(str, words), "--out", str(tmp_path / "out"), "--json"])
    assert not stop.value.code
    summary = json.loads(capsys.readouterr().out)
    assert summary["utility"] == {"floor": 0.8, "pass": 124, "of": 150}
    usable = {name: row["counts"]["usable"] for name, row in summary["metrics"].items()}
    assert usable == {name: constants["usable_counts"][name] for name in COLUMNS}
    assert all(row["Q"] == pytest.approx(1.0) for row in summary["metrics"].values())
