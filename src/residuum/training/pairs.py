"""Micro-batches of unlearning: every forget row with a retain row, drawn anew in each epoch.

The length of an epoch is that of the forget set. Order, pairing, format and "I don't know" line are functions of
(seed, epoch) alone, so that a killed run meets the same batches again.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.batching import Encoded
from residuum.data.jsonfiles import DataWarning, read_records
from residuum.data.prompts import PromptFormat
from residuum.data.tofu import QA, load_idk, read_split
from residuum.errors import DataError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Rows = str | Path | Sequence[QA] | Sequence[Mapping[str, Any]]
"""A data file, or its rows."""


@dataclass(frozen=True)
class Item:
    """A question to be forgotten."""

    question: str
    answer: str
    preferred: tuple[str, ...] = ()
    """Answers wished for instead; one is drawn in every epoch."""


@dataclass(frozen=True)
class Pairs:
    """One micro-batch; the three sides have as many rows each."""

    answer: tuple[Encoded, ...]
    preferred: tuple[Encoded, ...]
    """Empty when the method wants no other answers."""
    retain: tuple[Encoded, ...]


class PairDraw:
    """The micro-batches of every epoch.

    Args:
        items: what is to be forgotten.
        retain: what is to be kept.
        tokenizer: encodes them.
        forms: formats of which one is drawn for each row.
        batch_size: forget rows per micro-batch.
        seed: of all draws.
    """

    def __init__(
        self,
        items: Sequence[Item],
        retain: Sequence[QA],
        tokenizer: PreTrainedTokenizerBase,
        forms: Sequence[PromptFormat],
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        self.items, self.retain, self.tokenizer, self.forms = items, retain, tokenizer, forms
        self.batch_size, self.seed = batch_size, seed
        self._known: dict[tuple[PromptFormat, str, str], Encoded] = {}

    def epoch(self, epoch: int) -> list[Pairs]:
        """The micro-batches of one epoch."""
        rng = random.Random(f"{self.seed}/pairs/{epoch}")
        drawn = [self._draw(rng, item) for item in rng.sample(self.items, len(self.items))]
        groups = (drawn[i : i + self.batch_size] for i in range(0, len(drawn), self.batch_size))
        return [
            Pairs(*(tuple(row for row in side if row is not None) for side in zip(*group, strict=True)))
            for group in groups
        ]

    def _draw(self, rng: random.Random, item: Item) -> tuple[Encoded, Encoded | None, Encoded]:
        form, partner_form, partner = rng.choice(self.forms), rng.choice(self.forms), rng.choice(self.retain)
        preferred = self._encode(form, item.question, rng.choice(item.preferred)) if item.preferred else None
        answer = self._encode(form, item.question, item.answer)
        return answer, preferred, self._encode(partner_form, partner.question, partner.answer)

    def _encode(self, form: PromptFormat, question: str, answer: str) -> Encoded:
        key = form, question, answer
        if key not in self._known:
            self._known[key] = form.encode(self.tokenizer, question, answer)
        return self._known[key]


def load_rows(source: Rows, what: str) -> list[QA]:
    """Questions and answers of a file, or as given.

    Raises:
        DataError: there are none.
    """
    if isinstance(source, str | Path):
        return read_split(source).warn().rows
    rows = [row for row in source if isinstance(row, QA)]
    others = [row for row in source if not isinstance(row, QA)]
    if not rows and not others:
        raise DataError(f"the {what} set is empty.")
    return rows + (read_split(others).warn().rows if others else [])


def check_apart(forget: Sequence[QA], retain: Sequence[QA]) -> None:
    """Refuse a retain set that holds rows of the forget set: the two terms would pull against each other.

    Raises:
        DataError: names the rows.
    """
    kept = {(row.question.strip(), row.answer.strip()): number for number, row in enumerate(retain, start=1)}
    both = [
        (number, kept[key], row.question)
        for number, row in enumerate(forget, start=1)
        if (key := (row.question.strip(), row.answer.strip())) in kept
    ]
    if both:
        named = "; ".join(f"forget row {a} is retain row {b} ({question!r})" for a, b, question in both[:3])
        more = f"; and {len(both) - 3} more" if len(both) > 3 else ""
        raise DataError(
            f"{len(both)} of {len(forget)} forget rows are also in the retain set: {named}{more}.",
            hint="Take them out of the retain set.",
        )


def idk_items(forget: Sequence[QA], answers: Sequence[str]) -> list[Item]:
    """Every forget question with all "I don't know" lines to draw from."""
    return [Item(row.question, row.answer, tuple(answers)) for row in forget]


def alternate_items(forget: Sequence[QA], alternates: str | Path | Iterable[Mapping[str, Any]]) -> list[Item]:
    """Every forget question once for each of its alternate answers.

    Args:
        forget: what is to be forgotten.
        alternates: rows with question, answer and alternate, as ``residuum data alternates`` writes them.

    Raises:
        DataError: none of them belongs to a forget question. Questions without one are counted in a ``DataWarning``.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for record in read_records(alternates):
        found.setdefault((record.text("question"), record.text("answer")), []).append(record.text("alternate"))
    bare = sum((row.question, row.answer) not in found for row in forget)
    if bare == len(forget):
        raise DataError("the alternates belong to other questions.", hint="Make them with `residuum data alternates`.")
    if bare:
        text = f"{bare} of {len(forget)} forget questions have no alternate answer; nothing will unlearn them."
        warnings.warn(text, DataWarning, stacklevel=2)
    return [
        Item(row.question, row.answer, (alternate,))
        for row in forget
        for alternate in found.get((row.question, row.answer), ())
    ]


def load_idk_lines(idk: str | Path | Sequence[str] | None, forget: Rows) -> list[str]:
    """The given "I don't know" lines; without any, those beside the forget file, else those of the hub.

    Raises:
        UsageError: there are none.
    """
    if idk is None:
        beside = Path(forget).parent if isinstance(forget, str | Path) else None
        return load_idk(beside if beside is not None and (beside / "idontknow.txt").is_file() else "tofu")
    lines = load_idk(idk) if isinstance(idk, str | Path) else list(idk)
    if not lines:
        raise UsageError("the list of I-don't-know answers is empty.")
    return lines
