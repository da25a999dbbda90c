"""How sure a number is: seeded bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]
RESAMPLES = 2000


def bootstrap_ci(
    values: Sequence[float] | NDArray[np.floating],
    statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None,
    *,
    seed: int = 0,
) -> Interval | None:
    """95 % percentile interval of a statistic over resampled values (Efron 1979).

    Args:
        values: one number per independent item.
        statistic: takes resampled values [resample, item] and returns [resample]; the mean when left out.
        seed: of the resampling.

    Returns:
        Lower and upper end; None when there are fewer than two values.
    """
    data = np.asarray(values, dtype=np.float64)
    if len(data) < 2:
        return None
    picks = np.random.default_rng(seed).integers(0, len(data), (RESAMPLES, len(data)))
    found = data[picks].mean(axis=1) if statistic is None else statistic(data[picks])
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def bootstrap_columns(table: NDArray[np.floating], *, seed: int = 0) -> NDArray[np.float64]:
    """95 % intervals of the column means of ``table`` [item, column], items resampled together; NaN cells are left out.

    Returns:
        Lower and upper ends, [2, column].
    """
    data = np.asarray(table, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(0, len(data), (RESAMPLES, len(data)))
    present = ~np.isnan(data)
    filled = np.where(present, data, 0.0)
    # Resampling is a matrix of counts: one product instead of RESAMPLES copies of the table.
    counts = np.stack([np.bincount(pick, minlength=len(data)) for pick in picks]).astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (counts @ filled) / (counts @ present.astype(np.float64))
    bands = np.full((2, data.shape[1]), np.nan)
    known = present.any(axis=0) & (len(data) > 1)
    bands[:, known] = np.nanpercentile(means[:, known], [2.5, 97.5], axis=0)
    return bands
