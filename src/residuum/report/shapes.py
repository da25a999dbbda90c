"""What readers expect of a file, as data; a file of another shape is named and skipped, like a torn one.

A shape is a type, or a union of types such as ``float | None``; a dict of shapes by key, where ``"key?"`` may be missing
or null and `str` as the key stands for any; a list of one shape, for lists of any length, or of several, one for each
element; or a tuple of alternatives.
"""

from __future__ import annotations

from types import UnionType
from typing import Any

Shape = type | UnionType | dict[Any, Any] | list[Any] | tuple[Any, ...]

NUMBER = int | float
MAYBE = int | float | None
ENDS = (type(None), [MAYBE, MAYBE])
"""Of an interval."""
MODEL = {"name": str, "source?": str, "weights?": str, "quantize?": str}
"""Who a run is about."""
ORIGIN = {
    "versions?": {str: str | None}, "command?": [str], "time?": str, "weights?": str | dict, "data?": str | dict, "settings?": dict,
}  # fmt: skip
"""Provenance, as far as it is shown."""


def misfit(value: Any, shape: Shape, at: str = "it") -> str | None:
    """Where a value is not of a shape, in words; None when it is.

    Args:
        value: as JSON gives it.
        shape: what it should be.
        at: what the value is called.
    """
    if isinstance(shape, tuple):
        found = [misfit(value, one, at) for one in shape]
        return None if None in found else found[-1]
    if isinstance(shape, dict):
        return _dict_misfit(value, shape, at)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{at} is {_named(value)}, not a list"
        if 1 < len(shape) != len(value):
            return f"{at} has {len(value)} parts, not {len(shape)}"
        wanted = shape * len(value) if len(shape) == 1 else shape
        return next((bad for i, one in enumerate(value) if (bad := misfit(one, wanted[i], f"{at}[{i}]"))), None)
    return None if isinstance(value, shape) else f"{at} is {_named(value)}"


def _dict_misfit(value: Any, shape: dict[Any, Any], at: str) -> str | None:
    if not isinstance(value, dict):
        return f"{at} is {_named(value)}, not an object"
    for key, wanted in shape.items():
        if key is str:
            bad = next((bad for name, one in value.items() if (bad := misfit(one, wanted, f"{at}.{name}"))), None)
        elif key.endswith("?"):
            name = key[:-1]
            bad = misfit(value[name], wanted, f"{at}.{name}") if value.get(name) is not None else None
        else:
            bad = misfit(value[key], wanted, f"{at}.{key}") if key in value else f"{at} has no {key}"
        if bad:
            return bad
    return None


def _named(value: Any) -> str:
    return "null" if value is None else "an object" if isinstance(value, dict) else f"a {type(value).__name__}"
