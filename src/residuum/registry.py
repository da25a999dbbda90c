"""One small registry for everything that has a name: metrics, methods, families, judges, probes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from residuum.errors import UnknownName, UsageError, nearest

T = TypeVar("T")


class Registry(Generic[T]):
    """A named collection that a decorator fills and that suggests the nearest name on a miss.

    Args:
        kind: the noun used in error messages, for instance ``"metric"``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files its object under ``name``; a second object of one name is a programming error."""

        def add(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = entry
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownName(self.kind, name, self._entries, hint=f"Known: {', '.join(self._entries)}.") from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def sort(self, key: Callable[[T], Any]) -> None:
        """Put the entries in an order of their own, whatever order their modules were imported in."""
        self._entries = dict(sorted(self._entries.items(), key=lambda item: key(item[1])))

    def items(self) -> Iterator[tuple[str, T]]:
        """Names and entries in the order of registration, or that of `sort`."""
        return iter(self._entries.items())


def one_of(option: str, value: str, *known: str) -> Any:
    """The value of an option that has a few known ones.

    Raises:
        UsageError: it is none of them; names all, and the nearest.
    """
    if value not in known:
        near = nearest(value, known)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UsageError(f"{option} is one of {', '.join(known)}, not {value!r}.{hint}")
    return value
