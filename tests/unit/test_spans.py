"""Entity spans: which tokens are the entity, and which logit rows predict them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from residuum.data.examples import Example
from residuum.data.spans import Located, Skip, locate
from residuum.errors import InputError, UsageError
from vocabularies import SlowTokenizer, fast_tokenizer

EXAMPLE = Example(
    idx=4,
    question="Where was Ada Brook born?",
    answer="Ada Brook was born in Port Ellen.",
    prefix="Ada Brook was born in",
    entity="Port Ellen",
)


def found(example: Example = EXAMPLE, **options: str) -> Located:
    located = locate(fast_tokenizer(), example, **options)  # type: ignore[arg-type]
    assert isinstance(located, Located)
    return located


def skipped(example: Example, **options: str) -> Skip:
    skip = locate(fast_tokenizer(), example, **options)  # type: ignore[arg-type]
    assert isinstance(skip, Skip)
    return skip


def test_the_context_is_the_raw_prompt_up_to_the_prefix_then_the_rest() -> None:
    located = found()
    assert located.prompt == "Question: Where was Ada Brook born?\nAnswer: Ada Brook was born in"
    assert located.reference_text == " Port Ellen."
    assert fast_tokenizer().decode(located.ids) == f"<|begin|>{located.prompt}{located.reference_text}"


def test_the_span_holds_the_entity_with_its_leading_space() -> None:
    assert fast_tokenizer().decode(found().labels) == " Port Ellen"


def test_a_token_that_covers_the_end_only_partly_belongs_to_the_entity() -> None:
    assert fast_tokenizer().decode(found(replace(EXAMPLE, entity="Port Elle")).labels) == " Port Ellen"


def test_rows_predict_the_entity_and_do_not_hold_it() -> None:
    """Spec 1.4: prompt of 20 ids, entity tokens (0, 3): rows 19, 20, 21, labels from ids 20, 21, 22."""
    located = Located(EXAMPLE, "", "", "", tuple(range(100, 120)), tuple(range(200, 210)), (0, 3))
    assert list(located.rows) == list(located.patched_rows("span")) == [19, 20, 21]
    assert located.labels == located.ids[20:23]


def test_the_boundary_is_the_last_prompt_row() -> None:
    located = Located(EXAMPLE, "", "", "", tuple(range(20)), tuple(range(10)), (2, 5))
    assert list(located.patched_rows("boundary")) == [19]
    assert list(located.rows) == [21, 22, 23]


def test_an_empty_prompt_starts_at_row_zero() -> None:
    assert Located(EXAMPLE, "", "", "", (), (1, 2), (0, 2)).start == 0


def test_the_full_scope_evaluates_the_whole_reference() -> None:
    located = found(em_scope="full")
    assert located.entity_span == (0, len(located.reference_ids))
    assert list(located.patched_rows()) == list(range(located.start, located.start + len(located.reference_ids)))


def test_a_full_answer_follows_a_prompt_without_prefix() -> None:
    located = found(reference_scope="full_answer")
    assert located.prompt == "Question: Where was Ada Brook born?\nAnswer:"
    assert located.reference_text == " Ada Brook was born in Port Ellen."
    assert fast_tokenizer().decode(located.labels) == " Port Ellen"


def test_an_empty_prefix_leaves_a_space_at_the_end_of_the_prompt() -> None:
    located = found(replace(EXAMPLE, answer="Yes, she was.", prefix="", entity="Yes"))
    assert (located.prompt[-2:], located.reference_text[:3]) == (": ", "Yes")
    assert located.rows.start == len(located.prompt_ids) - 1


def test_retokenizing_an_empty_prefix_gives_the_tokens_of_the_plain_text() -> None:
    example = replace(EXAMPLE, answer="Yes, she was.", prefix="", entity="Yes")
    located, tokenizer = found(example, join="retokenize"), fast_tokenizer()
    assert list(located.ids) == tokenizer("Question: Where was Ada Brook born?\nAnswer: Yes, she was.")["input_ids"]
    assert tokenizer.decode(located.labels) == " Yes"


def test_a_space_is_put_behind_an_opening_quote_unless_retokenized() -> None:
    example = replace(EXAMPLE, answer='She said "Yes".', prefix='She said "', entity="Yes")
    assert found(example).reference_text == ' Yes".'
    assert found(example, join="retokenize").reference_text == 'Yes".'


def test_retokenizing_changes_nothing_in_the_ordinary_case() -> None:
    assert found(join="retokenize") == found()


def test_a_tokenizer_that_closes_texts_leaves_the_context_open() -> None:
    for join in ("ids", "retokenize"):
        located = locate(fast_tokenizer(closes_texts=True), EXAMPLE, join=join)  # type: ignore[arg-type]
        assert located == found(join=join)


def test_an_entity_with_stray_spaces_is_found_without_them() -> None:
    assert found(replace(EXAMPLE, entity=" Port Ellen ")).labels == found().labels


def test_only_the_first_occurrence_counts() -> None:
    example = replace(EXAMPLE, answer="Ada Brook was born in Port Ellen. Port Ellen.")
    assert found(example).entity_span == found().entity_span


def test_an_entity_that_is_not_there_is_skipped_with_all_that_is_known() -> None:
    skip = skipped(replace(EXAMPLE, entity="Leith"))
    assert (skip.idx, skip.reason) == (4, "entity_span_not_found")
    assert skip.record() == {
        "idx": 4,
        "reason": "entity_span_not_found",
        "question": EXAMPLE.question,
        "prefix": EXAMPLE.prefix,
        "entity": "Leith",
        "gt_entity": "Leith",
        "entity_text": "Leith",
        "entity_source": "gt",
        "reference_source": "gt",
        "reference_text": " Port Ellen.",
    }


def test_an_empty_reference_is_no_context() -> None:
    example = replace(EXAMPLE, full_output="")
    assert skipped(example, reference="full", em_scope="full").reason == "invalid_eval_context"
    assert skipped(example, reference="full").reason == "entity_span_not_found"


def test_the_full_models_words_can_be_the_reference() -> None:
    example = replace(EXAMPLE, full_output="Port Ellen, she said")
    assert found(example, reference="full").reference_text == " Port Ellen, she said"
    assert found(reference="full", full_output="Port Ellen").reference_text == " Port Ellen"


def test_the_full_reference_needs_the_full_models_words() -> None:
    with pytest.raises(UsageError, match="example 4 has no full_output"):
        locate(fast_tokenizer(), EXAMPLE, reference="full")


def test_the_entity_can_be_the_full_models() -> None:
    example = replace(EXAMPLE, full_output="Leith.", full_entity="Leith")
    assert found(example, reference="full", entity_source="full").entity_text == "Leith"
    assert skipped(example, reference="full").entity_text == "Port Ellen"


def test_a_true_entity_of_its_own_comes_before_the_entity() -> None:
    assert found(replace(EXAMPLE, entity="Leith", gt_entity="Port Ellen")).entity_text == "Port Ellen"


def test_a_slow_tokenizer_is_searched_by_ids() -> None:
    tokenizer = SlowTokenizer()
    located = locate(tokenizer, EXAMPLE)
    assert isinstance(located, Located)
    assert located.entity_span == (0, 2)  # found as " Port Ellen", after "Port Ellen" was not
    assert list(located.rows) == [len(located.prompt_ids) - 1, len(located.prompt_ids)]


def test_a_slow_tokenizer_skips_what_it_does_not_find() -> None:
    assert isinstance(locate(SlowTokenizer(), replace(EXAMPLE, entity="Port El")), Skip)


def test_a_slow_tokenizer_cannot_retokenize() -> None:
    with pytest.raises(InputError, match="fast tokenizer"):
        locate(SlowTokenizer(), EXAMPLE, join="retokenize")
