"""Settings as people write them, in a TOML file, in options or in Python, as the values that frozen dataclasses want."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from residuum.errors import DataError, UsageError, nearest

Ranges = tuple[tuple[float, float], ...]


def log_range(start: float, end: float, step: float) -> list[float]:
    """start, start * step, ... while below end; rounded to ten digits, so that 1e-7 * 2 * 2 * 2 is 8e-7."""
    if step <= 1 or start <= 0:
        raise UsageError(f"a log range starts above 0 and grows, not {start:g}:{end:g}:{step:g}.")
    values = []
    value = float(start)
    while value < end:
        values.append(value)
        value = float(f"{value * step:.10g}")
    return values


def read_toml(path: str | Path) -> dict[str, Any]:
    """The settings of a file.

    Raises:
        DataError: it is missing or not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError("there is no such file", path=path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"is not TOML: {error}", path=path) from None


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Two nested settings in one; the upper wins, tables are joined, None means not given."""
    joined = dict(lower)
    for key, value in upper.items():
        if isinstance(value, Mapping):
            joined[key] = merge(table(key, joined.get(key)), value)
        elif value is not None:
            joined[key] = value
    return joined


def table(name: str, value: Any) -> Mapping[str, Any]:
    """A table of settings; None is an empty one.

    Raises:
        UsageError: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} is a table of settings, not {value!r}.")
    return value


def check_known(kind: Any, given: Mapping[str, Any], prefix: str) -> None:
    """Refuse a key that is no field of a dataclass.

    Raises:
        UsageError: names the nearest field.
    """
    names = [f.name for f in fields(kind)]
    for key in given:
        if key not in names:
            near = nearest(key, names)
            hint = f" Did you mean {prefix}{near[0]}?" if near else f"\n  Known: {', '.join(names)}."
            raise UsageError(f"there is no setting {prefix}{key}.{hint}")


def fill(kind: Any, given: Mapping[str, Any], prefix: str) -> Any:
    """A dataclass from settings, each value as its field wants it; ``prefix`` is for messages."""
    check_known(kind, given, prefix)
    types = {f.name: str(f.type) for f in fields(kind)}
    return kind(**{key: _typed(value, types[key], f"{prefix}{key}") for key, value in given.items()})


def _typed(value: Any, kind: str, name: str) -> Any:
    """A value as its field wants it: numbers may be text, lists may be text with commas."""
    optional = kind.endswith(" | None")
    kind = kind.removesuffix(" | None")
    if value is None and optional:
        return None
    try:
        if kind == "Ranges":
            return tuple((float(low), float(high)) for low, high in value)
        if kind.startswith("tuple["):
            item = _CASTS.get(kind.removeprefix("tuple[").partition(",")[0])
            if item is None:
                return (value,) if isinstance(value, str | Path) else tuple(value)
            return tuple(sequence(value, item))
        if kind == "Path":
            return Path(value)
        if kind == "bool" and not isinstance(value, bool):
            raise ValueError
        cast = _CASTS.get(kind)
        return value if cast is None else cast(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} cannot be {value!r}.") from None


def sequence(value: Any, item: Any) -> list[Any]:
    """A list of items from a list, one value, ``a,b,c``, or a log range ``start:end:step``."""
    if isinstance(value, str):
        if item is float and value.count(":") == 2:
            return log_range(*(float(part) for part in value.split(":")))
        value = [part.strip() for part in value.strip("[]() ").split(",") if part.strip()]
    return [item(part) for part in (value if isinstance(value, Sequence) else [value])]


def _whole(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


_CASTS: Mapping[str, Callable[[Any], Any]] = {"int": _whole, "float": float, "str": str}
