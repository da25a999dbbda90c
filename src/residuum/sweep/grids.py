"""[[unlearn]] tables: every combination of their lists is one model, named by the registry's grammar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residuum.errors import UsageError
from residuum.sweep.checks import check_unlearn
from residuum.sweep.request import Request
from residuum.sweep.sources import absolute

_PLACES = ("method", "model", "out", "forget", "retain", "idk", "alternates")
"""Keys of a table that are no settings of its method."""


@dataclass(frozen=True)
class Member:
    """A model to be made."""

    name: str
    start: str
    """Name or place of the model that knows."""
    out: str
    """Its folder."""
    options: Mapping[str, Any]
    """Method, data and hyper-parameters, for ``unlearn``."""


def members(table: Mapping[str, Any], request: Request) -> Iterator[Member]:
    """The models that one table means.

    Args:
        table: ``method`` (one or several), its options, those of training, and ``model``, ``forget``, ``retain``,
            ``idk``, ``alternates``, ``out``.
        request: gives the start model and the folder of splits where the table does not.

    Raises:
        InputError: a method or option that does not exist, or data that are not there.
    """
    from residuum.training.sweep import grid

    start, out = table.get("model", request.full_model), Path(table.get("out", "models")).resolve()
    files = {
        "forget": _file(table.get("forget"), "forget", "forget10.jsonl", request),
        "retain": _file(table.get("retain"), "retain", "retain90.jsonl", request),
    }
    files |= {key: _file(table[key], key, "", request) for key in ("idk", "alternates") if key in table}
    settings = {key: value for key, value in table.items() if key not in _PLACES}
    choices = {key: value for key, value in settings.items() if isinstance(value, list | tuple)}
    fixed = {key: value for key, value in settings.items() if key not in choices}
    for method in _methods(table):
        for name, options in grid(method, choices, fixed).items():
            yield Member(name, start, str(out / name), {"method": method, **files, **options})


def check(table: Mapping[str, Any]) -> None:
    """Refuse a table with settings that do not exist or cannot be; its files are another matter.

    Raises:
        InputError: names the setting.
    """
    for key in _PLACES[1:]:
        if not isinstance(table.get(key, ""), str):
            raise UsageError(f"[[unlearn]] {key} is a name or a path, not {table[key]!r}.")
    for method in _methods(table):
        check_unlearn(method, {key: value for key, value in table.items() if key not in _PLACES})


def _methods(table: Mapping[str, Any]) -> list[str]:
    given = table.get("method")
    if not given:
        raise UsageError("an [[unlearn]] table names its method.\n  See `residuum ls methods`.")
    return [str(method) for method in (given if isinstance(given, list | tuple) else [given])]


def _file(given: Any, what: str, usual: str, request: Request) -> str:
    place = given or (str(Path(request.data_dir) / usual) if request.data_dir and usual else None)
    if place is None or not Path(str(place)).is_file():
        where = f"{place} is not there" if place else "none is given"
        raise UsageError(
            f"[[unlearn]] needs the file of {what} rows, and {where}.\n  Give {what} in the table, or data_dir in the plan."
        )
    return str(absolute(str(place)))
