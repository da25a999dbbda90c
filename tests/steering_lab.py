"""What tests of steering share: how commands are called, and where results are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from residuum.cli.app import run
from residuum.steering.config import EvaluateConfig
from residuum.steering.evaluate import evaluate
from residuum.steering.experiments import Experiment
from residuum.steering.settings import Generation

SHORT = Generation(max_new_tokens=24)
TRAIT, SOURCE = "mood/cheerful", "moods/mood/cheerful"
BASE = ("steer", "evaluate", "--experiment", "moods", "--vector-from-trait", SOURCE, "--method", "mean_diff")
BRIEF = ("--max-new-tokens", "6", "--controls", "0", "--subset", "2")


def call(*words: object) -> int:
    """A command as a user types it; its exit code."""
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    return int(stop.value.code or 0)


def local(mood_world, kind="numbers"):
    """A judge in this process, as a user names it."""
    return ("--judge", "hf", "--judge-model", str(mood_world.judge(kind)))


def results_of(root: Path, experiment: str = "moods", trait: str = TRAIT) -> dict:
    return json.loads((root / "experiments" / experiment / "steering" / trait / "results.json").read_text())


def steer(root, subject, judge, **settings):
    fields = {"method": "mean_diff", "controls": 0, "generation": SHORT, **settings}
    return evaluate(Experiment(root, "moods"), SOURCE, config=EvaluateConfig(**fields), model=subject, judge=judge)
