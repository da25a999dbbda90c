"""Where an entity sits among the tokens, and which logit rows predict it (spec 1.2 to 1.4).

The context is ``prompt ++ reference``: the prompt is the question and the answer's prefix, the reference what follows.
With ``start = len(prompt_ids) - 1`` the logits of row ``start + k`` predict reference token ``k``. An entity of tokens
``a .. b-1`` is therefore read, and patched, at rows ``start + a .. start + b - 1``: the rows that predict it, not its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from residuum.data.examples import Example
from residuum.data.prompts import open_ended, raw_prompt, text_ids, with_leading_space
from residuum.errors import InputError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
"""Half-open: first index, and the one after the last."""


@dataclass(frozen=True)
class Located:
    """An example as ids, with the span that is evaluated."""

    example: Example
    prompt: str
    reference_text: str
    entity_text: str
    """The entity that was looked for."""
    prompt_ids: tuple[int, ...]
    reference_ids: tuple[int, ...]
    entity_span: Span
    """Evaluated tokens of the reference; all of them when the scope is the full reference."""

    @property
    def idx(self) -> int:
        """The example's number."""
        return self.example.idx

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and reference."""
        return self.prompt_ids + self.reference_ids

    @property
    def start(self) -> int:
        """The logit row that predicts the first reference token."""
        return max(len(self.prompt_ids) - 1, 0)

    @property
    def rows(self) -> range:
        """The logit rows that predict the evaluated tokens."""
        first, end = self.entity_span
        return range(self.start + first, self.start + end)

    @property
    def labels(self) -> tuple[int, ...]:
        """What these rows should predict."""
        first, end = self.entity_span
        return self.reference_ids[first:end]

    def patched_rows(self, scope: Literal["span", "boundary"] = "span") -> range:
        """The rows that get the source model's states: those that are read, or only the last prompt row."""
        return self.rows if scope == "span" else range(self.start, self.start + 1)


@dataclass(frozen=True)
class Skip:
    """An example that cannot be evaluated."""

    example: Example
    reason: Literal["entity_span_not_found", "invalid_eval_context", "longer_than_context"]
    entity_text: str
    entity_source: str
    reference_source: str
    reference_text: str

    @property
    def idx(self) -> int:
        """The example's number."""
        return self.example.idx

    def record(self) -> dict[str, object]:
        """The entry of ``skipped_examples.json`` (spec 1.11), without the generations."""
        example = self.example
        return {
            "idx": example.idx,
            "reason": self.reason,
            "question": example.question,
            "prefix": example.prefix,
            "entity": example.entity,
            "gt_entity": example.gt_entity or example.entity,
            "entity_text": self.entity_text,
            "entity_source": self.entity_source,
            "reference_source": self.reference_source,
            "reference_text": self.reference_text,
        }


def locate(
    tokenizer: PreTrainedTokenizerBase,
    example: Example,
    *,
    reference: Literal["gt", "full"] = "gt",
    reference_scope: Literal["continuation", "full_answer"] = "continuation",
    entity_source: Literal["gt", "full"] = "gt",
    em_scope: Literal["entity", "full"] = "entity",
    join: Literal["ids", "retokenize"] = "ids",
    full_output: str | None = None,
) -> Located | Skip:
    """Tokenize an example and find its entity.

    Args:
        tokenizer: always the full model's.
        example: question, answer, prefix and entity.
        reference: the true answer, or what the full model says.
        reference_scope: the reference follows the prefix, or is the whole answer after a prompt without prefix.
        entity_source: the entity of the true answer, or the example's ``full_entity``.
        em_scope: evaluate the entity, or the whole reference.
        join: put the ids of prompt and reference together (as published), or tokenize the joined text as one, which
            is what a model saw in training. They differ where the prompt ends in a space or an opening quote.
        full_output: what the full model says, for an example that does not carry it.
    """
    prompt = prompt_of(example, reference_scope)
    text = _reference(example, prompt, reference, reference_scope, join, full_output)
    entity = (example.full_entity if entity_source == "full" else example.gt_entity) or example.entity
    tokens = _tokenize(tokenizer, prompt, text, join)

    whole = (0, len(tokens.reference_ids))
    span = whole if em_scope == "full" else _find_span(tokenizer, text, tokens, entity)
    if span is None or not tokens.reference_ids:
        reason: Literal["entity_span_not_found", "invalid_eval_context"]
        reason = "entity_span_not_found" if span is None else "invalid_eval_context"
        return Skip(example, reason, entity, entity_source, reference, text)
    return Located(example, prompt, text, entity, tokens.prompt_ids, tokens.reference_ids, span)


@dataclass(frozen=True)
class _Tokens:
    prompt_ids: tuple[int, ...]
    reference_ids: tuple[int, ...]
    offsets: list[Span] | None
    """Characters of the reference that each of its tokens covers; None when the tokenizer cannot tell."""


def prompt_of(example: Example, reference_scope: str = "continuation") -> str:
    """The question, and the answer's prefix unless the whole answer is the reference."""
    prompt = raw_prompt(example.question)
    return f"{prompt} {example.prefix}" if reference_scope == "continuation" else prompt


def _reference(
    example: Example, prompt: str, reference: str, reference_scope: str, join: str, full_output: str | None
) -> str:
    """The reference text with the leading space that its prompt calls for."""
    if reference == "full":
        text = example.full_output if example.full_output is not None else full_output
        if text is None:
            raise UsageError(f"example {example.idx} has no full_output; generate it with the full model first")
        return with_leading_space(prompt, text)
    if reference_scope == "full_answer":
        return with_leading_space(prompt, example.answer)
    if join == "retokenize" and example.answer.startswith(example.prefix):
        return example.continuation  # exactly the text of the answer: no space after an opening quote
    return with_leading_space(prompt, example.continuation)


def _tokenize(tokenizer: PreTrainedTokenizerBase, prompt: str, reference: str, join: str) -> _Tokens:
    if join == "retokenize":
        return _tokenize_as_one(tokenizer, prompt, reference)
    prompt_ids = tuple(text_ids(tokenizer, prompt, special=True))
    if not tokenizer.is_fast:
        return _Tokens(prompt_ids, tuple(text_ids(tokenizer, reference)), None)
    tokens = tokenizer(reference, add_special_tokens=False, return_offsets_mapping=True)
    return _Tokens(prompt_ids, tuple(tokens["input_ids"]), tokens["offset_mapping"])


def _tokenize_as_one(tokenizer: PreTrainedTokenizerBase, prompt: str, reference: str) -> _Tokens:
    if not tokenizer.is_fast:
        raise InputError('join="retokenize" needs a fast tokenizer, which knows the characters of its tokens')
    tokens = tokenizer(prompt + reference, add_special_tokens=True, return_offsets_mapping=True)
    ids, cut = open_ended(tokenizer, tokens["input_ids"]), len(prompt)
    offsets = tokens["offset_mapping"][: len(ids)]
    # A token across the boundary belongs to the reference: the prompt must not give away the answer's first letters.
    boundary = next((i for i, (_, end) in enumerate(offsets) if end > cut), len(ids))
    inside = [(first - cut, end - cut) for first, end in offsets[boundary:]]
    return _Tokens(tuple(ids[:boundary]), tuple(ids[boundary:]), inside)


def _find_span(tokenizer: PreTrainedTokenizerBase, reference: str, tokens: _Tokens, entity: str) -> Span | None:
    if tokens.offsets is None:
        needles = (text_ids(tokenizer, candidate) for candidate in (entity, f" {entity}"))
        return next((span for needle in needles if (span := _find_ids(tokens.reference_ids, needle))), None)
    candidate = next((c for c in (entity, entity.strip()) if c in reference), None)
    if candidate is None:
        return None
    first = reference.index(candidate)
    end = first + len(candidate)
    touched = [i for i, (left, right) in enumerate(tokens.offsets) if right > first and left < end]
    return (touched[0], touched[-1] + 1) if touched else None


def _find_ids(ids: Sequence[int], needle: list[int]) -> Span | None:
    """The first place where ``needle`` occurs in ``ids`` as a whole."""
    starts = range(len(ids) - len(needle) + 1) if needle else range(0)
    return next(((i, i + len(needle)) for i in starts if list(ids[i : i + len(needle)]) == needle), None)
