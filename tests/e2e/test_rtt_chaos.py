"""RTT sweeps that are killed: nothing is lost, nothing is done twice, the summary is the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from residuum.rtt.artefacts import read_rows
from residuum.worlds.people import Birthdays
from retraining import FT, numbers, settings, sweep, units

WORKER = """
import json, sys
from residuum.rtt.protocol import run_rtt
run_rtt(runs=sys.argv[1], **json.loads(sys.argv[2]))
"""


def start(world: Birthdays, place: Path, more: dict[str, Any]) -> subprocess.Popen[bytes]:
    given = json.dumps(settings(world, results_dir=str(place / "evals"), **more))
    command = [sys.executable, "-W", "ignore", "-c", WORKER, str(place / "runs"), given]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})


def wait_for_units(worker: subprocess.Popen[bytes], place: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while len(list(place.glob("runs/units/rtt-epoch/*/*.json"))) < count:
        assert worker.poll() is None, "the sweep ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def trial(world: Birthdays, place: Path, kills: list[int], more: dict[str, Any]) -> None:
    """Kill a sweep when it has so many units, again and again; two processes finish it; compare with one in peace."""
    for count in kills:
        worker = start(world, place, more)
        wait_for_units(worker, place, count)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    before = units(place)
    workers = [start(world, place, more) for _ in range(2)]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]

    peace = sweep(world, place.parent / f"{place.name}-peace", **more)
    after = units(place)
    assert {key: after[key] for key in before} == before, "a finished unit was done again"
    assert after.keys() == units(place.parent / f"{place.name}-peace").keys()
    found = sweep(world, place, **more)
    assert numbers(found) == numbers(peace)
    rows = read_rows(place / "evals" / "ft")
    assert len({row["run_id"] for row in rows}) == len(rows) == len(found.plan.runs)


def test_a_killed_sweep_is_finished_by_two_processes_and_nothing_is_lost(small, tmp_path):
    trial(small, tmp_path / "killed", [3], {"ft": {**FT, "epochs_lst": [1, 2, 3], "num_splits": 3}})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_kills_at_random_moments_change_nothing(small, tmp_path, seed):
    kills = sorted(random.Random(seed).sample(range(1, 40), 3))
    ft = {**FT, "epochs_lst": [1, 2, 3, 4, 5, 6], "num_splits": 3}
    trial(small, tmp_path / "killed", kills, {"ft": ft, "checkpoint_seconds": 0.0})
