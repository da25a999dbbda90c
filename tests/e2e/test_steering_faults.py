"""Judges and users that stop half-way: the right exit code, nothing finished lost, nothing written twice."""

from __future__ import annotations

import os
import signal

import pytest

from judging import serving
from residuum.errors import Unavailable
from residuum.steering.config import EvaluateConfig
from residuum.steering.evaluate import evaluate
from residuum.steering.experiments import Experiment
from residuum.steering.judge.base import JudgeOptions
from steering_lab import BASE, BRIEF, SHORT, SOURCE, TRAIT, call, local, results_of


def test_answers_survive_a_judge_that_dies_and_are_only_judged_later(root, subject, mood_world, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    options = {"backoff": 0.01, "retries": 1, "timeout": 5.0}
    config = EvaluateConfig(
        method="mean_diff", controls=0, generation=SHORT, layers="1", find_coef=False, coefficients=(1.0,)
    )
    with serving(mood_world.judge()) as server:
        settings = {
            "config": config,
            "model": subject,
            "judge": "openai",
            "judge_options": JudgeOptions(base_url=server.url, **options),
        }
        # Two calls of the test, twenty of the baseline, then nothing.
        server.faults.extend(["ok"] * 22)
        server.always = "status 500"
        with pytest.raises(Unavailable, match="in a row"):
            evaluate(Experiment(root, "moods"), SOURCE, **settings)
        view = results_of(root)
        assert [run["status"] for run in view["runs"]] == ["judge_failed"]
        server.always = None
        monkeypatch.setattr("residuum.generation.continue_prompts", None)
        out = evaluate(Experiment(root, "moods"), SOURCE, **settings)
    assert out["best"]["n"] == 10
    assert [run["status"] for run in results_of(root)["runs"]] == ["ok"]


def test_a_judge_without_numbers_stops_at_the_baseline(root, subject, mood_world):
    unsure = JudgeOptions(model=str(mood_world.judge("unsure")))
    with pytest.raises(Unavailable, match="low_mass"):
        evaluate(Experiment(root, "moods"), SOURCE, config=EvaluateConfig(method="mean_diff", generation=SHORT), model=subject, judge="hf", judge_options=unsure)  # fmt: skip


@pytest.mark.parametrize("fault", ["no logprobs", "nonsense", "status 401", "status 500", "empty"])
def test_a_judge_that_cannot_rate_is_exit_four_before_the_model_is_loaded(root, mood_world, monkeypatch, capsys, fault):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    monkeypatch.setattr("residuum.steering.judge.calls.LONGEST_WAIT", 0.01)
    (root / "models").unlink()
    with serving(mood_world.judge(), always=fault) as server:
        assert call(*BASE, "--judge-base-url", server.url) == 4
    assert "Traceback" not in capsys.readouterr().err


def test_a_judge_that_fails_on_some_settings_is_exit_three_and_recorded(root, mood_world, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    with serving(mood_world.judge()) as server:
        server.faults.extend(["ok"] * (2 + 4))  # the test of the judge, and the baseline
        server.always = "nonsense"
        words = ("--judge-base-url", server.url, "--layers", "1-2", "--no-find-coef", "--judge-concurrency", "1")
        assert call(*BASE, *words, *BRIEF) == 3
    assert "the judge failed on" in capsys.readouterr().err
    assert {run["status"] for run in results_of(root)["runs"]} == {"judge_failed"}
    assert {run["result"]["trait_mean"] for run in results_of(root)["runs"]} == {None}


@pytest.mark.parametrize(
    ("words", "rated", "said"),
    [
        (("--holdout", "0.5"), 2 + 4 + 4 + 4, "L1 c2 held out"),  # probe, baseline, run, held-out baseline
        (("--also-judge", "mood/gloomy"), 2 + 4 + 4, "mood/gloomy"),
        (("--controls", "1"), 2 + 4 + 4, "1 random vectors"),
    ],
)
def test_a_judge_that_fails_late_is_exit_three_and_asked_again(
    root, mood_world, monkeypatch, capsys, words, rated, said
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    brief = ("--max-new-tokens", "6", "--subset", "4" if "--holdout" in words else "2", "--controls", "0")
    with serving(mood_world.judge()) as server:
        server.faults.extend(["ok"] * rated)
        server.always = "nonsense"
        words = ("--judge-base-url", server.url, "--layers", "1", "--no-find-coef", "--judge-concurrency", "1", "--no-judge-cache", *brief, *words)  # fmt: skip
        assert call(*BASE, *words) == 3
        error = capsys.readouterr().err
        assert said in error
        assert "Traceback" not in error
        server.always = None
        assert call(*BASE, *words) == 0


def test_a_forced_run_that_nobody_judges_does_not_cost_the_finished_one(root, mood_world, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    with serving(mood_world.judge()) as server:
        words = (*BASE, "--judge-base-url", server.url, "--layers", "1", "--no-find-coef", "--no-judge-cache", *BRIEF)
        assert call(*words) == 0
        before = results_of(root)["runs"]
        server.faults.extend(["ok"] * 2)  # the test of the judge
        server.always = "status 401"
        assert call(*words, "--force") == 4
    assert results_of(root)["runs"] == before
    assert results_of(root)["baseline"]["n"] == 2


def test_rescoring_looks_for_answers_first_and_says_what_failed(root, mood_world, monkeypatch, capsys):
    again = ("steer", "rescore", "--experiment", "moods", "--trait", TRAIT)
    assert call(*again, "--judge", "openai") == 2
    assert "no runs to judge again" in capsys.readouterr().err
    assert call(*BASE, "--layers", "1", "--no-find-coef", *BRIEF, *local(mood_world)) == 0
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    with serving(mood_world.judge()) as server:
        server.faults.extend(["ok"] * 2)
        server.always = "nonsense"
        assert call(*again, "--judge-base-url", server.url) == 3
    assert "2 of 2 runs" in capsys.readouterr().err


def test_an_interrupt_saves_what_is_finished_and_is_exit_130(root, mood_world, monkeypatch, capsys):
    steps = []

    def interrupt(step):
        steps.append(step)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr("residuum.cli.steer.show_step", interrupt)
    assert call(*BASE, "--layers", "1", *BRIEF, *local(mood_world)) == 130
    assert "everything finished is saved" in capsys.readouterr().err
    assert len(results_of(root)["runs"]) == 2
    monkeypatch.undo()
