"""The given run folders, read and never written: whole units, JSON files, and what could not be used.

A damaged file is named on the page and skipped. Unlike `residuum.store.Store.load`, which sets damaged units aside so that
they are made again, looking at a store must leave it as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from residuum.errors import InputError, StoreError
from residuum.report.shapes import ORIGIN, Shape, misfit
from residuum.store.runs import Store, unit_files
from residuum.store.units import Damaged, Unit, read_unit


@dataclass(frozen=True)
class Problem:
    """Something that is not on the page, or not whole, and why."""

    where: str
    what: str
    kind: str = "broken"
    """broken (skipped), partial (shown as far as it is), or note."""


@dataclass(frozen=True)
class Source:
    """Where numbers come from: one run, with everything needed to make it again."""

    id: str
    kind: str
    model: str
    place: str
    """Run folder, or kind and key of the unit."""
    created: str | None
    version: str | None
    provenance: Mapping[str, Any] = field(repr=False)
    settings: Mapping[str, Any] = field(repr=False)


class Shelf:
    """Folders of runs.

    Args:
        folders: roots of run stores, folders that hold some, or single run folders.

    Raises:
        InputError: a folder does not exist.
        StoreError: a newer residuum made a store.
    """

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.roots: list[Path] = []
        self.problems: list[Problem] = []
        self.sources: list[Source] = []
        self._units: dict[str, list[Unit]] = {}
        for folder in map(Path, folders):
            if not folder.is_dir():
                raise InputError(f"{folder} is not a folder of runs.\n  Name the root of a run store, such as runs/.")
            inside = [folder / "runs"] if (folder / "runs" / "manifest.json").is_file() else []
            self.roots += [root for root in (folder, *inside) if root not in self.roots]
        self.stores = [Store(root) for root in self.roots]

    def units(self, kind: str, shape: Mapping[str, Shape]) -> list[Unit]:
        """Whole units of a kind in all stores, oldest first; one that lies in two stores counts once.

        Args:
            kind: of their tasks.
            shape: of ``spec`` and ``value``; units of another one are problems.
        """
        if kind not in self._units:
            found = {unit.task.key: unit for store in self.stores for unit in self._read(store, kind, shape)}
            self._units[kind] = sorted(found.values(), key=lambda unit: (unit.created, unit.task.key))
        return self._units[kind]

    def kinds(self) -> list[str]:
        """The kinds of units there are."""
        return sorted({kind for store in self.stores for kind in store.kinds()})

    def glob(self, *patterns: str) -> list[Path]:
        """Files or folders under the roots, sorted, each once."""
        found = {(root, path) for root in self.roots for pattern in patterns for path in root.glob(pattern)}
        return sorted({path for root, path in found if "archive" not in path.relative_to(root).parts})

    def json(self, path: Path, shape: Shape = object) -> Any:
        """The content of a JSON file; None, and a problem, when it cannot be read or has another shape."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            self.broken(path, f"cannot be read ({_reason(error)})")
            return None
        if bad := misfit(content, shape):
            self.broken(path, f"is not what it should be: {bad}")
            return None
        return content

    def broken(self, path: Path, what: str) -> None:
        """Note a file that is skipped."""
        self._note(Problem(self.place(path), what))

    def partial(self, where: str, what: str) -> None:
        """Note a run that is shown as far as it is."""
        self._note(Problem(where, what, "partial"))

    def note(self, where: str, what: str) -> None:
        """Note something a reader should know."""
        self._note(Problem(where, what, "note"))

    def place(self, path: Path) -> str:
        """A path as the page shows it: below the folder that was given, with that folder's own name."""
        for root in self.roots:
            if path.is_relative_to(root):
                return str(Path(root.name or ".") / path.relative_to(root))
        return path.name

    def cite(
        self,
        kind: str,
        model: str,
        place: str,
        *,
        provenance: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        created: str | None = None,
        version: str | None = None,
    ) -> str:
        """File a run for the provenance section; returns the id that numbers link to."""
        origin = provenance or {}
        source = Source(
            f"run-{len(self.sources) + 1}", kind, model, place, created or origin.get("time"),
            version or (origin.get("versions") or {}).get("residuum"), origin, settings or {},
        )  # fmt: skip
        self.sources.append(source)
        return source.id

    def cite_unit(self, unit: Unit, model: str, settings: Mapping[str, Any] | None = None) -> str:
        """File a unit as the source of numbers."""
        return self.cite(
            unit.task.kind, model, f"units/{unit.task.kind}/{unit.task.key[:16]}", provenance=unit.provenance,
            settings=settings or unit.task.spec, created=unit.created, version=unit.version,
        )  # fmt: skip

    def look_for_unfinished(self) -> None:
        """Note work that is under way, or was killed at it, and files that were set aside as damaged."""
        for store in self.stores:
            for owner in store.started():
                self.partial(f"{store.root.name}/claims", f"{owner.work}: started by {owner}, not finished")
            for path in sorted((store.root / "units").glob("*/*/*.json.broken")):
                self.broken(path, "was damaged and set aside earlier; run its command again to make it anew")

    def _read(self, store: Store, kind: str, shape: Mapping[str, Shape]) -> Iterator[Unit]:
        for folder in store.folders(kind):
            for path in sorted(Path(entry.path) for entry in unit_files(folder)):
                try:
                    unit = read_unit(path)
                    whole = {"spec": unit.task.spec, "value": unit.value, "provenance": unit.provenance}
                    if bad := misfit(whole, {**shape, "provenance": ORIGIN}):
                        self.broken(path, f"is not what a unit of {kind} should be: {bad}")
                    else:
                        yield unit
                except FileNotFoundError:
                    continue
                except Damaged as damage:
                    self.broken(path, f"{damage}; run its command again to make it anew")
                except StoreError as error:
                    self.broken(path, str(error).replace("\n ", ""))

    def _note(self, problem: Problem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is torn or not JSON"
