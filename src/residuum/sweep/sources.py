"""Models and data by name: which of them a pattern means, and what their content is called before any task runs."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from residuum.errors import InputError, UnknownName, UsageError
from residuum.models.names import ALIASES, all_models, resolve, shorten
from residuum.store import content_hash, file_hash

_CHECKPOINT = ("config.json", "adapter_config.json")


@dataclass(frozen=True)
class Source:
    """A model of a sweep."""

    name: str
    """For tables and folders."""
    place: str
    """Absolute path or hub id, or what was given when it is neither."""
    identity: Mapping[str, str]
    """Content of a folder (``weights``), ``hub`` id, key of the task that will have ``made`` it, or ``missing``."""


def expand(patterns: Iterable[str]) -> list[str]:
    """Names, hub ids and paths that patterns mean, in order and each once; what has no wildcard passes as it is.

    Raises:
        UnknownName: a pattern matches nothing.
    """
    found: list[str] = []
    for pattern in patterns:
        if not any(sign in pattern for sign in "*?["):
            found.append(pattern)
            continue
        names = [name for name in all_models() if fnmatchcase(name, pattern)]
        matches = names or _folders(pattern)
        if not matches:
            raise UnknownName(
                "model", pattern, [*ALIASES, *all_models()],
                hint="The pattern matches neither a registry name (`residuum models ls`) nor a checkpoint folder.",
            )  # fmt: skip
        found += matches
    return list(dict.fromkeys(found))


def look_up(given: Sequence[str]) -> list[Source]:
    """What each model is; folders are read once to be known by content (large files are remembered by the user cache).

    A model that is not there gets an identity all the same: its tasks fail and say why, the others go on.
    """
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(_look_up, given))


def check_names(sources: Iterable[Source]) -> None:
    """Two models of one name would share their result folders.

    Raises:
        UsageError: names both.
    """
    known: dict[str, str] = {}
    for source in sources:
        if known.setdefault(source.name, source.place) != source.place:
            raise UsageError(
                f"two models are called {source.name}: {known[source.name]} and {source.place}.\n"
                "  Results are kept by name: rename one folder, or give them to two sweeps."
            )


def data_identity(place: str | Path | None) -> Any:
    """Content hash of a file, of every data file of a folder by name, or the text itself for data on the hub."""
    if place is None or not Path(place).exists():
        return None if place is None else str(place)
    path = Path(place)
    if path.is_file():
        return file_hash(path)
    files = sorted(file for file in path.rglob("*") if file.suffix in (".json", ".jsonl", ".txt", ".csv"))
    return content_hash({str(file.relative_to(path)): file_hash(file) for file in files})


def absolute(place: str | None) -> str | None:
    """An existing path in full, because workers may stand elsewhere; hub ids and names stay."""
    return str(Path(place).resolve()) if place is not None and Path(place).exists() else place


def size_of(place: str) -> int | None:
    """Bytes of a checkpoint on disk; None when it is not there."""
    path = Path(place)
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.iterdir() if file.is_file()) if path.is_dir() else None


def _folders(pattern: str) -> list[str]:
    paths = [Path(path) for path in sorted(glob.glob(pattern))]  # noqa: PTH207  Path.glob takes no absolute pattern
    return [
        str(path) for path in paths if path.suffix == ".gguf" or any((path / name).is_file() for name in _CHECKPOINT)
    ]


def _look_up(given: str) -> Source:
    from residuum.models.weights import find

    try:
        place = resolve(given)
    except UnknownName:
        return Source(given, given, {"missing": given})
    if not Path(place).exists():
        # A folder that is not there and a hub id look alike; the one who loads it will tell.
        return Source(shorten(place), place, {"hub": place})
    full = str(Path(place).resolve())
    try:
        return Source(Path(full).name, full, {"weights": find(Path(full)).fingerprint()})
    except InputError:
        return Source(Path(full).name, full, {"missing": full})
