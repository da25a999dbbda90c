"""``residuum rtt``: does it come back after retraining on related facts?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from residuum.cli.app import app, group, print_table

if TYPE_CHECKING:
    from residuum.rtt.plan import Plan
    from residuum.rtt.results import Finding

rtt = group("Retraining on T: does the knowledge come back when someone trains on related facts?")
app.add_typer(rtt, name="rtt")

AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Missing = Annotated[str | None, typer.Option(help="A V run that is missing somewhere: intersect, strict or available.")]
Rule = Annotated[str | None, typer.Option(help="Accuracy of a run: final_epoch or max_epoch.")]


@rtt.command("run")
def run_command(
    config: Annotated[Path | None, typer.Argument(help="TOML file with these settings; options win over it.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="birthdays, a folder of multiple-choice or TOFU files, or tofu.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model that knows the facts.")] = None,
    naive_model: Annotated[str | None, typer.Option(help="The model that never saw them, for N.")] = None,
    unlearned: Annotated[
        list[str] | None, typer.Option(help="A checkpoint unlearned elsewhere, as A; may be repeated.")
    ] = None,
    unlearn_types: Annotated[
        str | None, typer.Option("--unlearn-types", "--unlearn.types", help="GD, RIA (WHP), FWF, CUT (RMU), LORA.")
    ] = None,
    unlearn_lr: Annotated[
        str | None, typer.Option("--unlearn-lr", "--unlearn.lr", help="Learning rates of unlearning.")
    ] = None,
    unlearn_epochs: Annotated[
        str | None, typer.Option("--unlearn-epochs", "--unlearn.epochs", help="Epochs of unlearning.")
    ] = None,
    retain_coeff: Annotated[
        str | None, typer.Option("--retain-coeff", "--unlearn.retain-coeff", help="Weights of the retain loss.")
    ] = None,
    steering_coeff: Annotated[
        str | None, typer.Option("--steering-coeff", "--unlearn.steering-coeff", help="CUT: length of the target.")
    ] = None,
    rank: Annotated[str | None, typer.Option("--rank", "--unlearn.rank", help="Ranks of a low-rank adapter.")] = None,
    freeze: Annotated[
        str | None, typer.Option("--freeze", "--unlearn.freeze", help="Frozen part of the depth: 0-0.5,0.75-1.")
    ] = None,
    retain_files: Annotated[
        list[str] | None, typer.Option(help="Sentences to keep while unlearning; may be repeated.")
    ] = None,
    val_retain_files: Annotated[
        list[str] | None, typer.Option(help="Questions that show whether the rest is kept; may be repeated.")
    ] = None,
    eval_split_ids: Annotated[
        str | None, typer.Option("--eval-split-ids", "--ft.eval-split-ids", help="Held-out splits, such as 0,2.")
    ] = None,
    num_splits: Annotated[
        int | None, typer.Option("--num-splits", "--ft.num-splits", help="Draw so many of them instead.")
    ] = None,
    eval_seed: Annotated[int | None, typer.Option("--eval-seed", "--ft.eval-seed", help="Seed of that draw.")] = None,
    lrs: Annotated[
        str | None, typer.Option("--lrs", "--ft.lrs", help="Learning rates: 1e-6,4e-6 or start:end:step.")
    ] = None,
    epochs_lst: Annotated[
        str | None, typer.Option("--epochs-lst", "--ft.epochs-lst", help="Numbers of epochs; one training serves all.")
    ] = None,
    loss_types: Annotated[
        str | None, typer.Option("--loss-types", "--ft.loss-types", help="What of T carries loss.")
    ] = None,
    ft_optimizer: Annotated[str | None, typer.Option("--optimizer", "--ft.optimizer", help="lion or adamw.")] = None,
    ft_batch_size: Annotated[
        int | None, typer.Option("--batch-size", "--ft.batch-size", help="Rows per step of retraining.")
    ] = None,
    freeze_layers: Annotated[
        str | None, typer.Option("--freeze-layers", "--ft.freeze-layers", help="As --freeze, for retraining.")
    ] = None,
    conditions: Annotated[str | None, typer.Option(help="Which of A,B,C,N.")] = None,
    acc_selection_rule: Rule = None,
    missing: Missing = None,
    data_seed: Annotated[int | None, typer.Option(help="Seed of data and unlearning.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of retraining.")] = None,
    label_variant: Annotated[str | None, typer.Option(help="Token of a letter: continuation, nospace or sum.")] = None,
    k_shot: Annotated[int | None, typer.Option(help="Solved questions before each prompt.")] = None,
    prompt_format: Annotated[str | None, typer.Option(help="TOFU: chat or raw.")] = None,
    right: Annotated[str | None, typer.Option(help="TOFU: the right candidate, answer or paraphrase.")] = None,
    compat: Annotated[
        str | None, typer.Option(help="published: as the published code does it, errors included.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    devices: Annotated[str | None, typer.Option(help="One process each: cuda:0,cuda:1 or cpu,cpu.")] = None,
    results_dir: Annotated[Path | None, typer.Option(help="Where the result files go; evals/pipeline.")] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Root of the run store; RESIDUUM_RUNS or runs/ when left out.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done, and what is done.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Fail unless every summary is complete.")] = False,
    as_json: AsJson = False,
) -> None:
    """Unlearn, retrain on all splits but one, ask for that one: does it come back?

    A: unlearned. B: unlearned, then retrained. C: the model that knows, retrained. N: a model that never knew, retrained.

    Examples: `residuum rtt run`, `residuum rtt run sweep.toml --eval-split-ids 0,2 --dry-run`,
    `residuum rtt run --dataset world --model world/models/full --naive-model world/models/retain90 --unlearned out/npo`
    """
    from residuum.folders import runs_folder
    from residuum.rtt.protocol import check_failures, execute, plan_rtt
    from residuum.store import Store

    settings: dict[str, Any] = {
        "dataset": dataset, "model": model, "naive_model": naive_model, "unlearned": unlearned, "missing": missing,
        "conditions": conditions, "acc_selection_rule": acc_selection_rule, "data_seed": data_seed, "seed": seed,
        "label_variant": label_variant, "k_shot": k_shot, "prompt_format": prompt_format, "right": right,
        "compat": compat, "dtype": dtype, "devices": devices, "results_dir": results_dir,
        "retain_files": retain_files, "val_retain_files": val_retain_files,
        "ft": {
            "eval_split_ids": eval_split_ids, "num_splits": num_splits, "eval_seed": eval_seed, "lrs": lrs,
            "epochs_lst": epochs_lst, "loss_types": loss_types, "optimizer": ft_optimizer,
            "batch_size": ft_batch_size, "freeze_layers": parse_ranges(freeze_layers),
        },
        "unlearn": {
            "types": unlearn_types, "lr": parse_list(unlearn_lr), "epochs": parse_list(unlearn_epochs),
            "retain_coeff": parse_list(retain_coeff), "steering_coeff": parse_list(steering_coeff),
            "rank": parse_list(rank), "freeze": parse_ranges(freeze),
        },
    }  # fmt: skip
    plan = plan_rtt(config, **settings)
    store = Store(runs or runs_folder())
    if dry_run:
        _print_plan(plan, store, as_json=as_json)
        return
    result = execute(plan, store)
    if as_json:
        typer.echo(json.dumps([_plain(finding) for finding in result.findings], indent=1))
    else:
        print_table(f"RTT on {plan.facts.name}, V = {list(plan.eval_split_ids)}", [
            row for finding in result.findings for row in _rows(finding)
        ])  # fmt: skip
        for finding in result.findings:
            print_table(
                f"{finding.start.label}: accuracy on V by epochs of retraining",
                [asdict(point) for point in finding.curve],
            )
        for path in result.files:
            typer.echo(f"{'summary' if path.suffix == '.csv' else 'picture'}: {path}")
    check_failures(result)
    if check and any(finding.summary.status != "complete" for finding in result.findings):
        raise typer.Exit(1)


@rtt.command("summarize")
def summarize_command(
    folder: Annotated[Path, typer.Argument(help="Results folder with unlearning/ and ft/.")],
    missing: Missing = None,
    acc_selection_rule: Rule = None,
    include_epoch0: Annotated[bool, typer.Option(help="Let max_epoch count the state before retraining.")] = False,
    write: Annotated[bool, typer.Option(help="Also write summary/{time}.csv.")] = True,
    check: Annotated[bool, typer.Option("--check", help="Fail unless every summary is complete.")] = False,
    as_json: AsJson = False,
) -> None:
    """Summarise result files again, best cell per V run: ours, the published pipeline's or its fork's.

    Examples: `residuum rtt summarize evals/pipeline`, `residuum rtt summarize old --missing available --json`
    """
    from residuum.rtt.artefacts import stamp, write_summary
    from residuum.rtt.resummarize import resummarize

    rows = resummarize(
        folder, missing=missing or "intersect", rule=acc_selection_rule or "final_epoch", include_epoch0=include_epoch0
    )
    if write and rows:
        path = write_summary(folder / "summary", [{**row, "time": stamp()} for row in rows])
        typer.echo(f"summary: {path}", err=True)
    shown = {
        "unlearn_type": "method", "forget_acc_baseline": "base", "forget_acc_unlearn": "A",
        "forget_acc_unlearn_rtt": "B", "forget_acc_baseline_rtt": "C", "recovery_rate": "B/C", "gap_closed": "gap_closed",
        "forget_acc_unlearn_rtt_nested": "B_nested", "forget_acc_unlearn_rtt_global": "B_global", "status": "status",
        "model_path": "model",
    }  # fmt: skip
    table = rows if as_json else [{title: row[name] for name, title in shown.items()} for row in rows]
    print_table(f"RTT in {folder}", table, as_json=as_json)
    if check and any(row["status"] != "complete" for row in rows):
        raise typer.Exit(1)


def parse_list(text: str | None) -> list[str] | None:
    """``a,b`` as a list; every combination becomes one unlearned model."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def parse_ranges(text: str | None) -> list[list[str]] | None:
    """``0-0.5,0.75-1`` as pairs."""
    return None if text is None else [part.strip().split("-") for part in text.split(",")]


def _print_plan(plan: Plan, store: Any, *, as_json: bool) -> None:
    rows = plan.cost(store)
    if as_json:
        runs = [
            {"run_id": run.run_id, "condition": run.start.condition, "start": run.start.path, "eval_split_id": run.held_out,
             "loss_type": run.loss_type, "lr": run.lr, "seed": run.seed, "cached": plan.is_done(store, run)}
            for run in plan.runs
        ]  # fmt: skip
        typer.echo(json.dumps({"signature": plan.signature, "cost": rows, "runs": runs}, indent=1))
        return
    print_table(f"plan {plan.signature}: V = {list(plan.eval_split_ids)}, {plan.epochs} epochs a run", rows)


def _rows(finding: Finding) -> list[dict[str, Any]]:
    """One row per condition."""
    found, intervals = finding.summary, finding.intervals

    def row(
        name: str, accuracy: float | None, key: str, nested: float | None = None, retain: float | None = None
    ) -> dict[str, Any]:
        return {
            "model": finding.start.label, "condition": name, "accuracy": accuracy, "95%": _interval(intervals.get(key)),
            "nested": nested, "nested_95%": _interval(intervals.get(f"{key}_nested")), "retain": retain,
        }  # fmt: skip

    rows = [
        row("base", found.base, "forget_acc_baseline", retain=finding.retain["baseline"]),
        row("A", found.unlearned, "forget_acc_unlearn", retain=finding.retain["unlearn"]),
        row("B", found.b.accuracy, "forget_acc_unlearn_rtt", found.b.accuracy_nested, finding.retain["unlearn_rtt"]),
        row("C", found.c.accuracy, "forget_acc_baseline_rtt", found.c.accuracy_nested, finding.retain["baseline_rtt"]),
        row("N", found.n.accuracy, "forget_acc_naive_rtt", found.n.accuracy_nested),
        row("B/C", found.recovery_rate, "recovery_rate", found.recovery_rate_nested),
        row("(B-A)/(C-A)", found.gap_closed, "gap_closed"),
        row("(B-N)/(C-N)", found.recovery_above_naive, "recovery_above_naive"),
        row("above chance", found.recovery_above_chance, "recovery_above_chance"),
    ]
    return [row for row in rows if row["accuracy"] is not None]


def _interval(interval: tuple[float, float] | None) -> str | None:
    return None if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"


def _plain(finding: Finding) -> dict[str, Any]:
    return {
        "model": finding.start.label, "model_path": finding.start.path, **finding.summary.plain(),
        "forget_acc_naive": finding.naive, "retain": dict(finding.retain),
        "intervals": {name: list(interval) for name, interval in finding.intervals.items()},
        "warnings": list(finding.warnings), "curve": [asdict(point) for point in finding.curve],
    }  # fmt: skip
