"""Four processes put a hundred runs into one trait while they are killed with SIGKILL: nothing lost, nothing torn."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time

import pytest

from residuum.steering.experiments import Experiment
from residuum.steering.rebuild import rebuild
from residuum.steering.results import Results
from residuum.store import Store
from steering_lab import SOURCE, TRAIT, results_of

WORKERS, RUNS, KILLS = 4, 25, 8


def start(root, mood_world, layer: int) -> subprocess.Popen[bytes]:
    """One sweep over the coefficients of one layer, a run at a time, as a user would start it."""
    coefficients = ",".join(f"{0.05 * number:.2f}" for number in range(1, RUNS + 1))
    words = [
        "steer", "evaluate", "--experiment", "moods", "--vector-from-trait", SOURCE, "--method", "mean_diff",
        "--no-find-coef", "--layers", str(layer), "--coefficients", coefficients, "--controls", "0", "--subset", "2",
        "--max-new-tokens", "6", "--batch-layers", "1", "--judge", "hf", "--judge-model", str(mood_world.judge()),
    ]  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "residuum", *words], cwd=root, env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(root) -> int:
    return len(list((root / "runs/units/steer").glob("*/*.json")))


@pytest.mark.slow
def test_four_sweeps_under_fire_lose_nothing(root, mood_world):
    chance = random.Random(0)
    sweeps = {layer: start(root, mood_world, layer) for layer in range(WORKERS)}
    place = root / "experiments/moods/steering" / TRAIT / "results.json"
    killed, deadline = 0, time.monotonic() + 420
    while any(sweep.poll() is None for sweep in sweeps.values()):
        assert time.monotonic() < deadline
        if place.exists():
            json.loads(place.read_text())  # whole at every moment
        if killed < KILLS and finished(root) >= (killed + 1) * 5:
            running = [layer for layer, sweep in sweeps.items() if sweep.poll() is None]
            layer = chance.choice(running)
            sweeps[layer].kill()
            sweeps[layer].communicate()
            killed += 1
            sweeps[layer] = start(root, mood_world, layer)
        time.sleep(chance.uniform(0.02, 0.2))
    for sweep in sweeps.values():
        assert sweep.returncode == 0, sweep.communicate()[1].decode()[-2000:]
    assert killed == KILLS
    view = results_of(root)
    assert len(view["runs"]) == WORKERS * RUNS
    assert len({json.dumps(run["config"]) for run in view["runs"]}) == WORKERS * RUNS
    assert {run["status"] for run in view["runs"]} == {"ok"}
    assert len(view["baselines"]) == 1
    for path in (root / "runs/units").rglob("*.json"):
        json.loads(path.read_text())
    assert rebuild(Results(Experiment(root, "moods"), TRAIT, Store(root / "runs"))).view == view
