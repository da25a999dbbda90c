"""Faithfulness: does a metric tell models that know from models that do not?

Every metric is first brought to knowledge direction (higher = knows more); then AUC-ROC over a pool P of models that
know the forget set and a pool N of models that do not (Dorna et al. 2025, arXiv:2506.12618).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from residuum.errors import UsageError
from residuum.uncertainty import RESAMPLES, Interval


@dataclass(frozen=True)
class Faithfulness:
    """How well one metric separates the two pools."""

    metric: str
    auc: float
    ci95: Interval
    """Bootstrap over models, both pools resampled apart."""
    p_mean: float
    """Raw values, not turned round."""
    p_std: float
    n_mean: float
    n_std: float
    n_p: int
    n_n: int
    undefined: tuple[str, ...]
    """Models without a value; they are left out and counted."""
    threshold: float | None
    """In knowledge direction: at or above it a model counts as knowing. None when the metric is constant."""
    accuracy: float | None
    constant: bool
    """The metric has one value on all models: its AUC of 0.5 says nothing."""
    resampled: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)
    """The AUC on resampled models."""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; without the resamples."""
        found = asdict(self)
        del found["resampled"]
        return found


def in_knowledge_direction(value: float, higher_means: str) -> float:
    """The value so that higher means the model knows more: 1 - value for ``less knowledge``, else as it is.

    An attack's AUC has its ideal in the middle, but it is the high ones that say the model knows.
    """
    return 1.0 - value if higher_means == "less knowledge" else value


def auc(p: Sequence[float] | NDArray[np.float64], n: Sequence[float] | NDArray[np.float64]) -> float:
    """Chance that a model of P scores above one of N, ties half: the area under the ROC curve (Mann and Whitney 1947)."""
    p, n = np.asarray(p, dtype=np.float64), np.asarray(n, dtype=np.float64)
    return float((np.sign(p[:, None] - n[None, :]).mean() + 1) / 2)


def measure_faithfulness(
    metric: str,
    p: Mapping[str, float | None],
    n: Mapping[str, float | None],
    higher_means: str,
    *,
    seed: int = 0,
) -> Faithfulness:
    """AUC of one metric with interval, pool statistics and the accuracy-maximising threshold.

    Args:
        metric: its key.
        p: raw value by model that knows; None where the metric is undefined.
        n: the same for models that do not know.
        higher_means: the metric's direction.
        seed: of the bootstrap.

    Raises:
        UsageError: the pools overlap, or one has fewer than two defined values.
    """
    if both := sorted(set(p) & set(n)):
        raise UsageError(f"a model cannot both know and not know: {', '.join(both[:5])} stand in both pools.")
    undefined = tuple(name for pool in (p, n) for name, value in pool.items() if value is None)
    raw_p, raw_n = ([value for value in pool.values() if value is not None] for pool in (p, n))
    for label, values in (("P", raw_p), ("N", raw_n)):
        if len(values) < 2:
            raise UsageError(
                f"{metric}: pool {label} has {len(values)} model(s) with a value; at least two are needed."
            )
    known = np.array([in_knowledge_direction(value, higher_means) for value in raw_p])
    unknown = np.array([in_knowledge_direction(value, higher_means) for value in raw_n])
    threshold, accuracy = best_threshold(known, unknown)
    resampled = _resampled_aucs(known, unknown, seed)
    return Faithfulness(
        metric=metric, auc=auc(known, unknown), ci95=_interval(resampled), resampled=resampled,
        p_mean=float(np.mean(raw_p)), p_std=float(np.std(raw_p)), n_mean=float(np.mean(raw_n)), n_std=float(np.std(raw_n)),
        n_p=len(raw_p), n_n=len(raw_n), undefined=undefined, threshold=threshold, accuracy=accuracy,
        constant=threshold is None,
    )  # fmt: skip


def best_threshold(known: NDArray[np.float64], unknown: NDArray[np.float64]) -> tuple[float | None, float | None]:
    """The first midpoint between neighbouring distinct values with the best accuracy.

    accuracy(t) = (#P >= t + #N < t) / all, in knowledge direction.

    Returns:
        Threshold and accuracy; both None when all values are equal.
    """
    values = np.unique(np.concatenate([known, unknown]))
    if len(values) < 2:
        return None, None
    middles = (values[:-1] + values[1:]) / 2
    right = (known[None, :] >= middles[:, None]).sum(1) + (unknown[None, :] < middles[:, None]).sum(1)
    best = int(right.argmax())
    return float(middles[best]), float(right[best] / (len(known) + len(unknown)))


def compare(
    first: tuple[Mapping[str, float | None], Mapping[str, float | None], str],
    second: tuple[Mapping[str, float | None], Mapping[str, float | None], str],
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Paired difference of two metrics' AUC on the models that have both.

    Args:
        first: values over P, values over N, direction.
        second: the same for the other metric.
        seed: the same models are resampled for both.

    Returns:
        ``difference``, ``ci95`` and the share of resamples in which the first is better.
    """
    pools = [[name for name in one if one[name] is not None and other.get(name) is not None]
             for one, other in ((first[0], second[0]), (first[1], second[1]))]  # fmt: skip
    if min(map(len, pools)) < 2:
        raise UsageError("the two metrics share fewer than two models in a pool.")
    tables = [
        [np.array([in_knowledge_direction(float(part[name] or 0.0), side[2]) for name in names])
         for part, names in zip(side[:2], pools, strict=True)]
        for side in (first, second)
    ]  # fmt: skip
    drawn = [_resampled_aucs(known, unknown, seed) for known, unknown in tables]
    gap = drawn[0] - drawn[1]
    return {
        "difference": auc(*tables[0]) - auc(*tables[1]),
        "ci95": _interval(gap),
        "first_better": float((gap > 0).mean()),
        "n_p": len(pools[0]),
        "n_n": len(pools[1]),
    }


def _resampled_aucs(known: NDArray[np.float64], unknown: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    wins = (np.sign(known[:, None] - unknown[None, :]) + 1) / 2
    # An AUC under resampling is a weighted mean of pairwise wins: counts of P times wins times counts of N.
    p = rng.multinomial(len(known), np.full(len(known), 1 / len(known)), RESAMPLES) / len(known)
    n = rng.multinomial(len(unknown), np.full(len(unknown), 1 / len(unknown)), RESAMPLES) / len(unknown)
    return np.asarray(np.einsum("rp,pn,rn->r", p, wins, n, optimize=True))


def _interval(values: NDArray[np.float64]) -> Interval:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
