"""Results as JSON lines: written for other tools, and read from them."""

from __future__ import annotations

import json

import pytest

from residuum.errors import DataError
from residuum.steering.experiments import Experiment
from residuum.steering.jsonl import write_jsonl
from residuum.steering.rebuild import rebuild
from residuum.steering.results import Results
from residuum.steering.traits import SteeringWarning
from residuum.store import Store, Task

JUDGE = {"provider": "openai", "model": "gpt", "scoring": "single", "trait_prompt": "p"}


@pytest.fixture
def results(tmp_path):
    return Results(Experiment(tmp_path, "e"), "mood/glad", Store(tmp_path / "runs"))


def put(results, coefficient, *, prompts="h", trait=60.0, layers=(16,)):
    """A run, or a baseline without a coefficient."""
    context = {"model": {"name": "m"}, "judge": JUDGE, "prompts": prompts, "questions": ["a", "b"]}
    run = None
    if coefficient is not None:
        run = {
            "layers": list(layers), "methods": ["probe"] * len(layers), "coefficients": [coefficient] * len(layers),
            "component": "residual", "incremental": False, "operator": "add", "positions": "all", "vectors": ["v"],
        }  # fmt: skip
    value = {
        "result": {"trait_mean": trait, "coherence_mean": 90.0, "n": 2}, "status": "ok", "items": [],
        "relative_coefficients": None, "prompts_file": "p.json", "vector_source": "base/mood/glad",
        "timestamp": "2026-01-01T00:00:00", "created": f"2026-01-01T00:00:{abs(coefficient or 0):02.0f}",
    }  # fmt: skip
    return results.store.put(Task("steer", {**results.place, "context": context, "run": run}), value, provenance={})


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_has_a_header_a_baseline_and_a_line_per_run(results, tmp_path):
    for coefficient in (None, 50.0, 75.0):
        put(results, coefficient)
    header, baseline, first, second = lines_of(write_jsonl(results, tmp_path / "out.jsonl"))
    assert header == {
        "type": "header", "trait": "mood/glad", "direction": "positive", "steering_model": "m", "steering_experiment": "e",
        "vector_source": {"model": None, "experiment": "base", "trait": "mood/glad"},
        "eval": {"model": "gpt", "method": "logprob", "trait_judge": "p"}, "prompts_file": "p.json", "n_questions": 2,
    }  # fmt: skip
    assert (baseline["type"], baseline["result"]["trait_mean"]) == ("baseline", 60.0)
    vector = {"layer": 16, "component": "residual", "position": None, "method": "probe", "weight": 50.0}
    assert first["config"]["vectors"] == [vector]
    assert second["config"]["vectors"] == [{**vector, "weight": 75.0}]


def test_only_the_latest_context_fits_and_the_others_are_told(results, tmp_path):
    put(results, 50.0)
    put(results, 50.0, prompts="other")
    with pytest.warns(SteeringWarning, match="1 runs of other contexts"):
        written = write_jsonl(results, tmp_path / "out.jsonl")
    assert len(lines_of(written)) == 2


def test_without_runs_there_is_nothing_to_write(results, tmp_path):
    with pytest.raises(DataError, match="no runs"):
        write_jsonl(results, tmp_path / "out.jsonl")


def test_runs_come_back_from_a_file_when_their_units_are_gone(results):
    put(results, None)
    put(results, 50.0, layers=(16, 18))
    view = results.sync()
    write_jsonl(results, results.path.with_name("results.jsonl"))
    assert rebuild(results).view["runs"] == view["runs"]
    for unit in results.units():
        results.store.path(unit.task).unlink()
    made = rebuild(results)
    assert [run["run_id"] for run in made.view["runs"]] == [run["run_id"] for run in view["runs"]]
    assert made.view["runs"][0]["config"] == view["runs"][0]["config"]
    assert made.view["baseline"]["trait_mean"] == 60.0
    assert made.view["baselines"] == view["baselines"]
    assert made.lost == made.recovered == []


def line(weight, trait, timestamp="2026-01-01"):
    return json.dumps({
        "config": {"vectors": [{"layer": 16, "component": "attn_out", "position": "response[:5]", "method": "probe", "weight": weight}]},
        "result": {"trait_mean": trait, "coherence_mean": 90.0, "n": 10}, "timestamp": timestamp,
    })  # fmt: skip


def baseline(trait):
    return json.dumps({"type": "baseline", "result": {"trait_mean": trait, "n": 10}, "timestamp": "2026-01-01"})


def write(results, place, *lines):
    path = results.path.parent / place / "results.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines))


def test_files_of_another_tool_are_read_and_the_last_of_equals_wins(results):
    write(results, "instruct/response__5/steering", json.dumps({"type": "header"}), baseline(10.0), line(50.0, 60.0), "",
          baseline(20.0), line(50.0, 70.0), line(-75.0, 5.0), '{"config": {"vec')  # fmt: skip
    made = rebuild(results)
    found = {run["config"]["coefficients"][0]: run["result"]["trait_mean"] for run in made.view["runs"]}
    assert found == {50.0: 70.0, -75.0: 5.0}
    assert made.view["runs"][0]["config"]["component"] == "attn_out"
    assert made.view["baseline"]["trait_mean"] == 20.0
    assert made.skipped == [("results.jsonl:8", "it is no run, or torn")]
    assert made.superseded == ["results.jsonl"]


def test_the_same_setting_of_two_models_is_two_runs(results):
    for model in ("base", "instruct"):
        write(results, model, baseline(10.0), line(50.0, 60.0))
    made = rebuild(results)
    assert {run["context_id"] for run in made.view["runs"]} == {"base", "instruct"} == set(made.view["baselines"])


FLAT = {"layers": [16], "methods": ["probe"], "coefficients": ["2"]}


@pytest.mark.parametrize(
    "config",
    [{}, {**FLAT, "layers": 5}, {**FLAT, "coefficients": ["x"]}, {**FLAT, "methods": []}, {"vectors": []}, {key: [] for key in FLAT}],
)  # fmt: skip
def test_a_line_that_does_not_say_what_was_steered_is_skipped(results, config):
    result = {"trait_mean": 60.0, "coherence_mean": 90.0, "n": 10}
    write(results, "m", *(json.dumps({"config": given, "result": result}) for given in (config, FLAT)))
    made = rebuild(results)
    assert [run["config"]["coefficients"] for run in made.view["runs"]] == [[2.0]]
    assert made.skipped == [("results.jsonl:1", "it is no run, or torn")]


def test_only_a_newline_ends_a_line(results):
    row = {**json.loads(line(50.0, 60.0)), "note": "one\u2028two\x85three"}
    write(results, "m", json.dumps(row, ensure_ascii=False), line(75.0, 60.0))
    made = rebuild(results)
    assert (len(made.view["runs"]), made.skipped) == (2, [])


def test_a_fresh_start_leaves_nothing_that_brings_the_runs_back(results):
    unit = put(results, 50.0)
    results.sync()
    path = results.store.path(unit.task)
    path.with_name(f"{path.name}.prev").write_text("{}")
    write_jsonl(results, results.path.with_name("results.jsonl"))
    write(results, "instruct", line(50.0, 60.0))
    place = results.archive()
    assert rebuild(results).view["runs"] == []
    assert not list(results.store.root.rglob("*.prev"))
    assert {file.name for file in place.rglob("*.json*")} == {
        "results.json", "results.jsonl", path.name, f"{path.name}.prev",
    }  # fmt: skip
    assert (place / "instruct/results.jsonl").exists()
