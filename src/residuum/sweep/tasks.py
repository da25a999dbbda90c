"""A task of a sweep: what a worker is told, and by what content it is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from residuum.store import Task, content_hash

PREFIX = "sweep_"
"""Of the kinds of units that a sweep files."""
_LONGEST = 200
"""Characters of a file name, without its ending."""


@dataclass(frozen=True)
class Work:
    """What a worker is told: places and options. Where things are is no part of a task's identity, what they hold is."""

    name: str
    """The model's name, or the task's own when it has none."""
    set: str
    options: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None
    """Path or hub id."""
    full_model: str | None = None
    retain_model: str | None = None
    data: str | None = None
    data_dir: str | None = None
    out: str | None = None
    """Folder of a checkpoint to be made."""


@dataclass(frozen=True)
class SweepTask:
    """One frozen task."""

    name: str
    """``{kind}/{model}``, or as the plan calls it."""
    kind: str
    spec: Mapping[str, Any] = field(repr=False)
    """Everything that decides the result, as content."""
    work: Work = field(repr=False)
    needs: tuple[str, ...] = ()
    """Tasks that come first."""
    output: str | None = None
    """A file below the runs root, or absolute, that belongs to the result: without it the task is not done."""
    group: int | None = None
    """The model's position in the plan, by which shards divide the work; None for what all of them need."""

    @cached_property
    def unit(self) -> Task:
        """The unit that files the result."""
        return Task(PREFIX + self.kind, self.spec)

    @property
    def key(self) -> str:
        """Content hash."""
        return self.unit.key

    def record(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**asdict(self), "key": self.key}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> SweepTask:
        """The way back from `record`."""
        known = {key: value for key, value in record.items() if key != "key"}
        return cls(**{**known, "work": Work(**record["work"]), "needs": tuple(record["needs"])})

    def output_path(self, runs: Path) -> Path | None:
        """Where the output is."""
        return None if self.output is None else runs / self.output


def file_name(task: str) -> str:
    """A task's name as that of a file; a long one is cut, which file systems ask for."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "__", task).strip("._-") or "task"
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{content_hash(task)[:8]}"
