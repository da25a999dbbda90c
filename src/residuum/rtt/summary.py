"""The answer of RTT: base, A, B, C and N over the same held-out splits, and what follows from them.

    recovery = B / C        gap closed = (B - A) / (C - A)
    chance-adjusted = (B - chance) / (C - chance)        N-adjusted = (B - N) / (C - N)

B / C alone reads high: a model at chance already scores chance / C.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from residuum.registry import one_of
from residuum.rtt.selection import (
    Best,
    Cell,
    Grid,
    Run,
    best_global,
    best_nested,
    best_per_v,
    grid_of,
    is_number,
)

Missing = Literal["intersect", "strict", "available"]
MISSING = ("intersect", "strict", "available")


@dataclass(frozen=True)
class Evidence:
    """What is known about one unlearned model: accuracies before retraining, by split, and runs of each condition."""

    eval_split_ids: Sequence[int]
    base: Mapping[int, float]
    unlearned: Mapping[int, float]
    """A."""
    unlearned_runs: Sequence[Run]
    """B."""
    base_runs: Sequence[Run]
    """C."""
    naive_runs: Sequence[Run] = ()
    """N."""
    grid_size: int = 0
    """Cells that every V run should have."""
    epochs_lst: Sequence[int] | None = None
    """What an expanding run stands for."""
    chance: float = 0.25
    asked: Collection[str] = ("B", "C")
    """Which of A, B, C and N there should be; another one that is not there is not missing."""


@dataclass(frozen=True)
class Condition:
    """B, C or N: one condition after retraining."""

    grid: Grid = field(repr=False)
    best: Mapping[int, Best]
    """The winner of every V run, used or not."""
    nested: Mapping[int, Best]
    used: tuple[int, ...]
    """The V runs behind the means."""
    missing: tuple[int, ...]
    accuracy: float | None
    accuracy_global: float | None
    global_cell: Cell | None
    accuracy_nested: float | None

    @property
    def num_runs(self) -> int:
        """Finished cells over all V runs."""
        return sum(len(cells) for cells in self.grid.values())


@dataclass(frozen=True)
class Summary:
    """Everything that is reported about one unlearned model."""

    eval_split_ids: tuple[int, ...]
    used: tuple[int, ...]
    """The splits present in every condition that has any."""
    base: float | None
    unlearned: float | None
    b: Condition
    c: Condition
    n: Condition
    chance: float
    grid_size: int
    status: str
    """complete, partial_grid (a V run lacks cells), partial_splits, or no_a, no_b, no_c, no_n for what was asked for."""

    @property
    def has_numbers(self) -> bool:
        """Whether anything beside the base has an accuracy."""
        return any(
            known is not None for known in (self.unlearned, *(part.accuracy for part in (self.b, self.c, self.n)))
        )

    @property
    def recovery_rate(self) -> float | None:
        """B / C; None when C is missing or 0."""
        return ratio(self.b.accuracy, self.c.accuracy)

    @property
    def recovery_rate_nested(self) -> float | None:
        """B / C, both with nested selection."""
        return ratio(self.b.accuracy_nested, self.c.accuracy_nested)

    @property
    def gap_closed(self) -> float | None:
        """(B - A) / (C - A)."""
        return above(self.b.accuracy, self.c.accuracy, self.unlearned)

    @property
    def recovery_above_chance(self) -> float | None:
        """(B - chance) / (C - chance)."""
        return above(self.b.accuracy, self.c.accuracy, self.chance)

    @property
    def recovery_above_naive(self) -> float | None:
        """(B - N) / (C - N)."""
        return above(self.b.accuracy, self.c.accuracy, self.n.accuracy)

    def plain(self) -> dict[str, Any]:
        """The numbers as JSON, under the column names of the summary file."""
        return {
            "forget_acc_baseline": self.base,
            "forget_acc_unlearn": self.unlearned,
            "forget_acc_unlearn_rtt": self.b.accuracy,
            "forget_acc_baseline_rtt": self.c.accuracy,
            "recovery_rate": self.recovery_rate,
            "num_rtt_splits_b": len(self.b.used),
            "num_rtt_splits_c": len(self.c.used),
            "selection": "per_v",
            "forget_acc_unlearn_rtt_global": self.b.accuracy_global,
            "forget_acc_baseline_rtt_global": self.c.accuracy_global,
            "gap_closed": self.gap_closed,
            "eval_split_ids": list(self.eval_split_ids),
            "missing_split_ids_b": list(self.b.missing),
            "missing_split_ids_c": list(self.c.missing),
            "best_per_v_b": {str(split): best.plain() for split, best in self.b.best.items()},
            "best_per_v_c": {str(split): best.plain() for split, best in self.c.best.items()},
            "num_runs_b": self.b.num_runs,
            "num_runs_c": self.c.num_runs,
            "grid_size": self.grid_size,
            "status": self.status,
            "forget_acc_unlearn_rtt_nested": self.b.accuracy_nested,
            "forget_acc_baseline_rtt_nested": self.c.accuracy_nested,
            "recovery_rate_nested": self.recovery_rate_nested,
            "recovery_above_chance": self.recovery_above_chance,
            "forget_acc_naive_rtt": self.n.accuracy,
            "forget_acc_naive_rtt_global": self.n.accuracy_global,
            "forget_acc_naive_rtt_nested": self.n.accuracy_nested,
            "best_per_v_n": {str(split): best.plain() for split, best in self.n.best.items()},
            "recovery_above_naive": self.recovery_above_naive,
            "chance": self.chance,
        }


def summarize(
    evidence: Evidence,
    *,
    missing: str = "intersect",
    rule: str = "final_epoch",
    include_epoch0: bool = False,
) -> Summary:
    """Select per V run, average over V runs, compare conditions over the same splits.

    Args:
        evidence: accuracies and runs of one unlearned model; runs of other splits are ignored.
        missing: what to do when a condition lacks a V run. ``intersect`` averages all conditions over the splits that
            all of them have, ``strict`` leaves the means empty, ``available`` averages each over what it has. A
            condition without any run restricts nothing.
        rule: ``final_epoch`` or ``max_epoch``.
        include_epoch0: whether ``max_epoch`` counts the state before retraining.
    """
    one_of("missing", missing, *MISSING)
    wanted = list(evidence.eval_split_ids)
    grids = []
    for runs in (evidence.unlearned_runs, evidence.base_runs, evidence.naive_runs):
        kept = [run for run in runs if run.split in wanted]
        grids.append(grid_of(kept, rule=rule, include_epoch0=include_epoch0, epochs_lst=evidence.epochs_lst))
    before = [{v: a for v, a in known.items() if is_number(a)} for known in (evidence.base, evidence.unlearned)]
    present: list[Iterable[int]] = [known for known in before if known]
    present += [grid for grid in grids if grid]
    used = [split for split in wanted if all(split in known for known in present)]
    whole = len(used) == len(wanted)
    empty = missing == "strict" and not whole

    def over(known: Iterable[int]) -> list[int]:
        if missing == "available":
            return [split for split in wanted if split in known]
        return [split for split in used if split in known]

    def average(values: Mapping[int, float], splits: Iterable[int]) -> float | None:
        found = [values[split] for split in splits if split in values]
        return fmean(found) if found and not empty else None

    def condition(grid: Grid) -> Condition:
        best, nested, one = best_per_v(grid), best_nested(grid), best_global(grid)
        splits = over(grid)
        return Condition(
            grid=grid,
            best=best,
            nested=nested,
            used=tuple(splits),
            missing=tuple(split for split in wanted if split not in grid),
            accuracy=average({split: found.accuracy for split, found in best.items()}, splits),
            accuracy_global=None if one is None or empty else one[0],
            global_cell=None if one is None else one[1],
            accuracy_nested=average({split: found.accuracy for split, found in nested.items()}, splits),
        )

    b, c, n = (condition(grid) for grid in grids)
    return Summary(
        eval_split_ids=tuple(wanted),
        used=tuple(used),
        base=average(before[0], over(before[0])),
        unlearned=average(before[1], over(before[1])),
        b=b,
        c=c,
        n=n,
        chance=evidence.chance,
        grid_size=evidence.grid_size,
        status=_status(
            [
                letter
                for letter, known in zip("ABCN", (before[1], *grids), strict=True)
                if letter in evidence.asked and not known
            ],
            [len(cells) for grid in grids for cells in grid.values()],
            whole=whole,
            grid_size=evidence.grid_size,
        ),
    )


def ratio(part: float | None, whole: float | None) -> float | None:
    """A share of a whole; None when one is missing or the whole is 0."""
    return None if part is None or not whole else part / whole


def above(part: float | None, whole: float | None, floor: float | None) -> float | None:
    """(part - floor) / (whole - floor); None when one is missing or there is nothing above the floor."""
    if part is None or whole is None or floor is None:
        return None
    return ratio(part - floor, whole - floor)


def _status(absent: Sequence[str], cells: Sequence[int], *, whole: bool, grid_size: int) -> str:
    """What is missing first: a condition, a V run of one, or cells of a V run."""
    if absent:
        return f"no_{absent[0].lower()}"
    if not whole:
        return "partial_splits"
    return "partial_grid" if min(cells, default=grid_size) < grid_size else "complete"
