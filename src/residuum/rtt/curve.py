"""The recovery curve: accuracy on V against epochs of retraining, for B, C and N, with intervals.

At every number of epochs each V run shows its best learning rate. Epoch 0 is the model before retraining: A for B, the
base for C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from residuum.rtt.intervals import Items, interval_of, resample, selected_items
from residuum.rtt.selection import Grid, best_per_v
from residuum.rtt.summary import Condition

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"B": "#D55E00", "C": "#0072B2", "N": "#666666"}
"""Vermilion and blue of Okabe and Ito, and grey: told apart by everyone."""
MEANINGS = {"B": "B: unlearned", "C": "C: base", "N": "N: never knew"}
COLUMNS = 3
"""Panels side by side."""


@dataclass(frozen=True)
class Point:
    """One condition after so many epochs."""

    condition: str
    epochs: int
    accuracy: float
    low: float | None
    high: float | None


def curve_of(
    letter: str, condition: Condition, before: Items, used: Sequence[int], *, epochs: int, seed: int = 0
) -> list[Point]:
    """The points of one condition.

    Args:
        letter: B, C or N.
        condition: with the grid of all cells.
        before: items of the model before retraining, by V run.
        used: the V runs behind the summary.
        epochs: the last one.
        seed: of the resampling.
    """
    points = []
    for epoch in range(epochs + 1):
        items = before if epoch == 0 else items_at(condition, epoch)
        shown = {v: items[v] for v in used if v in items}
        if shown:
            low, high = interval_of(resample({"": shown}, seed=seed)[""]) or (None, None)
            points.append(Point(letter, epoch, fmean(fmean(marks) for marks in shown.values()), low, high))
    return points


def items_at(condition: Condition, epoch: int) -> Items:
    """Items of the best cells among those of one number of epochs."""
    at: Grid = {
        split: {cell: reading for cell, reading in cells.items() if cell.epochs == epoch}
        for split, cells in condition.grid.items()
    }
    return selected_items(condition, best_per_v({split: cells for split, cells in at.items() if cells}))


def save_picture(curves: Sequence[tuple[str, Sequence[Point]]], path: Path, *, chance: float) -> Path | None:
    """Draw one panel per unlearned model; nothing to show, or no matplotlib, writes nothing.

    Args:
        curves: label and points of each model.
        path: of the picture; its ending decides the format.
        chance: accuracy of a guess.
    """
    shown = [(label, points) for label, points in curves if any(point.epochs for point in points)]
    if not shown or not find_spec("matplotlib"):
        return None
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    across = min(COLUMNS, len(shown))
    down = -(-len(shown) // across)
    # Text as text, and ids that depend on the content alone: small files, the same bytes for the same numbers.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "residuum"}):
        figure = Figure(figsize=(4.2 * across, 3.2 * down), layout="constrained")
        panels = list(figure.subplots(down, across, squeeze=False, sharey=True).flat)
        for axes, (label, points) in zip(panels, shown, strict=False):
            draw_curve(axes, points, chance=chance)
            axes.set_title(label, fontsize=9)
            axes.label_outer()
        for axes in panels[len(shown) :]:
            axes.set_axis_off()
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def draw_curve(axes: Axes, points: Sequence[Point], *, chance: float) -> None:
    """Accuracy against epochs, one line with its band per condition, and the level of a guess."""
    for letter, colour in COLOURS.items():
        own = [point for point in points if point.condition == letter]
        if not own:
            continue
        epochs = [point.epochs for point in own]
        axes.plot(
            epochs, [point.accuracy for point in own], color=colour, marker="o", markersize=3, label=MEANINGS[letter]
        )
        banded = [point for point in own if point.low is not None]
        axes.fill_between(
            [point.epochs for point in banded],
            [float(point.low or 0.0) for point in banded],
            [float(point.high or 0.0) for point in banded],
            color=colour, alpha=0.15, linewidth=0,
        )  # fmt: skip
    axes.axhline(chance, color="black", linewidth=0.8, linestyle=":", label="chance")
    axes.set(xlabel="epochs of retraining on T", ylabel="accuracy on V", ylim=(0, 1.02))
