"""NPO: the losing half of DPO, which stops pushing once the answer has become unlikely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from residuum.training.losses import sequence_nll
from residuum.training.methods.base import METHODS, Method, Needs, Side, SideName


@METHODS.register("npo")
@dataclass(frozen=True)
class NPO(Method):
    """Negative preference optimization: the forget answer loses against the start model's own.

    L_forget = -(2 / beta) mean log sigmoid(beta (S - S_ref)), not normalised by length.
    """

    beta: float = 0.1
    """Inverse temperature: small values approach gradient ascent."""

    cite = "Zhang et al. 2024, arXiv:2404.05868"
    forget_needs: ClassVar[Needs] = {"answer": ("logits", "reference_nll")}
    positive = ("beta",)

    def forget_loss(self, sides: Mapping[SideName, Side]) -> Tensor:
        """See ``npo_loss``."""
        answer = sides["answer"]
        return npo_loss(answer.see("logits"), answer.labels, answer.see("reference_nll"), beta=self.beta)


def npo_loss(logits: Tensor, labels: Tensor, reference_nll: Tensor, *, beta: float) -> Tensor:
    """-(2 / beta) mean log sigmoid(beta (S - S_ref)), the mean over rows.

    Args:
        logits: [row, position, vocab]
        labels: the forget answers, -100 elsewhere.  # [row, position]
        reference_nll: S_ref, the summed cross-entropy under the start model (``sequence_nll``).  # [row]
        beta: inverse temperature.
    """
    surprise = sequence_nll(logits, labels)[0] - reference_nll
    return -(2 / beta) * F.logsigmoid(beta * surprise).mean()
