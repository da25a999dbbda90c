"""Finding a coefficient: as strong as possible while the text stays coherent.

A search is a small state machine: it proposes a coefficient, is told (trait, coherence), and proposes the next. Numbers are
multiples of ``base = |activation| / |vector|``, at which the push is as long as the activation itself.

    seed      x1.3 after a coherent step, x0.9 after an incoherent one; 4 steps from 1
    bracket   doubles or halves until coherence has been both kept and lost, then bisects in log space; same budget
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from residuum.errors import UsageError
from residuum.registry import one_of

SEARCHES = ("seed", "bracket")
FLOOR, CEILING = 0.02, 8.0
"""Smallest and largest push, as a multiple of the activation's length."""
STRONG = 80.0
"""A coherent step with more of the trait than this gets a star."""


@dataclass(frozen=True)
class SearchConfig:
    """How a coefficient is looked for."""

    search: str = "seed"
    """seed or bracket."""
    steps: int = 4
    """Evaluations per layer."""
    start: float = 1.0
    """First multiple of base_coef."""
    up: float = 1.3
    """Factor after a coherent step."""
    down: float = 0.9
    """Factor after an incoherent step."""
    min_coherence: float = 70.0
    """From here on a text counts as coherent."""
    momentum: float = 0.0
    """velocity := m velocity + (1 - m) factor, starting at 1; 0 is the plain rule."""
    direction: str = "positive"
    """negative suppresses the trait: coefficients are negative, and the lowest trait wins."""

    def check(self) -> None:
        """Refuse what makes no sense.

        Raises:
            UsageError: names the setting.
        """
        one_of("--search", self.search, *SEARCHES)
        one_of("--direction", self.direction, "positive", "negative")
        if self.steps < 1:
            raise UsageError(f"--search-steps is at least 1, not {self.steps}.")
        for option, value in (("--start-mult", self.start), ("--up-mult", self.up), ("--down-mult", self.down)):
            if not (math.isfinite(value) and value > 0):
                raise UsageError(f"{option} is a positive number, not {value}.")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"--momentum is at least 0 and below 1, not {self.momentum}.")
        if not 0 <= self.min_coherence <= 100:
            raise UsageError(f"--min-coherence is between 0 and 100, not {self.min_coherence}.")


@dataclass(frozen=True)
class Step:
    """One evaluated coefficient."""

    scale: float
    """Multiple of base_coef, signed."""
    trait: float
    coherence: float

    def coherent(self, threshold: float) -> bool:
        """Whether the text holds together."""
        return self.coherence >= threshold

    def starred(self, config: SearchConfig) -> bool:
        """Coherent and strong."""
        strong = self.trait > STRONG if config.direction == "positive" else self.trait < 100 - STRONG
        return self.coherent(config.min_coherence) and strong


class Search(Protocol):
    """Proposes multiples of base_coef."""

    def propose(self) -> float | None:
        """The next one, or None when the search is over."""

    def record(self, trait: float, coherence: float) -> None:
        """What came of the last proposal."""

    @property
    def steps(self) -> Sequence[Step]:
        """What was evaluated so far."""


def new_search(config: SearchConfig) -> Search:
    """A search that has not begun."""
    return SeedSearch(config) if config.search == "seed" else BracketSearch(config)


@dataclass
class SeedSearch:
    """The rule of thumb: a little more while it works, a little less when it does not."""

    config: SearchConfig
    steps: list[Step] = field(default_factory=list)
    velocity: float = 1.0

    def __post_init__(self) -> None:
        self.scale = _signed(self.config.start, self.config)

    def propose(self) -> float | None:
        """The next multiple."""
        return None if len(self.steps) >= self.config.steps else self.scale

    def record(self, trait: float, coherence: float) -> None:
        """Multiply by the factor that the coherence asks for."""
        step = Step(self.scale, trait, coherence)
        self.steps.append(step)
        factor = self.config.up if step.coherent(self.config.min_coherence) else self.config.down
        self.velocity = self.config.momentum * self.velocity + (1 - self.config.momentum) * factor
        self.scale = _bounded(self.scale * self.velocity)


@dataclass
class BracketSearch:
    """The edge of coherence from both sides: doubling or halving, then halves of what lies between."""

    config: SearchConfig
    steps: list[Step] = field(default_factory=list)
    kept: float | None = None
    """Largest coherent multiple so far."""
    lost: float | None = None
    """Smallest incoherent one."""

    def propose(self) -> float | None:
        """The next multiple; over early when the bounds are reached."""
        if len(self.steps) >= self.config.steps:
            return None
        if not self.steps:
            return _signed(self.config.start, self.config)
        if self.kept is not None and self.lost is not None:
            scale = math.sqrt(self.kept * self.lost)
        else:
            scale = 2 * self.kept if self.kept is not None else (self.lost or 0) / 2
        scale = abs(_bounded(scale))
        tried = any(math.isclose(scale, abs(step.scale), rel_tol=1e-6) for step in self.steps)
        return None if tried else _signed(scale, self.config)

    def record(self, trait: float, coherence: float) -> None:
        """Move one end of the bracket."""
        scale = self.propose()
        assert scale is not None  # a recorded step was proposed
        step = Step(scale, trait, coherence)
        self.steps.append(step)
        if step.coherent(self.config.min_coherence):
            self.kept = max(self.kept or 0.0, abs(scale))
        else:
            self.lost = min(self.lost or math.inf, abs(scale))


def best_step(steps: Sequence[Step], config: SearchConfig) -> tuple[int, bool]:
    """The step that a search ends with, and whether it met the threshold.

    Among coherent steps the one with most of the trait (least, for the negative direction), the first of equals; without
    any, the most coherent one.
    """
    coherent = [i for i, step in enumerate(steps) if step.coherent(config.min_coherence)]
    if not coherent:
        return max(range(len(steps)), key=lambda i: steps[i].coherence), False
    sign = 1 if config.direction == "positive" else -1
    return max(coherent, key=lambda i: sign * steps[i].trait), True


def _signed(scale: float, config: SearchConfig) -> float:
    return scale if config.direction == "positive" else -scale


def _bounded(scale: float) -> float:
    return math.copysign(min(CEILING, max(FLOOR, abs(scale))), scale)
