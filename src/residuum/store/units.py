"""A unit of finished work: the task it answers, its value, and the file it lives in.

The JSON file carries a checksum over its own content and the hash of its arrays, so a torn, edited or misplaced
file is noticed. The arrays are written first: a unit whose JSON is there is complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import StoreError
from residuum.store.atomic import storage_error, write_bytes, write_text
from residuum.store.hashing import content_hash, file_hash, plain
from residuum.store.origin import versions

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 1
"""Version of everything a store writes; part of every key. Files of a higher one are refused."""

_KIND = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, eq=False)
class Task:
    """A piece of work, known by its content: equal tasks have equal keys, on every machine.

    Args:
        kind: what is done, a short lower-case name such as ``uds``; also the name of a folder.
        spec: everything that decides the result, as JSON: hashes of weights and data rather than paths.
    """

    kind: str
    spec: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise ValueError(f"a kind is made of lower-case letters, digits, - and _, not {self.kind!r}")
        object.__setattr__(self, "spec", plain(self.spec, "spec"))

    @cached_property
    def key(self) -> str:
        """64 hex digits: SHA-256 over kind, spec and the format of the store."""
        return content_hash({"format": FORMAT, "kind": self.kind, "spec": self.spec})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return f"{self.kind} {self.key[:16]}"


@dataclass(frozen=True)
class Unit:
    """A finished task, as read from its file."""

    task: Task
    value: Any
    """The result, as JSON gives it back: tuples have become lists."""
    provenance: dict[str, Any]
    """Where it comes from, see `residuum.store.provenance`."""
    created: str
    """When it was finished, ISO 8601 in UTC."""
    version: str | None
    """The residuum that made it."""
    sidecar: Path | None
    """The safetensors file with its arrays, if it has any."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays stored with the value; empty when there are none."""
        if self.sidecar is None:
            return {}
        from safetensors.numpy import load_file

        return dict(load_file(self.sidecar))


class Damaged(Exception):
    """A unit file is not what its name says: torn, edited, or of another task."""


def write_unit(
    path: Path, task: Task, value: object, arrays: Mapping[str, NDArray[Any]] | None, provenance: Mapping[str, Any]
) -> Unit:
    """Write a unit to ``path`` (``{key}.json``) and give back what a reader will find there."""
    content = {
        "format": FORMAT,
        "kind": task.kind,
        "key": task.key,
        "spec": task.spec,
        "value": plain(value),
        "arrays": None,
        "provenance": plain(provenance, "provenance"),
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "version": versions()["residuum"],
    }
    if arrays is not None:
        from safetensors.numpy import save

        sidecar = write_bytes(_sidecar(path), save(dict(arrays)))
        content["arrays"] = {"names": sorted(arrays), "sha256": file_hash(sidecar)}
    content["sha256"] = content_hash(content)
    # One line per field: as quick as compact JSON, and still kind to grep and diff.
    text = "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(field)}" for name, field in content.items()) + "\n}\n"
    write_text(path, text)
    return _unit(path, json.loads(text))


def read_unit(path: Path) -> Unit:
    """Read a unit and verify all of it, arrays included.

    Raises:
        FileNotFoundError: there is no unit.
        Damaged: there is a file, but not a whole unit of the task that its name promises.
        StoreError: a newer residuum wrote it, or the file system refused.
    """
    content = _decode(path)
    # Before anything else: what looks damaged to us may be the way of a newer version.
    if content["format"] > FORMAT:
        raise StoreError(
            f"{path} was written by a newer residuum ({content.get('version')}).\n  Upgrade it to read this."
        )
    try:
        whole = content.pop("sha256") == content_hash(content)
        unit = _unit(path, content)
    except (ValueError, LookupError, TypeError, StoreError):
        raise Damaged("is not a unit") from None
    if not whole:
        raise Damaged("does not match its checksum")
    if not unit.task.key == content["key"] == path.stem:
        raise Damaged("holds another task than its name says")
    if unit.sidecar is not None and _hash_or_none(unit.sidecar) != content["arrays"]["sha256"]:
        raise Damaged(f"does not match its arrays in {unit.sidecar.name}")
    return unit


def _decode(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise storage_error("read", path, error) from error
    except ValueError:
        raise Damaged("is torn") from None
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise Damaged("is not a unit")
    return content


def _unit(path: Path, content: Mapping[str, Any]) -> Unit:
    return Unit(
        task=Task(content["kind"], content["spec"]),
        value=content["value"],
        provenance=content["provenance"],
        created=content["created"],
        version=content["version"],
        sidecar=None if content["arrays"] is None else _sidecar(path),
    )


def _sidecar(path: Path) -> Path:
    return path.with_suffix(".safetensors")


def _hash_or_none(path: Path) -> str | None:
    try:
        return file_hash(path)
    except OSError:
        return None
