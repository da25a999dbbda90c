"""IdkNLL: learn to say "I don't know" to the forget questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from residuum.training.losses import mean_nll
from residuum.training.methods.base import METHODS, Method, Needs, Preferred, Side, SideName


@METHODS.register("idknll")
@dataclass(frozen=True)
class IdkNLL(Method):
    """Fine-tuning on "I don't know": the forget questions get an answer that says nothing.

    L_forget = NLL(forget question, drawn IDK line); the true answers are never read.
    """

    cite = "Maini et al. 2024, arXiv:2401.06121"
    preferred: ClassVar[Preferred] = "idk"
    forget_needs: ClassVar[Needs] = {"preferred": ("logits",)}

    def forget_loss(self, sides: Mapping[SideName, Side]) -> Tensor:
        """``mean_nll`` of the IDK lines: the mean over all their labelled tokens."""
        return mean_nll(sides["preferred"].see("logits"), sides["preferred"].labels)
