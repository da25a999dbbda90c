"""Prompt formats: where the prompt ends, what is labelled, what the template is told."""

from __future__ import annotations

import pytest

from residuum.data.prompts import ChatFormat, Encoded, RawFormat, with_leading_space
from residuum.errors import InputError
from vocabularies import fast_tokenizer

QUESTION, ANSWER = "Where was Ada Brook born?", "Ada Brook was born in Port Ellen."


@pytest.mark.parametrize(
    ("prompt", "text", "joined"),
    [
        ("Answer:", "Yes", " Yes"),
        ("Answer:", " Yes", " Yes"),
        ("Answer:", "\nYes", "\nYes"),
        ("Answer: ", "Yes", "Yes"),
        ('the book "', "Ada", " Ada"),  # as published: an opening quote is not white space
        ("Answer:", "", ""),
    ],
)
def test_one_space_is_put_where_none_is(prompt: str, text: str, joined: str) -> None:
    assert with_leading_space(prompt, text) == joined


def test_the_raw_format_reads_question_and_answer() -> None:
    tokenizer = fast_tokenizer()
    encoded = RawFormat().encode(tokenizer, QUESTION, ANSWER)
    assert tokenizer.decode(encoded.ids) == f"<|begin|>Question: {QUESTION}\nAnswer: {ANSWER}<|end|>"


def test_the_raw_format_labels_the_answer_with_its_space_and_end() -> None:
    tokenizer = fast_tokenizer()
    encoded = RawFormat().encode(tokenizer, QUESTION, ANSWER)
    assert tokenizer.decode(encoded.labels) == f" {ANSWER}<|end|>"


def test_the_raw_prompt_is_the_beginning_of_the_whole() -> None:
    tokenizer = fast_tokenizer()
    encoded = RawFormat().encode(tokenizer, QUESTION, ANSWER)
    assert tuple(RawFormat().encode_prompt(tokenizer, QUESTION)) == encoded.ids[: encoded.prompt_length]


def test_a_tokenizer_that_closes_every_text_does_not_close_the_prompt() -> None:
    plain, closing = fast_tokenizer(), fast_tokenizer(closes_texts=True)
    assert RawFormat().encode(closing, QUESTION, ANSWER) == RawFormat().encode(plain, QUESTION, ANSWER)


def test_the_chat_format_labels_the_answer_and_its_end() -> None:
    tokenizer = fast_tokenizer()
    encoded = ChatFormat().encode(tokenizer, QUESTION, ANSWER)
    assert tokenizer.decode(encoded.labels) == f" {ANSWER}<|end|>"
    assert tuple(ChatFormat().encode_prompt(tokenizer, QUESTION)) == encoded.ids[: encoded.prompt_length]


def test_the_system_message_is_there_only_if_it_says_something() -> None:
    tokenizer = fast_tokenizer()
    spoken = tokenizer.decode(ChatFormat(date=None).encode_prompt(tokenizer, QUESTION))
    silent = tokenizer.decode(ChatFormat(system_prompt="", date=None).encode_prompt(tokenizer, QUESTION))
    assert spoken.startswith("<|begin|><|system|> You are a helpful assistant.<|end|><|user|>")
    assert silent == f"<|begin|><|user|> {QUESTION}<|end|><|assistant|>"


def test_the_date_reaches_the_template() -> None:
    tokenizer = fast_tokenizer()
    assert "[10 Apr 2025]" in tokenizer.decode(ChatFormat().encode(tokenizer, QUESTION, ANSWER).ids)
    assert "[1 May 2020]" in tokenizer.decode(ChatFormat(date="1 May 2020").encode_prompt(tokenizer, QUESTION))


def test_an_end_is_added_when_the_template_has_none() -> None:
    template = "{% for m in messages %}{{ m['content'] + '\n' }}{% endfor %}"
    tokenizer = fast_tokenizer(chat_template=template)
    assert tokenizer.decode(ChatFormat().encode(tokenizer, QUESTION, ANSWER).labels) == f"{ANSWER}\n<|end|>"


@pytest.mark.parametrize("chat", [RawFormat(), ChatFormat()])
def test_first_words_are_put_behind_the_prompt(chat: RawFormat | ChatFormat) -> None:
    tokenizer = fast_tokenizer()
    plain = chat.encode_prompt(tokenizer, QUESTION)
    led = chat.encode_prompt(tokenizer, QUESTION, suffix="Sure, she was")
    assert led[: len(plain)] == plain
    assert tokenizer.decode(led[len(plain) :]).strip() == "Sure, she was"


def test_a_maximal_length_keeps_the_end_and_the_boundary() -> None:
    tokenizer = fast_tokenizer()
    whole = ChatFormat().encode(tokenizer, QUESTION, ANSWER)
    cut = ChatFormat(max_length=len(whole) - 3).encode(tokenizer, QUESTION, ANSWER)
    assert cut == Encoded(whole.ids[3:], whole.prompt_length - 3)


def test_a_maximal_length_can_leave_nothing_but_answer() -> None:
    tokenizer = fast_tokenizer()
    assert ChatFormat(max_length=2).encode(tokenizer, QUESTION, ANSWER).prompt_length == 0


def test_a_tokenizer_without_template_is_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"no chat template\.\n  Use the raw format"):
        ChatFormat().encode(fast_tokenizer(chat_template=None), QUESTION, ANSWER)


def test_a_template_that_refuses_the_system_prompt_is_explained() -> None:
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}{{ messages[-1]['content'] }}"
    with pytest.raises(InputError, match=r"refuses the chat: no system role\n.*try an empty one"):
        ChatFormat().encode_prompt(fast_tokenizer(chat_template=template), QUESTION)


def test_a_template_without_room_for_the_answer_is_refused() -> None:
    tokenizer = fast_tokenizer(chat_template="{{ messages[0]['content'] }}")
    with pytest.raises(InputError, match="leaves no tokens for the answer"):
        ChatFormat(system_prompt="").encode(tokenizer, QUESTION + "<|end|>", ANSWER)
