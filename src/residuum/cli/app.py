"""The root command, its error handling, and the few things every command shares."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from residuum.errors import ResiduumError


def group(help: str) -> typer.Typer:
    """A command group of our house style."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode="markdown", pretty_exceptions_enable=False)


app = group("What is left in a model after unlearning, where it sits, and how easily it comes back.")


def _print_version(wanted: bool) -> None:
    if wanted:
        from residuum import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """What is left in a model after unlearning, where it sits, and how easily it comes back."""


def run(arguments: Sequence[str] | None = None) -> None:
    """Parse, dispatch, and turn our own errors into one readable message and an exit code."""
    from residuum.cli import (  # noqa: F401  each registers its commands
        audit,
        data,
        doctor,
        evaluate,
        listing,
        meta,
        models,
        report,
        rtt,
        steer,
        steer_probe,
        steer_results,
        sweep,
        training,
        uds,
        world,
    )

    warnings.showwarning = show_warning
    try:
        app(args=[_dashed(word) for word in (sys.argv[1:] if arguments is None else arguments)])
    except ResiduumError as error:
        typer.echo(f"residuum: {error}", err=True)
        sys.exit(error.exit_code)
    except SystemExit as stop:
        if stop.code == 130:
            typer.echo("residuum: interrupted; everything finished is saved.", err=True)
        raise


def _dashed(word: str) -> str:
    """``--like_this`` as ``--like-this``: the scripts our users come from spell options with underscores."""
    if not word.startswith("--"):
        return word
    option, separator, value = word.partition("=")
    return option.replace("_", "-") + separator + value


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Our own warnings as a sentence; those of libraries are for developers, who do not read them here."""
    if category.__module__.startswith("residuum"):
        typer.echo(f"residuum: {message}", err=True)


def print_table(title: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool = False) -> None:
    """Print rows as a table for people or as a JSON array for programs."""
    if as_json:
        typer.echo(json.dumps(list(rows), indent=1, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=1000)  # a pipe has no width: nothing is folded
    table = Table(title=title, title_justify="left")
    for column in rows[0] if rows else ():
        table.add_column(
            column.replace("_", " "),
            justify="right" if isinstance(rows[0][column], int | float) else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console.print(table)


def _cell(value: Any) -> str:
    from rich.markup import escape

    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else escape(str(value))
