"""Content identity: one text for one JSON value, and the SHA-256 of it.

Two values that JSON writes alike are the same content (a tuple and a list, any order of keys); ``1`` and
``1.0`` are not. Everything that gets a name by content in residuum gets it here.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from residuum.errors import StoreError


class _Unfit(Exception):
    """What JSON cannot hold; collects the way to it, innermost step first, so that good values cost no bookkeeping."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.steps: list[str] = []


def plain(value: object, where: str = "value") -> Any:
    """The JSON form of a value, or an error that names the place JSON cannot hold.

    JSON has no NaN and turns number keys into text without a word, so both are refused: what is read back is
    what was written.

    Args:
        value: mappings with text keys, lists, tuples, text, finite numbers, booleans and ``None``.
        where: how an error calls the value, for instance ``"spec"``.
    """
    try:
        return _plain(value)
    except _Unfit as unfit:
        raise StoreError(f"{where}{''.join(reversed(unfit.steps))} {unfit}") from None


def canonical(value: object) -> str:
    """The one text that stands for a JSON value: sorted keys, no spaces, ASCII, floats as Python's ``repr``."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def content_hash(value: object) -> str:
    """SHA-256 of the canonical text, as 64 hex digits; the first 16 are enough to show to people."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def file_hash(path: str | Path) -> str:
    """SHA-256 of the bytes of a file, as 64 hex digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(value: object) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise _Unfit(f"is {value}, which JSON cannot hold.\n  Store None instead, with the reason beside it.")
    if isinstance(value, Mapping):
        fields: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _Unfit(f"has the key {key!r}, which is not text.\n  Use str() on its keys.")
            try:
                fields[key] = _plain(item)
            except _Unfit as unfit:
                unfit.steps.append(f".{key}")
                raise
        return fields
    if isinstance(value, (list, tuple)):
        items: list[Any] = []
        for index, item in enumerate(value):
            try:
                items.append(_plain(item))
            except _Unfit as unfit:
                unfit.steps.append(f"[{index}]")
                raise
        return items
    raise _Unfit(
        f"is a {type(value).__name__}, which JSON cannot hold.\n"
        "  Turn it into text, a number, a list or a dict; large numeric data belongs into `arrays`."
    )
