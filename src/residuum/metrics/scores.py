"""What comes out of a metric: a number with its items, its interval, and how to read it.

Every score keeps its values on resampled items. A score made of other scores (an axis, a ratio to the retain model) is
computed on those in the same way, and so gets an interval that knows which of its parts rest on the same items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from residuum.uncertainty import RESAMPLES, Interval

Floats = NDArray[np.float64]
Meaning = Literal["more knowledge", "less knowledge", "more utility", "two-sided"]

STATISTIC_RESAMPLES = 400
"""Resamples of a number that is not a mean and has to be computed anew on each."""


@dataclass(frozen=True)
class Score:
    """One metric of one model."""

    value: float | None
    """None when it is not defined; ``notes`` say why."""
    values: list[float | None]
    """Per item; for an attack the members, then the non-members. Empty for what no single item has."""
    n: int
    """Items that entered; for a score made of others, of the one with the fewest."""
    n_undefined: int
    """Items that have no value, or were too long for the model."""
    ci95: Interval | None
    """Bootstrap interval over items."""
    higher_means: Meaning
    ideal: float | None = None
    """The target of a two-sided score."""
    notes: tuple[str, ...] = ()
    """What a reader should know before believing the number."""
    resampled: Floats = field(default_factory=lambda: np.zeros(0), repr=False, compare=False)
    """The value on resampled items; NaN where it is not defined."""

    def noting(self, *notes: str) -> Score:
        """The same score with more notes."""
        return replace(self, notes=(*self.notes, *notes))

    def record(self) -> dict[str, Any]:
        """The score without its items, ready for JSON."""
        return {
            "value": self.value, "ci95": None if self.ci95 is None else list(self.ci95), "n": self.n,
            "n_undefined": self.n_undefined, "higher_means": self.higher_means, "ideal": self.ideal, "notes": list(self.notes),
        }  # fmt: skip


@dataclass(frozen=True)
class Separation:
    """What a membership attack says: higher means less likely a member."""

    members: Floats
    nonmembers: Floats


@dataclass(frozen=True)
class Sampled:
    """A number that comes with its own resamples."""

    value: float
    resampled: Floats


def auc(separation: Separation) -> float | None:
    """Area under the ROC curve, non-members positive: 1 when every member is recognised, 0.5 by chance.

    Equal to the share of pairs in which the non-member has the higher score, ties counted half.
    """
    if not len(separation.members) or not len(separation.nonmembers):
        return None
    return float(_wins(separation).mean())


def mean_score(values: Floats, seed: int, higher_means: Meaning, **reading: Any) -> Score:
    """The mean over the items that have a value; NaN marks those that have none."""
    present = values[~np.isnan(values)]
    counts = draws(len(present), RESAMPLES, seed)
    resampled = counts @ present / len(present) if len(present) > 1 else np.zeros(0)
    return Score(
        value=float(present.mean()) if len(present) else None,
        values=[None if np.isnan(value) else float(value) for value in values],
        n=len(present),
        n_undefined=len(values) - len(present),
        ci95=interval(resampled),
        higher_means=higher_means,
        notes=() if len(present) else (f"not defined: none of the {len(values)} items has a value",),
        resampled=resampled,
        **reading,
    )


def auc_score(separation: Separation, seeds: tuple[int, int], higher_means: Meaning, **reading: Any) -> Score:
    """The AUC of an attack; members and non-members are resampled apart."""
    members, nonmembers = separation.members, separation.nonmembers
    resampled = np.zeros(0)
    if len(members) > 1 and len(nonmembers) > 1:
        first, second = (
            draws(len(group), RESAMPLES, seed) for group, seed in zip((members, nonmembers), seeds, strict=True)
        )
        resampled = ((first @ _wins(separation)) * second).sum(axis=1) / (len(members) * len(nonmembers))
    return Score(
        value=auc(separation), values=[*members.tolist(), *nonmembers.tolist()], n=len(members) + len(nonmembers),
        n_undefined=0, ci95=interval(resampled), higher_means=higher_means, resampled=resampled, **reading,
    )  # fmt: skip


def statistic_score(
    function: Callable[..., float | None], inputs: Sequence[Any], seed: int, higher_means: Meaning, **reading: Any
) -> Score:
    """A number computed from all items at once; their first axis is resampled together.

    Args:
        function: from the inputs to the number, or to `Sampled`, which brings its own resamples.
        inputs: arrays over the same items.  # [item, ...]
        seed: of the resampling.
        higher_means: direction.
        reading: further fields of the score.
    """
    found, count = function(*inputs), len(inputs[0])
    if isinstance(found, Sampled):
        value, resampled = found.value, found.resampled
    else:
        picks = np.random.default_rng(seed).integers(0, count, (STATISTIC_RESAMPLES if count > 1 else 0, count))
        redone = [function(*(array[pick] for array in inputs)) for pick in picks]
        value, resampled = found, _numbers(redone)
    return Score(
        value=value, values=[], n=count, n_undefined=0, ci95=interval(resampled), higher_means=higher_means,
        resampled=resampled, **reading,
    )  # fmt: skip


def composite_score(
    function: Callable[..., float | None], parts: Sequence[Score | None], higher_means: Meaning, **reading: Any
) -> Score:
    """A number made of other scores; on their resamples it is made in the same way.

    Args:
        function: from the values of the parts (None where there is none) to the number.
        parts: None for a part that is not there.
        higher_means: direction.
        reading: further fields of the score.
    """
    value = function(*(None if part is None else part.value for part in parts))
    there = [part for part in parts if part is not None]
    length = min((len(part.resampled) for part in there if part.value is not None), default=0)
    resampled = _numbers([function(*(_redone(part, i) for part in parts)) for i in range(length)])
    notes = () if value is not None else ("not defined: a part of it is missing or not positive",)
    return Score(
        value=value, values=[], n=min((part.n for part in there), default=0),
        n_undefined=max((part.n_undefined for part in there), default=0),
        ci95=None if value is None else interval(resampled), higher_means=higher_means, resampled=resampled,
        notes=notes, **reading,
    )  # fmt: skip


def interval(resampled: Floats) -> Interval | None:
    """The middle 95 % of the resampled values that are defined; None when there are none."""
    defined = resampled[~np.isnan(resampled)]
    if not len(defined):
        return None
    low, high = np.percentile(defined, [2.5, 97.5])
    return float(low), float(high)


@lru_cache(maxsize=16)
def draws(items: int, times: int, seed: int) -> Floats:
    """How often each resample holds each item, [times, items]; the same picks as `residuum.uncertainty.bootstrap_ci`."""
    if not items:
        return np.zeros((times, 0))
    picks = np.random.default_rng(seed).integers(0, items, (times, items))
    return np.stack([np.bincount(pick, minlength=items) for pick in picks]).astype(np.float64)


def _redone(part: Score | None, draw: int) -> float | None:
    """A part on one resample; None where it is not there or not defined."""
    if part is None or part.value is None or np.isnan(part.resampled[draw]):
        return None
    return float(part.resampled[draw])


def _numbers(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _wins(separation: Separation) -> Floats:
    """1 where the non-member has the higher score, one half at a tie.  # [member, non-member]."""
    gap = separation.nonmembers[None, :] - separation.members[:, None]
    wins: Floats = (gap > 0) + 0.5 * (gap == 0)
    return wins
