"""Where a number comes from: seed, data and weights, versions, code revision, machine, command."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_PACKAGES = ("residuum", "torch", "transformers", "numpy")
_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
_SECRET_WORDS = {
    "key",
    "apikey",
    "token",
    "secret",
    "password",
    "passwd",
    "credential",
    "credentials",
    "auth",
    "sig",
    "signature",
}
# What providers begin their keys with, and the user part of an address.
_SECRET_VALUE = re.compile(r"\b(?:(?:sk|pk|rk)-|hf_|gh[a-z]_|AIza)[A-Za-z0-9_-]{16,}|(?<=://)[^/@\s]+(?=@)")
_QUERY_VALUE = re.compile(r"(?<=[?&;])([^=?&;#\s]+)=([^&;#\s]+)")
_HIDDEN = "***"


def provenance(
    *,
    seed: int | None = None,
    dtype: str | None = None,
    data: str | Mapping[str, str] | None = None,
    weights: str | Mapping[str, str] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """What somebody needs to make a result again, as JSON.

    Args:
        seed: the seed that decided everything random.
        dtype: the number format of the computation.
        data: content hash of the data, or one per name.
        weights: content hash of the weights, or one per model.
        settings: whatever else decided the result, by name.
    """
    return {
        "seed": seed,
        "dtype": dtype,
        "data": data,
        "weights": weights,
        "settings": settings,
        "versions": dict(versions()),
        "git": git_revision(Path(__file__).parent),
        "platform": platform.platform(),
        "threads": {"cpus": os.cpu_count()} | {name: os.environ.get(name) for name in _THREAD_SETTINGS},
        # The full path of the program says more about a person's machine than about the result.
        "command": redact([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@functools.cache
def versions() -> Mapping[str, str | None]:
    """Versions of Python and of the packages that decide numbers, read without importing them."""
    from importlib import metadata  # half of the import time of the store, for something done once

    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


@functools.cache
def git_revision(folder: Path) -> str | None:
    """Commit of the checkout that ``folder`` is in, with ``-dirty`` after local changes; none without a checkout."""
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def redact(arguments: Sequence[str]) -> list[str]:
    """A command line without its secrets: values of options named like a key or token, and values that look like one."""
    shown: list[str] = []
    hide_next = False
    for argument in arguments:
        name, assigned, _ = argument.partition("=")
        if hide_next and not argument.startswith("--"):
            shown.append(_HIDDEN)
        elif assigned and "?" not in name and _names_a_secret(name):
            shown.append(f"{name}={_HIDDEN}")
        else:
            shown.append(hide_secrets(argument))
        hide_next = argument.startswith("-") and not assigned and _names_a_secret(argument)
    return shown


def hide_secrets(text: str) -> str:
    """A text without what looks like a key, users of addresses, and parameters of addresses named like a key."""
    text = _QUERY_VALUE.sub(lambda m: f"{m[1]}={_HIDDEN}" if _names_a_secret(m[1]) else m[0], text)
    return _SECRET_VALUE.sub(_HIDDEN, text)


def _names_a_secret(option: str) -> bool:
    """Whole words only: ``--hf-token`` and ``accessToken`` are one, ``--max-tokens`` and ``--tokenizer`` are not."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", option)
    return not _SECRET_WORDS.isdisjoint(re.split(r"[-_.]+", f"{option}-{apart}".lower()))
