"""[[unlearn]] tables: every combination of their lists is one model, named by the registry's grammar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residuum.errors import UsageError
from residuum.sweep.request import Request
from residuum.sweep.sources import absolute


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

    given = dict(table)
    methods = given.pop("method", None)
    if not methods:
        raise UsageError("an [[unlearn]] table names its method.\n  See `residuum ls methods`.")
    start, out = str(given.pop("model", request.full_model)), Path(str(given.pop("out", "models"))).resolve()
    files = {
        "forget": _file(given.pop("forget", None), "forget", "forget10.jsonl", request),
        "retain": _file(given.pop("retain", None), "retain", "retain90.jsonl", request),
    }
    files |= {key: _file(given.pop(key), key, "", request) for key in ("idk", "alternates") if key in given}
    for method in methods if isinstance(methods, list | tuple) else [methods]:
        choices = {key: value for key, value in given.items() if isinstance(value, list | tuple)}
        fixed = {key: value for key, value in given.items() if key not in choices}
        try:
            made = grid(str(method), choices, fixed)
        except (TypeError, ValueError) as error:
            raise UsageError(f"a setting of [[unlearn]] {method} has a value of the wrong type: {error}.") from error
        for name, options in made.items():
            yield Member(name, start, str(out / name), {"method": str(method), **files, **options})


def _file(given: Any, what: str, usual: str, request: Request) -> str:
    place = given or (str(Path(request.data_dir) / usual) if request.data_dir and usual else None)
    if place is None or not Path(str(place)).is_file():
        where = f"{place} is not there" if place else "none is given"
        raise UsageError(
            f"[[unlearn]] needs the file of {what} rows, and {where}.\n  Give {what} in the table, or data_dir in the plan."
        )
    return str(absolute(str(place)))
