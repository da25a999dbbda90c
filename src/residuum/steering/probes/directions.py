"""The probes: which direction is taken from an unlearned model, and what is done with it.

Directions are differences of mean activations, one per layer, at the output of the decoder blocks. Most are read at the
last prompt token, where the answer is about to begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from residuum.data.tofu import QA
from residuum.errors import DataError
from residuum.registry import Registry
from residuum.steering.activations import mean_activations
from residuum.steering.components import component_module
from residuum.steering.probes.measures import Asking
from residuum.steering.probes.questions import HARMFUL, HARMLESS, ProbeData, anonymised

if TYPE_CHECKING:
    from residuum.models.handles import ModelHandle
    from residuum.models.loading import LM


@dataclass(frozen=True)
class Sight:
    """What a probe may look at: the attacked model, the original one, and rows to read."""

    model: ModelHandle
    full: ModelHandle
    data: ProbeData
    asking: Asking

    @cached_property
    def forget(self) -> Tensor:
        """Mean state of the attacked model before it answers forget questions, [layer, hidden]."""
        return self.states(self.model, self.data.forget.select).mean(0)

    @cached_property
    def retain(self) -> Tensor:
        """The same for retain questions."""
        return self.states(self.model, self.data.retain.select).mean(0)

    def states(self, handle: ModelHandle, rows: Sequence[QA]) -> Tensor:
        """States at the last prompt token, [row, layer, hidden]."""
        prompts = self.asking.prompts(handle.lm, rows)
        return self.read(handle.lm, prompts, [range(len(ids) - 1, len(ids)) for ids in prompts])

    def asked(self, questions: Sequence[str]) -> Tensor:
        """The same for bare questions to the attacked model."""
        return self.states(self.model, [QA(question, "") for question in questions])

    def answering(self, rows: Sequence[QA], answers: Sequence[str]) -> Tensor:
        """Mean states of the attacked model over the tokens of given answers, [row, layer, hidden]."""
        lm = self.model.lm
        encoded = [self.asking.form.encode(lm.tokenizer, qa.question, a) for qa, a in zip(rows, answers, strict=True)]
        return self.read(lm, [row.ids for row in encoded], [range(row.prompt_length, len(row)) for row in encoded])

    def read(self, lm: LM, sequences: Sequence[Sequence[int]], spans: Sequence[range]) -> Tensor:
        """Residual states averaged over spans, [row, layer, hidden]."""
        modules = [component_module(lm.anatomy, "residual", layer) for layer in range(lm.anatomy.num_layers)]
        return mean_activations(lm, sequences, spans, modules)


@dataclass(frozen=True)
class Probe:
    """One way to ask for what should be forgotten."""

    find: Callable[[Sight], Tensor]
    """The direction of each layer, [layer, hidden]."""
    operator: str
    """``ablate`` from a layer on, in all later ones too; or ``add`` at one layer, with a searched coefficient."""
    description: str
    sign: int = 1
    """Of the coefficient."""
    natural: bool = False
    """Whether the direction's own length is the unit of the coefficient, rather than that of the activations."""
    sampled: bool = False
    """Whether answers are drawn and their words ranked by frequency."""


PROBES: Registry[Probe] = Registry("probe")


def probes() -> list[dict[str, Any]]:
    """The probes as plain data."""
    return [{"name": name, "operator": p.operator, "description": p.description} for name, p in PROBES.items()]


def forget_minus_retain(sight: Sight) -> Tensor:
    """What sets forget questions apart inside the attacked model."""
    return sight.forget - sight.retain


def idk_minus_real(sight: Sight) -> Tensor:
    """What "I don't know" has and a real answer lacks, on questions that nobody unlearned."""
    rows = sight.data.neutral
    idk = [sight.data.idk[i % len(sight.data.idk)] for i in range(len(rows))]
    return (sight.answering(rows, idk) - sight.answering(rows, [qa.answer for qa in rows])).mean(0)


def original_minus_unlearned(sight: Sight) -> Tensor:
    """How the state of the original model differs from that of the attacked one, on forget questions."""
    return sight.states(sight.full, sight.data.forget.select).mean(0) - sight.forget


def unlearned_minus_original(sight: Sight) -> Tensor:
    """What unlearning has put into the states of forget questions."""
    return -original_minus_unlearned(sight)


def named_minus_anonymous(sight: Sight) -> Tensor:
    """What the names in forget questions do (Seyitoglu et al. 2024, arXiv:2411.02631).

    Raises:
        DataError: no question names anything.
    """
    named = [qa.question for qa in sight.data.forget.select if anonymised(qa.question)]
    if not named:
        raise DataError("no forget question has a name in it that could be left out")
    versions = [version for question in named for version in anonymised(question)]
    return sight.asked(named).mean(0) - sight.asked(versions).mean(0)


def harmful_minus_harmless(sight: Sight) -> Tensor:
    """The refusal direction (Arditi et al. 2024, arXiv:2406.11717)."""
    return sight.asked(HARMFUL).mean(0) - sight.asked(HARMLESS).mean(0)


PROBES.register("idk_ablation")(
    Probe(forget_minus_retain, "ablate", "take out what sets forget questions apart from retain ones")
)
PROBES.register("idk_subtract")(
    Probe(idk_minus_real, "add", 'subtract what "I don\'t know" has and real answers lack', sign=-1)
)
PROBES.register("model_diff")(
    Probe(original_minus_unlearned, "add", "add what the original model has and the unlearned one lacks", natural=True)
)
PROBES.register("junk_ablation")(
    Probe(unlearned_minus_original, "ablate", "take out what unlearning has put in (RMU's junk)")
)
PROBES.register("anon")(
    Probe(named_minus_anonymous, "add", "add what names do, draw answers, rank their words", sampled=True)
)
PROBES.register("refusal_ablation")(
    Probe(harmful_minus_harmless, "ablate", "take out refusal: was it forgotten or refused?")
)


def unit(direction: Tensor) -> Tensor:
    """Length one; a direction of length zero stays zero."""
    return torch.nn.functional.normalize(direction, dim=-1)
