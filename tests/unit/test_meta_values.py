"""Meta-evaluation of a table of numbers, without models."""

from __future__ import annotations

import json

import pytest

from commanding import call
from residuum.errors import DataError
from residuum.meta.attacked import Rules
from residuum.meta.robustness import (
    harmonic_mean,
    quantization_score,
    relearning_score,
)
from residuum.meta.values import robustness_from_values

GOOD = """model,metric,attack,before,after,utility_rel
a,em,quantization,0.3,0.4,0.9
a,em,relearning,0.3,0.5,0.9
b,em,quantization,0.4,0.4,0.5
b,em,relearning,0.4,0.5,0.5
retain,em,quantization,0.2,0.2,
retain,em,relearning,0.2,0.3,
"""


def test_numbers_from_a_file_give_the_same_as_models(tmp_path, capsys):
    file = tmp_path / "numbers.csv"
    file.write_text(GOOD)
    assert call("meta", "robustness", "--from-values", file, "--out", tmp_path / "out", "--json") == 0
    em = json.loads(capsys.readouterr().out)["metrics"]["em"]
    assert em["Q"] == pytest.approx(quantization_score(0.3, 0.4))
    assert em["R"] == pytest.approx(relearning_score(0.2, 0.1))
    assert em["HM"] == pytest.approx(harmonic_mean(em["Q"], em["R"]))
    assert em["counts"]["low_utility"] == 1
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"summary.json", "results.json", "logs"}


def test_a_part_of_the_numbers_is_judged_when_asked_for(tmp_path, capsys):
    file = tmp_path / "numbers.csv"
    file.write_text(GOOD + "a,es,quantization,0.2,0.2,0.9\n")
    words = ["meta", "robustness", "--from-values", file, "--out", tmp_path / "out", "--json"]
    assert call(*words, "--metrics", "es", "--attack", "quantization") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (list(summary["metrics"]), summary["attacks"]) == (["es"], ["quantization"])
    assert call(*words, "--metrics", "rouge") == 2
    assert call(*words, "--attack", "quantisation") == 2
    assert call(*words, "--models", "npo") == 2
    file.write_text("model,metric,attack,before,after\na,em,quantization,0.3,0.4\n")
    capsys.readouterr()
    assert call(*words, "--attack", "relearning") == 2
    assert "no values after relearning" in capsys.readouterr().err


def test_thresholds_may_come_from_a_file(tmp_path, capsys):
    numbers, thresholds = tmp_path / "numbers.csv", tmp_path / "t.json"
    numbers.write_text(GOOD)
    thresholds.write_text('{"metrics": {"em": {"threshold": 0.25}}}')
    words = ["meta", "robustness", "--from-values", numbers, "--faithfulness", thresholds, "--out", tmp_path, "--json"]
    assert call(*words) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["em"]["counts"]["still_knows"] == 1
    for bad in ("{}", '{"metrics": {"em": {"threshold": NaN}}}'):
        thresholds.write_text(bad)
        assert call(*words) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "column model"),
        ("model,metric,attack,before\n", "column after"),
        ("model,metric,attack,before,after\n", "no rows"),
        (GOOD.replace("0.3,0.4", "0.3,many"), "numbers.csv:2, field 'after': 'many' is not a number"),
        (GOOD.replace("0.3,0.4", "0.3,nan"), "not a number"),
        (GOOD.replace("a,em,quant", "a,emm,quant"), "numbers.csv:2, field 'metric'"),
        (GOOD.replace("relearning,0.3", "relearn,0.3"), "numbers.csv:3, field 'attack'"),
        (GOOD.replace("retain", "other"), "no model called 'retain'"),
        (GOOD.replace("a,em,relearning,0.3", "a,em,relearning,0.31"), "another em before"),
        (GOOD + "a,em,quantization,0.3,0.4,0.9\n", "twice"),
        (GOOD + ",em,quantization,0.3,0.4,0.9\n", "numbers.csv:8, field 'model'"),
        (GOOD.replace("0.3,0.5,0.9", "0.3,0.5,0.7"), "numbers.csv:3, field 'utility_rel'"),
        (GOOD + "a,model_utility,quantization,0.3,0.4,0.9\n", "does not say how much"),
        ("model,metric,attack,before,after,higher_means\na,em,quantization,0,0,less knowledge\n", "em means more"),
        ("model,metric,attack,before,after\n" + "x" * 200_000 + ",em,quantization,0,0\n", "cannot be read"),
    ],
)
def test_bad_numbers_are_refused_with_file_line_and_field(tmp_path, text, said):
    file = tmp_path / "numbers.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=said.replace("(", r"\(")):
        robustness_from_values(file, Rules())
    assert call("meta", "robustness", "--from-values", file, "--out", tmp_path / "out") == 2


def test_an_unknown_metric_is_welcome_with_its_direction(tmp_path):
    file = tmp_path / "numbers.csv"
    file.write_text("model,metric,attack,before,after,higher_means\na,mine,quantization,0.3,0.4,less knowledge\n")
    found = robustness_from_values(file, Rules())
    assert found.metrics["mine"].quantization == pytest.approx(quantization_score(0.7, 0.6))
