"""``residuum models``: the names of published checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from residuum.cli.app import app, group, print_table
from residuum.models import names

models = group("The 398 published checkpoints by short name.")
app.add_typer(models, name="models")


@models.command("ls")
def list_models(
    method: Annotated[str | None, typer.Option(help="Only this method, for instance simnpo.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON array of objects with name and id.")] = False,
) -> None:
    """List the published models.

    Examples: `residuum models ls --method rmu`, `residuum models ls --json | jq length`
    """
    rows = [{"name": name, "id": hub_id} for name, hub_id in names.all_models().items()]
    if method is not None:
        rows = [row for row in rows if names.parse(row["name"]).method == names.method_key(method)]
    print_table("published models", rows, as_json=as_json)


@models.command("resolve")
def resolve(
    name: Annotated[str, typer.Argument(help="A short name, an alias, or a hub id.")],
    as_json: Annotated[bool, typer.Option("--json", help="Name, id, method and hyper-parameters as JSON.")] = False,
) -> None:
    """Print the hub id of a short name, or the short name of a hub id.

    Examples: `residuum models resolve simnpo`, `residuum models resolve simnpo_lr2e5_b35_a1_d1_g0125_ep5`
    """
    import json

    hub_id = names.resolve(name)
    short = names.shorten(hub_id)
    if as_json:
        known = short in names.all_models()
        parsed = {"method": names.parse(short).method, **names.parse(short).hyper} if known else {}
        typer.echo(json.dumps({"name": short, "id": hub_id, **parsed}))
    else:
        typer.echo(short if name == hub_id else hub_id)
