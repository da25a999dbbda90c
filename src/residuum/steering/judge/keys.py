"""API keys: from the environment or ``.env``, never printed, never stored."""

from __future__ import annotations

import os
from pathlib import Path

from residuum.errors import UsageError
from residuum.store.origin import hide_secrets


def find_key(name: str, *, required: bool = True) -> str | None:
    """A key by the name of its environment variable; ``.env`` in the current folder is read if it is not set.

    Raises:
        UsageError: it is in neither place.
    """
    # A line break at its end would make clients show the header, and with it the key, in their errors.
    key = os.environ.get(name, "").strip() or _dot_env(Path(".env")).get(name)
    if not key and required:
        raise UsageError(f"the judge needs an API key: {name} is not set.\n  Set it in the environment or in .env.")
    return key or None


def without_key(text: str, key: str | None) -> str:
    """A message without the key that some servers repeat in their errors, or that stands in an address."""
    return hide_secrets(text.replace(key, "***") if key else text)


def _dot_env(path: Path) -> dict[str, str]:
    """``NAME=value`` lines; comments, ``export`` and quotes around values are understood."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = {}
    for line in lines:
        name, assigned, value = line.strip().removeprefix("export ").partition("=")
        if assigned and not name.lstrip().startswith("#"):
            found[name.strip()] = value.strip().strip("\"'")
    return found
