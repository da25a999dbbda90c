"""Tables over a store: one flat row per unit, quick at 100,000 units.

The unit files are the truth. `index.sqlite` beside them only saves opening them again: each call looks at the time
stamps of the folders, lists those that changed, reads the files that are new or replaced, and forgets those that are
gone. A damaged index is deleted, and where none can be written (a read-only folder) the files are read instead.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from residuum.store.runs import Store, unit_files
from residuum.store.units import Unit

# The number in the names is raised whenever rows are made differently, so that old rows are not taken for new ones.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS folder_1 (kind TEXT, folder TEXT, stamp INTEGER, PRIMARY KEY (kind, folder)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS unit_1
    (kind TEXT, folder TEXT, key TEXT, stamp TEXT, row TEXT, PRIMARY KEY (kind, folder, key)) WITHOUT ROWID;
"""
# Writes only what differs: a transaction without a change costs no wait for the disk.
_SET_STAMP = """
INSERT INTO folder_1 VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET stamp = excluded.stamp WHERE stamp IS NOT excluded.stamp
"""
# File systems stamp in ticks, and two changes may share one: a folder is believed once its last change is this old.
_SETTLED = 5_000_000_000  # nanoseconds


def table(store: Store, kind: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """One flat row per unit of a kind, ordered by spec, whoever made them and when.

    A row has every text, number, boolean or null of spec and value under its dotted name, such as ``spec.model`` or
    ``value.forget.em``, and ``key`` and ``created``. Lists are left to `Store.get`.

    Args:
        store: where the units are.
        kind: which of them.
        columns: the names to keep, in this order; a name that a unit lacks is ``None`` in its row.
    """
    rows = _rows(store, kind) if kind in store.kinds() else []
    return rows if columns is None else [{name: row.get(name) for name in columns} for row in rows]


def _rows(store: Store, kind: str) -> list[dict[str, Any]]:
    path = store.root / "index.sqlite"
    try:
        return _query(path, store, kind)
    except sqlite3.OperationalError:  # no room, no right to write, or locked for long
        return _query(":memory:", store, kind)
    except sqlite3.DatabaseError:  # not an index, or a damaged one
        for file in (path.with_name("index.sqlite-journal"), path):
            file.unlink(missing_ok=True)
        return _query(path, store, kind)


def _query(index: Path | str, store: Store, kind: str) -> list[dict[str, Any]]:
    # Sqlite's default journal, unlike its write-ahead log, works on network folders.
    with contextlib.closing(sqlite3.connect(index, timeout=30, isolation_level=None)) as database:
        database.executescript(_SCHEMA)
        known = dict(database.execute("SELECT folder, stamp FROM folder_1 WHERE kind = ?", (kind,)))
        folders = {folder.name: folder for folder in store.folders(kind)}
        for name in known.keys() | folders.keys():
            stamp = _stamp(folders.get(name))
            if name not in known or known[name] != stamp:
                _refresh(database, store, kind, name, stamp)
        texts = [text for (text,) in database.execute("SELECT row FROM unit_1 WHERE kind = ?", (kind,))]
    return list(json.loads(f"[{','.join(sorted(texts))}]"))


def _stamp(folder: Path | None) -> int | None:
    """When something was last added to, replaced in or removed from a folder; none when it is gone."""
    try:
        return None if folder is None else folder.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _refresh(database: sqlite3.Connection, store: Store, kind: str, folder: str, stamp: int | None) -> None:
    """Bring the rows of one folder up to date, alone: one short transaction, so that two processes share the work."""
    database.execute("BEGIN IMMEDIATE")
    known = dict(database.execute("SELECT key, stamp FROM unit_1 WHERE kind = ? AND folder = ?", (kind, folder)))
    for entry in unit_files(store.root / "units" / kind / folder):
        key = entry.name.removesuffix(".json")
        with contextlib.suppress(FileNotFoundError):  # gone since the folder was listed
            status = entry.stat()
            file_stamp = f"{status.st_mtime_ns}-{status.st_ino}"
            if known.get(key) == file_stamp:
                del known[key]
            elif (unit := store.load(Path(entry.path))) is not None:
                row = (kind, folder, key, file_stamp, json.dumps(_flat_row(unit)))
                database.execute("INSERT OR REPLACE INTO unit_1 VALUES (?, ?, ?, ?, ?)", row)
                known.pop(key, None)
    gone = [(kind, folder, key) for key in known]
    database.executemany("DELETE FROM unit_1 WHERE kind = ? AND folder = ? AND key = ?", gone)
    settled = stamp is None or stamp < time.time_ns() - _SETTLED
    database.execute(_SET_STAMP, (kind, folder, stamp if settled else 0))
    database.execute("COMMIT")


def _flat_row(unit: Unit) -> dict[str, Any]:
    """The spec first, because rows are sorted as text."""
    return {
        **dict(sorted(_leaves("spec", unit.task.spec), key=itemgetter(0))),
        **dict(_leaves("value", unit.value)),
        "key": unit.task.key,
        "created": unit.created,
    }


def _leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}", item)
    elif not isinstance(value, list):
        yield name, value
