"""A grid of unlearning runs: every combination of some settings, each a checkpoint named by the registry's grammar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from residuum.errors import ResiduumError, UsageError
from residuum.training.unlearn import configure, default_name, unlearn


@dataclass(frozen=True)
class Member:
    """One finished or failed run of a sweep."""

    name: str
    folder: Path
    error: str | None = None


def grid(method: str, choices: Mapping[str, Sequence[Any]], fixed: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Name and options of every member; two members of one name would be one folder, so they are refused.

    Args:
        method: a registered method.
        choices: the values of each varied option.
        fixed: options that all members share.
    """
    members: dict[str, dict[str, Any]] = {}
    for values in product(*choices.values()):
        options = {**fixed, **dict(zip(choices, values, strict=True))}
        name = default_name(*configure(method, options))
        if name in members:
            raise UsageError(
                f"two members of the sweep are called {name}: a name tells {method}'s members apart only by the"
                " hyper-parameters that it spells.\n  Run one sweep per value of the others."
            )
        members[name] = options
    return members


def sweep(
    method: str, choices: Mapping[str, Sequence[Any]], *, out: str | Path, fixed: Mapping[str, Any], **common: Any
) -> Iterator[Member]:
    """Run every member in turn; one that is finished is skipped, one that fails does not end the sweep.

    Args:
        method: a registered method.
        choices: the values of each varied option.
        out: parent of the members' folders.
        fixed: options that all members share.
        **common: model, forget, retain and the like, for ``unlearn``.

    Yields:
        Each member as it ends.
    """
    for name, options in grid(method, choices, fixed).items():
        folder, error = Path(out) / name, None
        try:
            unlearn(method, out=folder, title=name, **common, **options)
        except ResiduumError as failure:
            error = str(failure)
        yield Member(name, folder, error)
