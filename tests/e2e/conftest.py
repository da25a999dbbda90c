"""Fixtures of the evaluation tests, of the steering tests (the embedded experiment with its vectors, subject and judge) and of the RTT tests."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import pytest

from evidential import NO_CLASSIFIER
from steering_lab import TRAIT


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def evaluate(tiny_world, runs):
    """`residuum.evaluate` on the tiny world, with everything given; one store for all tests."""
    import residuum
    from residuum.metrics.evaluate import EvaluationWarning

    def call(stage="base", **options):
        given = {
            "data": tiny_world.data, "retain": tiny_world.model("retain90"), "full": tiny_world.model("full"),
            "device": "cpu", "runs": runs, "fluency_model": NO_CLASSIFIER,
        }  # fmt: skip
        model = options.pop("model", None) or tiny_world.model(stage)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvaluationWarning)
            return residuum.evaluate(model, **{**given, **options})

    return call


@pytest.fixture(scope="session")
def base(evaluate):
    return evaluate("base")


@pytest.fixture(scope="session")
def extracted(mood_world, tmp_path_factory) -> Path:
    """A root folder with the vectors of a trait; copied by tests that write."""
    from residuum.steering.experiments import Experiment
    from residuum.steering.extract import ExtractConfig, extract

    root = tmp_path_factory.mktemp("extracted") / "root"
    root.mkdir()
    for part in ("experiments", "datasets"):
        shutil.copytree(mood_world.folder / part, root / part)
    (root / "models").symlink_to(mood_world.folder / "models")
    methods = ("mean_diff", "probe", "random_baseline", "pca_diff", "lda", "gradient")
    extract(Experiment(root, "moods"), TRAIT, config=ExtractConfig(methods=methods, components=("residual", "mlp_out")))
    return root


@pytest.fixture
def root(extracted, tmp_path, monkeypatch) -> Path:
    """A copy of it to work in, without keys in the environment."""
    target = tmp_path / "work"
    shutil.copytree(extracted, target, symlinks=True)
    monkeypatch.chdir(target)
    monkeypatch.setenv("RESIDUUM_RUNS", str(target / "runs"))
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return target


@pytest.fixture(scope="session")
def subject(mood_world):
    from residuum.models.loading import load

    return load(mood_world.subject, device="cpu")


@pytest.fixture(scope="session")
def judge(mood_world):
    from residuum.steering.judge.base import JudgeOptions
    from residuum.steering.judge.hf import HFJudge
    from residuum.steering.judge.panel import Panel

    panel = Panel(HFJudge(JudgeOptions(model=str(mood_world.judge()))))
    panel.probe()
    return panel


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    """Three splits of four people to forget, one to keep, models of two layers that know nothing."""
    from residuum.worlds.people import build_birthdays

    return build_birthdays(tmp_path_factory.mktemp("small") / "world", name="tiny", title=None)
