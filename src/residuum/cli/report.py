"""``residuum report`` and ``residuum plot``: look instead of read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from residuum.cli.app import app, group, print_table

report = group("One self-contained page from run stores: verdict, depth, table, trade-offs, attacks, provenance.")
app.add_typer(report, name="report")

Runs = Annotated[list[Path], typer.Argument(help="Roots of run stores, or single run folders.")]
Out = Annotated[Path, typer.Option(help="Target file.")]
Title = Annotated[str, typer.Option(help="Of the page.")]


@report.command("build")
def build_command(runs: Runs, out: Out = Path("report.html"), title: Title = "residuum report") -> None:
    """What do my runs say? One HTML file without network, made from the stores alone.

    Examples: `residuum report build runs --out report.html`, `residuum report build runs evals --title "Our audit"`
    """
    from residuum.report.build import build_report

    typer.echo(f"report: {build_report(list(runs), out, title=title)}")


@report.command("compare")
def compare_command(
    first: Annotated[Path, typer.Argument(metavar="A", help="A run store.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Another, for instance of a newer version.")],
    out: Annotated[Path | None, typer.Option(help="Also write a page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the changes as JSON.")] = False,
) -> None:
    """What changed between two stores, model by model, with paired intervals?

    Examples: `residuum report compare runs-old runs-new`, `residuum report compare A B --out changes.html`
    """
    from residuum.report.compare import compare, section
    from residuum.report.page import render
    from residuum.store.atomic import write_text

    found = compare(first, second)
    rows = [change.row() for change in found.changes]
    if as_json:
        typer.echo(json.dumps({"changes": rows, "notes": found.notes}, indent=1, ensure_ascii=False))
    else:
        print_table(f"{first} (A) and {second} (B)", rows)
        for note in found.notes:
            typer.echo(note)
    if out is not None:
        page = render(f"{first.name} and {second.name}", [section(found)], f"{len(rows)} numbers in both stores.")
        typer.echo(f"report: {write_text(out, page)}", err=as_json)


@report.command("published")
def published_command(
    file: Annotated[Path, typer.Argument(help="A table in the published form: JSON with one object per model.")],
    runs: Annotated[list[Path] | None, typer.Argument(help="Run stores whose models stand beside it.")] = None,
    out: Out = Path("report.html"),
    title: Title = "residuum report",
) -> None:
    """Where does my model stand among the published ones? Their table in the same page as one's own runs.

    Examples: `residuum report published method_results.json`, `residuum report published method_results.json runs --out mine.html`
    """
    from residuum.report.build import build_report

    typer.echo(f"report: {build_report(list(runs or []), out, published=file, title=title)}")


@app.command("plot")
def plot_command(
    name: Annotated[str, typer.Argument(help="A chart of the report, such as depth-profile or trade-off.")],
    runs: Runs,
    out: Annotated[Path, typer.Option(help="Target: .pdf, .png or .svg.")] = Path("figure.pdf"),
    columns: Annotated[str, typer.Option(help="Width: one or two columns of a paper.")] = "one",
    of: Annotated[str | None, typer.Option(help="Model, metric or trait, where the page has a choice.")] = None,
) -> None:
    """Any chart of the report as a figure for a paper, colour-blind safe.

    Examples: `residuum plot trade-off runs --out fig.pdf --columns two`, `residuum plot depth-profile runs --of npo --out depth.svg`
    """
    from residuum.report.figures import plot

    typer.echo(str(plot(name, list(runs), out, columns=columns, of=of)))
