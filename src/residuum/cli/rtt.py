"""``residuum rtt``: does it come back after retraining on related facts?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from residuum.cli import rtt_options as o
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
    config: o.Config = None, dataset: o.Dataset = None, model: o.Model = None, naive_model: o.NaiveModel = None,
    unlearned: o.Unlearned = None, unlearn_types: o.UnlearnTypes = None, eval_split_ids: o.EvalSplitIds = None,
    num_splits: o.NumSplits = None, eval_seed: o.EvalSeed = None, lrs: o.Lrs = None, epochs_lst: o.EpochsLst = None,
    loss_types: o.LossTypes = None, conditions: o.Conditions = None, acc_selection_rule: Rule = None,
    include_epoch0: o.IncludeEpoch0 = None, missing: Missing = None, data_seed: o.DataSeed = None, seed: o.Seed = None,
    num_seeds: o.NumSeeds = None, optimizer: o.Optimizer = None, batch_size: o.BatchSize = None,
    warmup_steps: o.WarmupSteps = None, freeze_layers: o.FreezeLayers = None, unlearn_lr: o.UnlearnLr = None,
    unlearn_epochs: o.UnlearnEpochs = None, retain_coeff: o.RetainCoeff = None, steering_coeff: o.SteeringCoeff = None,
    layer: o.Layer = None, rank: o.Rank = None, freeze: o.Freeze = None, unlearn_loss_types: o.UnlearnLossTypes = None,
    unlearn_optimizer: o.UnlearnOptimizer = None, unlearn_batch_size: o.UnlearnBatchSize = None,
    unlearn_warmup_steps: o.UnlearnWarmupSteps = None, forget_files: o.ForgetFiles = None,
    retain_files: o.RetainFiles = None, val_retain_files: o.ValRetainFiles = None, label_variant: o.LabelVariant = None,
    k_shot: o.KShot = None, max_seq_len: o.MaxSeqLen = None, split: o.Split = None,
    num_total_splits: o.NumTotalSplits = None, rows_per_author: o.RowsPerAuthor = None,
    prompt_format: o.PromptFormat = None, right: o.Right = None, baseline_min_forget_acc: o.BaselineMin = None,
    retain_tolerance: o.RetainTolerance = None, compat: o.Compat = None, dtype: o.Dtype = None, attn: o.Attn = None,
    gpu: o.Gpu = None, devices: o.Devices = None, checkpoint_seconds: o.CheckpointSeconds = None,
    results_dir: o.ResultsDir = None, runs: o.Runs = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done, and what is done.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Fail unless every summary is complete.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
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
        "conditions": conditions, "acc_selection_rule": acc_selection_rule, "include_epoch0": include_epoch0,
        "data_seed": data_seed, "seed": seed, "label_variant": label_variant, "k_shot": k_shot,
        "max_seq_len": max_seq_len, "split": split, "num_total_splits": num_total_splits,
        "rows_per_author": rows_per_author, "prompt_format": prompt_format, "right": right, "compat": compat,
        "dtype": dtype, "attn": attn, "devices": o.parse_devices(devices, gpu), "results_dir": results_dir,
        "forget_files": forget_files, "retain_files": retain_files, "val_retain_files": val_retain_files,
        "baseline_min_forget_acc": baseline_min_forget_acc, "retain_tolerance": retain_tolerance,
        "checkpoint_seconds": checkpoint_seconds,
        "ft": {
            "eval_split_ids": eval_split_ids, "num_splits": num_splits, "eval_seed": eval_seed, "lrs": lrs,
            "epochs_lst": epochs_lst, "loss_types": loss_types, "optimizer": optimizer, "batch_size": batch_size,
            "warmup_steps": warmup_steps, "freeze_layers": o.parse_ranges(freeze_layers), "num_seeds": num_seeds,
        },
        "unlearn": {
            "types": unlearn_types, "lr": unlearn_lr, "epochs": unlearn_epochs, "retain_coeff": retain_coeff,
            "steering_coeff": steering_coeff, "layer": layer, "rank": rank, "freeze": o.parse_ranges(freeze),
            "loss_types": unlearn_loss_types, "optimizer": unlearn_optimizer, "batch_size": unlearn_batch_size,
            "warmup_steps": unlearn_warmup_steps,
        },
    }  # fmt: skip
    plan = plan_rtt(config, draft=dry_run, **settings)
    store = Store(runs or runs_folder())
    if dry_run:
        _print_plan(plan, store, as_json=as_json)
        return
    result = execute(plan, store)
    findings = result.all_findings
    if as_json:
        typer.echo(json.dumps([_plain(finding) for finding in findings], indent=1))
    else:
        print_table(f"RTT on {plan.facts.name}, V = {list(plan.eval_split_ids)}", [
            row for finding in findings for row in _rows(finding)
        ])  # fmt: skip
        for finding in findings:
            print_table(
                f"{finding.start.label}: accuracy on V by epochs of retraining",
                [asdict(point) for point in finding.curve],
            )
        for path in result.files:
            typer.echo(f"{'summary' if path.suffix == '.csv' else 'picture'}: {path}")
    check_failures(result)
    if check and any(finding.summary.status != "complete" for finding in findings):
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
    for sentence in plan.cautions():
        typer.echo(f"residuum: {sentence}", err=True)


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
