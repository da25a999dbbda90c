"""Watching a sweep: a table that renews itself on a terminal, one line per event elsewhere; always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group

_ROWS = 16
"""Running tasks shown."""


@dataclass(frozen=True)
class Running:
    """A task that a worker has."""

    worker: int
    task: str
    seconds: float


@dataclass(frozen=True)
class Snapshot:
    """How far a sweep is."""

    total: int
    done: int
    cached: int
    """Of those done, the ones that were done before."""
    failed: int
    blocked: int
    elsewhere: int
    """In the hands of other drivers."""
    left: float | None
    """Seconds, guessed from the tasks so far."""
    elapsed: float
    running: Sequence[Running]


class Watch:
    """Tells a person how far a sweep is; a context manager around the work."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # The stream of now: a worker in this process redirects sys.stderr to its log.
        console = Console(file=sys.stderr)
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) if console.is_terminal else None  # fmt: skip
        self._stream = sys.stderr

    def __enter__(self) -> Watch:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, snapshot: Snapshot) -> None:
        """Renew the table."""
        if self._live:
            self._live.update(_table(snapshot), refresh=True)

    def tell(self, event: str, snapshot: Snapshot) -> None:
        """Say what happened."""
        first = event.split("\n")[0]
        if self._live:
            self._live.console.print(first, markup=False, highlight=False)
            self.show(snapshot)
        else:
            ended = snapshot.done + snapshot.failed + snapshot.blocked
            print(f"[{ended}/{snapshot.total}] {first}", file=self._stream, flush=True)


def _table(snapshot: Snapshot) -> Group:
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    waiting = snapshot.total - snapshot.done - snapshot.failed - snapshot.blocked - len(snapshot.running)
    left = "?" if snapshot.left is None else clock(snapshot.left)
    earlier = f" ({snapshot.cached} before)" if snapshot.cached else ""
    others = f" ({snapshot.elsewhere} elsewhere)" if snapshot.elsewhere else ""
    blocked = f" (+{snapshot.blocked} blocked)" if snapshot.blocked else ""
    counts = (
        f"done {snapshot.done} of {snapshot.total}{earlier}, running {len(snapshot.running)}, failed {snapshot.failed}"
        f"{blocked}, waiting {waiting}{others}, {clock(snapshot.elapsed)} so far, {left} left"
    )
    table = Table()
    for column in ("worker", "task", "for"):
        table.add_column(column)
    for row in snapshot.running[:_ROWS]:
        table.add_row(str(row.worker), escape(row.task), clock(row.seconds))
    return Group(counts, table)


def clock(seconds: float) -> str:
    """Seconds as a clock shows them, such as 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
