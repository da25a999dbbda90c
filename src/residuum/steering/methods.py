"""From activations of two sides to a direction: one function per method, float32, seeded.

P are the activations that show the trait, N those that show its opposite; rows of equal index are pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from residuum.errors import DataError
from residuum.registry import Registry


@dataclass(frozen=True, eq=False)
class Direction:
    """A direction at its natural length."""

    values: Tensor  # float32 [hidden]
    bias: float | None = None
    """Of a classifier; steering does not use it."""


class Method(Protocol):
    """Takes P [n, hidden] and N [m, hidden]."""

    def __call__(self, positive: Tensor, negative: Tensor, *, seed: int) -> Direction:
        """Finds the direction from N to P."""


METHODS: Registry[Method] = Registry("extraction method")


@METHODS.register("mean_diff")
def mean_diff(positive: Tensor, negative: Tensor, *, seed: int) -> Direction:
    """mean(P) - mean(N)."""
    del seed  # nothing random here
    return Direction(positive.mean(0) - negative.mean(0))


@METHODS.register("probe")
def probe(positive: Tensor, negative: Tensor, *, seed: int) -> Direction:
    """Weights of a logistic regression that tells P from N (l2, C = 1).

    Rows are scaled to unit length first: activations differ up to 170 times in scale between models, and C with them.
    """
    from sklearn.linear_model import LogisticRegression

    rows = torch.nn.functional.normalize(torch.cat([positive, negative]), dim=1)
    labels = [1] * len(positive) + [0] * len(negative)
    fitted = LogisticRegression(C=1.0, max_iter=1000, random_state=seed).fit(rows.numpy(), labels)
    return Direction(torch.tensor(fitted.coef_[0], dtype=torch.float32), float(fitted.intercept_[0]))


@METHODS.register("gradient")
def gradient(positive: Tensor, negative: Tensor, *, seed: int) -> Direction:
    """100 steps of Adam on -(mean(P.u) - mean(N.u)) + 0.01 |w|, u = w / |w|, from a seeded normal start.

    Its optimum is the direction of mean_diff; after 100 steps it is a noisy copy of it.
    """
    weights = torch.randn(positive.shape[1], generator=torch.Generator().manual_seed(seed)).requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=0.01)
    gap = positive.mean(0) - negative.mean(0)
    with torch.enable_grad():
        for _ in range(100):
            loss = -(gap @ (weights / weights.norm())) + 0.01 * weights.norm()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Direction(torch.nn.functional.normalize(weights.detach(), dim=0))


@METHODS.register("pca_diff")
def pca_diff(positive: Tensor, negative: Tensor, *, seed: int) -> Direction:
    """First right singular vector of the paired differences P_i - N_i, pointing the way of their majority.

    The differences are not centred: their mean is what is looked for (Zou et al. 2023, arXiv:2310.01405, flip half of
    them at random to the same end).
    """
    del seed
    pairs = min(len(positive), len(negative))
    if len(positive) != len(negative):
        raise DataError(
            f"pca_diff needs pairs, but there are {len(positive)} positive and {len(negative)} negative rows"
        )
    differences = positive[:pairs] - negative[:pairs]
    direction = torch.linalg.svd(differences, full_matrices=False).Vh[0]
    agree = ((differences @ direction) > 0).float().mean()
    return Direction(direction if agree >= 0.5 else -direction)


@METHODS.register("lda")
def lda(positive: Tensor, negative: Tensor, *, seed: int) -> Direction:
    """Whitened mean difference S^-1 (mean(P) - mean(N)), S the within-class covariance shrunk by Ledoit and Wolf 2004."""
    del seed
    from sklearn.covariance import ledoit_wolf

    within = torch.cat([positive - positive.mean(0), negative - negative.mean(0)]).double()
    # Ledoit-Wolf shrinks towards a multiple of one; a covariance that is zero altogether leaves the mean difference.
    covariance = torch.from_numpy(ledoit_wolf(within.numpy(), assume_centered=True)[0])
    scale = float(covariance.diagonal().mean()) or 1.0
    ridge = torch.eye(len(covariance), dtype=torch.double) * 1e-6
    gap = (positive.mean(0) - negative.mean(0)).double()
    return Direction(torch.linalg.solve(covariance / scale + ridge, gap).float())


@METHODS.register("random_baseline")
def random_baseline(positive: Tensor, negative: Tensor, *, seed: int) -> Direction:
    """A seeded random direction of length one: the control that every result is held against."""
    del negative
    return Direction(random_direction(positive.shape[1], seed))


def random_direction(size: int, seed: int) -> Tensor:
    """A direction drawn evenly from all, of length one, [size]."""
    return torch.nn.functional.normalize(torch.randn(size, generator=torch.Generator().manual_seed(seed)), dim=0)
