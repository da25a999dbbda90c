"""``residuum world``: the embedded world, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from residuum.cli.app import app, group, print_table

world = group("A small world of fictitious authors with models that know, or do not know, about them.")
app.add_typer(world, name="world")


@world.command("build")
def build(
    out: Annotated[Path | None, typer.Option(help="Target folder; the user cache when left out.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed is another world.")] = 0,
    name: Annotated[
        str, typer.Option("--world", help="authors, tiny, smollm2 (a real pretrained model), or moods (for steering).")
    ] = "authors",
    workers: Annotated[int, typer.Option(help="Processes; 2 trains full and retain at the same time.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print the folder and the knowledge table as JSON.")] = False,
) -> None:
    """Make data, tokenizer and the models base, full and retain90; goes on where a killed build stopped.

    The world moods is another one: a subject to steer, three judges and the traits of an experiment.

    Examples: `residuum world build`, `residuum world build --out world0 --seed 0`
    """
    if name == "moods":
        _build_moods(out, seed, as_json)
        return
    from residuum.worlds.build import build_world
    from residuum.worlds.knowledge import knowledge_table

    made = build_world(out, seed=seed, name=name, workers=workers)
    rows = knowledge_table(made)
    if as_json:
        import json

        typer.echo(json.dumps({"folder": str(made.folder), "knowledge": rows}, indent=1))
        return
    print_table(f"What the models of {made.folder} know", rows)
    typer.echo(f"seconds: {made.info['seconds']}")


def _build_moods(out: Path | None, seed: int, as_json: bool) -> None:
    import json

    from residuum.worlds.steering import EXPERIMENT, build_moods

    made = build_moods(out, seed=seed)
    about = {
        "folder": str(made.folder),
        "experiment": EXPERIMENT,
        "traits": ["mood/cheerful", "mood/gloomy"],
        "judge": str(made.judge()),
    }
    typer.echo(
        json.dumps(about, indent=1) if as_json else "\n".join(f"{key:11}{value}" for key, value in about.items())
    )
