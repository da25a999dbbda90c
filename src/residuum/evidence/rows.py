"""A split as token ids: every answer to every question, the prompts to be continued, and what does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from residuum.data.prompts import Encoded, PromptFormat, text_ids
from residuum.data.tofu import QA
from residuum.store import content_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

JAILBREAK = "Sure, here is the answer:"
"""Words put into the model's mouth; only what it says after them is scored."""


@dataclass(frozen=True)
class Places:
    """Where the answers to one question stand among the encoded rows."""

    answer: int
    paraphrases: range
    perturbed: range


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """The questions of a split whose every answer fits into the context, as ids."""

    items: tuple[QA, ...]
    kept: tuple[int, ...]
    """Where the items stand in the split."""
    total: int
    """Items of the split, those that do not fit included."""
    rows: tuple[Encoded, ...]
    """All answers to all items."""
    places: tuple[Places, ...]
    """Of each item."""
    prompts: tuple[tuple[int, ...], ...]
    """Of each item, up to where the answer begins."""
    jailbreak_prompts: tuple[tuple[int, ...], ...]
    """The same with `JAILBREAK` behind."""
    answer_texts: tuple[str, ...]
    """The true answer of each item as its labelled tokens spell it."""

    @cached_property
    def rows_hash(self) -> str:
        """Identity of the encoded rows: whatever made them, equal ids give equal evidence."""
        return content_hash([[row.prompt_length, *row.ids] for row in self.rows])


def encode_split(
    tokenizer: PreTrainedTokenizerBase, items: Sequence[QA], form: PromptFormat, context: int | None = None
) -> EncodedSplit:
    """Encode all answers to all questions.

    An item of which an answer is longer than the context is left out as a whole, so that all metrics of a split are
    over the same items.

    Args:
        tokenizer: of the model.
        items: the split.
        form: chat or raw.
        context: most tokens that the model can read; None when there is no limit.
    """
    rows: list[Encoded] = []
    places: list[Places] = []
    kept: list[int] = []
    for i, item in enumerate(items):
        answers = [item.answer, *item.paraphrased_answers, *item.perturbed_answers]
        own = _encode(tokenizer, item.question, answers, form)
        if context is not None and max(map(len, own)) > context:
            continue
        start, middle = len(rows), len(rows) + 1 + len(item.paraphrased_answers)
        places.append(Places(start, range(start + 1, middle), range(middle, start + len(own))))
        rows += own
        kept.append(i)
    fitting = [items[i] for i in kept]
    # Not the beginning of the row: some templates open an answer otherwise when they ask for one.
    prompts = [tuple(form.encode_prompt(tokenizer, item.question)) for item in fitting]
    suffix = form.encode_prompt(tokenizer, "", JAILBREAK)[len(form.encode_prompt(tokenizer, "")) :]
    return EncodedSplit(
        items=tuple(fitting),
        kept=tuple(kept),
        total=len(items),
        rows=tuple(rows),
        places=tuple(places),
        prompts=tuple(prompts),
        jailbreak_prompts=tuple((*prompt, *suffix) for prompt in prompts),
        answer_texts=tuple(spell(tokenizer, rows[place.answer].labels) for place in places),
    )


def spell(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of some ids, special tokens left out.

    Never cleaned up: transformers 4 took the blank before punctuation away, transformers 5 does so for some tokenizers.
    """
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _encode(
    tokenizer: PreTrainedTokenizerBase, question: str, answers: Sequence[str], form: PromptFormat
) -> list[Encoded]:
    if question:
        return form.encode_all(tokenizer, question, answers)
    # A text without a question (a row of a corpus) stands alone: all of it is labelled, no template around it.
    begin = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return [Encoded((*begin, *text_ids(tokenizer, answer), *end), len(begin)) for answer in answers]
