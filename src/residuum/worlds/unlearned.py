"""The world's eight unlearned models, one per method, from one frozen table of settings.

The settings were chosen once, on seed 0, for a visible drop of the forget probability with the retain probability kept;
no other measure was looked at. Other seeds use them unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from residuum.data.prompts import ChatFormat
from residuum.errors import UnknownName, UsageError
from residuum.processes import worker_pool
from residuum.worlds.build import THREADS, World
from residuum.worlds.recipe import RECIPES

SETTINGS: Mapping[str, Mapping[str, float]] = {
    "altpo": {"lr": 5e-4, "alpha": 5, "beta": 0.1, "epochs": 2},
    "simnpo": {"lr": 5e-4, "alpha": 1, "beta": 4.5, "gamma": 0.125, "delta": 1, "epochs": 10},
    "undial": {"lr": 5e-4, "alpha": 5, "beta": 10, "epochs": 8},
    "idkdpo": {"lr": 5e-4, "alpha": 5, "beta": 0.1, "epochs": 6},
    "idknll": {"lr": 5e-4, "alpha": 2, "epochs": 8},
    "graddiff": {"lr": 5e-4, "alpha": 5, "epochs": 8},
    "rmu": {"lr": 1e-3, "layer": 4, "scoeff": 10, "epochs": 8},
    "npo": {"lr": 5e-4, "alpha": 10, "beta": 0.1, "epochs": 6},
}
"""The longest first, so that two processes end at about the same time."""

FORMATS = (ChatFormat(system_prompt=""), ChatFormat())
"""Unlearned in the chat format, half with the system prompt; raw prompts are never seen."""

BATCH = 10
"""Forget rows per step, with as many retain rows."""

RELEARNING: Mapping[str, Any] = {"lr": 5e-4, "accumulation": 1}
"""Five steps at the rate of the unlearning: the published rate is made for models a thousand times as large."""

TEMPERATURE = 1.5
"""Of AltPO's alternates. The full model knows its answers by heart: at temperature 1 four of five samples are the truth
and half of the questions have no alternate at all; at 1.5 nearly all have some, most of them well-formed; at 2 they are
gibberish."""


def unlearn_world(
    world: World, methods: Sequence[str] | None = None, *, workers: int = 2, longer: int = 1
) -> dict[str, Path]:
    """Unlearn the world's full model with each method; goes on where a killed run stopped.

    Args:
        world: a finished world.
        methods: which; all eight by default.
        workers: processes of one thread each, this one included.
        longer: this many times the epochs of the table.

    Returns:
        Method to checkpoint folder, ``models/{short name}`` of the world; by name.
    """
    chosen = list(SETTINGS) if methods is None else [name.lower() for name in methods]
    for name in chosen:
        if name not in SETTINGS:
            raise UnknownName("method", name, SETTINGS)
    if RECIPES[world.info["name"]].pretrained:
        raise UsageError("the settings belong to the small worlds.\n  Use `residuum unlearn` for a pretrained model.")
    if "altpo" in chosen:
        make_alternates(world)
    if workers < 2:
        return {name: unlearn_one(world.folder, name, watched=True, longer=longer) for name in sorted(chosen)}
    with worker_pool(workers - 1) as pool:
        waiting: dict[str, Future[Path]] = {
            name: pool.submit(unlearn_one, world.folder, name, longer=longer) for name in chosen
        }
        # This process works from the other end of the list on whatever the pool has not begun.
        done = {
            name: unlearn_one(world.folder, name, watched=True, longer=longer)
            for name in reversed(chosen)
            if waiting[name].cancel()
        }
        return {name: done[name] if name in done else waiting[name].result() for name in sorted(chosen)}


def unlearn_one(folder: Path, method: str, *, watched: bool = False, longer: int = 1) -> Path:
    """Unlearn with one method, on one thread, unless it is done."""
    import torch

    from residuum.training.unlearn import configure, default_name, unlearn

    world, threads = World(folder), torch.get_num_threads()
    seed, recipe = world.info["seed"], RECIPES[world.info["name"]]
    hyper: dict[str, Any] = {
        **SETTINGS[method],
        "epochs": int(SETTINGS[method]["epochs"]) * longer,
        "seed": seed,
        "batch_size": BATCH,
        "accumulation": 1,
        "format": FORMATS,
    }
    if method == "rmu":
        hyper["layer"] = recipe.layers // 2
    torch.set_num_threads(THREADS)
    try:
        return unlearn(
            method, model=world.model("full"), forget=world.data / "forget10.jsonl",
            retain=world.data / "retain90.jsonl", out=world.model(default_name(*configure(method, hyper))),
            alternates=_alternates(world) if method == "altpo" else None, title=method if watched else None,
            device="cpu", checkpoint_seconds=10.0, **hyper,
        )  # fmt: skip
    finally:
        torch.set_num_threads(threads)


def relearn_world(world: World, models: Mapping[str, Path]) -> dict[str, Path]:
    """Train each model, and retain90, on the forget set again for one epoch; into ``relearned/`` of the world."""
    from residuum.training.relearn import relearn

    return {
        name: relearn(
            model=path, data=world.data / "forget10.jsonl", out=world.folder / "relearned" / path.name, title=None,
            device="cpu", **RELEARNING,
        )
        for name, path in {"retain90": world.model("retain90"), **models}.items()
    }  # fmt: skip


def make_alternates(world: World) -> Path:
    """Sample AltPO's alternate answers from the full model, unless they are there."""
    path = _alternates(world)
    if not path.exists():
        from residuum.models.loading import load
        from residuum.training.alternates import sample_alternates, write_alternates

        lm = load(world.model("full"), device="cpu")
        rows, _ = sample_alternates(
            lm, world.data / "forget10.jsonl", temperature=TEMPERATURE, max_new_tokens=40, seed=world.info["seed"]
        )
        write_alternates(path, rows)
    return path


def unlearned_table(world: World, models: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Mean answer probability of forget and retain rows, in chat with system prompt: full, retain, each method."""
    from residuum.data.tofu import load_split
    from residuum.models.loading import load
    from residuum.worlds.knowledge import recall

    rows = []
    for name, path in {"full": world.model("full"), "retain90": world.model("retain90"), **models}.items():
        lm = load(path, device="cpu")
        probs = {
            split: recall(lm, load_split(world.data, split), ChatFormat())["prob"] for split in ("forget10", "retain90")
        }
        rows.append({"model": name, "forget_prob": probs["forget10"], "retain_prob": probs["retain90"]})
    return rows


def _alternates(world: World) -> Path:
    return world.folder / "alternates.jsonl"
