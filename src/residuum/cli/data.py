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


@data.command("annotate")
def annotate_command(
    qa: Annotated[
        Path, typer.Option(help="Questions and answers, JSON or JSON lines; an entity field is used when given.")
    ],
    full: Annotated[str, typer.Option(help="The model that should know the answers.")],
    out: Annotated[
        Path, typer.Option(help="Receives the annotated set; FILE.review.json and FILE.dropped.json beside it.")
    ],
    rouge_recall: Annotated[float, typer.Option(help="An answer counts as known from this ROUGE-L recall on.")] = 0.5,
    gpu: Annotated[int | None, typer.Option(help="GPU number; the first one, else the CPU, when left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Find prefix and entity of plain question/answer pairs, and drop what the full model itself gets wrong.

    Ambiguous answers go to OUT.review.json with their candidates: add an entity field and run again.

    Examples: `residuum data annotate --qa forget.jsonl --full out/full --out forget_annotated.json`
    """
    import json

    from residuum.data.jsonfiles import read_records
    from residuum.models.loading import load
    from residuum.patching.annotate import annotate
    from residuum.progress import progress
    from residuum.store.atomic import write_json

    records = read_records(qa)
    lm = load(full, device="auto" if gpu is None else gpu)
    with progress("annotating", len(records)) as bar:
        found = annotate(records, lm, rouge_recall=rouge_recall, advance=bar.advance)
    write_json(out, [item.row for item in found if item.outcome == "kept"])
    for outcome in ("review", "dropped"):
        rows = [{**a.row, "reason": a.reason, "candidates": list(a.candidates)} for a in found if a.outcome == outcome]
        write_json(out.with_suffix(f".{outcome}.json"), rows)
    counts = {outcome: sum(item.outcome == outcome for item in found) for outcome in ("kept", "review", "dropped")}
    typer.echo(
        json.dumps(counts)
        if as_json
        else f"{counts['kept']} annotated, {counts['review']} for review, {counts['dropped']} dropped: {out}"
    )
