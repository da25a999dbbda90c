"""Several processes on one store: each unit is done once, whoever is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import residuum.errors
from residuum.store import Busy, Store, Task
from residuum.store.atomic import write_text

TASK = Task("uds", {"model": "full", "seed": 0})
Process = subprocess.Popen[str]
Spawn = Callable[..., Process]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts Python code in a process of its own; none outlives the test."""
    processes = []

    def start(code: str, *arguments: object) -> Process:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(Path(residuum.errors.__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


# Takes the unit, says so, and works until somebody writes a line to it.
HOLDER = """
import sys
from residuum.store import Store, Task

def work():
    print("holding", flush=True)
    sys.stdin.readline()
    return {"by": "holder"}

Store(sys.argv[1]).run(Task("uds", {"model": "full", "seed": 0}), work)
"""

# Wants the same unit; says on stderr when it has to wait.
WAITER = """
import logging, sys
from residuum.store import Store, Task

logging.basicConfig(level=logging.INFO)
unit = Store(sys.argv[1]).run(Task("uds", {"model": "full", "seed": 0}), lambda: {"by": "waiter"})
print(unit.value["by"], flush=True)
"""


@pytest.fixture
def holder(store: Store, spawn: Spawn) -> Process:
    """A process that is at work on the unit of TASK."""
    process = spawn(HOLDER, store.root)
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def test_two_processes_do_one_unit_once(store: Store, spawn: Spawn, holder: Process) -> None:
    waiter = spawn(WAITER, store.root)
    assert waiter.stderr is not None
    assert f"held by process {holder.pid} on" in waiter.stderr.readline()
    holder.communicate("finish\n")
    assert waiter.communicate()[0] == "holder\n"


def test_a_killed_unit_is_done_again_at_once_by_who_waits_for_it(store: Store, spawn: Spawn, holder: Process) -> None:
    waiter = spawn(WAITER, store.root)
    assert waiter.stderr is not None
    waiter.stderr.readline()
    holder.kill()
    assert waiter.communicate()[0] == "waiter\n"


def test_a_killed_process_leaves_its_name_until_the_unit_is_done(store: Store, holder: Process) -> None:
    holder.kill()
    holder.wait()
    assert [(owner.pid, owner.work) for owner in store.started()] == [(holder.pid, str(TASK))]
    store.run(TASK, lambda: 1, timeout=0)
    assert store.started() == []


def test_what_a_killed_writer_left_is_cleared_away(store: Store, holder: Process) -> None:
    holder.kill()
    holder.wait()
    folder = store.path(TASK).parent
    write_text(folder / f".{TASK.key}.json.{holder.pid}-0.tmp", "half a un")
    store.run(TASK, lambda: 1)
    assert [path.name for path in folder.iterdir()] == [f"{TASK.key}.json"]


def test_a_busy_unit_names_its_owner_when_the_time_is_over(store: Store, holder: Process) -> None:
    with pytest.raises(Busy, match=f"{TASK} is being done by process {holder.pid} on"):
        store.run(TASK, lambda: 1, timeout=0)


@pytest.mark.usefixtures("holder")
def test_a_damaged_unit_that_somebody_is_doing_again_is_left_in_place(store: Store) -> None:
    write_text(store.path(TASK), "torn")
    with pytest.warns(UserWarning, match="counts as absent"):
        assert store.get(TASK) is None
    assert store.path(TASK).read_text() == "torn"


def test_the_store_needs_no_heavy_imports(spawn: Spawn) -> None:
    code = "import sys, residuum.store; print({'torch', 'transformers', 'numpy', 'filelock'} & sys.modules.keys())"
    assert spawn(code).communicate()[0] == "set()\n"
