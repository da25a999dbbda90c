"""Multiple-choice questions and the sentences that restate them, for retraining on T (spec rtt 1.6 and 1.7).

A dataset is a folder: ``split_0.jsonl`` and so on hold questions, ``corpus_split_0.jsonl`` three true sentences for each,
``whp_corpus_`` and ``fwf_corpus_`` wrong ones, ``dev.jsonl`` a few questions for few-shot prompts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from residuum.data.jsonfiles import Loaded, Record, RowProblem, Source, read_records, repeated, source_name
from residuum.errors import DataError

LETTERS = "ABCD"

_TEXT_PREFIXES = ("corpus_", "whp_corpus_", "fwf_corpus_", "old_corpus_", "tf_", "mcq_")


@dataclass(frozen=True)
class MCQ:
    """A question with four choices."""

    question: str
    choices: tuple[str, ...]
    answer: int
    """Index of the right choice, from 0."""

    @property
    def letter(self) -> str:
        """The letter of the right choice."""
        return LETTERS[self.answer]


@dataclass(frozen=True)
class Statement:
    """A sentence that says, truly or not, what a question asks for."""

    text: str
    split: str | None = None
    correct_answer: str | None = None
    wrong_answers: tuple[str, ...] = ()


def load_mcq(source: Source) -> list[MCQ]:
    """The questions of a file or of rows; problems are counted in a ``DataWarning``."""
    return read_mcq(source).warn().rows


def load_corpus(source: Source) -> list[Statement]:
    """The sentences of a file or of rows."""
    return [parse_statement(record) for record in read_records(source)]


def load_splits(folder: str | Path) -> dict[str, list[MCQ]]:
    """All question files of a folder by name, numbers in counting order; neither ``dev`` nor the text files."""
    paths = [p for p in Path(folder).glob("*.jsonl") if p.stem != "dev" and not p.stem.startswith(_TEXT_PREFIXES)]
    if not paths:
        raise DataError(
            "there is no question file here", path=folder, hint="Expected split_0.jsonl, split_1.jsonl and so on."
        )
    return {path.stem: load_mcq(path) for path in sorted(paths, key=_counting_order)}


def read_mcq(source: Source) -> Loaded[MCQ]:
    """Questions and the problems of some of them; none is left out."""
    records = read_records(source)
    items = [parse_mcq(record) for record in records]
    twins = repeated((r.row, item.question) for r, item in zip(records, items, strict=True))
    problems = []
    for record, item in zip(records, items, strict=True):
        if record.row in twins:
            problems.append(RowProblem(record.row, f"it asks the same as row {twins[record.row]}"))
        if item.choices.count(item.choices[item.answer]) > 1:
            problems.append(RowProblem(record.row, f'the right answer "{item.choices[item.answer]}" is there twice'))
    return Loaded(items, problems, source_name(source))


def parse_mcq(record: Record) -> MCQ:
    """One row as a question; choices may be numbers and become strings."""
    choices = record.labels("choices")
    if len(choices) != len(LETTERS):
        record.fail(f"must have {len(LETTERS)} choices, not {len(choices)}", field="choices")
    answer = record.integer("answer")
    if not 0 <= answer < len(LETTERS):
        record.fail(f"must be the index of a choice, 0 to {len(LETTERS) - 1}, not {answer}", field="answer")
    return MCQ(record.text("question"), choices, answer)


def parse_statement(record: Record) -> Statement:
    """One row of a text file."""
    return Statement(
        text=record.text("text"),
        split=record.text_or_none("split"),
        correct_answer=record.label_or_none("correct_answer"),
        wrong_answers=record.labels("wrong_answers") if "wrong_answers" in record.fields else (),
    )


def mcq_prompt(item: MCQ, shots: Sequence[MCQ] = ()) -> str:
    """The question, one line a choice, and ``Answer:`` without a space behind it; solved ``shots`` come first."""
    solved = [f"{mcq_prompt(shot)} {shot.letter}." for shot in shots]
    choices = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, item.choices, strict=True)]
    return "\n\n".join([*solved, "\n".join([item.question, *choices, "Answer:"])])


def _counting_order(path: Path) -> list[tuple[int, str]]:
    """Sorts ``split_10`` behind ``split_9``."""
    parts = re.split(r"(\d+)", path.stem)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
