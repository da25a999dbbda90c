"""What a sweep found: units of the run store as evidence, summaries and curves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from residuum.rtt.cautions import cautions
from residuum.rtt.curve import Point, curve_of
from residuum.rtt.facts import Split
from residuum.rtt.intervals import summary_intervals
from residuum.rtt.plan import LETTER, NAIVE, Plan, RunSpec, Start
from residuum.rtt.selection import Run
from residuum.rtt.summary import Condition, Evidence, Summary, summarize
from residuum.store import Store, Unit
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

    def epochs(self, spec: RunSpec) -> dict[int, Unit]:
        """The units of a training by epoch, as far as there are any."""
        units = {epoch: self._unit(self.plan.epoch_task(spec, epoch)) for epoch in range(1, self.plan.epochs + 1)}
        return {epoch: unit for epoch, unit in units.items() if unit is not None}

    def run(self, spec: RunSpec) -> Run | None:
        """A training with all its epochs; None while an epoch is missing."""
        known = self.epochs(spec)
        if len(known) < self.plan.epochs:
            return None
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
        base_accuracy, base_items = self.before(plan.base)
        own_accuracy, own_items = self.before(start) if start else ({}, {})
        evidence = Evidence(
            eval_split_ids=plan.eval_split_ids, base=base_accuracy, unlearned=own_accuracy,
            unlearned_runs=self._runs(start) if start else (), base_runs=self._runs(plan.base),
            naive_runs=self._runs(naive) if naive else (), grid_size=plan.grid_size,
            epochs_lst=config.ft.epochs_lst, chance=plan.facts.chance,
            asked={LETTER[spec.start.condition] for spec in plan.runs} | ({"A"} if start else set()),
        )  # fmt: skip
        rules = {"rule": config.acc_selection_rule, "include_epoch0": config.include_epoch0}
        summary = summarize(evidence, missing=missing or config.missing, **rules)  # type: ignore[arg-type]
        retain = {
            "baseline": self.retain(plan.base), "unlearn": self.retain(start) if start else None,
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
            naive=mean(self.before(naive)[0].values()) if naive else None,
            base_all=self.base_all(),
            warnings=cautions(
                summary, items=items, retain=(retain["baseline"], retain["unlearn"]), tolerance=config.retain_tolerance
            ),
            curve=[
                point
                for one, condition in shown
                for point in curve_of(
                    LETTER[one.condition], condition, self.before(one)[1], summary.used, epochs=plan.epochs, seed=config.seed
                )
            ],
        )  # fmt: skip

    def before(self, start: Start) -> tuple[dict[int, float], dict[int, Sequence[float]]]:
        """Accuracy and items of a start on every V, before retraining."""
        units = {v: self.accuracy(start, self.plan.facts.splits[v]) for v in self.plan.eval_split_ids}
        known = {v: unit.value for v, unit in units.items() if unit is not None and unit.value["accuracy"] is not None}
        return {v: value["accuracy"] for v, value in known.items()}, {v: value["correct"] for v, value in known.items()}

    def retain(self, start: Start) -> float | None:
        """Accuracy of a start over the items that should be kept, before retraining."""
        units = [self.accuracy(start, split) for split in self.plan.facts.retain]
        marks = [mark for unit in units if unit is not None for mark in unit.value["correct"] or ()]
        return mean(marks)

    def base_all(self) -> float | None:
        """Accuracy of the base over the items of all splits."""
        units = [self.accuracy(self.plan.base, split) for split in self.plan.facts.splits]
        right = [mark for unit in units if unit is not None for mark in unit.value["correct"] or ()]
        return mean(right)

    def controls(self) -> Finding:
        """Base, C and N alone."""
        return self.finding(None)

    def findings(self) -> list[Finding]:
        """One finding per unlearned model."""
        return [self.finding(start) for start in self.plan.unlearned]

    def _unit(self, task: Any) -> Unit | None:
        if self._read.get(task.key) is None:
            self._read[task.key] = self.store.get(task)
        return self._read[task.key]

    def _runs(self, start: Start) -> list[Run]:
        return [run for spec in self.plan.runs if spec.start is start and (run := self.run(spec)) is not None]


def _retain_after(condition: Condition) -> float | None:
    kept = [
        run.retain.get(epoch)
        for split in condition.used
        for run, epoch in condition.grid[split][condition.best[split].cell].sources
    ]
    return mean(accuracy for accuracy in kept if accuracy is not None)


def mean(values: Iterable[float]) -> float | None:
    """None when there is nothing to average."""
    found = list(values)
    return fmean(found) if found else None
