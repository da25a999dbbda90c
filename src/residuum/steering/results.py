"""``results.json`` of a trait: a view of its runs in the run store, in the shape that older tools read.

The units of the store are the truth. The view is brought up to date under a lock after every run, and made anew from the
units when a command starts; whatever a killed process left out comes back then.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeGuard

from residuum.errors import InputError, StoreError, UsageError
from residuum.steering.experiments import Experiment
from residuum.steering.settings import KIND, context_id
from residuum.steering.traits import PromptSet, SteeringWarning, load_prompts
from residuum.store import Store, Unit, claim, write_json
from residuum.store.atomic import storage_error

SCHEMA = 1
CROSS_KIND = "steer-cross"
"""Units with the answers of a run judged on another trait."""


@dataclass(frozen=True)
class Results:
    """The results of one trait in one experiment."""

    experiment: Experiment
    trait: str
    store: Store

    @property
    def path(self) -> Path:
        """The view."""
        return self.experiment.steering(self.trait) / "results.json"

    @property
    def place(self) -> dict[str, str]:
        """What tells its units from those of other traits, experiments and roots in the same store.

        The root is given as seen from the store: a project that is moved or copied with its runs keeps them.
        """
        root = os.path.relpath(self.experiment.root.resolve(), self.store.root.resolve())
        return {"root": Path(root).as_posix(), "experiment": self.experiment.name, "trait": self.trait}

    def units(self) -> list[Unit]:
        """All runs and baselines of the trait."""
        return self._own(KIND)

    def cross_units(self) -> list[Unit]:
        """All cross-trait judgements of the trait."""
        return self._own(CROSS_KIND)

    def check_prompts(self, prompts: PromptSet) -> None:
        """Refuse to mix results of different questions, or of a past that somebody has deleted.

        Raises:
            UsageError: says what there is and which ways lead out.
        """
        view = self.read()
        if view is None:
            if self.units():
                raise UsageError(
                    f"{self.path} is gone, but its runs are still in {self.store.root}.\n"
                    "  Start anew with --fresh (the old runs are archived), or bring it back with residuum steer rebuild."
                )
            return
        known = view.get("prompts_hash") or self._older_hash(view.get("prompts_file"), prompts)
        if known is not None and known != prompts.hash:
            raise UsageError(
                f"the results belong to other prompts.\n"
                f"  stored:  {view.get('prompts_file')} ({str(known)[:16]})\n  current: {prompts.path} ({prompts.hash[:16]})\n"
                f"  Start anew with --fresh (the old runs are archived), use another --experiment, or delete {self.path}."
            )

    def read(self) -> dict[str, Any] | None:
        """The view as it is; a damaged one is set aside and made anew. None when there is none."""
        try:
            view = json.loads(self.path.read_bytes())
            if not is_view(view):
                raise ValueError
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        except ValueError:
            aside = self.path.replace(self.path.with_name(f"results.json.corrupt-{_now().replace(':', '')}"))
            warnings.warn(f"{self.path} is damaged; kept as {aside.name} and made anew.", SteeringWarning, stacklevel=2)
            # Written at once: the command may yet fail, and the next one must not find runs without a view.
            view = self.rebuild()
            if view["runs"] or view["baselines"]:
                write_json(self.path, view)
        return view

    def add(self, unit: Unit, *, prompts: PromptSet | None = None) -> None:
        """Put one finished unit into the view."""
        with self.alone():
            view = self.read() or self._empty()
            self._settle(view, [unit], prompts)
            write_json(self.path, view)

    def sync(self, *, prompts: PromptSet | None = None) -> dict[str, Any]:
        """Make the view from all units; entries it has of units that are gone stay."""
        with self.alone():
            view = self.read() or self._empty()
            self._settle(view, [*self.units(), *self.cross_units()], prompts)
            write_json(self.path, view)
            return view

    def rebuild(self) -> dict[str, Any]:
        """The view that the units alone make."""
        view = self._empty()
        units = self.units()
        self._settle(view, [*units, *self.cross_units()], None)
        latest = max(units, key=lambda unit: unit.value["timestamp"], default=None)
        if latest is not None:
            view["prompts_file"] = latest.value.get("prompts_file")
            view["prompts_hash"] = latest.task.spec["context"]["prompts"]
        return view

    def archive(self) -> Path | None:
        """Move the view, JSON lines and all units of the trait aside; None when there is nothing.

        Units, and what they replaced, go into a store of their own, ``archive/{time}/runs``, and can still be read there.
        """
        folder = self.path.parent
        place = folder / "archive" / _now().replace(":", "")
        moves = {path: place / path.relative_to(folder) for path in (self.path, *jsonl_files(folder))}
        for unit in (*self.units(), *self.cross_units()):
            path = self.store.path(unit.task)
            for old in (path, path.with_name(f"{path.name}.prev")):
                moves[old] = place / "runs" / old.relative_to(self.store.root)
        moves = {old: new for old, new in moves.items() if old.exists()}
        if not moves:
            return None
        with self.alone():
            for old, new in moves.items():
                new.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(old, new)
        return place

    def _older_hash(self, stored: Any, prompts: PromptSet) -> str | None:
        """What stands for the hash that older tools did not write: the content of the file they name, if it is another."""
        if not isinstance(stored, str) or not stored:
            return None
        path = self.experiment.root / stored
        if path.resolve() == prompts.path.resolve():
            return None
        try:
            return load_prompts(path, default_prompt=prompts.eval_prompt).hash
        except InputError:
            return "unknown"

    def alone(self) -> AbstractContextManager[Any]:
        """Nobody else changes the view inside."""
        return claim(self.path.with_name(".results"), f"the results of {self.trait}", timeout=60)

    def _own(self, kind: str) -> list[Unit]:
        place = self.place.items()
        return [unit for unit in self.store.units(kind) if place <= unit.task.spec.items()]

    def _empty(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA, "trait": self.trait, "prompts_file": None, "prompts_hash": None,
            "baseline": None, "runs": [], "baselines": {}, "controls": [], "cross": [],
        }  # fmt: skip

    def _settle(self, view: dict[str, Any], units: Iterable[Unit], prompts: PromptSet | None) -> None:
        """Put units into a view: one entry per run, in the order in which the runs were first made."""
        for part in ("controls", "cross"):
            view.setdefault(part, [])
        view.setdefault("baselines", {})
        if prompts is not None:
            view["prompts_file"], view["prompts_hash"] = str(prompts.path), prompts.hash
        tables: dict[str, dict[str, Any]] = {
            part: {_place(entry, number): entry for number, entry in enumerate(view[part])}
            for part in ("runs", "controls", "cross")
        }
        for unit in units:
            if unit.task.kind == CROSS_KIND:
                tables["cross"][f"{unit.task.spec['run_id']}/{unit.task.spec['judged_trait']}"] = cross_entry(unit)
            elif unit.task.spec["run"] is None:
                view["baselines"][context_id(unit.task.spec["context"])] = baseline_entry(unit)
            else:
                part = "controls" if unit.value.get("control_of") else "runs"
                tables[part][unit.task.key[:16]] = run_entry(unit)
        for part, table in tables.items():
            # Entries of older tools have no id and stay in front, as they came.
            view[part] = sorted(table.values(), key=lambda e: (e.get("created") or "", e.get("run_id") or ""))
        view["baselines"] = dict(sorted(view["baselines"].items()))
        if view["baselines"]:
            view["baseline"] = max(
                view["baselines"].values(), key=lambda entry: (entry["timestamp"], entry["context_id"])
            )


def jsonl_files(folder: Path) -> list[Path]:
    """JSON lines of a trait, at any depth; what was archived is over."""
    return sorted(path for path in folder.rglob("results.jsonl") if "archive" not in path.relative_to(folder).parts)


def run_entry(unit: Unit) -> dict[str, Any]:
    """A run as the view shows it."""
    spec, value = unit.task.spec, unit.value
    config = {key: item for key, item in spec["run"].items() if key != "vectors"}
    entry = {
        "config": config,
        "result": rounded(value["result"]),
        "timestamp": value["timestamp"],
        "run_id": unit.task.key[:16],
        "context_id": context_id(spec["context"]),
        "created": value["created"],
        "model": spec["context"]["model"]["name"],
        "judge": {key: spec["context"]["judge"].get(key) for key in ("provider", "model", "scoring")},
        "status": value["status"],
        "relative_coefficient": rounded(value["relative_coefficients"]),
        "search": value.get("search"),
    }
    for optional in ("vector_source", "control_of", "split"):
        if value.get(optional) is not None:
            entry[optional] = value[optional]
    return entry


def baseline_entry(unit: Unit) -> dict[str, Any]:
    """A baseline as the view shows it."""
    result = rounded(unit.value["result"])
    return {**result, "context_id": context_id(unit.task.spec["context"]), "timestamp": unit.value["timestamp"]}


def cross_entry(unit: Unit) -> dict[str, Any]:
    """A run judged on another trait."""
    value = unit.value
    return {
        "run_id": unit.task.spec["run_id"], "judged_trait": unit.task.spec["judged_trait"],
        "result": rounded(value["result"]), "baseline": rounded(value["baseline"]), "delta": rounded(value["delta"]),
        "created": value["created"], "timestamp": value["timestamp"],
    }  # fmt: skip


def rounded(value: Any) -> Any:
    """Floats with four decimals, for people; the units keep them whole."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    return value


def is_view(view: Any) -> TypeGuard[dict[str, Any]]:
    """Whether a file has the shape that everything here relies on; older tools wrote runs only."""
    return (
        isinstance(view, dict)
        and isinstance(view.get("runs"), list)
        and isinstance(view.get("baselines", {}), dict)
        and all(isinstance(view.get(part, []), list) for part in ("controls", "cross"))
        and all(isinstance(entry, dict) for part in ("runs", "controls", "cross") for entry in view.get(part, []))
        and all(isinstance(run.get(part), dict) for run in view["runs"] for part in ("config", "result"))
    )


def _place(entry: Any, number: int) -> str:
    if not isinstance(entry, dict):
        raise StoreError(f"results.json holds an entry that is no run: {entry!r}")
    identity = entry.get("run_id")
    if "judged_trait" in entry:
        return f"{identity}/{entry['judged_trait']}"
    return str(identity) if identity else f"older-{number}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
