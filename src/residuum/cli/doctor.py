"""``residuum doctor``: what is installed, what is missing, and where things go."""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from residuum.cli.app import app

PACKAGES = {
    "torch": None, "transformers": None, "safetensors": None, "accelerate": None, "numpy": None, "scikit-learn": None,
    "rouge-score": None, "typer": None, "rich": None, "jinja2": None, "filelock": None,
    "datasets": "hub", "peft": "lora", "matplotlib": "report", "openai": "judge",
    "google-genai": "judge", "bitsandbytes": "quant", "gguf": "gguf", "ray": "ray",
}  # fmt: skip
"""Package and the extra that brings it; None is the base install."""


@app.command("doctor")
def doctor(as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False) -> None:
    """Say what is installed, what is missing and which extra brings it, devices, threads and folders.

    Examples: `residuum doctor`, `residuum doctor --json`
    """
    found = examine()
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    for name, package in found["packages"].items():
        wanted = f"residuum[{package['extra']}]" if package["extra"] else "residuum"
        state = package["version"] or f"missing: pip install '{wanted}'"
        typer.echo(f"{name:16} {state}")
    for key in ("python", "devices", "threads", "cache", "runs", "hub_cache", "offline"):
        typer.echo(f"{key:16} {found[key]}")


def examine() -> dict[str, Any]:
    """Everything the doctor looks at, as plain data; it must not fail where something is missing."""
    from residuum import __version__
    from residuum.folders import runs_folder, user_cache

    devices, threads = ["cpu"], None
    if _version("torch") is not None:
        import torch

        devices += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
        threads = torch.get_num_threads()
    return {
        "residuum": __version__,
        "python": platform.python_version(),
        "packages": {name: {"version": _version(name), "extra": extra} for name, extra in PACKAGES.items()},
        "devices": devices,
        "threads": {"torch": threads, "cores": os.cpu_count(), "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS")},
        "cache": str(user_cache()),
        "runs": str(runs_folder()),
        "hub_cache": os.environ.get("HF_HUB_CACHE") or os.environ.get("HF_HOME") or "~/.cache/huggingface",
        "offline": os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "yes", "true"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
