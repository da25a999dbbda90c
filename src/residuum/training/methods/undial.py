"""UNDIAL: learn from the start model with the true token taken back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from residuum.batching import IGNORE
from residuum.training.losses import label_logits, precise
from residuum.training.methods.base import METHODS, Method, Needs, Side, SideName


@METHODS.register("undial")
@dataclass(frozen=True)
class UNDIAL(Method):
    """Self-distillation with adjusted logits: the start model teaches, its logit of the true token lowered by beta.

    L_forget = CE(softmax(teacher logits - beta onehot(label)), student).
    """

    alpha: float = 0.0
    """Weight of the retain term; 0 leaves it out."""
    beta: float = 10.0
    """How much the logit of the true token is lowered."""

    cite = "Dong et al. 2024, arXiv:2402.10052"
    default_lr = 1e-4
    forget_needs: ClassVar[Needs] = {"answer": ("logits", "reference_logits")}

    def forget_loss(self, sides: Mapping[SideName, Side]) -> Tensor:
        """See ``undial_loss``."""
        answer = sides["answer"]
        return undial_loss(
            answer.see("logits"), answer.labels, answer.see("reference_logits"), beta=self.beta, compat=self.compat
        )


def undial_loss(
    logits: Tensor, labels: Tensor, reference_logits: Tensor, *, beta: float, compat: str | None = None
) -> Tensor:
    """Cross-entropy between the adjusted teacher and the student, the mean over the rows that predict a label.

    Args:
        logits: of the student.  # [row, position, vocab]
        labels: the forget answers, -100 elsewhere.  # [row, position]
        reference_logits: of the start model.  # [row, position, vocab]
        beta: taken from the teacher's logit of the label.
        compat: ``published`` averages over all positions but the last, prompt and padding included; where there is no
            label the penalty then falls on the vocabulary's 100th token from the end, because -100 was used as an index.
    """
    if compat is None:
        student, label, _ = label_logits(logits, labels)
        teacher, _, _ = label_logits(reference_logits, labels)
    else:
        student, teacher = (precise(part[:, :-1]).flatten(0, 1) for part in (logits, reference_logits))
        label = labels[:, 1:].flatten()
        label = torch.where(label == IGNORE, logits.shape[-1] + IGNORE, label)
    penalty = torch.zeros_like(teacher).scatter_(1, label[:, None], beta)
    return F.cross_entropy(student, (teacher - penalty).softmax(-1))
