"""What a sweep found: units of the run store as evidence, summaries, curves and result rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from residuum.rtt import artefacts
from residuum.rtt.cautions import cautions
from residuum.rtt.config import RttConfig, UnlearnConfig
from residuum.rtt.curve import Point, curve_of, save_picture
from residuum.rtt.facts import Facts, McqFacts, Split
from residuum.rtt.intervals import summary_intervals
from residuum.rtt.plan import BASE, LETTER, NAIVE, UNLEARNED, Plan, RunSpec, Start
from residuum.rtt.selection import Run
from residuum.rtt.splits import train_split_ids
from residuum.rtt.summary import Condition, Evidence, Summary, summarize
from residuum.store import Store, Unit, claim
from residuum.uncertainty import Interval


@dataclass(frozen=True)
class Finding:
    """The answer for one unlearned model."""

    start: Start
    summary: Summary
    intervals: Mapping[str, Interval]
    """95 % intervals by column name."""
    retain: Mapping[str, float | None]
    """Retain accuracy of base, A, and after retraining B and C (mean over V runs, at the epoch that won)."""
    naive: float | None
    """N before retraining."""
    base_all: float | None
    """Base over the items of all splits."""
    warnings: Sequence[str]
    curve: Sequence[Point] = field(repr=False)
    """One point per condition and epoch."""


class Results:
    """Reads the units of a plan.

    Args:
        plan: the sweep.
        store: where its units are.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan, self.store = plan, store
        self._read: dict[str, Unit | None] = {}

    def accuracy(self, start: Start, split: Split) -> Unit | None:
        """The unit of a start on a split."""
        return self._unit(self.plan.accuracy_task(start, split))

    def run(self, spec: RunSpec) -> Run | None:
        """A training with all its epochs; None while an epoch is missing."""
        units = {epoch: self._unit(self.plan.epoch_task(spec, epoch)) for epoch in range(1, self.plan.epochs + 1)}
        if any(unit is None for unit in units.values()):
            return None
        known = {epoch: unit for epoch, unit in units.items() if unit is not None}
        before = self.accuracy(spec.start, self.plan.facts.splits[spec.held_out])
        if before is not None:
            known[0] = before
        last = known[self.plan.epochs]
        return Run(
            split=spec.held_out, loss_type=spec.loss_type, lr=spec.lr, epochs=self.plan.epochs, expand=True,
            accuracies={epoch: unit.value["accuracy"] for epoch, unit in sorted(known.items())},
            seed=spec.seed, time=last.created,
            correct={epoch: unit.value["correct"] for epoch, unit in known.items() if unit.value["correct"]},
            retain={epoch: unit.value.get("retain_accuracy") for epoch, unit in known.items() if epoch},
        )  # fmt: skip

    def finding(self, start: Start | None, *, missing: str | None = None) -> Finding:
        """Everything about one unlearned model; None: what is known without one, base, C and N."""
        plan, config = self.plan, self.plan.config
        naive = next((other for other in plan.starts if other.condition == NAIVE), None)
        base_accuracy, base_items = self._before(plan.base)
        own_accuracy, own_items = self._before(start) if start else ({}, {})
        evidence = Evidence(
            eval_split_ids=plan.eval_split_ids, base=base_accuracy, unlearned=own_accuracy,
            unlearned_runs=self._runs(start) if start else (), base_runs=self._runs(plan.base),
            naive_runs=self._runs(naive) if naive else (), grid_size=plan.grid_size,
            epochs_lst=config.ft.epochs_lst, chance=plan.facts.chance,
        )  # fmt: skip
        rules = {"rule": config.acc_selection_rule, "include_epoch0": config.include_epoch0}
        summary = summarize(evidence, missing=missing or config.missing, **rules)  # type: ignore[arg-type]
        retain = {
            "baseline": self._retain(plan.base), "unlearn": self._retain(start) if start else None,
            "unlearn_rtt": _retain_after(summary.b), "baseline_rtt": _retain_after(summary.c),
        }  # fmt: skip
        items = sum(len(plan.facts.splits[split].items) for split in summary.used)
        pairs = [(start, summary.b), (plan.base, summary.c), (naive, summary.n)]
        shown = [(one, condition) for one, condition in pairs if one is not None]
        return Finding(
            start=start or plan.base,
            summary=summary,
            intervals=summary_intervals(summary, base_items, own_items, seed=config.seed),
            retain=retain,
            naive=_mean(self._before(naive)[0].values()) if naive else None,
            base_all=self.base_all(),
            warnings=cautions(
                summary, items=items, retain=(retain["baseline"], retain["unlearn"]), tolerance=config.retain_tolerance
            ),
            curve=[
                point
                for one, condition in shown
                for point in curve_of(
                    LETTER[one.condition], condition, self._before(one)[1], summary.used, epochs=plan.epochs, seed=config.seed
                )
            ],
        )  # fmt: skip

    def base_all(self) -> float | None:
        """Accuracy of the base over the items of all splits."""
        units = [self.accuracy(self.plan.base, split) for split in self.plan.facts.splits]
        right = [mark for unit in units if unit is not None for mark in unit.value["correct"] or ()]
        return _mean(right)

    def controls(self) -> Finding:
        """Base, C and N alone."""
        return self.finding(None)

    def findings(self) -> list[Finding]:
        """One finding per unlearned model."""
        return [self.finding(start) for start in self.plan.unlearned]

    def write(self) -> list[Path]:
        """Bring the result files up to date: new rows for what is finished, a summary file of now and its picture.

        Returns:
            Summary and picture, if there is anything to summarise.
        """
        root = self.plan.config.results_dir
        with claim(root / ".views", "the result files"):
            known = artefacts.known_ids(root / "unlearning") | artefacts.known_ids(root / "ft")
            for start in self.plan.starts:
                row = self._model_row(start)
                if row is not None and row["run_id"] not in known:
                    self._write_logits(row["run_id"], self._measured(start))
                    artefacts.write_row(root / "unlearning", row, artefacts.MODEL_FIELDS)
            for spec in self.plan.runs:
                if spec.run_id not in known and (run := self.run(spec)) is not None:
                    self._write_logits(spec.run_id, self._epochs(spec))
                    artefacts.write_row(root / "ft", self._run_row(spec, run), artefacts.RUN_FIELDS)
            findings = self.findings()
            if not findings:
                return []
            table = artefacts.write_summary(root / "summary", [self._summary_row(finding) for finding in findings])
            curves = [(finding.start.label, finding.curve) for finding in findings]
            picture = save_picture(curves, table.with_suffix(".svg"), chance=self.plan.facts.chance)
            return [table] if picture is None else [table, picture]

    def _measured(self, start: Start) -> dict[str, Unit]:
        """The units of a start by the name of the split."""
        units = {split.name: self.accuracy(start, split) for split in self.plan.splits_of(start)}
        return {name: unit for name, unit in units.items() if unit is not None}

    def _epochs(self, spec: RunSpec) -> dict[str, Unit]:
        """The units of a training by epoch."""
        units = {str(e): self._unit(self.plan.epoch_task(spec, e)) for e in range(1, self.plan.epochs + 1)}
        return {epoch: unit for epoch, unit in units.items() if unit is not None}

    def _write_logits(self, run_id: str, units: Mapping[str, Unit]) -> None:
        arrays = {name: unit.arrays().get("scores") for name, unit in units.items()}
        known = {name: array for name, array in arrays.items() if array is not None}
        artefacts.write_logits(self.plan.config.results_dir / "logits", run_id, known)

    def _unit(self, task: Any) -> Unit | None:
        if self._read.get(task.key) is None:
            self._read[task.key] = self.store.get(task)
        return self._read[task.key]

    def _runs(self, start: Start) -> list[Run]:
        return [run for spec in self.plan.runs if spec.start is start and (run := self.run(spec)) is not None]

    def _before(self, start: Start) -> tuple[dict[int, float], dict[int, Sequence[float]]]:
        """Accuracy and items of a start on every V, before retraining."""
        units = {v: self.accuracy(start, self.plan.facts.splits[v]) for v in self.plan.eval_split_ids}
        known = {v: unit.value for v, unit in units.items() if unit is not None and unit.value["accuracy"] is not None}
        return {v: value["accuracy"] for v, value in known.items()}, {v: value["correct"] for v, value in known.items()}

    def _retain(self, start: Start) -> float | None:
        units = [self.accuracy(start, split) for split in self.plan.facts.retain]
        marks = [mark for unit in units if unit is not None for mark in unit.value["correct"] or ()]
        return _mean(marks)

    def _model_row(self, start: Start) -> dict[str, Any] | None:
        if not self.plan.is_evaluated(self.store, start):
            return None
        plan, facts, made = self.plan, self.plan.facts, start.unlearning
        of_splits = {
            s.path: u for s in plan.splits_of(start) if s not in facts.retain and (u := self.accuracy(start, s))
        }
        of_retain = {s.path: u for s in facts.retain if (u := self.accuracy(start, s))}
        last = str(made.epochs if made else 0)
        by_split = self._before(start)[0]
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
            "forget_acc_mean": _mean(by_split.values()), "retain_acc_mean": self._retain(start),
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

    def _run_row(self, spec: RunSpec, run: Run) -> dict[str, Any]:
        plan, facts, ft = self.plan, self.plan.facts, self.plan.config.ft
        units = [self._unit(plan.epoch_task(spec, epoch)) for epoch in range(1, plan.epochs + 1)]
        known = {epoch: unit for epoch, unit in enumerate(units, start=1) if unit is not None}
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

    def _summary_row(self, finding: Finding) -> dict[str, Any]:
        made, config = finding.start.unlearning, self.plan.config
        return {
            **finding.summary.plain(),
            "dataset": self.plan.facts.name, "unlearn_type": made.type if made else _KINDS[UNLEARNED],
            "model_id": self.plan.base.label, "model_path": finding.start.path, "rtt_signature": self.plan.signature,
            "acc_selection_rule": config.acc_selection_rule, "missing": config.missing, "start_time": artefacts.stamp(),
            "time": artefacts.stamp(), "label_variant": _variant(self.plan.facts),
            "forget_acc_naive": finding.naive, "forget_acc_baseline_all": finding.base_all,
            "ci_low": {name: low for name, (low, _) in finding.intervals.items()},
            "ci_high": {name: high for name, (_, high) in finding.intervals.items()},
            "warnings": list(finding.warnings),
            **{f"retain_acc_{name}": accuracy for name, accuracy in finding.retain.items()},
            **({} if made is None else {
                "lr": made.lr, "epochs": made.epochs, "retain_coeff": made.retain_coeff,
                "steering_coeff": made.steering_coeff, "lora_rank": made.rank,
            }),
        }  # fmt: skip


_KINDS = {BASE: "BASE", NAIVE: "NAIVE", UNLEARNED: "GIVEN"}
"""The method column of models that were not unlearned here."""


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


def _retain_after(condition: Condition) -> float | None:
    kept = [
        run.retain.get(epoch)
        for split in condition.used
        for run, epoch in condition.grid[split][condition.best[split].cell].sources
    ]
    return _mean(accuracy for accuracy in kept if accuracy is not None)


def _variant(facts: Any) -> str:
    return facts.label_variant if isinstance(facts, McqFacts) else "likelihood"


def _stamp(created: str) -> str:
    return artefacts.stamp(datetime.fromisoformat(created))


def _mean(values: Any) -> float | None:
    found = list(values)
    return fmean(found) if found else None
