"""What holds for every batch, whatever its shape."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from residuum.batching import Encoded, collate, collate_left, labelled_rows, token_budget_batches, with_shrinking

LENGTHS = st.lists(st.integers(1, 60), max_size=40)
TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@st.composite
def encoded_rows(draw: st.DrawFn) -> list[Encoded]:
    """Sequences over few ids, so that the pad id also occurs inside them."""
    sequences = draw(st.lists(TOKENS, min_size=1, max_size=6))
    return [Encoded(tuple(ids), draw(st.integers(0, len(ids)))) for ids in sequences]


@given(lengths=LENGTHS, budget=st.integers(1, 200))
def test_every_row_is_in_exactly_one_batch(lengths: list[int], budget: int) -> None:
    batches = token_budget_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))


@given(lengths=LENGTHS, budget=st.integers(1, 200))
def test_no_batch_is_over_the_budget_but_a_single_long_row(lengths: list[int], budget: int) -> None:
    for batch in token_budget_batches(lengths, budget):
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget


@given(lengths=LENGTHS, budget=st.integers(1, 200))
def test_lengths_never_rise(lengths: list[int], budget: int) -> None:
    order = [lengths[i] for batch in token_budget_batches(lengths, budget) for i in batch]
    assert order == sorted(order, reverse=True)


@given(lengths=LENGTHS, budget=st.integers(1, 200))
def test_no_batch_could_have_taken_the_next_row(lengths: list[int], budget: int) -> None:
    batches = token_budget_batches(lengths, budget)
    assert all((len(batch) + 1) * lengths[batch[0]] > budget for batch in batches[:-1])


@given(rows=encoded_rows(), pad_id=st.integers(0, 9))
def test_what_was_collated_can_be_read_back(rows: list[Encoded], pad_id: int) -> None:
    batch = collate(rows, pad_id, "cpu")
    read = [tuple(ids[mask.bool()].tolist()) for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)]
    assert read == [row.ids for row in rows]


@given(rows=encoded_rows(), pad_id=st.integers(0, 9))
def test_labelled_rows_are_the_answers_one_step_early(rows: list[Encoded], pad_id: int) -> None:
    found = list(zip(*(t.tolist() for t in labelled_rows(collate(rows, pad_id, "cpu"))), strict=True))
    plain = [(i, t - 1, row.ids[t]) for i, row in enumerate(rows) for t in range(max(row.prompt_length, 1), len(row))]
    assert found == plain


@given(prompts=st.lists(TOKENS, min_size=1, max_size=6), pad_id=st.integers(0, 9))
def test_every_generation_prompt_ends_in_the_last_column(prompts: list[list[int]], pad_id: int) -> None:
    batch = collate_left(prompts, pad_id, "cpu")
    assert batch.input_ids[:, -1].tolist() == [p[-1] for p in prompts]
    assert torch.equal(batch.attention_mask.sum(dim=1), torch.tensor([len(p) for p in prompts]))


@given(lengths=LENGTHS, budget=st.integers(1, 200), room=st.integers(1, 10))
def test_shrinking_keeps_all_rows_in_order(lengths: list[int], budget: int, room: int) -> None:
    batches = token_budget_batches(lengths, budget)

    def run(part: list[int]) -> list[int]:
        if len(part) > room:
            raise MemoryError
        return part

    done = [result for _, result in with_shrinking(run, batches)]
    assert [i for part in done for i in part] == [i for batch in batches for i in batch]
    assert all(0 < len(part) <= room for part in done)
