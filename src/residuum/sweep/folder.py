"""What a sweep leaves on disk, ``{runs}/sweeps/{name}/``, and how far it is by that.

plan.json          the request, and its tasks as they were frozen
logs/{task}.log    one per task, attempts after each other
failed/{task}.json why a task was given up; `residuum sweep retry` removes it
table.csv, .json   one row per model, a view of the units

A finished task is a unit of the store, and one under way has a claim there: several drivers need nothing else to share a
folder.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from residuum.errors import InputError
from residuum.store import Owner, Store, write_json
from residuum.sweep.plan import Plan, is_done
from residuum.sweep.request import read_request
from residuum.sweep.tasks import SweepTask, file_name

FORMAT = 1


@dataclass(frozen=True)
class Failure:
    """Why a task was given up."""

    error: str
    attempts: int
    where: str
    time: str


@dataclass(frozen=True)
class State:
    """How far one task is."""

    name: str
    state: str
    """done, running, interrupted (its driver was killed), failed, blocked (what it needs failed) or waiting."""
    note: str
    log: str | None


class SweepFolder:
    """A sweep on disk.

    Args:
        path: ``{runs}/sweeps/{name}``.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.runs = self.path.absolute().parent.parent

    def save(self, plan: Plan) -> None:
        """Freeze a plan."""
        content = {
            "format": FORMAT, "folder": str(Path.cwd()), "request": plan.request.record(),
            "tasks": [task.record() for task in plan.tasks],
        }  # fmt: skip
        path = self.path / "plan.json"
        try:
            if json.loads(path.read_bytes()) == json.loads(json.dumps(content)):
                return
        except (OSError, ValueError):
            pass
        write_json(path, content)

    def load(self) -> Plan:
        """The frozen plan.

        Raises:
            InputError: this is not the folder of a sweep.
        """
        path = self.path / "plan.json"
        try:
            content = json.loads(path.read_bytes())
            if content["format"] > FORMAT:
                raise InputError(f"{self.path} was made by a newer residuum.\n  Upgrade residuum to read it.")
            tasks = tuple(SweepTask.read(record) for record in content["tasks"])
        except FileNotFoundError:
            raise InputError(
                f"{self.path} is not the folder of a sweep: it has no plan.json.{self._others()}"
            ) from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise InputError(f"{path} cannot be read: {error}.\n  `residuum sweep run` writes it again.") from error
        return Plan(read_request(content["request"]), tasks)

    def start(self) -> Path:
        """The folder in which the sweep was started, where the paths of its request lead; this one if that is gone."""
        try:
            folder = Path(json.loads((self.path / "plan.json").read_bytes())["folder"])
        except (OSError, ValueError, LookupError, TypeError):
            return Path.cwd()
        return folder if folder.is_dir() else Path.cwd()

    def log(self, task: SweepTask) -> Path:
        """The log of a task."""
        return self.path / "logs" / f"{file_name(task.name)}.log"

    def fail(self, task: SweepTask, error: str, attempts: int, where: str) -> None:
        """Record that a task was given up."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"task": task.name, "key": task.key, "error": error, "attempts": attempts, "where": where, "time": now}
        write_json(self._failed(task), {**record, "log": str(self.log(task).relative_to(self.path))})

    def failure(self, task: SweepTask) -> Failure | None:
        """Why a task was given up; a record about other content under this name does not count."""
        try:
            record = json.loads(self._failed(task).read_bytes())
        except (OSError, ValueError):
            return None
        if record.get("key") != task.key:
            return None
        return Failure(record["error"], record["attempts"], record["where"], record["time"])

    def forgive(self, *but: SweepTask) -> int:
        """Forget failures, so that their tasks are tried again; returns how many there were.

        Args:
            but: tasks of others, whose failures stay recorded.
        """
        kept = {self._failed(task) for task in but}
        records = [path for path in (self.path / "failed").glob("*.json") if path not in kept]
        for record in records:
            record.unlink(missing_ok=True)
        return len(records)

    def states(self, plan: Plan) -> list[State]:
        """How far every task is, from files alone."""
        store = Store(self.runs)
        found: dict[str, State] = {}
        for task in plan.tasks:
            found[task.name] = self._state(task, store)
        for task in plan.tasks:
            if found[task.name].state == "waiting" and (cause := _cause(task, plan.by_name, found)):
                found[task.name] = State(task.name, "blocked", f"needs {cause}, which failed", None)
        return list(found.values())

    def _state(self, task: SweepTask, store: Store) -> State:
        log = self.log(task)
        shown = str(log) if log.exists() else None
        if is_done(task, store):
            return State(task.name, "done", "", shown)
        if failure := self.failure(task):
            return State(task.name, "failed", failure.error, shown)
        if owner := store.owner(task.unit):
            return State(task.name, "running" if is_alive(owner) else "interrupted", str(owner), shown)
        return State(task.name, "waiting", "", shown)

    def _failed(self, task: SweepTask) -> Path:
        return self.path / "failed" / f"{file_name(task.name)}.json"

    def _others(self) -> str:
        near = sorted(path.parent.name for path in self.path.parent.glob("*/plan.json"))
        inside = sorted(path.parent.name for path in self.path.glob("sweeps/*/plan.json"))
        if inside:
            return f"\n  There are {', '.join(inside)} in {self.path / 'sweeps'}."
        return f"\n  There are {', '.join(near)} beside it." if near else ""


def is_alive(owner: Owner) -> bool:
    """Whether a process still lives; one on another machine is believed to."""
    if owner.host != platform.node():
        return True
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _cause(task: SweepTask, tasks: Mapping[str, SweepTask], states: Mapping[str, State]) -> str | None:
    """The failed task that this one waits for, however far up."""
    for need in task.needs:
        if states[need].state == "failed":
            return need
        if states[need].state in ("waiting", "blocked") and (above := _cause(tasks[need], tasks, states)):
            return above
    return None


def summary(states: list[State]) -> dict[str, Any]:
    """How many tasks are in which state."""
    return {name: sum(state.state == name for state in states) for name in ("done", "running", "interrupted", "failed", "blocked", "waiting")}  # fmt: skip
