"""Which tokens of a question or a sentence carry loss, and how their cross-entropies become one number.

    type                     labelled                                           reduction
    LETTER                   the letter after "Answer:"                         mean over rows
    LETTER_ANSWER            letter, full stop, answer                          retraining: sum per row, mean over rows
                                                                                unlearning: mean over tokens
    QUESTION_LETTER_ANSWER   everything                                         mean over tokens
    QUESTION_ANSWER          question and answer, without options               mean over tokens
    CORPUS                   every token of a sentence                          mean over tokens
    NUMBER                   the last run of tokens with digits in a sentence   mean per row, mean over rows

Padding never counts. The published code averages over it; ``compat="published"`` does too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from torch import Tensor, nn

from residuum.batching import Encoded, collate, collate_left
from residuum.data.mcq import MCQ, mcq_prompt
from residuum.data.prompts import text_ids
from residuum.errors import DataError
from residuum.training.losses import mean_nll, read_logits, sequence_nll

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

QUESTION_TYPES = ("LETTER", "LETTER_ANSWER", "QUESTION_LETTER_ANSWER", "QUESTION_ANSWER")
"""Loss types over multiple-choice questions."""
TEXT_TYPES = ("CORPUS", "NUMBER")
"""Loss types over sentences."""
LOSS_TYPES = (*QUESTION_TYPES, *TEXT_TYPES)

Reduction = Literal["tokens", "row_sums", "row_means"]

CORPUS_CHARACTERS = 2000
"""Unlearning reads no more of a sentence than this."""


def reduction_of(loss_type: str, *, unlearning: bool = False) -> Reduction:
    """How the cross-entropies of a batch become one number."""
    if loss_type == "LETTER_ANSWER" and not unlearning:
        return "row_sums"
    return "row_means" if loss_type == "NUMBER" else "tokens"


def reduce_nll(logits: Tensor, labels: Tensor, reduction: Reduction) -> Tensor:
    """The loss of a batch, a scalar.

    Args:
        logits: [row, position, vocab]
        labels: not shifted, -100 where nothing is scored.  # [row, position]
        reduction: over all labelled tokens; or the sum, or the mean, of each row, averaged over rows.
    """
    if reduction == "tokens":
        return mean_nll(logits, labels)
    total, tokens = sequence_nll(logits, labels)
    return (total if reduction == "row_sums" else total / tokens.clamp(min=1)).mean()


def padded_nll(model: nn.Module, rows: Sequence[Encoded], pad_id: int, device: torch.device | str) -> Tensor:
    """The published mean: padded on the left, pad tokens are labels like any other."""
    batch = collate_left([row.ids for row in rows], pad_id, device)
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
    return mean_nll(logits, batch.input_ids)


class Retraining:
    """The objective of RTT: rows of T in an order that depends on (seed, epoch) alone.

    Args:
        rows: T, encoded.
        loss_type: decides the reduction.
        batch_size: rows per step.
        seed: of the order.
        pad_id: fills short rows.
        device: where batches go.
        compat: ``published`` counts padding where the published code does.
    """

    def __init__(
        self,
        rows: Sequence[Encoded],
        *,
        loss_type: str,
        batch_size: int,
        seed: int,
        pad_id: int,
        device: torch.device | str = "cpu",
        compat: str | None = None,
    ) -> None:
        self.rows, self.batch_size, self.seed, self.pad_id, self.device = rows, batch_size, seed, pad_id, device
        self.reduction = reduction_of(loss_type)
        self.counts_padding = compat == "published" and self.reduction == "tokens" and loss_type != "LETTER"

    def batches(self, epoch: int) -> list[list[Encoded]]:
        """The batches of one epoch."""
        order = shuffled(self.rows, f"{self.seed}/retrain/{epoch}")
        return [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]

    def losses(self, model: nn.Module, batch: Sequence[Encoded]) -> dict[str, Tensor]:
        """The loss of one batch."""
        if self.counts_padding:
            return {"total": padded_nll(model, batch, self.pad_id, self.device)}
        seen = read_logits(model, collate(batch, self.pad_id, self.device))
        return {"total": reduce_nll(*seen, self.reduction)}


def shuffled(rows: Sequence[Encoded], seed: str) -> list[Encoded]:
    """The rows in an order that the seed decides."""
    import random

    return random.Random(seed).sample(list(rows), len(rows))


def encode_question(tokenizer: PreTrainedTokenizerBase, item: MCQ, loss_type: str, *, max_length: int = 512) -> Encoded:
    """A multiple-choice question as ids, labelled as its loss type says; cut on the left.

    Args:
        tokenizer: of the model.
        item: the question; its ``answer`` is what is taught, right or not.
        loss_type: one of `QUESTION_TYPES`.
        max_length: ids to keep.
    """
    answer = item.choices[item.answer]
    if loss_type == "QUESTION_ANSWER":
        return _cut(text_ids(tokenizer, f"{item.question} {answer}", special=True), 0, max_length)
    prompt = mcq_prompt(item)
    ids = text_ids(tokenizer, f"{prompt} {item.letter}. {answer}", special=True)
    # Encoded together and compared: where the two differ first, the answer begins.
    before = shared_start(text_ids(tokenizer, prompt, special=True), ids)
    if loss_type == "LETTER":
        return _cut(ids[: before + 1], before, max_length)
    return _cut(ids, before if loss_type == "LETTER_ANSWER" else 0, max_length)


def encode_text(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    loss_type: str,
    *,
    max_length: int = 512,
    unlearning: bool = False,
    compat: str | None = None,
) -> Encoded:
    """A sentence as ids, labelled as its loss type says; cut on the right.

    Args:
        tokenizer: of the model.
        text: the sentence.
        loss_type: CORPUS or NUMBER.
        max_length: ids to keep.
        unlearning: read at most `CORPUS_CHARACTERS`.
        compat: ``published`` drops the last character when retraining.

    Raises:
        DataError: NUMBER, and no token has a digit.
    """
    if unlearning:
        text = text[:CORPUS_CHARACTERS]
    elif compat == "published":
        text = text[:-1]
    ids = text_ids(tokenizer, text, special=True)[:max_length]
    if loss_type == "CORPUS":
        return Encoded(tuple(ids), 0)
    digits = [any(character.isdigit() for character in tokenizer.decode([token])) for token in ids]
    if not any(digits):
        raise DataError(f"the loss type NUMBER needs a number, and there is none in {text!r}.")
    end = len(digits) - digits[::-1].index(True)
    start = end
    while start > 0 and digits[start - 1]:
        start -= 1
    return Encoded(tuple(ids[:end]), start)


def shared_start(one: Sequence[int], other: Sequence[int]) -> int:
    """How many ids two sequences have in common from the start."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def _cut(ids: Sequence[int], prompt_length: int, max_length: int) -> Encoded:
    dropped = max(0, len(ids) - max_length)
    return Encoded(tuple(ids[dropped:]), max(0, prompt_length - dropped))
