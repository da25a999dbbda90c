"""``residuum steer rebuild | rescore | report``: results again, without the steered model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from residuum.cli import steer_options as o
from residuum.cli.app import print_table
from residuum.cli.steer_tables import show_list
from residuum.errors import PartlyFailed


@o.steer.command("rebuild")
def rebuild_command(
    experiment: o.ExperimentName,
    trait: o.Trait,
    apply: Annotated[bool, typer.Option("--apply", help="Write results_rebuilt.json.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --apply: write results.json itself.")] = False,
    allow_loss: Annotated[bool, typer.Option("--allow-loss", help="Overwrite although runs would be lost.")] = False,
    root: o.Root = Path(),
    runs: o.Runs = None,
    as_json: o.AsJson = False,
) -> None:
    """Make results.json again from finished runs, also from response files of older tools; a dry run without --apply.

    Examples: `residuum steer rebuild --experiment e --trait epistemic/optimism`,
    `residuum steer rebuild --experiment e --trait epistemic/optimism --apply --overwrite`
    """
    from residuum.steering.rebuild import rebuild

    made = rebuild(o.results_of(root, experiment, trait, runs), apply=apply, overwrite=overwrite, allow_loss=allow_loss)
    summary = {
        "found": made.found, "usable": made.usable, "runs": len(made.view["runs"]), "recovered": made.recovered,
        "lost": made.lost, "superseded": made.superseded, "skipped": made.skipped,
        "written": str(made.written) if made.written else None,
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(summary, indent=1))
        return
    typer.echo(f"{made.found} files found, {made.usable} usable, {len(made.view['runs'])} runs")
    show_list("would come back" if not made.written else "came back", made.recovered)
    show_list("in results.json, but nothing backs them", made.lost)
    show_list("older files of the same configuration", made.superseded)
    show_list("skipped", [f"{name}: {reason}" for name, reason in made.skipped])
    typer.echo(f"written to {made.written}" if made.written else "nothing written; --apply writes results_rebuilt.json")


@o.steer.command("rescore")
def rescore_command(
    experiment: o.ExperimentName,
    trait: o.Trait,
    judge: o.Judge = "openai",
    judge_model: o.JudgeModel = None,
    judge_base_url: o.JudgeBaseUrl = None,
    judge_scoring: o.JudgeScoring = "auto",
    judge_log: o.JudgeLog = None,
    judge_cache: o.JudgeCache = True,
    judge_concurrency: o.JudgeConcurrency = 20,
    max_judge_calls: o.MaxJudgeCalls = None,
    prompts_file: o.PromptsFile = None,
    root: o.Root = Path(),
    runs: o.Runs = None,
    gpu: o.Gpu = None,
    as_json: o.AsJson = False,
) -> None:
    """Judge all saved answers of a trait again, with another judge or scoring; no steered model is loaded.

    Examples: `residuum steer rescore --experiment e --trait mood/cheerful --judge gemini`,
    `residuum steer rescore --experiment e --trait mood/cheerful --judge hf --judge-model judges/small`
    """
    from residuum.steering.evaluate import open_panel
    from residuum.steering.judge.prompts import COHERENCE, default_trait_prompt
    from residuum.steering.rescore import check_answers, rescore
    from residuum.steering.traits import find_prompts, load_definition, load_prompts

    results = o.results_of(root, experiment, trait, runs)
    default = default_trait_prompt(load_definition(root, trait))
    prompts = load_prompts(find_prompts(root, trait, prompts_file), default_prompt=default)
    options = o.judge_options(judge_model, judge_base_url, judge_scoring, judge_log, judge_concurrency, max_judge_calls, gpu)  # fmt: skip
    check_answers(results, prompts)
    panel = open_panel(judge, options, results.store, cached=judge_cache)
    try:
        rows = rescore(results, panel, prompts, prompts.coherence_prompt or COHERENCE)
    finally:
        panel.close()
    print_table(f"{trait}, judged again", rows, as_json=as_json)
    if failed := sum(row["status"] != "ok" for row in rows):
        raise PartlyFailed(f"the judge failed on {failed} of {len(rows)} runs; run it again, or use another judge.")


@o.steer.command("report")
def report_command(
    experiment: o.ExperimentName,
    trait: o.Trait,
    out: Annotated[
        Path | None,
        typer.Option(help="HTML file, or .jsonl for a line per run; report.html beside results.json when left out."),
    ] = None,
    root: o.Root = Path(),
    runs: o.Runs = None,
) -> None:
    """One page about a trait: heat maps of layer and coefficient, trait against coherence, texts before and after.

    Examples: `residuum steer report --experiment e --trait mood/cheerful`,
    `residuum steer report --experiment e --trait mood/cheerful --out cheerful.jsonl`
    """
    from residuum.steering.jsonl import write_jsonl
    from residuum.steering.report import write_report

    results = o.results_of(root, experiment, trait, runs)
    written = write_jsonl(results, out) if out and out.suffix == ".jsonl" else write_report(results, out)
    typer.echo(f"written to {written}")
