"""The root command, its error handling, and the few things every command shares."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click
import typer
from typer.core import TyperGroup

from residuum.errors import ResiduumError


class _Group(TyperGroup):
    """Accepts ``--like_this`` for ``--like-this``: the scripts our users come from spell options with underscores."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not isinstance(command, click.Group):
            rest = [_dashed(word) for word in rest]
        return name, command, rest


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    option, separator, value = word.partition("=")
    return option.replace("_", "-") + separator + value


def group(help: str) -> typer.Typer:
    """A command group of our house style."""
    return typer.Typer(cls=_Group, help=help, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)


app = group("What is left in a model after unlearning, where it sits, and how easily it comes back.")


def run() -> None:
    """Parse, dispatch, and turn our own errors into one readable message and an exit code."""
    from residuum.cli import data, doctor, listing, models, world  # noqa: F401  each registers its commands

    try:
        app(standalone_mode=False)
    except ResiduumError as error:
        typer.echo(f"residuum: {error}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        typer.echo("residuum: interrupted; everything finished is saved.", err=True)
        sys.exit(130)


def print_table(title: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool = False) -> None:
    """Print rows as a table for people or as a JSON array for programs."""
    if as_json:
        typer.echo(json.dumps(list(rows), indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in rows[0] if rows else ():
        table.add_column(column.replace("_", " "), justify="right" if isinstance(rows[0][column], int | float) else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console().print(table)


def _cell(value: Any) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else escape(str(value))
