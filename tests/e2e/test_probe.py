"""Probes of an unlearned model of the tiny world, as a user runs them."""

from __future__ import annotations

import json

import pytest

from residuum.models.handles import ModelHandle
from residuum.steering.probes import ProbeConfig, run_probe
from residuum.training.unlearn import unlearn
from residuum.worlds.unlearned import FORMATS
from steering_lab import call

BRIEF = ProbeConfig(max_new_tokens=24, controls=5, steps=3)


@pytest.fixture(scope="session")
def shallow(tiny_world, tmp_path_factory):
    """A model that learned to say that it does not know; what it knew is still there."""
    return unlearn(
        "idknll", model=tiny_world.model("full"), forget=tiny_world.data / "forget10.jsonl",
        retain=tiny_world.data / "retain90.jsonl", out=tmp_path_factory.mktemp("shallow") / "idknll", lr=1e-3, alpha=2,
        epochs=20, batch_size=10, accumulation=1, format=FORMATS, device="cpu", seed=0, title=None,
    )  # fmt: skip


@pytest.fixture
def place(tiny_world, tmp_path):
    return {
        "full": tiny_world.model("full"), "retain": tiny_world.model("retain90"), "data": tiny_world.data,
        "runs": tmp_path / "runs",
    }  # fmt: skip


def test_ablating_what_sets_forget_questions_apart_brings_answers_back(place, shallow):
    made = run_probe("idk_ablation", unlearned=shallow, config=BRIEF, **place)
    accuracy = made["accuracy"]
    assert accuracy["unlearned"] < 0.3 < 0.9 < accuracy["original"]
    assert made["idk_rate"]["unlearned"] > 0.5 > made["idk_rate"]["steered"]
    assert made["beyond_random"] > 0.3
    assert made["beyond_retain"] > 0.3
    assert made["retain_accuracy"]["kept"]
    assert made["n"] == made["n_chosen_on"] == 5
    assert len(made["texts"]) == 5
    assert len(made["random"]["recoveries"]) == 5
    assert {row["layer"] for row in made["layers"]} == set(range(len(made["layers"])))
    assert all(-1 <= row["cosine_refusal"] <= 1 and 0 <= row["linear_probe"] <= 1 for row in made["layers"])


def test_a_probe_done_before_is_only_read(place, shallow, monkeypatch):
    first = run_probe("junk_ablation", unlearned=shallow, config=BRIEF, **place)
    monkeypatch.setattr("residuum.generation.continue_prompts", None)
    monkeypatch.setattr(ModelHandle, "lm", None)
    assert run_probe("junk_ablation", unlearned=shallow, config=BRIEF, **place) == first
    saved = json.loads((place["runs"] / "probes" / "idknll" / "junk_ablation.json").read_text())
    assert saved == json.loads(json.dumps(first))


def test_a_model_that_never_knew_gives_nothing_back(place, tiny_world):
    made = run_probe("idk_ablation", unlearned=tiny_world.model("retain90"), config=BRIEF, **place)
    assert "proves nothing" in made["finding"]


def test_a_model_that_forgot_nothing_has_nothing_to_recover(place, tiny_world):
    made = run_probe("model_diff", unlearned=tiny_world.model("full"), config=BRIEF, **place)
    assert made["recovery"] is None
    assert "nothing to recover" in made["finding"]


def test_every_probe_runs_from_the_command_line(place, shallow, capsys):
    words = ("--full", place["full"], "--unlearned", shallow, "--retain", place["retain"], "--data", place["data"], "--runs", place["runs"])  # fmt: skip
    brief = (
        "--max-new-tokens",
        "6",
        "--controls",
        "2",
        "--search-steps",
        "1",
        "--samples",
        "2",
        "--layers",
        "2",
        "--subset",
        "3",
    )
    assert call("steer", "probe", "--probe", "all", *words, *brief, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 6
    assert all({"probe", "accuracy", "recovery", "random", "retain_recovery", "beyond_random", "beyond_retain", "retain_accuracy", "finding"} <= set(made) for made in found)  # fmt: skip
    assert call("steer", "probe", "--probe", "idk_ablation", *words, *brief) == 0
    assert "failure proves nothing" in capsys.readouterr().out
    assert call("steer", "probe", "--probe", "model_diff", "--score", "mcq", *words, *brief) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--probe", "magic"), "idk_ablation"),
        (("--probe", "anon", "--score", "bleu"), "rouge"),
        (("--probe", "anon", "--layers", "99"), "does not exist"),
        (("--probe", "anon", "--forget-split", "nothing"), "nothing"),
        (("--probe", "anon", "--unlearned", "nowhere/at/all"), "nowhere"),
    ],
)
def test_mistakes_are_told_in_a_sentence(place, tiny_world, capsys, words, said):
    base = ("--full", place["full"], "--unlearned", place["retain"], "--retain", place["retain"], "--data", place["data"], "--runs", place["runs"])  # fmt: skip
    assert call("steer", "probe", *base, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
