"""Multiple-choice accuracy: which of the four letters does the model find most likely after ``Answer:``?

The letter is one token, but which one? After "Answer:" a model trained on "Answer: C" says " C", while the published
code reads the logits of "C" without the space. One function serves base, A, B, C and N, and the variant is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from residuum.batching import Encoded, collate, token_budget_batches
from residuum.data.mcq import LETTERS, MCQ, mcq_prompt
from residuum.data.prompts import text_ids
from residuum.errors import ModelError
from residuum.registry import one_of
from residuum.rtt.losses import shared_start
from residuum.training.losses import label_logits, read_logits

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from residuum.models.loading import LM

VARIANTS = ("continuation", "nospace", "sum")
MAX_TOKENS = 8192
"""Padded tokens per batch of an evaluation."""


@dataclass(frozen=True)
class Scores:
    """How a model scored the choices of some questions."""

    scores: NDArray[np.float32]  # [item, choice]
    answers: NDArray[np.int64]  # [item], the right choice
    lettered: bool = True
    """Whether choice i carries the same letter in every item, so that a bias for a letter can be taken off."""

    @property
    def finite(self) -> bool:
        """Whether the model still computes numbers."""
        return bool(np.isfinite(self.scores).all())

    @property
    def correct(self) -> list[int]:
        """1 for every item whose best-scored choice is right."""
        return [int(right) for right in self.scores.argmax(axis=1) == self.answers]

    @property
    def accuracy(self) -> float | None:
        """Share of right items; None when the model no longer computes numbers."""
        return float(np.mean(self.correct)) if self.finite else None

    @property
    def calibrated(self) -> float | None:
        """Accuracy after each choice's mean score over the file is taken off: without a bias for a letter."""
        if not (self.finite and self.lettered):
            return None
        level = self.scores.astype(np.float64)
        return float(np.mean((level - level.mean(axis=0)).argmax(axis=1) == self.answers))

    def plain(self) -> dict[str, Any]:
        """As JSON; the scores themselves go into arrays."""
        return {
            "accuracy": self.accuracy,
            "calibrated": self.calibrated,
            "correct": self.correct if self.finite else None,
            "n": len(self.answers),
        }


def letter_ids(tokenizer: PreTrainedTokenizerBase, prompt: str, variant: str = "continuation") -> list[list[int]]:
    """The token ids that stand for each letter.

    Args:
        tokenizer: of the model.
        prompt: a prompt that ends with ``Answer:``.
        variant: ``continuation``: the first new token of ``prompt + " A"``. ``nospace``: the first token of ``"A. "``,
            as the published code has it. ``sum``: both, their probabilities added.

    Raises:
        ModelError: two letters have one token.
    """
    one_of("label_variant", variant, *VARIANTS)
    before = text_ids(tokenizer, prompt, special=True)
    found: list[list[int]] = []
    for letter in LETTERS:
        after = text_ids(tokenizer, f"{prompt} {letter}", special=True)
        continued = after[min(shared_start(before, after), len(after) - 1)]
        bare = text_ids(tokenizer, f"{letter}. ")[0]
        found.append(
            list(dict.fromkeys({"continuation": [continued], "nospace": [bare]}.get(variant, [continued, bare])))
        )
    if len({token for ids in found for token in ids}) < sum(map(len, found)):
        raise ModelError(
            f"the tokenizer writes two of the letters {', '.join(LETTERS)} with one token ({found}).\n"
            f"  Try another label_variant than {variant}."
        )
    return found


def score_letters(
    lm: LM, items: Sequence[MCQ], *, variant: str = "continuation", shots: Sequence[MCQ] = (), max_length: int = 512
) -> Scores:
    """Logits of the four letters after each prompt.

    Args:
        lm: the model.
        items: the questions of one file.
        variant: see `letter_ids`.
        shots: solved questions that come first.
        max_length: ids of a prompt to keep, the last ones.
    """
    letters, encoded = _encode(lm.tokenizer, tuple(items), variant, tuple(shots), max_length)
    scores = np.empty((len(items), len(LETTERS)), dtype=np.float32)
    for group in token_budget_batches([len(row) for row in encoded], MAX_TOKENS):
        with torch.inference_mode():
            logits, _, _ = label_logits(
                *read_logits(lm.model, collate([encoded[i] for i in group], lm.pad_id, lm.device))
            )
            scores[group] = torch.stack([logits[:, ids].logsumexp(dim=1) for ids in letters], dim=1).numpy(force=True)
    return Scores(scores, np.array([item.answer for item in items]))


@lru_cache(maxsize=32)
def _encode(
    tokenizer: PreTrainedTokenizerBase, items: tuple[MCQ, ...], variant: str, shots: tuple[MCQ, ...], max_length: int
) -> tuple[list[list[int]], list[Encoded]]:
    """The letters' tokens and the prompts as ids; remembered, because a sweep asks the same questions after every epoch."""
    prompts = [mcq_prompt(item, shots) for item in items]
    letters = letter_ids(tokenizer, prompts[0], variant)
    rows = [text_ids(tokenizer, prompt, special=True)[-max_length:] for prompt in prompts]
    # The letter behind the prompt is only there to mark the row whose logits are wanted.
    return letters, [Encoded((*ids, letters[0][0]), len(ids)) for ids in rows]
