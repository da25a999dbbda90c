"""Extraction: vectors and their quality on disk, and what users get wrong on the way there."""

from __future__ import annotations

import json

import pytest
import torch

from residuum.errors import DataError
from residuum.steering.experiments import Experiment
from residuum.steering.extract import ExtractConfig, extract
from residuum.steering.traits import SteeringWarning
from residuum.steering.vectors import find_vectors
from steering_lab import TRAIT, call, steer


def test_extraction_writes_vectors_that_tell_the_sides_apart(extracted):
    home = extracted / "experiments/moods/extraction" / TRAIT
    quality = json.loads((home / "subject/vectors/response__5/quality.json").read_text())["rows"]
    by_method = {}
    for row in quality:
        if row["component"] == "residual":
            by_method.setdefault(row["method"], []).append(row["auc"])
    assert all(max(by_method[m]) == 1.0 for m in ("mean_diff", "probe", "pca_diff", "lda"))
    vectors = find_vectors(home, "mean_diff", "residual")
    assert sorted(vectors.files) == [0, 1, 2, 3]
    assert vectors.position == "response[:5]"
    assert vectors.metadata["hidden_size"] == 64
    assert vectors.read(2).norm == pytest.approx(vectors.metadata["layers"]["2"]["norm"], rel=1e-5)


def test_extraction_keeps_responses_with_their_scenario(extracted):
    rows = json.loads((extracted / "experiments/moods/extraction" / TRAIT / "subject/responses/pos.json").read_text())
    assert rows[5]["scenario_idx"] == 5
    assert rows[0]["response"].startswith("the ")


def test_the_same_extraction_again_is_only_read(root, monkeypatch):
    experiment = Experiment(root, "moods")
    config = ExtractConfig(methods=("mean_diff",))
    first = extract(experiment, TRAIT, config=config)
    monkeypatch.setattr("residuum.steering.extract.respond", None)
    assert extract(experiment, TRAIT, config=config) == first


def test_unit_vectors_keep_their_natural_length_beside_them(root):
    experiment = Experiment(root, "moods")
    extract(experiment, TRAIT, config=ExtractConfig(methods=("mean_diff",), position="prompt[-1]", normalize=True))
    found = find_vectors(experiment.extraction(TRAIT), "mean_diff", "residual", position="prompt[-1]").read(1)
    assert found.norm == pytest.approx(1.0)
    assert found.raw_norm > 1.2
    assert found.raw().norm() == pytest.approx(found.raw_norm, rel=1e-5)


def test_vectors_of_the_oldest_layout_are_read(root):
    home = root / "experiments/old/extraction" / TRAIT / "vectors"
    home.mkdir(parents=True)
    for layer in range(4):
        torch.save(torch.randn(64), home / f"mean_diff_layer{layer}.pt")
        torch.save(torch.randn(64), home / f"attn_out_probe_layer{layer}.pt")
    assert sorted(find_vectors(home.parent, "mean_diff", "residual").files) == [0, 1, 2, 3]
    assert find_vectors(home.parent, "probe", "attn_out").read(3).values.shape == (64,)
    with pytest.raises(DataError, match="mean_diff \\(residual\\)"):
        find_vectors(home.parent, "probe", "residual")


@pytest.mark.parametrize("content", ["{", [], {"rows": "x"}, {"rows": [3]}, {"rows": [{"layer": "1"}]}, {"rows": [{"layer": 1, "method": "mean_diff", "component": "residual"}]}])  # fmt: skip
def test_a_damaged_table_of_quality_is_named_and_costs_nothing(root, subject, judge, content):
    path = root / "experiments/moods/extraction" / TRAIT / "subject/vectors/response__5/quality.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.warns(SteeringWarning, match="quality.json is no table"):
        out = steer(root, subject, judge, layers="1", find_coef=False, coefficients=(1.0,), subset=1)
    assert out["best_classification_layer"] is None
    with pytest.warns(SteeringWarning, match="quality.json is no table"):
        extract(Experiment(root, "moods"), TRAIT, config=ExtractConfig(methods=("mean_diff",)))
    assert {row["layer"] for row in json.loads(path.read_text())["rows"]} == {0, 1, 2, 3}


def test_a_changed_vector_is_noticed(root):
    from safetensors.torch import save_file

    vectors = find_vectors(root / "experiments/moods/extraction" / TRAIT, "mean_diff", "residual")
    save_file({"vector": torch.randn(64)}, vectors.files[1])
    with pytest.raises(DataError, match="does not match its hash"):
        vectors.read(1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--position", "answer[:3]"), "no position"),
        (("--methods", "magic"), "mean_diff"),
        (("--methods", "mean_diff,"), "empty part"),
        (("--components", "heads"), "attn_out"),
        (("--max-new-tokens", "2"), "needs 5 new tokens"),
        (("--val-split", "1"), "--val-split"),
        (("--layers", "99"), "layers 0 to 3"),
        (("--trait", "mood/sleepy"), "neither positive.jsonl nor positive.txt"),
        (("--trait", "../etc/x"), "no name of a"),
    ],
)
def test_mistakes_of_an_extraction_are_told_in_a_sentence(root, capsys, words, said):
    assert call("steer", "extract", "--experiment", "moods", "--trait", TRAIT, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(("line", "said"), [("{nope", "positive.jsonl:2"), ('{"text": "x"}', "prompt")])
def test_a_bad_line_of_scenarios_is_named(root, capsys, line, said):
    home = root / "datasets/traits/mood/odd"
    home.mkdir()
    for side in ("positive", "negative"):
        (home / f"{side}.jsonl").write_text('{"prompt": "How was the park?"}\n' + line + "\n")
    assert call("steer", "extract", "--experiment", "moods", "--trait", "mood/odd") == 2
    error = capsys.readouterr().err
    assert said in error
    assert "positive.jsonl" in error
