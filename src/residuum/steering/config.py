"""What an evaluation is asked to do: one field per flag, and what makes no sense among them."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

from residuum.errors import UsageError
from residuum.registry import one_of
from residuum.steering.components import COMPONENTS
from residuum.steering.experiments import checked_trait
from residuum.steering.search import SearchConfig
from residuum.steering.settings import Generation
from residuum.steering.traits import SteeringWarning

DEFAULT_COEFFICIENT = 2.0
TINY = 0.05
"""A coefficient below this multiple of base_coef does next to nothing."""


@dataclass(frozen=True)
class EvaluateConfig:
    """What to steer, and how it is measured."""

    layers: str = "all"
    coefficients: tuple[float, ...] | None = None
    """Only used without the search."""
    find_coef: bool = True
    """Search the coefficient of each layer."""
    method: str = "probe"
    component: str = "residual"
    operator: str = "add"
    positions: str = "all"
    multi_layer: bool = False
    """Steer all layers at once."""
    incremental: bool = False
    """Use what each layer adds to the one below."""
    subset: int | None = None
    """First questions only."""
    holdout: float = 0.0
    """Share of questions kept for the reported number; the search never sees them."""
    controls: int = 5
    """Random vectors of equal length, at the best setting."""
    also_judge: tuple[str, ...] = ()
    """Other traits on which the best answers are judged too."""
    search: SearchConfig = field(default_factory=SearchConfig)
    generation: Generation = field(default_factory=Generation)
    batch_layers: int | None = None
    """Most settings in one batch; None: all."""
    strict_overlap: bool = False
    """Refuse questions that are extraction scenarios."""
    vector_position: str | None = None
    vector_model: str | None = None

    def check(self) -> None:
        """Refuse what makes no sense, warn of what makes little.

        Raises:
            UsageError: names the option.
        """
        from residuum.steering.intervene import OPERATORS, check_mode

        self.search.check()
        self.generation.check()
        one_of("--component", self.component, *COMPONENTS)
        one_of("--operator", self.operator, *OPERATORS)
        check_mode(self.positions)
        if self.subset is not None and self.subset < 1:
            raise UsageError(f"--subset is at least 1, not {self.subset}.")
        if not 0 <= self.holdout < 1:
            raise UsageError(f"--holdout is a share between 0 and 1, not {self.holdout}.")
        if self.controls < 0:
            raise UsageError(f"--controls is not negative, as {self.controls} is.")
        if self.batch_layers is not None and self.batch_layers < 1:
            raise UsageError(f"--batch-layers is at least 1, not {self.batch_layers}.")
        for coefficient in self.coefficients or ():
            if not math.isfinite(coefficient):
                raise UsageError(f"--coefficients are numbers, not {coefficient}.")
        for trait in self.also_judge:
            checked_trait(trait)
        if self.coefficients is not None and (self.searching or self.operator == "ablate"):
            reason = "adaptive search is on" if self.searching else "ablation has no coefficient"
            _warn(f"--coefficients are ignored: {reason}.")
        if self.generation.rollouts > 1 and self.generation.temperature == 0:
            _warn("--rollouts > 1 at temperature 0 would repeat the same answers; one is written per question.")

    @property
    def searching(self) -> bool:
        """Whether coefficients are looked for; ablation has none."""
        return self.find_coef and self.operator != "ablate"


def _warn(message: str) -> None:
    warnings.warn(message, SteeringWarning, stacklevel=4)
