"""SimNPO: NPO without a reference, normalised by length."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from residuum.training.losses import sequence_nll
from residuum.training.methods.base import METHODS, Method, Needs, Side, SideName


@METHODS.register("simnpo")
@dataclass(frozen=True)
class SimNPO(Method):
    """Simple NPO: the forget answer's mean cross-entropy is pushed above a margin, without a reference.

    L_forget = -(2 / beta) mean log sigmoid(beta (S / n - delta)).
    """

    gamma: float = 0.125
    """Weight of the forget term."""
    beta: float = 4.5
    """Inverse temperature."""
    delta: float = 0.0
    """Margin in nats per token."""

    cite = "Fan et al. 2024, arXiv:2410.07163"
    forget_needs: ClassVar[Needs] = {"answer": ("logits",)}
    positive = ("beta",)

    def forget_loss(self, sides: Mapping[SideName, Side]) -> Tensor:
        """See ``simnpo_loss``."""
        return simnpo_loss(sides["answer"].see("logits"), sides["answer"].labels, beta=self.beta, delta=self.delta)


def simnpo_loss(logits: Tensor, labels: Tensor, *, beta: float, delta: float) -> Tensor:
    """-(2 / beta) mean log sigmoid(beta (S / n - delta)), the mean over rows.

    Args:
        logits: [row, position, vocab]
        labels: the forget answers, -100 elsewhere.  # [row, position]
        beta: inverse temperature.
        delta: margin in nats per token.
    """
    nll, tokens = sequence_nll(logits, labels)
    return -(2 / beta) * F.logsigmoid(beta * (nll / tokens - delta)).mean()
