"""``residuum ls``: what can be named on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from residuum.cli.app import app, group, print_table

ls = group("List what residuum knows by name.")
app.add_typer(ls, name="ls")

AsJson = Annotated[bool, typer.Option("--json", help="A JSON array of objects with name.")]


@ls.command("families")
def list_families(as_json: AsJson = False) -> None:
    """Model families whose anatomy is known; others are guessed and checked.

    Examples: `residuum ls families`, `residuum ls families --json`
    """
    from residuum.models.anatomy import families

    rows = families()
    if not as_json:
        rows = [
            {key: row[key] for key in ("name", "blocks", "attention_out", "mlp_out", "final_norm", "parallel")}
            for row in rows
        ]
    print_table("families", rows, as_json=as_json)


@ls.command("methods")
def list_methods(as_json: AsJson = False) -> None:
    """Unlearning methods with their hyper-parameters and defaults.

    Examples: `residuum ls methods`, `residuum ls methods --json`
    """
    from residuum.training.methods import methods

    rows = methods()
    if not as_json:
        rows = [
            {
                "name": row["name"],
                "description": row["description"],
                "hyper_parameters": " ".join(f"{k}={v}" for k, v in row["hyper_parameters"].items() if v is not None),
                "cite": row["cite"],
            }
            for row in rows
        ]
    print_table("methods", rows, as_json=as_json)


@ls.command("metrics")
def list_metrics(as_json: AsJson = False) -> None:
    """Metrics with their direction, range and meaning.

    Examples: `residuum ls metrics`, `residuum ls metrics --json`
    """
    from residuum.metrics.registry import all_metrics

    rows = [metric.row() for _, metric in all_metrics().items()]
    if not as_json:
        rows = [
            {
                "name": row["name"],
                "category": row["category"],
                "higher_means": row["higher_means"] + ("" if row["ideal"] is None else f", ideal {row['ideal']:g}"),
                "range": " to ".join(f"{end:g}" if isinstance(end, float) else end for end in row["range"]),
                "meaning": row["meaning"],
            }
            for row in rows
        ]
    print_table("metrics", rows, as_json=as_json)


@ls.command("judges")
def list_judges(as_json: AsJson = False) -> None:
    """Judges of steered answers, with their default models and keys.

    Examples: `residuum ls judges`, `residuum ls judges --json`
    """
    from residuum.steering.judge.panel import judges

    print_table("judges", judges(), as_json=as_json)


@ls.command("probes")
def list_probes(as_json: AsJson = False) -> None:
    """Steering probes of unlearned models.

    Examples: `residuum ls probes`, `residuum ls probes --json`
    """
    from residuum.steering.probes import probes

    print_table("probes", probes(), as_json=as_json)
