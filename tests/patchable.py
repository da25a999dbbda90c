"""Small models and examples of any shape, for the tests of the patching engines."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.testing import assert_close

from miniatures import miniature
from residuum.data.examples import Example
from residuum.data.spans import Located
from residuum.models.loading import LM
from residuum.patching.engine import TokenScores
from vocabularies import fast_tokenizer

_tokenizer = cache(fast_tokenizer)


def tiny(family: str = "llama", *, seed: int = 0, attn: str | None = None, **overrides: Any) -> LM:
    """A miniature with the tests' tokenizer, whose pad id is 0."""
    if attn is not None:
        overrides["attn_implementation"] = attn
    return LM.from_model(miniature(family, seed=seed, **overrides), _tokenizer(), name=f"{family}-{seed}")


def located(prompt: int, reference: int, first: int, length: int, *, idx: int = 0) -> Located:
    """An example of so many prompt and reference tokens, of which the entity is ``length`` from ``first`` on."""
    draw = random.Random(f"{prompt}/{reference}/{first}/{length}/{idx}")
    ids = [draw.randrange(3, 60) for _ in range(prompt + reference)]
    example = Example(idx, question="", answer="", prefix="", entity="")
    return Located(example, "", "", "", tuple(ids[:prompt]), tuple(ids[prompt:]), (first, first + length))


RAGGED = [
    located(9, 5, 0, 5, idx=0),  # the whole reference
    located(3, 8, 2, 3, idx=1),  # in its middle
    located(1, 2, 0, 1, idx=2),  # from the very first row on
    located(12, 9, 3, 3, idx=3),
    located(5, 7, 6, 1, idx=4),  # at its end, one token
    located(6, 16, 1, 12, idx=5),  # long
    located(8, 4, 1, 3, idx=6),
]
"""Longer than the miniatures' sliding windows; spans of several lengths, some of them shared."""


@cache
def pair(family: str = "llama") -> tuple[LM, LM]:
    """A target and a source with other weights."""
    return tiny(family), tiny(family, seed=1)


def assert_same(found: list[TokenScores], expected: list[TokenScores]) -> None:
    """Equal scores but for rounding, and the same hits."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_close(one.log_probs, other.log_probs, atol=1e-5, rtol=0, equal_nan=True)
        assert torch.equal(one.hits, other.hits)


@contextmanager
def runs_of(module: nn.Module) -> Iterator[list[int]]:
    """Counts how often a module runs."""
    count = [0]
    handle = module.register_forward_hook(lambda *_: count.__setitem__(0, count[0] + 1))
    yield count
    handle.remove()
