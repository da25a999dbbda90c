"""Mistakes in what ``residuum meta`` is given, seen before any model is trained or loaded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from residuum.errors import DataError, UsageError

if TYPE_CHECKING:
    from residuum.meta.attacked import Attacked
    from residuum.meta.bench import Bench
    from residuum.meta.pools import Pools


def check_asked(ctx: typer.Context) -> None:
    """Names of metrics, attacks, forms and methods, and options that need or exclude a world.

    Raises:
        InputError: one of them cannot be used.
        MissingExtra: bitsandbytes is not installed.
    """
    from residuum.meta.attacks import check_attacks
    from residuum.meta.catalogue import choose

    given = ctx.params
    chosen = choose(given["metrics"])
    if "compare" in given:
        choose(given["compare"])
        if said(ctx, "compare") and given["compare"] not in chosen:
            raise UsageError(
                f"--compare {given['compare']} is not among the --metrics.\n  They are {', '.join(chosen)}."
            )
    if "attack" in given:
        check_attacks(given["attack"].split(","))
        form_named(given["form"])
    if given["world"] is None:
        check_unused(ctx, "without --world", {"size", "methods"})
        return
    check_unused(ctx, "with --world, which brings its own", {"data_dir", "full_model", "retain_model"})
    if "pool_p" in given and (given["pool_p"] == "published") != (given["pool_n"] == "published"):
        raise UsageError("with --world, give both --pool-p and --pool-n, or neither.")
    if given.get("methods") is not None:
        from residuum.errors import UnknownName
        from residuum.worlds.unlearned import SETTINGS

        for name in given["methods"].split(","):
            if name.strip().lower() not in SETTINGS:
                raise UnknownName("method", name.strip(), SETTINGS)


def check_unused(ctx: typer.Context, when: str, names: set[str]) -> None:
    """Refuse options that would do nothing.

    Raises:
        UsageError: names those that were given.
    """
    if useless := [f"--{name.replace('_', '-')}" for name in ctx.params if name in names and said(ctx, name)]:
        raise UsageError(f"{', '.join(useless)} would do nothing {when}.")


def check_folders(pools: Pools, attacked: Attacked) -> None:
    """Say on stderr when two finished folders do not rest on the same data, references and settings."""
    there = [_asked(part.settings) for part in (pools, attacked)]
    differ = sorted(name for name in there[0].keys() & there[1].keys() if there[0][name] != there[1][name])
    if differ:
        typer.echo(f"residuum: the two folders differ in {', '.join(differ)}; read the table with care.", err=True)


def said(ctx: typer.Context, name: str) -> bool:
    """Whether an option was given, rather than left at its default."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _asked(settings: Any) -> dict[str, Any]:
    """What decides values of knowledge: the fluency classifier is for utility alone."""
    return {name: value for name, value in dict(settings or {}).items() if name != "fluency_model"}


def form_named(word: str) -> Any:
    """One of the two forms of Q and R."""
    from residuum.registry import one_of

    return one_of("form", word, "symmetric", "one-directional")


def read_thresholds(path: Path) -> dict[str, float | None]:
    """From a faithfulness folder, its summary, or any JSON file of the form {"metrics": {"em": {"threshold": 0.6}}}."""
    file = path / "summary.json" if path.is_dir() else path
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))["metrics"]
        found = {name: None if row["threshold"] is None else float(row["threshold"]) for name, row in rows.items()}
        if not all(value is None or math.isfinite(value) for value in found.values()):
            raise ValueError("a threshold is not finite")
        return found
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            "holds no thresholds", path=file, hint='Wanted: {"metrics": {"em": {"threshold": 0.6}, ...}}.'
        ) from error


def nearby_thresholds(bench: Bench) -> dict[str, float | None] | None:
    """Those of the store's own faithfulness run, if it asked about the same data and references in the same way."""
    folder = Path(bench.runs) / "faithfulness"
    if not (folder / "summary.json").is_file():
        return None
    found = read_thresholds(folder)
    there = json.loads((folder / "summary.json").read_text(encoding="utf-8")).get("settings")
    if _asked(there) != _asked(json.loads(json.dumps(bench.record()))):
        typer.echo(f"residuum: the thresholds of {folder} are of other models, data or settings; not used.", err=True)
        return None
    typer.echo(f"residuum: thresholds of {folder}.", err=True)
    return found
