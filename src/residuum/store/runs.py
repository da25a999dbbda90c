"""The run store: a folder of finished units that many processes may use at once.

    store = Store("runs")
    unit = store.run(Task("uds", {"model": "simnpo", "seed": 0}), lambda: {"uds": 0.87})
    unit.value["uds"]

A finished hash is skipped. That one rule gives resume, sweeps, shared reference runs and safe parallel writers.

    runs/
      manifest.json                               format of the store, and who made it
      units/{kind}/{key[:2]}/{key}.json           a finished unit; {key}.safetensors beside it holds its arrays
      units/{kind}/{key[:2]}/{key}.json.broken    a damaged one, set aside
      claims/{kind}-{key}.lock, .started          work under way, or killed half-way
      index.sqlite                                a view, see `residuum.store.views`
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import StoreError
from residuum.store.atomic import storage_error, write_json
from residuum.store.locks import Owner, claim
from residuum.store.origin import provenance as provenance_of_this_process
from residuum.store.origin import versions
from residuum.store.units import FORMAT, Damaged, Task, Unit, read_unit, write_unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UNIT_FILE = re.compile(r"[0-9a-f]{64}\.json")

log = logging.getLogger(__name__)


class StoreWarning(UserWarning):
    """A unit cannot be read; it is made again."""


@dataclass(frozen=True)
class Outcome:
    """What a function given to `Store.run` returns when it makes arrays beside its JSON value."""

    value: Any
    arrays: Mapping[str, NDArray[Any]]


class Store:
    """Finished units, by task.

    Opening only reads, so a store in a read-only folder can be looked at; folders appear with the first unit.

    Args:
        root: the folder, for instance ``runs``.

    Raises:
        StoreError: ``root`` is a file, or a newer residuum made the store.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._check_manifest()

    def get(self, task: Task) -> Unit | None:
        """The finished unit of a task, or none. A damaged file is set aside with a warning and counts as absent."""
        return self.load(self.path(task))

    def has(self, task: Task) -> bool:
        """Whether the task is finished, without opening its file."""
        return self.path(task).exists()

    def put(
        self,
        task: Task,
        value: object,
        *,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> Unit:
        """Write a finished unit, over an earlier one if there is one.

        Args:
            task: what was done.
            value: the result as JSON; NaN is refused.
            arrays: numeric results too large for JSON, by name.
            provenance: from `residuum.store.provenance`; without it, that of this process.
        """
        with self._claim(task.kind, task.key):
            return self._finish(task, value, arrays, provenance)

    def run(
        self,
        task: Task,
        function: Callable[[], object],
        *,
        provenance: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Unit:
        """The unit of a task: read when it is finished, else made by ``function``, in one process only.

        Others who want the same unit wait for it. If its maker is killed, the next one takes over at once; if
        ``function`` raises, nothing is written.

        Args:
            task: what to do.
            function: does it; returns a JSON value, or an `Outcome` when there are arrays.
            provenance: as in `put`.
            timeout: seconds to wait for another process; ``None`` as long as that one lives, 0 to skip busy units.

        Raises:
            Busy: another process is at it and the time is over; the error names the process.
        """
        finished = self.get(task)
        if finished is not None:
            return finished
        with self._claim(task.kind, task.key, timeout):
            finished = self._load_alone(self.path(task))
            if finished is not None:
                self._remove_lock(task)
                return finished
            result = function()
            value, arrays = (result.value, result.arrays) if isinstance(result, Outcome) else (result, None)
            return self._finish(task, value, arrays, provenance)

    @contextlib.contextmanager
    def hold(self, task: Task, *, timeout: float | None = None) -> Iterator[Callable[..., Unit]]:
        """Claim a task that is worked on elsewhere: by another process, or on another machine.

        Yields:
            What files the result, called with the value and, by name, ``arrays`` and ``provenance``.

        Raises:
            Busy: another process has it and the time is over, as in `run`.
        """

        def finish(
            value: object,
            *,
            arrays: Mapping[str, NDArray[Any]] | None = None,
            provenance: Mapping[str, Any] | None = None,
        ) -> Unit:
            return self._finish(task, value, arrays, provenance)

        with self._claim(task.kind, task.key, timeout):
            yield finish

    def owner(self, task: Task) -> Owner | None:
        """Who has this task under way, or was killed at it."""
        place = self._claim_path(task.kind, task.key)
        return Owner.read(place.with_name(f"{place.name}.started"))

    def units(self, kind: str | None = None) -> Iterator[Unit]:
        """All finished units, or those of one kind, in the order of their keys; reads and verifies every file."""
        for name in self.kinds() if kind is None else [kind]:
            for folder in self.folders(name):
                for path in sorted(entry.path for entry in unit_files(folder)):
                    unit = self.load(Path(path))
                    if unit is not None:
                        yield unit

    def kinds(self) -> list[str]:
        """The kinds of units in the store."""
        return sorted(entry.name for entry in _entries(self.root / "units"))

    def folders(self, kind: str) -> list[Path]:
        """The folders with the unit files of one kind."""
        return sorted(Path(entry.path) for entry in _entries(self.root / "units" / kind))

    def started(self) -> list[Owner]:
        """Who has work under way in this store, or was killed at it."""
        owners = []
        for mark in sorted((self.root / "claims").glob("*.started")):
            kind, _, key = mark.stem.rpartition("-")
            owner = Owner.read(mark)
            # A process killed between its last two steps leaves the mark of a finished unit behind.
            if owner is not None and not self._unit_path(kind, key).exists():
                owners.append(owner)
        return owners

    def path(self, task: Task) -> Path:
        """Where the unit of a task is, or will be."""
        return self._unit_path(task.kind, task.key)

    def load(self, path: Path) -> Unit | None:
        """The unit in one file of this store, as `get` gives it."""
        try:
            return read_unit(path)
        except FileNotFoundError:
            return None
        except Damaged as damage:
            try:
                # Another process may be putting a whole file into this place right now: look again, alone.
                with self._claim(path.parent.parent.name, path.stem, timeout=0):
                    return self._load_alone(path)
            except StoreError:
                warnings.warn(f"{path} {damage}; the unit counts as absent", StoreWarning, stacklevel=3)
                return None

    def _load_alone(self, path: Path) -> Unit | None:
        """Like `load`, for the holder of the claim, who may set a damaged file aside."""
        try:
            return read_unit(path)
        except FileNotFoundError:
            return None
        except Damaged as damage:
            aside = path.replace(path.with_suffix(".json.broken"))
            warnings.warn(
                f"{path} {damage}; kept as {aside.name}, and the unit counts as absent", StoreWarning, stacklevel=4
            )
            return None

    def _finish(
        self,
        task: Task,
        value: object,
        arrays: Mapping[str, NDArray[Any]] | None,
        provenance: Mapping[str, Any] | None,
    ) -> Unit:
        if provenance is None:
            provenance = provenance_of_this_process()
        unit = write_unit(self.path(task), task, value, arrays, provenance)
        self._remove_lock(task)
        return unit

    @contextlib.contextmanager
    def _claim(self, kind: str, key: str, timeout: float | None = None) -> Iterator[None]:
        self._make_manifest()
        with claim(self._claim_path(kind, key), f"{kind} {key[:16]}", timeout=timeout) as killed:
            if killed is not None:
                log.warning("%s was started by %s and never finished", killed.work, killed)
                for litter in self._unit_path(kind, key).parent.glob(f".{key}*.tmp"):
                    litter.unlink(missing_ok=True)
            yield

    def _remove_lock(self, task: Task) -> None:
        """A store of 100,000 units needs no 100,000 lock files.

        Removing one that others wait for can let two of them in, which is harmless once the unit is there: both
        find it finished.
        """
        place = self._claim_path(task.kind, task.key)
        place.with_name(f"{place.name}.lock").unlink(missing_ok=True)

    def _unit_path(self, kind: str, key: str) -> Path:
        return self.root / "units" / kind / key[:2] / f"{key}.json"

    def _claim_path(self, kind: str, key: str) -> Path:
        return self.root / "claims" / f"{kind}-{key}"

    def _make_manifest(self) -> None:
        path = self.root / "manifest.json"
        if not path.exists():
            created = datetime.now(UTC).isoformat(timespec="seconds")
            write_json(path, {"format": FORMAT, "residuum": versions()["residuum"], "created": created})

    def _check_manifest(self) -> None:
        path = self.root / "manifest.json"
        try:
            manifest = json.loads(path.read_bytes())
            newer = manifest["format"] > FORMAT
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error("read", path, error) from error
        except (ValueError, LookupError, TypeError):
            raise StoreError(
                f"{path} is not the manifest of a run store.\n  Choose another folder, or delete the file if it is damaged."
            ) from None
        if newer:
            raise StoreError(
                f"{self.root} was made by a newer residuum: {manifest.get('residuum')}, store format {manifest['format']}; "
                f"this is {versions()['residuum']}, which knows format {FORMAT}.\n  Upgrade residuum, or choose another folder."
            )


def unit_files(folder: Path) -> list[os.DirEntry[str]]:
    """The finished units in a folder, unread and in no order; neither files being written nor broken ones."""
    return [entry for entry in _entries(folder) if _UNIT_FILE.fullmatch(entry.name)]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, from one look at it; nothing when it is not there or not a folder."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
