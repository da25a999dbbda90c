"""How a tokenizer spells numbers, and the exact probability that a model says each of 0 to 100.

Where every number is one token the first token decides. Elsewhere "85" may be 8 and 5, and P(85) is the probability of
the whole way: P(8) P(5 | 8) P(stop | 85), stop being anything but a further digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from residuum.steering.judge.scoring import begins_refusal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from residuum.steering.judge.local import Front, LocalModel

NEGLIGIBLE = 1e-7
"""Ways less likely than this are not followed to their end."""


@dataclass(frozen=True)
class Spelling:
    """The numbers of one tokenizer."""

    tokenizer: PreTrainedTokenizerBase

    @cached_property
    def ways(self) -> dict[tuple[int, ...], int]:
        """Token sequences and the number each spells, alone and after a space."""
        found: dict[tuple[int, ...], int] = {}
        for number in range(101):
            for text in (str(number), f" {number}"):
                ids = tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
                # What does not come back as the number, such as unknown tokens, is no way to say it. Some tokenizers
                # put blanks between their tokens.
                if ids and self.tokenizer.decode(ids).replace(" ", "") == str(number):
                    found[ids] = number
        return found

    @cached_property
    def single(self) -> bool:
        """Whether every number is one token."""
        return {number for ids, number in self.ways.items() if len(ids) == 1} == set(range(101))

    @cached_property
    def steps(self) -> dict[tuple[int, ...], list[int]]:
        """Every beginning of a way, and the tokens that may follow it."""
        found: dict[tuple[int, ...], set[int]] = {}
        for ids in self.ways:
            for end in range(len(ids)):
                found.setdefault(ids[:end], set()).add(ids[end])
        return {prefix: sorted(tokens) for prefix, tokens in found.items()}

    @cached_property
    def texts(self) -> list[str]:
        """The text of every token."""
        return [self.tokenizer.decode([index]) for index in range(len(self.tokenizer))]

    @cached_property
    def digits(self) -> Tensor:
        """Tokens that would go on a number: those that begin with a digit."""
        return torch.tensor([index for index, text in enumerate(self.texts) if text[:1] in set("0123456789")])

    @cached_property
    def refusals(self) -> Tensor:
        """Tokens that begin a refusal."""
        return torch.tensor([index for index, text in enumerate(self.texts) if begins_refusal(text)], dtype=torch.long)


def number_probabilities(
    model: LocalModel, spelling: Spelling, prompts: Sequence[Sequence[int]]
) -> list[tuple[dict[int, float], float]]:
    """P(k) for k = 0..100 and P(refusal) after each prompt, exact but for ways below `NEGLIGIBLE`.

    All prompts go down the tree of spellings together: one batch per depth.
    """
    front = model.start(prompts)
    refusal = front.log_probs[:, spelling.refusals.to(front.log_probs.device)].exp().sum(dim=1).tolist()
    found: list[dict[int, float]] = [{} for _ in prompts]
    rows: list[tuple[int, tuple[int, ...], float]] = [(i, (), 1.0) for i in range(len(prompts))]
    while rows:
        stops = 1 - front.log_probs[:, spelling.digits.to(front.log_probs.device)].exp().sum(dim=1)
        for (prompt, prefix, probability), stop in zip(rows, stops.clamp_min(0).tolist(), strict=True):
            if prefix in spelling.ways:
                number = spelling.ways[prefix]
                found[prompt][number] = found[prompt].get(number, 0.0) + probability * stop
        rows, front = _descend(model, spelling, rows, front, found)
    return list(zip(found, refusal, strict=True))


def _descend(
    model: LocalModel,
    spelling: Spelling,
    rows: Sequence[tuple[int, tuple[int, ...], float]],
    front: Front,
    found: list[dict[int, float]],
) -> tuple[list[tuple[int, tuple[int, ...], float]], Front]:
    """One token further down, along every way that is still likely; the rest is booked as if it stopped there."""
    following: list[tuple[int, tuple[int, ...], float]] = []
    parents: list[int] = []
    for row, (prompt, prefix, probability) in enumerate(rows):
        tokens = spelling.steps.get(prefix, [])
        chances = front.log_probs[row, tokens].exp().tolist() if tokens else []
        for token, chance in zip(tokens, chances, strict=True):
            way, reached = (*prefix, token), probability * chance
            if reached >= NEGLIGIBLE:
                following.append((prompt, way, reached))
                parents.append(row)
            elif way in spelling.ways:
                number = spelling.ways[way]
                found[prompt][number] = found[prompt].get(number, 0.0) + reached
    if not following:
        return [], front
    return following, model.extend(front, parents, [way[-1] for _, way, _ in following])
