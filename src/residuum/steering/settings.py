"""What a run is: its context (model, questions, generation, judge) and its setting (what is steered, where, how much).

Runs of one context can be compared with each other and with its baseline; nothing else can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from residuum.errors import UsageError
from residuum.registry import one_of
from residuum.steering.traits import PromptSet, Question
from residuum.store.hashing import content_hash
from residuum.store.units import Task

if TYPE_CHECKING:
    from residuum.models.handles import ModelHandle
    from residuum.steering.intervene import Edit
    from residuum.steering.vectors import Vector

KIND = "steer"
"""Of steering runs and baselines in the run store."""
THINKING = ("off", "judge-answer", "judge-thinking")
_THINK_END = "</think>"


@dataclass(frozen=True)
class Generation:
    """How answers are written."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    """0 is greedy."""
    rollouts: int = 1
    """Answers per question; one is enough when nothing is drawn."""
    seed: int = 42
    """Of the sampling."""
    chat: bool = True
    """Through the chat template."""
    system_prompt: str = ""
    thinking: str = "off"
    """Which part of a text with a thinking block is judged: off (all), judge-answer, judge-thinking."""

    def check(self) -> None:
        """Refuse what makes no sense.

        Raises:
            UsageError: names the setting.
        """
        if self.rollouts < 1:
            raise UsageError(f"--rollouts is at least 1, not {self.rollouts}.")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"--temperature is not negative, as {self.temperature} is.")
        if self.max_new_tokens < 1:
            raise UsageError(f"--max-new-tokens is at least 1, not {self.max_new_tokens}.")
        one_of("--thinking", self.thinking, *THINKING)

    @property
    def effective_rollouts(self) -> int:
        """Greedy answers are all alike: more than one would only inflate n."""
        return self.rollouts if self.temperature > 0 else 1

    def identity(self) -> dict[str, Any]:
        """What decides the texts; a seed that is not used decides nothing."""
        drawn = self.temperature > 0
        return {**asdict(self), "rollouts": self.effective_rollouts, "seed": self.seed if drawn else None}

    def judged(self, text: str) -> str:
        """The part of a text that the judge sees."""
        if self.thinking == "off" or _THINK_END not in text:
            return text
        thought, _, said = text.partition(_THINK_END)
        return said.strip() if self.thinking == "judge-answer" else thought.removeprefix("<think>").strip()


@dataclass(frozen=True)
class Setting:
    """One configuration of vectors."""

    vectors: tuple[Vector, ...]
    """One per layer."""
    coefficients: tuple[float, ...]
    operator: str = "add"
    mode: str = "all"
    """Which tokens are steered."""
    incremental: bool = False

    @property
    def layers(self) -> list[int]:
        """Layers that are steered at once."""
        return [vector.layer for vector in self.vectors]

    @property
    def label(self) -> str:
        """For tables and messages, such as ``L16 c50``."""
        layers = "_".join(map(str, self.layers))
        return f"L{layers}" + (
            "" if self.operator == "ablate" else f" c{'_'.join(f'{c:g}' for c in self.coefficients)}"
        )

    def config(self) -> dict[str, Any]:
        """As results.json has it: ``methods`` and ``coefficients`` are as long as ``layers``."""
        return {
            "layers": self.layers,
            "methods": [vector.method for vector in self.vectors],
            "coefficients": list(self.coefficients),
            "component": self.vectors[0].component,
            "incremental": self.incremental,
            "operator": self.operator,
            "positions": self.mode,
        }

    def identity(self) -> dict[str, Any]:
        """What decides its effect, vectors by content."""
        return {**self.config(), "vectors": [vector.sha256 for vector in self.vectors]}

    def edits(self) -> list[Edit]:
        """As the hooks take it."""
        from residuum.steering.intervene import Edit

        pairs = zip(self.vectors, self.coefficients, strict=True)
        return [Edit(v.layer, v.component, v.values, c, self.operator) for v, c in pairs]


def make_context(
    handle: ModelHandle,
    prompts: PromptSet,
    questions: Sequence[Question],
    generation: Generation,
    judge: Mapping[str, Any],
    coherence_prompt: str,
) -> dict[str, Any]:
    """Everything that runs must share to be compared."""
    template = handle.tokenizer().chat_template if generation.chat else None
    return {
        "model": {"name": handle.name, **handle.identity},
        "chat_template": content_hash(template) if template else None,
        "prompts": prompts.hash,
        "questions": [question.id for question in questions],
        "generation": generation.identity(),
        "judge": {**judge, "trait_prompt": content_hash(prompts.eval_prompt), "coherence_prompt": content_hash(coherence_prompt)},
    }  # fmt: skip


def context_id(context: Mapping[str, Any]) -> str:
    """Sixteen digits that name a context."""
    return content_hash(context)[:16]


def run_task(place: Mapping[str, str], context: Mapping[str, Any], setting: Setting | None) -> Task:
    """The task of one run of the results at ``place`` (`Results.place`); without a setting, of the baseline."""
    run = None if setting is None else setting.identity()
    return Task(KIND, {**place, "context": context, "run": run})


def significant(value: float, digits: int = 6) -> float:
    """A coefficient rounded, so that tiny changes of a norm do not make another run; never minus zero."""
    return float(f"{value:.{digits}g}") + 0.0
