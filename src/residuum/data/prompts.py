"""How a question and an answer become token ids: as raw text, or as a chat.

Both formats join prompt and answer as ids, so the boundary between them is exact. The answer, with the end-of-sequence
token that closes it, is what gets labelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from residuum.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Encoded:
    """A prompt and its answer as one sequence of ids."""

    ids: tuple[int, ...]
    prompt_length: int
    """How many ids belong to the prompt."""

    @property
    def labels(self) -> tuple[int, ...]:
        """The ids of the answer."""
        return self.ids[self.prompt_length :]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class RawFormat:
    r"""Plain text without a chat template: ``Question: ...\nAnswer: ...``, closed by the end-of-sequence token."""

    def encode(self, tokenizer: PreTrainedTokenizerBase, question: str, answer: str) -> Encoded:
        """Ids of the question and the answer; the space before the answer belongs to the answer."""
        return self.encode_all(tokenizer, question, [answer])[0]

    def encode_all(self, tokenizer: PreTrainedTokenizerBase, question: str, answers: Sequence[str]) -> list[Encoded]:
        """Several answers to one question, which is encoded once."""
        prompt = raw_prompt(question)
        prompt_ids = text_ids(tokenizer, prompt, special=True)
        answer_ids = [text_ids(tokenizer, with_leading_space(prompt, answer)) for answer in answers]
        return [Encoded(tuple(_closed(tokenizer, prompt_ids + ids)), len(prompt_ids)) for ids in answer_ids]

    def encode_prompt(self, tokenizer: PreTrainedTokenizerBase, question: str, suffix: str = "") -> list[int]:
        """Ids after which the model answers; ``suffix`` puts first words into its mouth."""
        prompt = raw_prompt(question)
        return text_ids(tokenizer, prompt, special=True) + text_ids(tokenizer, with_leading_space(prompt, suffix))


@dataclass(frozen=True)
class ChatFormat:
    """The tokenizer's chat template: system prompt (if any), question of the user, answer of the assistant."""

    system_prompt: str = "You are a helpful assistant."
    """Empty: the chat has no system message."""
    date: str | None = "10 Apr 2025"
    """What Llama 3's template calls today; None leaves it to the template, and results then depend on the day."""
    max_length: int | None = None
    """Keep only this many ids, the last ones."""

    def encode(self, tokenizer: PreTrainedTokenizerBase, question: str, answer: str) -> Encoded:
        """Ids of the whole chat; the prompt is as long as the template with its generation prompt.

        An end-of-sequence token is added unless the template ends with one.
        """
        return self.encode_all(tokenizer, question, [answer])[0]

    def encode_all(self, tokenizer: PreTrainedTokenizerBase, question: str, answers: Sequence[str]) -> list[Encoded]:
        """Several answers to one question, which is encoded once."""
        prompt_length = len(self._apply(tokenizer, self._messages(question), generate=True))
        return [self._encode(tokenizer, question, answer, prompt_length) for answer in answers]

    def _encode(self, tokenizer: PreTrainedTokenizerBase, question: str, answer: str, prompt_length: int) -> Encoded:
        messages = self._messages(question)
        ids = self._apply(tokenizer, [*messages, {"role": "assistant", "content": answer}], generate=False)
        ids = _closed(tokenizer, ids)
        if prompt_length >= len(ids):
            raise InputError(f"the chat template of {_name(tokenizer)} leaves no tokens for the answer {answer!r}")
        kept = self._last(ids)
        return Encoded(tuple(kept), max(0, prompt_length - (len(ids) - len(kept))))

    def encode_prompt(self, tokenizer: PreTrainedTokenizerBase, question: str, suffix: str = "") -> list[int]:
        """Ids after which the model answers; ``suffix`` puts first words into its mouth."""
        ids = self._apply(tokenizer, self._messages(question), generate=True)
        return self._last(ids + text_ids(tokenizer, suffix))

    def _messages(self, question: str) -> list[dict[str, str]]:
        system = [{"role": "system", "content": self.system_prompt}] if self.system_prompt else []
        return [*system, {"role": "user", "content": question}]

    def _apply(
        self, tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, str]], *, generate: bool
    ) -> list[int]:
        from jinja2 import TemplateError

        if not tokenizer.chat_template:
            raise InputError(
                f"the tokenizer of {_name(tokenizer)} has no chat template.\n"
                "  Use the raw format (--format raw, Question: ... Answer: ...) or a tokenizer with a template."
            )
        date: dict[str, Any] = {} if self.date is None else {"date_string": self.date}
        try:
            chat = tokenizer.apply_chat_template(
                messages, tokenize=True, return_dict=True, add_generation_prompt=generate, **date
            )
        except TemplateError as error:
            raise InputError(
                f"the chat template of {_name(tokenizer)} refuses the chat: {error}\n"
                "  Some templates know no system prompt: try an empty one."
            ) from error
        return list(chat["input_ids"])

    def _last(self, ids: list[int]) -> list[int]:
        return ids if self.max_length is None else ids[-self.max_length :]


PromptFormat = RawFormat | ChatFormat


def raw_prompt(question: str) -> str:
    """The raw prompt up to the colon after which the answer begins."""
    return f"Question: {question}\nAnswer:"


def with_leading_space(prompt: str, text: str) -> str:
    """``text`` as it continues ``prompt``: after one space, unless white space or nothing is there already."""
    if not text or text[0].isspace() or prompt[-1:].isspace():
        return text
    return f" {text}"


def text_ids(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool = False) -> list[int]:
    """Ids of a text; with ``special`` after the tokenizer's beginning-of-sequence token, but never with a closing one."""
    if not text:
        return []
    ids = list(tokenizer(text, add_special_tokens=special)["input_ids"])
    return open_ended(tokenizer, ids) if special else ids


def open_ended(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    """The ids without the end-of-sequence token that some tokenizers put behind every text: this one goes on."""
    return ids[:-1] if ids[-1] == tokenizer.eos_token_id else ids


def _closed(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
    end = tokenizer.eos_token_id
    return ids if end is None or ids[-1:] == [end] else [*ids, end]


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.name_or_path or type(tokenizer).__name__)
