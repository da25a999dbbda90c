"""The result files of a sweep, ``unlearning/``, ``ft/``, ``logits/`` and ``summary/``: views of its units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from datetime import datetime
from pathlib import Path
from typing import Any

from residuum.rtt import artefacts
from residuum.rtt.config import RttConfig, UnlearnConfig
from residuum.rtt.curve import save_picture
from residuum.rtt.facts import Facts, McqFacts, Split
from residuum.rtt.plan import BASE, NAIVE, UNLEARNED, Plan, RunSpec, Start
from residuum.rtt.results import Finding, Results, mean
from residuum.rtt.selection import Run
from residuum.rtt.splits import train_split_ids
from residuum.store import Unit, claim

_KINDS = {BASE: "BASE", NAIVE: "NAIVE", UNLEARNED: "GIVEN"}
"""The method column of models that were not unlearned here."""


def write_files(results: Results, findings: Sequence[Finding]) -> list[Path]:
    """Bring the result files up to date: new rows for what is finished, a summary file of now and its picture.

    Returns:
        Summary and picture, if there is anything to summarise.
    """
    plan, root = results.plan, results.plan.config.results_dir
    with claim(root / ".views", "the result files"):
        known = artefacts.known_ids(root / "unlearning") | artefacts.known_ids(root / "ft")
        for start in plan.starts:
            if not plan.is_evaluated(results.store, start):
                continue
            row = model_row(results, start)
            if row["run_id"] not in known:
                measured = {split.name: results.accuracy(start, split) for split in plan.splits_of(start)}
                _write_scores(root, row["run_id"], measured)
                artefacts.write_row(root / "unlearning", row, artefacts.MODEL_FIELDS)
        for spec in plan.runs:
            if spec.run_id not in known and (run := results.run(spec)) is not None:
                _write_scores(root, spec.run_id, results.epochs(spec))
                artefacts.write_row(root / "ft", run_row(results, spec, run), artefacts.RUN_FIELDS)
        if not findings:
            return []
        table = artefacts.write_summary(root / "summary", [summary_row(plan, finding) for finding in findings])
        curves = [(finding.start.label, finding.curve) for finding in findings]
        picture = save_picture(curves, table.with_suffix(".svg"), chance=plan.facts.chance)
        return [table] if picture is None else [table, picture]


def model_row(results: Results, start: Start) -> dict[str, Any]:
    """The row of a model that has been measured on all its splits, before retraining."""
    plan, facts, made = results.plan, results.plan.facts, start.unlearning
    of_splits = {
        s.path: u for s in plan.splits_of(start) if s not in facts.retain and (u := results.accuracy(start, s))
    }
    of_retain = {s.path: u for s in facts.retain if (u := results.accuracy(start, s))}
    last = str(made.epochs if made else 0)
    by_split = results.before(start)[0]
    time = max(unit.created for unit in of_splits.values())
    run_id = f"{plan.signature}-{start.digest[:16]}"
    names = {split.path: split.name for split in (*facts.splits, *facts.retain)}
    return {
        "model_path": start.path, "dataset": facts.name, "unlearn_type": made.type if made else _KINDS[start.condition],
        "forget_accs": {path: {last: unit.value["accuracy"]} for path, unit in of_splits.items()},
        "forget_accs_calibrated": {path: {last: unit.value["calibrated"]} for path, unit in of_splits.items()},
        "forget_logits_dict": {path: _logits(run_id, names[path]) for path in of_splits},
        "retain_logits_dict": {path: _logits(run_id, names[path]) for path in of_retain},
        "retain_accs": {path: {last: unit.value["accuracy"]} for path, unit in of_retain.items()},
        "retain_accs_calibrated": {path: {last: unit.value["calibrated"]} for path, unit in of_retain.items()},
        "val_files": [split.path for split in facts.splits], "val_retain_files": [split.path for split in facts.retain],
        "eval_val_files": [facts.splits[v].path for v in plan.eval_split_ids], "base_model": plan.base.path,
        "forget_accs_by_split": {str(v): accuracy for v, accuracy in by_split.items()},
        "forget_acc_mean": mean(by_split.values()), "retain_acc_mean": results.retain(start),
        "eval_split_ids": list(plan.eval_split_ids), "num_total_splits": len(facts.splits),
        "data_seed": plan.config.data_seed, "time": _stamp(time), "time_sf": _stamp(time), "start_time": _stamp(time),
        "label_variant": _variant(facts), "rtt_signature": plan.signature,
        "run_id": run_id, "chance": facts.chance, "hydra_dict": plan.config.plain(), **_files(facts, plan.config, made),
        **({} if made is None else {
            "lr": made.lr, "epochs": made.epochs, "batch_size": made.batch_size, "retain_coeff": made.retain_coeff,
            "warmup_steps": made.warmup_steps, "steering_coeff": made.steering_coeff, "lora_rank": made.rank,
            "save_name": start.path,
        }),
    }  # fmt: skip


def run_row(results: Results, spec: RunSpec, run: Run) -> dict[str, Any]:
    """The row of a finished training."""
    plan, facts, ft = results.plan, results.plan.facts, results.plan.config.ft
    known = results.epochs(spec)
    last, time = known[plan.epochs], _stamp(run.time)
    train = train_split_ids(spec.held_out, len(facts.splits))
    return {
        "dataset": facts.name, "loss_type": spec.loss_type, "lr": spec.lr, "epochs": run.epochs, "seed": spec.seed,
        "forget_accs_local": {str(epoch): accuracy for epoch, accuracy in run.accuracies.items()},
        "forget_accs_calibrated_local": {str(epoch): unit.value["calibrated"] for epoch, unit in known.items()},
        "forget_logits_dict": {str(epoch): _logits(spec.run_id, str(epoch)) for epoch in known},
        "retain_accs_local": {str(epoch): accuracy for epoch, accuracy in run.retain.items()},
        "train_accs_local": {str(plan.epochs): last.value.get("train_accuracy")},
        "train_files": [facts.splits[i].path for i in train], "val_files": [facts.splits[spec.held_out].path],
        "base_model": plan.base.path, "batch_size": ft.batch_size, "warmup_steps": ft.warmup_steps,
        "data_seed": spec.seed, "eval_every": 1, "time": time, "time_sf": time, "start_time": time,
        "rtt_start_model_path": spec.start.path, "rtt_condition": spec.start.condition,
        "rtt_eval_split_id": spec.held_out, "eval_split_ids": list(plan.eval_split_ids),
        "num_total_splits": len(facts.splits), "rtt_train_split_ids": train, "rtt_signature": plan.signature,
        "epochs_expand": True, "epochs_lst": sorted(set(ft.epochs_lst)), "grid_size": plan.grid_size,
        "changed_weights": last.value.get("changed_weights"), "diverged": last.value.get("diverged"),
        "label_variant": _variant(facts), "run_id": spec.run_id, "chance": facts.chance,
        "hydra_dict": plan.config.plain(),
    }  # fmt: skip


def summary_row(plan: Plan, finding: Finding) -> dict[str, Any]:
    """The row of an unlearned model in the summary."""
    made, config = finding.start.unlearning, plan.config
    return {
        **finding.summary.plain(),
        "dataset": plan.facts.name, "unlearn_type": made.type if made else _KINDS[UNLEARNED],
        "model_id": plan.base.label, "model_path": finding.start.path, "rtt_signature": plan.signature,
        "acc_selection_rule": config.acc_selection_rule, "missing": config.missing, "start_time": artefacts.stamp(),
        "time": artefacts.stamp(), "label_variant": _variant(plan.facts),
        "forget_acc_naive": finding.naive, "forget_acc_baseline_all": finding.base_all,
        "ci_low": {name: low for name, (low, _) in finding.intervals.items()},
        "ci_high": {name: high for name, (_, high) in finding.intervals.items()},
        "warnings": list(finding.warnings), "curve": [list(astuple(point)) for point in finding.curve],
        "weights": finding.start.identity.get("weights"),
        **{f"retain_acc_{name}": accuracy for name, accuracy in finding.retain.items()},
        **({} if made is None else {
            "lr": made.lr, "epochs": made.epochs, "retain_coeff": made.retain_coeff,
            "steering_coeff": made.steering_coeff, "lora_rank": made.rank,
        }),
    }  # fmt: skip


def _write_scores(root: Path, run_id: str, units: Mapping[Any, Unit | None]) -> None:
    arrays = {str(part): unit.arrays().get("scores") for part, unit in units.items() if unit is not None}
    known = {part: array for part, array in arrays.items() if array is not None}
    artefacts.write_logits(root / "logits", run_id, known)


def _logits(run_id: str, part: str) -> str:
    """Where the scores behind a cell are: file, then the array in it."""
    return f"logits/{run_id}.npz#{part}"


def _files(facts: Facts, config: RttConfig, made: UnlearnConfig | None) -> dict[str, Any]:
    """What a method read, under the published names."""
    if made is None or not isinstance(facts, McqFacts):
        return {}
    from residuum.rtt.methods import WRONG_TEXTS

    def named(prefix: str, splits: Sequence[Split]) -> list[str]:
        return [str(Path(split.path).with_name(f"{prefix}{split.name}.jsonl")) for split in splits]

    prefix = "" if made.data_format == "MCQ" else "corpus_"
    wrong = WRONG_TEXTS.get(made.type)
    return {
        "unlearn_files": named(prefix, facts.splits),
        "wrong_unlearn_files": named(wrong, facts.splits) if wrong and prefix else None,
        "retain_files": list(config.retain_files) if config.retain_files is not None else named(prefix, facts.retain),
        "dev_file": str(facts.folder / "dev.jsonl") if facts.dev else None,
    }


def _variant(facts: Any) -> str:
    return facts.label_variant if isinstance(facts, McqFacts) else "likelihood"


def _stamp(created: str) -> str:
    return artefacts.stamp(datetime.fromisoformat(created))
