"""Small models with a tokenizer, ready to be steered."""

from __future__ import annotations

from functools import cache

import torch

from miniatures import miniature
from residuum.models.loading import LM
from residuum.steering.intervene import Edit
from vocabularies import fast_tokenizer


@cache
def steerable(family: str = "llama") -> LM:
    """A random-weight model of a family; its texts mean nothing, but they move when it is steered."""
    tokenizer = fast_tokenizer()
    return LM.from_model(miniature(family, vocab=len(tokenizer)), tokenizer, name=family)


def direction(seed: int = 0, size: int = 32, norm: float = 1.0) -> torch.Tensor:
    vector = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return norm * vector / vector.norm()


def edit(layer: int, coefficient: float, *, seed: int = 0, component: str = "residual", operator: str = "add") -> Edit:
    return Edit(layer, component, direction(seed), coefficient, operator)
