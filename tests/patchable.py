"""Small models and examples of any shape, for the tests of the patching engines."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from miniatures import miniature
from residuum.data.examples import Example
from residuum.data.spans import Located
from residuum.models.loading import LM
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
