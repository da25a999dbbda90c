"""Padding, labels, and batches that do not fit into memory."""

from __future__ import annotations

import pytest
import torch

from residuum.batching import (
    IGNORE,
    Encoded,
    collate,
    collate_left,
    labelled_rows,
    token_budget_batches,
    with_shrinking,
)
from residuum.errors import ResiduumError, UsageError

PAIR = [Encoded((1, 5, 6, 2), 2), Encoded((1, 7), 1)]


def test_short_sequences_are_padded_on_the_right() -> None:
    batch = collate(PAIR, 0, "cpu")
    assert batch.input_ids.tolist() == [[1, 5, 6, 2], [1, 7, 0, 0]]
    assert batch.attention_mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_only_answers_are_labelled() -> None:
    assert collate(PAIR, 0, "cpu").labels.tolist() == [[IGNORE, IGNORE, 6, 2], [IGNORE, 7, IGNORE, IGNORE]]


def test_a_pad_token_inside_a_sequence_stays_visible_and_labelled() -> None:
    batch = collate([Encoded((2, 5, 2), 1), Encoded((2, 5, 6, 2), 1)], 2, "cpu")
    assert batch.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert batch.labels[0].tolist() == [IGNORE, 5, 2, IGNORE]


def test_a_batch_remembers_where_its_rows_come_from() -> None:
    assert collate(PAIR, 0, "cpu").rows == (0, 1)
    assert collate(PAIR, 0, "cpu", rows=[9, 4]).rows == (9, 4)
    assert len(collate(PAIR, 0, "cpu")) == 2


def test_generation_prompts_are_padded_on_the_left() -> None:
    batch = collate_left([[1, 5, 6], [1]], 0, "cpu", rows=[3, 8])
    assert batch.input_ids.tolist() == [[1, 5, 6], [0, 0, 1]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert batch.rows == (3, 8)
    assert (batch.labels == IGNORE).all()


def test_a_logit_row_predicts_the_token_after_it() -> None:
    sequence, row, label = labelled_rows(collate(PAIR, 0, "cpu"))
    assert list(zip(sequence.tolist(), row.tolist(), label.tolist(), strict=True)) == [(0, 1, 6), (0, 2, 2), (1, 0, 7)]


def test_a_label_without_a_row_before_it_is_left_out() -> None:
    sequence, row, label = labelled_rows(collate([Encoded((4, 5), 0)], 0, "cpu"))
    assert (sequence.tolist(), row.tolist(), label.tolist()) == ([0], [0], [5])


def test_the_labelled_rows_give_the_models_own_loss() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    model, batch = LlamaForCausalLM(config).eval(), collate(PAIR, 0, "cpu")
    with torch.no_grad():
        out = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels)
    sequence, row, label = labelled_rows(batch)
    torch.testing.assert_close(torch.nn.functional.cross_entropy(out.logits[sequence, row], label), out.loss)


def test_the_longest_come_first_and_rows_times_longest_keeps_the_budget() -> None:
    assert token_budget_batches([3, 9, 4, 4, 2], 12) == [[1], [2, 3, 0], [4]]


def test_a_row_longer_than_the_budget_goes_alone() -> None:
    assert token_budget_batches([50, 3, 3], 10) == [[0], [1, 2]]


def test_a_budget_without_tokens_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one token"):
        token_budget_batches([3], 0)


OUT_OF_MEMORY = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("MPS backend out of memory"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda e: f"{type(e).__name__} {e}"[:30])
def test_a_batch_that_does_not_fit_is_halved(error: Exception) -> None:
    def run(rows: list[int]) -> int:
        if len(rows) > 2:
            raise error
        return sum(rows)

    assert list(with_shrinking(run, [[0, 1, 2, 3, 4]])) == [([0, 1], 1), ([2], 2), ([3, 4], 7)]


def test_later_batches_start_in_smaller_pieces() -> None:
    tried: list[int] = []

    def run(rows: list[int]) -> None:
        tried.append(len(rows))
        if len(rows) > 2:
            raise MemoryError

    assert len(list(with_shrinking(run, [range(4), range(4)]))) == 4
    assert tried == [4, 2, 2, 2, 2]


def test_other_failures_are_not_swallowed() -> None:
    def run(rows: list[int]) -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        list(with_shrinking(run, [[1, 2]]))


def test_a_single_row_that_does_not_fit_is_named() -> None:
    def run(rows: list[int]) -> None:
        if 3 in rows:
            raise MemoryError

    with pytest.raises(ResiduumError, match=r"single row \(row 3\)"):
        list(with_shrinking(run, [[1, 2, 3]]))


def test_a_memory_error_of_the_consumer_is_its_own() -> None:
    pieces = with_shrinking(len, [[1, 2]])
    next(pieces)
    with pytest.raises(MemoryError):
        pieces.throw(MemoryError)
