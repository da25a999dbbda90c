"""Every error a user can meet, in one tree.

    ResiduumError            exit 1   something failed
    ├── InputError           exit 2   what was given cannot be used
    │   ├── UsageError                an option or a combination of options
    │   ├── UnknownName               a name nobody registered; carries the nearest ones
    │   ├── DataError                 a data file: names file, line and field
    │   └── ModelError                a checkpoint: missing, unreadable, or of an unknown anatomy
    │       └── NotFinite             its weights hold NaN or infinity
    ├── MissingExtra         exit 1   an optional package is not installed; says which extra brings it
    ├── StoreError           exit 1   the run store cannot be read, written or locked
    ├── HookError            exit 1   a hook never fired or did not fit
    ├── Diverged             exit 1   a training run left the finite numbers
    ├── PartlyFailed         exit 3   some units failed and are recorded, the rest is done
    └── Unavailable          exit 4   a judge cannot be reached, or an audit gate is not met

A message has up to three parts: what happened, where, and what to do. The command line prints it
after ``residuum:`` and never shows a traceback for anything in this tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path


class ResiduumError(Exception):
    """Base of all errors that residuum raises on purpose."""

    exit_code = 1


class InputError(ResiduumError):
    """What the user gave cannot be used."""

    exit_code = 2


class UsageError(InputError):
    """An option, or a combination of options, makes no sense."""


class UnknownName(InputError):
    """A name that no registry knows.

    Args:
        kind: what was looked for, for instance ``"model"``.
        name: the name as it was given.
        known: all names that exist; the nearest ones are put into the message.
        hint: what to do when none of them is near.
    """

    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str | None = None) -> None:
        self.kind, self.name, self.nearest = kind, name, nearest(name, known)
        advice = f"Nearest: {', '.join(self.nearest)}." if self.nearest else hint
        super().__init__(f'unknown {kind} "{name}".' + (f"\n  {advice}" if advice else ""))


class DataError(InputError):
    """A data file cannot be used.

    Args:
        problem: what is wrong, as a sentence.
        path: the file.
        line: 1-based line (JSON lines) or row (JSON array).
        field: the field at fault.
        hint: what to do about it.
    """

    def __init__(
        self,
        problem: str,
        *,
        path: str | Path | None = None,
        line: int | None = None,
        field: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.path, self.line, self.field = path, line, field
        where = str(path) if path is not None else ""
        if line is not None:
            where += f":{line}"
        if field is not None:
            where += f", field {field!r}" if where else f"field {field!r}"
        message = f"{where}: {problem}" if where else problem
        super().__init__(message + (f"\n  {hint}" if hint else ""))


class ModelError(InputError):
    """A checkpoint is missing, unreadable, or built in a way we do not know."""


class NotFinite(ModelError):
    """The weights of a checkpoint hold NaN or infinity."""


class MissingExtra(ResiduumError):
    """An optional package is not installed.

    Args:
        package: the import that failed.
        extra: the extra of residuum that brings it.
        what: what needs it, as a noun phrase.
    """

    def __init__(self, package: str, extra: str, what: str) -> None:
        self.package, self.extra = package, extra
        super().__init__(
            f"{what} needs the package {package!r}, which is not installed.\n  pip install 'residuum[{extra}]'"
        )


class StoreError(ResiduumError):
    """The run store cannot be read, written or locked."""


class HookError(ResiduumError):
    """A hook never fired, or what it was given does not fit the activation."""


class Diverged(ResiduumError):
    """A training run produced a loss that is not a finite number."""


class PartlyFailed(ResiduumError):
    """Some units of work failed and are recorded; everything else is done."""

    exit_code = 3


class Unavailable(ResiduumError):
    """A judge cannot be reached, or an audit gate is not met."""

    exit_code = 4


def nearest(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """The known names most like ``name``, best first; none that is quite unlike it."""
    name = str(name)  # a plan may hold a number where a name belongs
    scored = sorted(
        ((SequenceMatcher(None, name.lower(), k.lower()).ratio(), k) for k in known), key=lambda p: (-p[0], p[1])
    )
    return [k for ratio, k in scored[:most] if ratio >= 0.6]
