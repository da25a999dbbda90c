"""Evidence made by hand, for the tests of the metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from residuum.evidence import TokenEvidence

NO_CLASSIFIER = "no/such/classifier"
"""No hub id, so nobody looks for it in the network."""


def said(
    labels: Sequence[int] = (),
    predictions: Sequence[int] | None = None,
    log_probs: Sequence[float] | None = None,
    *,
    mean: Sequence[float] | None = None,
    variance: Sequence[float] | None = None,
    closed: bool = True,
) -> TokenEvidence:
    """An answer whose last label closes it; what is not given is ones, or right."""
    count = len(log_probs) if log_probs is not None and not len(labels) else len(labels)
    names = list(labels) or list(range(10, 10 + count))
    return TokenEvidence(
        labels=np.array(names, dtype=np.int32),
        predictions=np.array(names if predictions is None else predictions, dtype=np.int32),
        log_probs=np.array([-1.0] * count if log_probs is None else log_probs, dtype=np.float32),
        mean=np.array([-1.0] * count if mean is None else mean, dtype=np.float32),
        variance=np.array([1.0] * count if variance is None else variance, dtype=np.float32),
        closed=closed,
    )


def random_answers(rng: np.random.Generator, count: int, *, longest: int = 12) -> list[TokenEvidence]:
    """Answers of any length, one-token ones among them."""
    found = []
    for _ in range(count):
        length = int(rng.integers(2, longest + 1))
        labels = rng.integers(0, 5, length)
        found.append(
            TokenEvidence(
                labels=labels.astype(np.int32),
                predictions=rng.integers(0, 5, length).astype(np.int32),
                log_probs=-rng.exponential(1.5, length).astype(np.float32),
                mean=-rng.exponential(2.0, length).astype(np.float32),
                variance=rng.exponential(1.0, length).astype(np.float32) * (rng.random(length) > 0.1),
                closed=True,
            )
        )
    return found
