"""Robustness: does a metric keep its verdict when the model is quantized or relearns a little?

All values in knowledge direction. ``before`` and ``after`` are taken under identical settings.

    Q = 1 - min(|after - before| / (|before| + |after| + eps), 1)               quantization
    R = 1 - min(|D_unl - D_ret| / (|D_unl| + |D_ret| + eps), 1), D = after - before   relearning, against retain's own shift

The one-directional forms are those of Dorna et al. 2025 (arXiv:2506.12618, eq. 2 and 3), which only punish knowledge that
comes back: Q = min(before / after, 1), R = min(D_ret / D_unl, 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from residuum.errors import UsageError
from residuum.uncertainty import RESAMPLES, Interval

EPS = 1e-6
UTILITY_FLOOR = 0.8
"""A model below this share of the full model's utility is broken, not unlearned."""

Form = Literal["symmetric", "one-directional"]


@dataclass(frozen=True)
class Change:
    """One metric of one model before and after an attack, in knowledge direction."""

    model: str
    before: float
    after: float

    @property
    def shift(self) -> float:
        """D: what the attack brought."""
        return self.after - self.before


@dataclass(frozen=True)
class Robustness:
    """One metric under both attacks, averaged over its usable models."""

    metric: str
    quantization: float | None
    quantization_ci95: Interval | None
    quantization_n: int
    relearning: float | None
    relearning_ci95: Interval | None
    relearning_n: int
    robustness: float | None
    """Harmonic mean of the two."""
    robustness_ci95: Interval | None
    resampled: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)
    """The harmonic mean on resampled models."""


def quantization_score(before: float, after: float, form: Form = "symmetric") -> float:
    """Q: 1 when quantization changes nothing.

    One-directional: a model that shows no more than before scores 1; one that shows something where nothing was scores 0.
    """
    if form == "symmetric":
        return 1.0 - min(abs(after - before) / (abs(before) + abs(after) + EPS), 1.0)
    if after <= 0 or after <= before:
        return 1.0
    return max(before / after, 0.0)


def relearning_score(unlearned_shift: float, retain_shift: float, form: Form = "symmetric") -> float:
    """R: 1 when relearning moves the unlearned model as much as it moves retain, which had nothing to remember.

    One-directional: a model that gains no more than retain scores 1; one that gains while retain does not scores 0.
    """
    if form == "symmetric":
        gap, size = abs(unlearned_shift - retain_shift), abs(unlearned_shift) + abs(retain_shift)
        return 1.0 - min(gap / (size + EPS), 1.0)
    if unlearned_shift <= 0 or unlearned_shift <= retain_shift:
        return 1.0
    return max(retain_shift / unlearned_shift, 0.0)


def harmonic_mean(*values: float | None) -> float | None:
    """HM of positive values; 0 when one is 0, None when one is missing."""
    if any(value is None for value in values):
        return None
    numbers = [float(value) for value in values if value is not None]
    return 0.0 if min(numbers) <= 0 else len(numbers) / sum(1 / number for number in numbers)


def usable_models(
    before: Mapping[str, float | None],
    utility_rel: Mapping[str, float | None],
    threshold: float | None,
    *,
    utility_floor: float = UTILITY_FLOOR,
) -> tuple[list[str], dict[str, int]]:
    """Models that kept their utility and that the metric calls unlearned, with counts of the others.

    Args:
        before: knowledge-direction value by model.
        utility_rel: utility relative to the full model.
        threshold: of the faithfulness pools, in knowledge direction; None keeps every model.
        utility_floor: least relative utility.
    """
    counts = {"all": len(before), "undefined": 0, "low_utility": 0, "still_knows": 0, "usable": 0}
    usable = []
    for model, value in before.items():
        utility = utility_rel.get(model)
        if value is None or utility is None:
            counts["undefined"] += 1
        elif utility < utility_floor:
            counts["low_utility"] += 1
        elif threshold is not None and value > threshold:
            counts["still_knows"] += 1
        else:
            usable.append(model)
    counts["usable"] = len(usable)
    return usable, counts


def measure_robustness(
    metric: str,
    quantized: Sequence[Change],
    relearned: Sequence[Change],
    retain_relearned: Change | None,
    *,
    form: Form = "symmetric",
    seed: int = 0,
) -> Robustness:
    """Mean Q and R over the given models, with intervals over models.

    Args:
        metric: its key.
        quantized: usable models before and after quantization.
        relearned: usable models before and after relearning.
        retain_relearned: the retain model before and after the same relearning.
        form: symmetric or one-directional.
        seed: of the bootstrap.

    Raises:
        UsageError: there are relearned models but no relearned retain to compare them with.
    """
    if relearned and retain_relearned is None:
        raise UsageError(f"{metric}: relearning is judged against the retain model's own shift, which is missing.")
    q = {change.model: quantization_score(change.before, change.after, form) for change in quantized}
    r = (
        {c.model: relearning_score(c.shift, retain_relearned.shift, form) for c in relearned}
        if retain_relearned
        else {}
    )
    mean_q, mean_r = (float(np.mean(list(scores.values()))) if scores else None for scores in (q, r))
    means = _resampled_means([q, r], seed)
    both = harmonic_means(means[:, 0], means[:, 1]) if q and r and len(means) else np.zeros(0)
    return Robustness(
        metric=metric,
        quantization=mean_q, quantization_ci95=interval(means[:, 0]) if len(q) > 1 else None, quantization_n=len(q),
        relearning=mean_r, relearning_ci95=interval(means[:, 1]) if len(r) > 1 else None, relearning_n=len(r),
        robustness=harmonic_mean(mean_r, mean_q), robustness_ci95=interval(both), resampled=both,
    )  # fmt: skip


def harmonic_means(*columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """HM row by row; 0 where a value is 0, NaN where one is missing."""
    table = np.stack(columns)
    with np.errstate(divide="ignore"):
        found = len(table) / (1 / table).sum(axis=0)
    return np.asarray(np.where((table <= 0).any(axis=0), 0.0, found))


def interval(resampled: NDArray[np.float64]) -> Interval | None:
    """The middle 95 % of resampled values that are there; None when there are none."""
    there = resampled[~np.isnan(resampled)]
    if not len(there):
        return None
    low, high = np.percentile(there, [2.5, 97.5])
    return float(low), float(high)


def _resampled_means(scores: Sequence[Mapping[str, float]], seed: int) -> NDArray[np.float64]:
    """Means over resampled models, the same models for every column; nothing with fewer than two.  # [resample, column]."""
    models = list(dict.fromkeys(model for column in scores for model in column))
    if len(models) < 2:
        return np.zeros((0, len(scores)))
    table = np.array([[column.get(model, np.nan) for column in scores] for model in models])
    picks = np.random.default_rng(seed).integers(0, len(models), (RESAMPLES, len(models)))
    there = ~np.isnan(table)
    sums, counts = np.where(there, table, 0.0)[picks].sum(axis=1), there[picks].sum(axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
