"""AltPO: a made-up answer of the same form wins against the true one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from residuum.training.methods.base import METHODS, Preferred
from residuum.training.methods.idkdpo import IdkDPO


@METHODS.register("altpo")
@dataclass(frozen=True)
class AltPO(IdkDPO):
    """Alternate preference optimization: IdkDPO's loss with a plausible wrong answer as winner.

    The alternates are sampled from the full model (``residuum data alternates``). Each is a pair of its own, so an
    epoch has as many rows as there are alternates.
    """

    cite = "Mekala et al. 2024, arXiv:2409.13474"
    preferred: ClassVar[Preferred] = "alternate"
