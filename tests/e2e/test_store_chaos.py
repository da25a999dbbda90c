"""Eight processes fill one store while some are killed with SIGKILL: nothing lost, nothing torn, nothing done twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest

import residuum.errors
from residuum.store import Store, Task, table

WORKERS, UNITS, KILLS = 8, 400, 12

# Plain Python without torch, so that a replacement is at work soon after a kill. Each execution is written down before
# it starts (with whether the unit was finished already) and after its unit is stored; an append is one system call.
WORKER = """
import os, random, sys, time
from residuum.store import Outcome, Store, Task

root, ledger, units, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
store, chance = Store(root), random.Random(seed)

def note(name, line):
    file = os.open(os.path.join(ledger, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, (line + "\\n").encode())
    os.close(file)

def work(task, number):
    note("begun", f"{task.key} {int(store.has(task))}")
    time.sleep(chance.uniform(0.005, 0.04))
    value = {"number": number, "halves": [i / 2 for i in range(number)]}
    if number % 40:
        return value
    import numpy
    return Outcome(value, {"numbers": numpy.arange(number)})

for number in chance.sample(range(units), units):
    task, executed = Task("chaos", {"number": number}), []
    store.run(task, lambda: executed.append(1) or work(task, number), provenance={})
    if executed:
        note("done-" + task.key, str(os.getpid()))
"""


def start(store: Store, ledger: Path, seed: int) -> subprocess.Popen[bytes]:
    source = str(Path(residuum.errors.__file__).parents[1])
    command = [sys.executable, "-c", WORKER, str(store.root), str(ledger), str(UNITS), str(seed)]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": source})


def finished(store: Store) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in store.root.glob("units/chaos/*/*.json")}


def run_under_fire(store: Store, ledger: Path, chance: random.Random) -> None:
    """Kill one random worker after the other, each at work by then, and at last all of them half-way."""
    workers = [start(store, ledger, seed) for seed in range(WORKERS)]
    for kill in range(KILLS):
        while len(list(store.root.glob("units/chaos/*/*.json"))) < UNITS / 2 * (kill + 1) / KILLS:
            assert [worker.poll() for worker in workers] == [None] * WORKERS, "a worker ended by itself"
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 0.05))
        victim = chance.randrange(WORKERS)
        workers[victim].kill()
        workers[victim].wait()
        workers[victim] = start(store, ledger, WORKERS + kill)
    for worker in workers:
        worker.kill()
        worker.wait()


def begun(ledger: Path) -> list[tuple[str, str]]:
    return [(key, had) for key, had in map(str.split, (ledger / "begun").read_text().splitlines())]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_killed_processes_lose_nothing_tear_nothing_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    store, ledger = Store(tmp_path / "runs"), tmp_path / "ledger"
    ledger.mkdir()

    run_under_fire(store, ledger, random.Random(seed))
    before, begun_before = finished(store), begun(ledger)
    assert UNITS / 2 <= len(before) < UNITS
    assert store.started(), "nobody was killed at work"

    survivors = [start(store, ledger, 1000 + i) for i in range(WORKERS)]
    assert [worker.wait(timeout=120) for worker in survivors] == [0] * WORKERS

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a damaged unit warns
        units = {unit.task.spec["number"]: unit for unit in store.units("chaos")}
    assert sorted(units) == list(range(UNITS))
    for number, unit in units.items():
        assert unit.value == {"number": number, "halves": [i / 2 for i in range(number)]}
        if number % 40 == 0:
            assert unit.arrays()["numbers"].tolist() == list(range(number))

    after = finished(store)
    assert {key: after[key] for key in before} == before, "a finished unit was written again"
    begun_after = begun(ledger)
    assert not [key for key, had in begun_after if had != "0"], "a finished unit was executed again"
    assert before.keys().isdisjoint(key for key, _ in begun_after[len(begun_before) :])
    stored = Counter(path.name for path in ledger.glob("done-*") for _ in path.read_text().splitlines())
    assert max(stored.values()) == 1, "a unit was done twice"

    assert store.started() == []
    assert not [path for path in store.root.rglob("*") if path.suffix in {".tmp", ".broken"}]
    assert [row["value.number"] for row in table(store, "chaos")] == sorted(range(UNITS), key=str)
    assert store.has(Task("chaos", {"number": 0}))


# Writes units of its own and looks at the table in between; what it wrote itself must be there each time.
READER = """
import sys
from residuum.store import Store, Task, table

store, name = Store(sys.argv[1]), sys.argv[2]
for number in range(40):
    store.put(Task("shared", {"by": name, "number": number}), number, provenance={})
    rows = [row for row in table(store, "shared") if row["spec.by"] == name]
    assert len(rows) == number + 1, (len(rows), number)
"""


def test_processes_that_share_an_index_see_every_unit_of_their_own(tmp_path: Path) -> None:
    source = str(Path(residuum.errors.__file__).parents[1])
    command = [sys.executable, "-W", "error", "-c", READER, str(tmp_path / "runs")]
    processes = [subprocess.Popen([*command, name], env=os.environ | {"PYTHONPATH": source}) for name in "abc"]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    assert len(table(Store(tmp_path / "runs"), "shared")) == 120
