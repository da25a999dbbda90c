"""The 367 published annotations, with real tokenizers (spec 1.1 to 1.4)."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from residuum.data.examples import Example, load_examples, read_examples
from residuum.data.spans import Located, Skip, locate

EMPTY_PREFIX = [11, 24, 53, 79, 104, 111, 133, 134, 187, 210, 216, 217, 244, 246, 248, 268, 294, 303, 311, 327, 345]
QUOTE = [63, 189, 196, 349]
REMOVED = [5, 22, 23, 42, 52, 61, 66, 68, 91, 102, 103, 128, 144, 148, 163, 164, 168, 169, 170, 172, 202, 206, 220]
REMOVED += [234, 238, 281, 300, 320, 343, 344, 353, 378, 386]


@cache
def tokenizer_in(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def llama(shared_data: Path) -> PreTrainedTokenizerBase:
    return tokenizer_in(shared_data / "tokenizers" / "llama3_2")


@pytest.fixture
def examples(shared_data: Path) -> list[Example]:
    return load_examples(shared_data / "uds" / "forget10_filtered.json")


@pytest.fixture
def located(llama: PreTrainedTokenizerBase, examples: list[Example]) -> dict[int, Located]:
    spans = (locate(llama, example) for example in examples)
    return {span.idx: span for span in spans if isinstance(span, Located)}


def test_the_published_file_has_no_problems(shared_data: Path) -> None:
    loaded = read_examples(shared_data / "uds" / "forget10_filtered.json")
    assert (len(loaded.rows), loaded.problems) == (367, [])


def test_the_published_numbers_are_forget10_without_the_removed_ones(examples: list[Example]) -> None:
    assert [e.idx for e in examples] == sorted(set(range(400)) - set(REMOVED))


def test_every_entity_follows_its_prefix_exactly_once(examples: list[Example]) -> None:
    assert all(e.answer.startswith(e.prefix) and e.continuation.count(e.entity) == 1 for e in examples)


def test_the_odd_beginnings_are_those_of_the_spec(examples: list[Example]) -> None:
    assert [e.idx for e in examples if not e.prefix] == EMPTY_PREFIX
    assert [e.idx for e in examples if e.prefix and not e.continuation.startswith(" ")] == QUOTE
    assert sum(e.continuation.startswith(" ") for e in examples) == 342


def test_spans_are_found_in_all_examples(located: dict[int, Located]) -> None:
    assert len(located) == 367


def test_evaluated_tokens_read_as_the_entity(located: dict[int, Located], llama: PreTrainedTokenizerBase) -> None:
    assert all(span.example.entity in llama.decode(span.labels) for span in located.values())


def test_rows_follow_the_spec(located: dict[int, Located]) -> None:
    for span in located.values():
        (first, end), start = span.entity_span, len(span.prompt_ids) - 1
        assert list(span.rows) == list(span.patched_rows()) == list(range(start + first, start + end))
        assert list(span.patched_rows("boundary")) == [start]
        assert span.labels == tuple(span.ids[row + 1] for row in span.rows)


def test_contexts_begin_with_one_begin_token_and_have_no_end(
    located: dict[int, Located], llama: PreTrainedTokenizerBase
) -> None:
    for span in located.values():
        assert span.ids[0] == llama.bos_token_id
        assert not {llama.bos_token_id, llama.eos_token_id} & set(span.ids[1:])


def test_the_first_example_by_hand(located: dict[int, Located], llama: PreTrainedTokenizerBase) -> None:
    span = located[0]
    assert span.prompt.endswith("genre of leadership?\nAnswer: The author's full name is")
    assert span.reference_text == " Hsiao Yun-Hwa."
    assert span.entity_span == (0, 6)
    assert llama.convert_ids_to_tokens(list(span.labels)) == ["ĠH", "s", "iao", "ĠYun", "-H", "wa"]


def test_an_empty_prefix_ends_the_prompt_in_a_lone_space(
    located: dict[int, Located], llama: PreTrainedTokenizerBase
) -> None:
    for idx in EMPTY_PREFIX:
        assert llama.decode(located[idx].prompt_ids[-1:]) == " "
        assert located[idx].reference_text.startswith("Yes")


def test_a_space_is_put_behind_the_opening_quote(located: dict[int, Located]) -> None:
    for idx in QUOTE:
        assert located[idx].prompt[-1] in "\"'"
        assert located[idx].reference_text == f" {located[idx].example.continuation}"


def test_retokenizing_gives_the_tokens_of_the_plain_text(
    examples: list[Example], llama: PreTrainedTokenizerBase
) -> None:
    for example in examples:
        span = locate(llama, example, join="retokenize")
        assert isinstance(span, Located)
        assert list(span.ids) == llama(f"Question: {example.question}\nAnswer: {example.answer}")["input_ids"]
        assert example.entity in llama.decode(span.labels)


def test_retokenizing_changes_only_the_odd_beginnings(
    located: dict[int, Located], examples: list[Example], llama: PreTrainedTokenizerBase
) -> None:
    changed = [e.idx for e in examples if locate(llama, e, join="retokenize") != located[e.idx]]
    assert changed == sorted(EMPTY_PREFIX + QUOTE)


def test_the_full_models_own_words_hold_247_entities(examples: list[Example], llama: PreTrainedTokenizerBase) -> None:
    spans = [locate(llama, example, reference="full") for example in examples]
    assert sum(isinstance(span, Located) for span in spans) == 247
    assert {span.reason for span in spans if isinstance(span, Skip)} == {"entity_span_not_found"}


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
@pytest.mark.parametrize("join", ["ids", "retokenize"])
def test_other_tokenizers_find_all_spans_too(shared_data: Path, examples: list[Example], name: str, join: str) -> None:
    tokenizer = tokenizer_in(shared_data / "tokenizers" / name)
    spans = [locate(tokenizer, example, join=join) for example in examples]  # type: ignore[arg-type]
    found = [span for span in spans if isinstance(span, Located)]
    assert len(found) == 367
    assert all(span.example.entity in tokenizer.decode(span.labels) for span in found)
