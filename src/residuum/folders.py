"""Where residuum keeps things: the user's cache and the run store."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The folder for what can be made again: ``RESIDUUM_CACHE``, else ``residuum`` in the user's cache folder.

    The folder may not exist yet.
    """
    if own := os.environ.get("RESIDUUM_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "residuum"


def runs_folder() -> Path:
    """The root of the run store: ``RESIDUUM_RUNS``, else ``runs`` in the current folder."""
    return Path(os.environ.get("RESIDUUM_RUNS") or "runs").expanduser()
