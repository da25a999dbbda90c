"""How sure the numbers of RTT are: a bootstrap over splits and over the items inside them.

Splits are drawn with replacement, then the items of each drawn split; the same draw serves all conditions, so that
differences and ratios are paired. The cells that were selected stay selected: the interval does not know the winner's
curse, which is why the nested estimate is reported beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from residuum.rtt.selection import Best
from residuum.rtt.summary import Condition, Summary
from residuum.uncertainty import RESAMPLES, Interval

Items = Mapping[int, Sequence[float]]
"""For each split, how right every item was."""


def summary_intervals(summary: Summary, base: Items, unlearned: Items, *, seed: int = 0) -> dict[str, Interval]:
    """95 % intervals of everything in a summary that items are known for, by column name.

    Args:
        summary: with its selected cells.
        base: items of the model that knows.
        unlearned: items of A.
        seed: of the resampling.
    """
    known: dict[str, Items] = {"forget_acc_baseline": base, "forget_acc_unlearn": unlearned}
    for name, condition in (("unlearn", summary.b), ("baseline", summary.c), ("naive", summary.n)):
        known[f"forget_acc_{name}_rtt"] = selected_items(condition, condition.best)
        known[f"forget_acc_{name}_rtt_nested"] = selected_items(condition, condition.nested)
    whole = {name: items for name, items in known.items() if all(split in items for split in summary.used)}
    if not summary.used or not whole:
        return {}
    means = resample({name: {v: items[v] for v in summary.used} for name, items in whole.items()}, seed=seed)
    a, b, c = (means.get(f"forget_acc_{name}") for name in ("unlearn", "unlearn_rtt", "baseline_rtt"))
    n, nested_b, nested_c = (
        means.get(f"forget_acc_{name}") for name in ("naive_rtt", "unlearn_rtt_nested", "baseline_rtt_nested")
    )
    with np.errstate(divide="ignore", invalid="ignore"):  # a draw in which C has nothing to recover is left out
        if b is not None and c is not None:
            means["recovery_rate"] = b / c
            means["recovery_above_chance"] = (b - summary.chance) / (c - summary.chance)
            if a is not None:
                means["gap_closed"] = (b - a) / (c - a)
            if n is not None:
                means["recovery_above_naive"] = (b - n) / (c - n)
        if nested_b is not None and nested_c is not None:
            means["recovery_rate_nested"] = nested_b / nested_c
    return {name: interval for name, drawn in means.items() if (interval := interval_of(drawn)) is not None}


def selected_items(condition: Condition, chosen: Mapping[int, Best]) -> dict[int, Sequence[float]]:
    """How right every item was under the selected cell of each V run, where that is known."""
    found = {split: condition.grid[split][best.cell].items for split, best in chosen.items()}
    return {split: items for split, items in found.items() if items is not None}


def resample(conditions: Mapping[str, Items], *, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Means of each condition over resampled splits and items, [resample] each; all conditions share the draws."""
    splits = sorted(next(iter(conditions.values())))
    rng = np.random.default_rng(seed)
    sums = {name: np.zeros(RESAMPLES) for name in conditions}
    for _ in splits:
        drawn = rng.integers(0, len(splits), RESAMPLES)
        for place, split in enumerate(splits):
            rows = np.flatnonzero(drawn == place)
            size = len(next(iter(conditions.values()))[split])
            picks = rng.integers(0, size, (len(rows), size))
            for name, items in conditions.items():
                sums[name][rows] += np.asarray(items[split], dtype=np.float64)[picks].mean(axis=1)
    return {name: total / len(splits) for name, total in sums.items()}


def interval_of(drawn: NDArray[np.float64]) -> Interval | None:
    """The middle 95 % of resampled values; None when more than a twentieth of them is no number."""
    finite = drawn[np.isfinite(drawn)]
    if len(finite) < 0.95 * len(drawn):
        return None
    low, high = np.percentile(finite, [2.5, 97.5])
    return float(low), float(high)
