"""``residuum data``: fetch, check and prepare data files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from residuum.cli.app import app, group, print_table
from residuum.errors import DataError

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

    reports, unreadable = [], []
    for path in files:
        try:
            reports.append(check_file(path))
        except DataError as error:
            unreadable.append(str(error))
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
    for message in unreadable:
        typer.echo(f"residuum: {message}", err=True)
    if unreadable or not all(report.ok for report in reports):
        raise typer.Exit(2)


@data.command("fetch")
def fetch(
    out: Annotated[Path, typer.Option(help="Folder that receives the files.")] = Path("data"),
    split: Annotated[list[str] | None, typer.Option(help="Only these splits; may be repeated.")] = None,
    uds: Annotated[bool, typer.Option(help="Also the annotated UDS set.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="The files as a JSON array.")] = False,
) -> None:
    """Download TOFU's splits and the annotated UDS set from the hub (needs the extra hub and a network).

    Examples: `residuum data fetch --out data`, `residuum data fetch --out data --no-uds`
    """
    from residuum.data.fetch import DEFAULT_SPLITS
    from residuum.data.fetch import fetch as fetch_files
    from residuum.store.atomic import write_text

    files = fetch_files(out, write_text, splits=split or DEFAULT_SPLITS, annotated=uds)
    rows = [{"name": path.name, "rows": count} for path, count in files.items()]
    print_table(f"fetched into {out}", rows, as_json=as_json)


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


@data.command("alternates")
def alternates_command(
    model: Annotated[str, typer.Option(help="The model that knows the answers.")],
    qa: Annotated[Path, typer.Option("--data", help="Questions and answers to forget.")],
    out: Annotated[Path, typer.Option(help="Receives rows of question, answer and alternate as JSON lines.")],
    per_question: Annotated[int, typer.Option(help="Samples per question.")] = 5,
    temperature: Annotated[float, typer.Option(help="Of the sampling.")] = 1.0,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    prompt_format: Annotated[str, typer.Option("--format", help="chat or raw.")] = "chat",
    gpu: Annotated[int | None, typer.Option(help="GPU number; the first one, else the CPU, when left out.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Sample other answers to the forget questions, for AltPO; samples that are the true answer are dropped.

    Examples: `residuum data alternates --model full --data data/forget10.jsonl --out data/forget10_alternates.jsonl`,
    `residuum data alternates --model w/models/full --data w/data/forget10.jsonl --temperature 1.5 --out alternates.jsonl`
    """
    import json

    from residuum.models.loading import load
    from residuum.training.alternates import sample_alternates, write_alternates
    from residuum.training.setup import Setup

    rows, dropped = sample_alternates(
        load(model, device="auto" if gpu is None else gpu), qa, per_question=per_question, temperature=temperature,
        max_new_tokens=max_new_tokens, seed=seed, form=Setup(format=prompt_format).forms[0],
    )  # fmt: skip
    write_alternates(out, rows)
    counts = {"kept": len(rows), "dropped": dropped, "questions": len({row["question"] for row in rows})}
    typer.echo(
        json.dumps(counts)
        if as_json
        else f"{counts['kept']} alternates for {counts['questions']} questions, {dropped} true answers dropped: {out}"
    )
