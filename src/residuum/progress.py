"""Progress bars for anything that takes longer than a glance: on stderr, silent when nobody watches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Bar(Protocol):
    """What a piece of long work tells its watcher."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Say that ``steps`` more are done, with a short note such as the current loss."""


@contextmanager
def progress(title: str | None, total: int, *, done: int = 0) -> Iterator[Bar]:
    """A bar with the time left; prints nothing when stderr is not a terminal.

    Args:
        title: what is being done; None for work that somebody else is watching.
        total: number of steps.
        done: steps finished by an earlier run that this one resumes.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console, disable=title is None or not console.is_terminal, transient=False) as live:
        task = live.add_task(title or "", total=total, completed=done, note="")

        class _Live:
            def advance(self, steps: int = 1, note: str = "") -> None:
                live.update(task, advance=steps, note=note)

        yield _Live()


def hush_transformers() -> None:
    """Turn off the bars that transformers draws for every file, terminal or not; ours say what matters."""
    from transformers.utils import logging

    logging.disable_progress_bar()
