"""From the accuracies of many runs to one number per condition: which cell of the grid counts.

A cell is (loss type, learning rate, epochs). Three rules, from the most generous to the attacker to the least:

* per V: in each V run the best cell on the held-out split itself, then the mean over V runs (the rule of the protocol);
* global: one cell for all V runs, the one with the best mean;
* nested: for each V run the cell that is best in the *other* V runs, scored on this one; free of the winner's curse.

Ties never depend on the order of files: fewer epochs win, then the lower rate, then the loss type by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from residuum.errors import UsageError
from residuum.registry import one_of

RULES = ("final_epoch", "max_epoch")


@dataclass(frozen=True)
class Cell:
    """One point of the grid."""

    loss_type: str
    lr: float
    epochs: int

    @property
    def rank(self) -> tuple[int, float, str]:
        """Smaller is preferred among equals."""
        return self.epochs, self.lr, self.loss_type


@dataclass(frozen=True)
class Run:
    """One training with its accuracies on the held-out split, epoch by epoch."""

    split: int
    """The held-out split v."""
    loss_type: str
    lr: float
    epochs: int
    accuracies: Mapping[int, float | None]
    """By epoch, 0 before any step; None where the run had diverged."""
    expand: bool = False
    """Whether this one run stands for every number of epochs in the list."""
    seed: int = 0
    time: str = ""
    """When it was finished; of two runs of one cell the later counts."""
    correct: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """By epoch, which items of the split were right; empty when nobody noted it."""
    retain: Mapping[int, float | None] = field(default_factory=dict)
    """By epoch, accuracy on the retain set; empty when nobody noted it."""


@dataclass(frozen=True)
class Reading:
    """The accuracy of a cell in one V run, the mean over its seeds."""

    accuracy: float
    sources: tuple[tuple[Run, int], ...]
    """Each run with the epoch that was read."""

    @property
    def items(self) -> list[float] | None:
        """Per item of the split, the share of seeds that had it right; None when that is not known."""
        known = [run.correct.get(epoch) for run, epoch in self.sources]
        if any(not right for right in known):
            return None
        return [fmean(column) for column in zip(*(right for right in known if right), strict=True)]


Grid = dict[int, dict[Cell, Reading]]
"""The readings of one condition, by V run and cell."""


@dataclass(frozen=True)
class Best:
    """The cell that was chosen for a V run, and what it reached."""

    accuracy: float
    cell: Cell
    num_runs: int
    """Cells of the grid that were finished in this V run."""

    def plain(self) -> dict[str, float | int | str]:
        """As JSON."""
        return {
            "acc": self.accuracy,
            "epochs": self.cell.epochs,
            "lr": self.cell.lr,
            "loss_type": self.cell.loss_type,
            "num_runs": self.num_runs,
        }


def read_accuracy(
    accuracies: Mapping[int, float | None], rule: str, *, include_epoch0: bool = False, last: int | None = None
) -> tuple[float, int] | None:
    """The accuracy of a run under a rule, and the epoch it was read at; None when there is none.

    Args:
        accuracies: by epoch; None and NaN are no numbers and never count as 0.
        rule: ``final_epoch`` reads the largest epoch, ``max_epoch`` the best one.
        include_epoch0: whether ``max_epoch`` counts the state before any step.
        last: look no further than this epoch.
    """
    one_of("acc_selection_rule", rule, *RULES)
    epochs = sorted(epoch for epoch in accuracies if last is None or epoch <= last)
    if rule == "final_epoch":
        epochs = epochs[-1:]
    elif not include_epoch0:
        epochs = [epoch for epoch in epochs if epoch > 0]
    known = [(value, epoch) for epoch in epochs if is_number(value := accuracies[epoch])]
    best = max(known, key=lambda pair: (pair[0], -pair[1]), default=None)
    return None if best is None else (float(best[0]), best[1])  # type: ignore[arg-type]


def is_number(value: float | None) -> bool:
    """Whether an accuracy is there."""
    return value is not None and math.isfinite(value)


def grid_of(
    runs: Iterable[Run],
    *,
    rule: str = "final_epoch",
    include_epoch0: bool = False,
    epochs_lst: Sequence[int] | None = None,
) -> Grid:
    """Sort runs into the grid: expand those that stand for several numbers of epochs, average over seeds.

    Args:
        runs: of one condition.
        rule: see `read_accuracy`.
        include_epoch0: see `read_accuracy`.
        epochs_lst: which numbers of epochs an expanding run stands for; epochs outside the list are not looked at.

    Raises:
        UsageError: a run expands and there is no list.
    """
    latest: dict[tuple[int, Cell, int], tuple[str, tuple[float, int], Run]] = {}
    for run in runs:
        if run.expand and epochs_lst is None:
            raise UsageError("a run that stands for several numbers of epochs needs the list of them, epochs_lst.")
        for epochs in epochs_lst or () if run.expand else (run.epochs,):
            if run.expand and epochs not in run.accuracies:
                continue
            last = epochs if run.expand else None
            read = read_accuracy(run.accuracies, rule, include_epoch0=include_epoch0, last=last)
            if read is not None:
                key = run.split, Cell(run.loss_type, run.lr, epochs), run.seed
                latest[key] = max(
                    latest.get(key, (run.time, read, run)), (run.time, read, run), key=lambda found: found[0]
                )
    cells: dict[tuple[int, Cell], list[tuple[float, int, Run]]] = {}
    for (split, cell, _), (_, (accuracy, epoch), run) in sorted(latest.items(), key=lambda pair: pair[0][2]):
        cells.setdefault((split, cell), []).append((accuracy, epoch, run))
    grid: Grid = {}
    for (split, cell), found in cells.items():
        reading = Reading(fmean(accuracy for accuracy, _, _ in found), tuple((run, epoch) for _, epoch, run in found))
        grid.setdefault(split, {})[cell] = reading
    return grid


def best_per_v(grid: Grid) -> dict[int, Best]:
    """For each V run the cell with the highest accuracy on its own held-out split."""
    return {
        split: Best(cells[cell].accuracy, cell, len(cells))
        for split, cells in sorted(grid.items())
        if (cell := _winner({cell: reading.accuracy for cell, reading in cells.items()})) is not None
    }


def best_global(grid: Grid) -> tuple[float, Cell] | None:
    """The one cell with the highest mean over the V runs that have it, and that mean."""
    means = _means(grid, grid)
    cell = _winner(means)
    return None if cell is None else (means[cell], cell)


def best_nested(grid: Grid) -> dict[int, Best]:
    """For each V run the cell with the highest mean over the other V runs, scored on this one; needs two V runs."""
    found: dict[int, Best] = {}
    for split, cells in sorted(grid.items()):
        means = _means(grid, [other for other in grid if other != split])
        cell = _winner({cell: mean for cell, mean in means.items() if cell in cells})
        if cell is not None:
            found[split] = Best(cells[cell].accuracy, cell, len(cells))
    return found


def _means(grid: Grid, splits: Iterable[int]) -> dict[Cell, float]:
    values: dict[Cell, list[float]] = {}
    for split in splits:
        for cell, reading in grid[split].items():
            values.setdefault(cell, []).append(reading.accuracy)
    return {cell: fmean(found) for cell, found in values.items()}


def _winner(accuracies: Mapping[Cell, float]) -> Cell | None:
    # Rounded: 0.1 + 0.2 and 0.3 are a tie, and a tie must not be decided by the order of a sum.
    return min(accuracies, key=lambda cell: (-round(accuracies[cell], 12), cell.rank), default=None)
