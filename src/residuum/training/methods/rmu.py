"""RMU: steer the states of the forget rows at one block towards a random vector."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from residuum.batching import IGNORE
from residuum.errors import UsageError
from residuum.training.loop import EVERYTHING
from residuum.training.losses import precise
from residuum.training.methods.base import METHODS, Method, Need, Needs, Side, SideName

if TYPE_CHECKING:
    from residuum.models.anatomy import Anatomy


@METHODS.register("rmu")
@dataclass(frozen=True)
class RMU(Method):
    """Representation misdirection: states of the forget answers go to a random vector, those of the rest stay.

    L_forget = mean over rows of s / n, where s sums the mean squared distance between state and control vector over
    the n labelled positions. L_retain is the same distance between the model's and the start model's states.
    """

    retain_loss: str = "embed_diff"
    """embed_diff: distance to the start model's states. nll, kl: as for the other methods."""
    layer: int = 7
    """Block whose output is steered; blocks above it are not trained, because no gradient reaches them."""
    scoeff: float = 2.0
    """Length of the control vector."""
    seed: int = 0
    """Draws the control vector; a run hands its own seed over."""
    trainable: str = EVERYTHING
    """Regular expression for the names of the trained parameters."""

    cite = "Li et al. 2024, arXiv:2403.03218"
    forget_needs: ClassVar[Needs] = {"answer": ("states",)}
    retain_needs: ClassVar[Mapping[str, tuple[Need, ...]]] = {
        "embed_diff": ("states", "reference_states"),
        **Method.retain_needs,
    }

    @property
    def block(self) -> int:
        """The steered block."""
        return self.layer

    def trained(self, parts: Anatomy) -> str:
        """The pattern, without what no gradient reaches: distributed training does not accept such parameters."""
        if self.alpha and self.retain_loss != "embed_diff":
            return self.trainable
        above = [f"{parts.row.blocks}.{layer}." for layer in range(self.layer + 1, parts.num_layers)]
        unreached = "|".join(map(re.escape, [*above, f"{parts.row.final_norm}.", f"{parts.row.head}."]))
        return f"(?!{unreached}){self.trainable}"

    def check_model(self, parts: Anatomy) -> None:
        """The steered block must exist."""
        if self.layer >= parts.num_layers:
            raise UsageError(f"RMU cannot steer layer {self.layer}: the model has layers 0 to {parts.num_layers - 1}.")

    def forget_loss(self, sides: Mapping[SideName, Side]) -> Tensor:
        """See ``rmu_loss``; the target is ``control_vector``."""
        states, labels = sides["answer"].see("states"), sides["answer"].labels
        target = control_vector(states.shape[-1], self.scoeff, seed=self.seed).to(states)
        return rmu_loss(states, labels, target, compat=self.compat)

    def retain_term(self, retain: Side) -> Tensor:
        """The distance to the start model's states, or what the base class offers."""
        if self.retain_loss != "embed_diff":
            return super().retain_term(retain)
        return rmu_loss(retain.see("states"), retain.labels, retain.see("reference_states"), compat=self.compat)


def rmu_loss(states: Tensor, labels: Tensor, target: Tensor, *, compat: str | None = None) -> Tensor:
    """The mean over rows of s / n; s sums the mean squared distance over the n positions that hold a label.

    Args:
        states: output of one block.  # [row, position, hidden]
        labels: positions with a label count; they are not shifted here.  # [row, position]
        target: a control vector, or the states of the start model.  # [hidden] or [row, position, hidden]
        compat: ``published`` gives mean(s) mean(1 / n), the result of dividing [row] by [row, 1].
    """
    distance = (precise(states) - target).square().mean(dim=-1)
    scored = (labels != IGNORE).to(distance)
    total, positions = (distance * scored).sum(dim=1), scored.sum(dim=1)
    if compat is not None:
        return total.mean() * (1 / positions).mean()
    return (total / positions).mean()


def control_vector(size: int, scoeff: float, *, seed: int = 0) -> Tensor:
    """The target of RMU's forget rows: c = scoeff u / |u| with u drawn uniformly from [0, 1)^size, [size]."""
    direction = torch.rand(size, generator=torch.Generator().manual_seed(seed))
    return direction * (scoeff / float(direction.norm()))
