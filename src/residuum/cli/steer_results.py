"""``residuum steer rebuild | rescore | report``: results again, without the steered model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from residuum.cli.app import print_table
from residuum.cli.steer_options import (
    AsJson,
    ExperimentName,
    Gpu,
    Judge,
    JudgeBaseUrl,
    JudgeCache,
    JudgeConcurrency,
    JudgeLog,
    JudgeModel,
    JudgeScoring,
    MaxJudgeCalls,
    PromptsFile,
    Root,
    Runs,
    Trait,
    judge_options,
    results_of,
    steer,
)
from residuum.cli.steer_tables import show_list
from residuum.errors import PartlyFailed


@steer.command("rebuild")
def rebuild_command(
    experiment: ExperimentName,
    trait: Trait,
    apply: Annotated[bool, typer.Option("--apply", help="Write results_rebuilt.json.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="With --apply: write results.json itself.")] = False,
    allow_loss: Annotated[bool, typer.Option("--allow-loss", help="Overwrite although runs would be lost.")] = False,
    root: Root = Path(),
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Make results.json again from finished runs, also from response files of older tools; a dry run without --apply.

    Examples: `residuum steer rebuild --experiment e --trait epistemic/optimism`,
    `residuum steer rebuild --experiment e --trait epistemic/optimism --apply --overwrite`
    """
    from residuum.steering.rebuild import rebuild

    made = rebuild(results_of(root, experiment, trait, runs), apply=apply, overwrite=overwrite, allow_loss=allow_loss)
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


@steer.command("rescore")
def rescore_command(
    experiment: ExperimentName,
    trait: Trait,
    judge: Judge = "openai",
    judge_model: JudgeModel = None,
    judge_base_url: JudgeBaseUrl = None,
    judge_scoring: JudgeScoring = "auto",
    judge_log: JudgeLog = None,
    judge_cache: JudgeCache = True,
    judge_concurrency: JudgeConcurrency = 20,
    max_judge_calls: MaxJudgeCalls = None,
    prompts_file: PromptsFile = None,
    root: Root = Path(),
    runs: Runs = None,
    gpu: Gpu = None,
    as_json: AsJson = False,
) -> None:
    """Judge all saved answers of a trait again, with another judge or scoring; no steered model is loaded.

    Examples: `residuum steer rescore --experiment e --trait mood/cheerful --judge gemini`,
    `residuum steer rescore --experiment e --trait mood/cheerful --judge hf --judge-model judges/small`
    """
    from residuum.steering.evaluate import open_panel
    from residuum.steering.judge.prompts import COHERENCE, default_trait_prompt
    from residuum.steering.rescore import check_answers, rescore
    from residuum.steering.traits import find_prompts, load_definition, load_prompts

    results = results_of(root, experiment, trait, runs)
    default = default_trait_prompt(load_definition(root, trait))
    prompts = load_prompts(find_prompts(root, trait, prompts_file), default_prompt=default)
    options = judge_options(judge_model, judge_base_url, judge_scoring, judge_log, judge_concurrency, max_judge_calls, gpu)  # fmt: skip
    check_answers(results, prompts)
    panel = open_panel(judge, options, results.store, cached=judge_cache)
    try:
        rows = rescore(results, panel, prompts, prompts.coherence_prompt or COHERENCE)
    finally:
        panel.close()
    print_table(f"{trait}, judged again", rows, as_json=as_json)
    if failed := sum(row["status"] != "ok" for row in rows):
        raise PartlyFailed(f"the judge failed on {failed} of {len(rows)} runs; run it again, or use another judge.")


@steer.command("report")
def report_command(
    experiment: ExperimentName,
    trait: Trait,
    out: Annotated[Path | None, typer.Option(help="HTML file; report.html beside results.json when left out.")] = None,
    root: Root = Path(),
    runs: Runs = None,
) -> None:
    """One page about a trait: heat maps of layer and coefficient, trait against coherence, texts before and after.

    Examples: `residuum steer report --experiment e --trait mood/cheerful`,
    `residuum steer report --experiment e --trait mood/cheerful --out cheerful.html`
    """
    from residuum.steering.report import write_report

    typer.echo(f"written to {write_report(results_of(root, experiment, trait, runs), out)}")
