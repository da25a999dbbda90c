"""Fixtures of the steering tests: the embedded experiment with its vectors, its subject and its judge."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from steering_lab import TRAIT


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
