"""The command line, as a user types it."""

from __future__ import annotations

import pytest

from residuum.cli.app import run


def call(*words: object) -> int:
    """The exit code of a command in this process."""
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    return int(stop.value.code or 0)
