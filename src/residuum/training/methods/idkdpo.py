"""IdkDPO: "I don't know" wins against the true answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from residuum.training.losses import sequence_nll
from residuum.training.methods.base import METHODS, Method, Needs, Preferred, Side, SideName


@METHODS.register("idkdpo")
@dataclass(frozen=True)
class IdkDPO(Method):
    """Preference optimization with "I don't know" as winner and the true answer as loser.

    L_forget = -(2 / beta) mean log sigmoid(beta ((S_ref^w - S^w) - (S_ref^l - S^l))).
    """

    beta: float = 0.1
    """Inverse temperature."""

    cite = "Rafailov et al. 2023, arXiv:2305.18290; Maini et al. 2024, arXiv:2401.06121"
    preferred: ClassVar[Preferred] = "idk"
    forget_needs: ClassVar[Needs] = {"answer": ("logits", "reference_nll"), "preferred": ("logits", "reference_nll")}
    positive = ("beta",)

    def forget_loss(self, sides: Mapping[SideName, Side]) -> Tensor:
        """See ``dpo_loss``."""
        winner, loser = sides["preferred"], sides["answer"]
        return dpo_loss(
            winner.see("logits"), winner.labels, winner.see("reference_nll"),
            loser.see("logits"), loser.labels, loser.see("reference_nll"), beta=self.beta,
        )  # fmt: skip


def dpo_loss(
    winner_logits: Tensor,
    winner_labels: Tensor,
    winner_reference_nll: Tensor,
    loser_logits: Tensor,
    loser_labels: Tensor,
    loser_reference_nll: Tensor,
    *,
    beta: float,
) -> Tensor:
    """-(2 / beta) mean log sigmoid(beta ((S_ref^w - S^w) - (S_ref^l - S^l))), the mean over rows.

    Args:
        winner_logits: under the answers wished for.  # [row, position, vocab]
        winner_labels: these answers, -100 elsewhere.  # [row, position]
        winner_reference_nll: their S_ref (``sequence_nll`` under the start model).  # [row]
        loser_logits: under the true answers; the lengths may differ from the winners'.  # [row, position, vocab]
        loser_labels: the true answers, -100 elsewhere.  # [row, position]
        loser_reference_nll: their S_ref.  # [row]
        beta: inverse temperature.
    """
    winner_gain = winner_reference_nll - sequence_nll(winner_logits, winner_labels)[0]
    loser_gain = loser_reference_nll - sequence_nll(loser_logits, loser_labels)[0]
    return -(2 / beta) * F.logsigmoid(beta * (winner_gain - loser_gain)).mean()
