"""GradDiff: ascend on what is to be forgotten, descend on the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from residuum.training.losses import mean_nll
from residuum.training.methods.base import METHODS, Method, Needs, Side, SideName


@METHODS.register("graddiff")
@dataclass(frozen=True)
class GradDiff(Method):
    """Gradient difference: gradient ascent on the forget answers.

    L_forget = -NLL(forget). It has no lower bound: too many steps ruin the model.
    """

    cite = "Liu et al. 2022, arXiv:2203.12817"
    forget_needs: ClassVar[Needs] = {"answer": ("logits",)}

    def forget_loss(self, sides: Mapping[SideName, Side]) -> Tensor:
        """See ``graddiff_loss``."""
        return graddiff_loss(sides["answer"].see("logits"), sides["answer"].labels)


def graddiff_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """-NLL, the mean over all labelled tokens of the batch.

    Args:
        logits: [row, position, vocab]
        labels: the forget answers, -100 elsewhere.  # [row, position]
    """
    return -mean_nll(logits, labels)
