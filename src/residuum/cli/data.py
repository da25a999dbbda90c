"""``residuum data``: fetch, check and prepare data files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from residuum.cli.app import app, group, print_table

data = group("Fetch, check and prepare data files.")
app.add_typer(data, name="data")


@data.command("check")
def check(
    files: Annotated[
        list[Path], typer.Argument(help="JSON or JSON-lines files: TOFU splits, annotated examples, multiple choice.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="The findings as a JSON array.")] = False,
) -> None:
    """Read data files and list every row that will be skipped, with the reason.

    Examples: `residuum data check forget.json`, `residuum data check data/*.jsonl --json`
    """
    from residuum.data.check import check_file

    reports = [check_file(path) for path in files]
    if as_json:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(report) for report in reports], indent=1, ensure_ascii=False))
    else:
        for report in reports:
            typer.echo(
                f"{report.path}: {report.rows} rows of kind {report.kind}, {len(report.errors)} unusable, {len(report.problems)} with problems"
            )
            for message in report.errors:
                typer.echo(f"  {message}")
            for problem in report.problems:
                typer.echo(f"  row {problem.row}: {problem.reason}")
    if not all(report.ok for report in reports):
        raise typer.Exit(2)


@data.command("fetch")
def fetch(
    out: Annotated[Path, typer.Option(help="Folder that receives the files.")] = Path("data"),
    uds: Annotated[bool, typer.Option(help="Also the annotated UDS set.")] = True,
) -> None:
    """Download TOFU's splits and the annotated UDS set from the hub (needs the extra hub and a network).

    Examples: `residuum data fetch --out data`, `residuum data fetch --out data --no-uds`
    """
    from residuum.data.fetch import fetch as fetch_files
    from residuum.store.atomic import write_text

    files = fetch_files(out, write_text, annotated=uds)
    print_table(f"fetched into {out}", [{"file": path.name, "rows": rows} for path, rows in files.items()])
