"""Annotated examples: a question, and an answer that is prefix + entity + rest.

The unlearning depth score reads the entity's log-probability after the prefix, so an example says where in the answer
the knowledge begins. The shape is that of the 367 published annotations of TOFU's forget10 (spec 1.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from residuum.data.jsonfiles import Loaded, Record, RowProblem, Source, read_records, repeated, source_name


@dataclass(frozen=True)
class Example:
    """One annotated question."""

    idx: int
    """The example's number; in the published set the index in forget10."""
    question: str
    answer: str
    prefix: str
    """The beginning of the answer, up to the entity; may be empty."""
    entity: str
    """The words that carry the knowledge."""
    full_output: str | None = None
    """What the full model says after the prefix."""
    gt_entity: str | None = None
    """The entity of the true answer, when ``entity`` is another one."""
    full_entity: str | None = None
    """The entity in ``full_output``."""

    @property
    def continuation(self) -> str:
        """The answer without its prefix; the whole answer when that does not begin with the prefix."""
        return self.answer.removeprefix(self.prefix)


def load_examples(source: Source) -> list[Example]:
    """The annotated examples of a file or of rows; rows with problems are counted in a ``DataWarning``.

    Raises:
        DataError: a row cannot be used; the message names file, line and field.
    """
    return read_examples(source).warn().rows


def read_examples(source: Source) -> Loaded[Example]:
    """Examples and the problems of some of them.

    A repeated example is left out. One whose entity is not in its answer stays: only the caller knows the reference
    text, and ``spans.locate`` skips it with a reason.
    """
    records = read_records(source)
    examples = [parse_example(record) for record in records]
    _refuse_shared_ids(records, examples)
    twins = repeated(
        (r.row, (e.question, e.answer, e.prefix, e.entity)) for r, e in zip(records, examples, strict=True)
    )
    kept, problems = [], []
    for record, example in zip(records, examples, strict=True):
        if record.row in twins:
            problems.append(RowProblem(record.row, f"it repeats row {twins[record.row]} and is left out"))
            continue
        kept.append(example)
        problems += [RowProblem(record.row, reason) for reason in _reasons(example)]
    return Loaded(kept, problems, source_name(source))


def parse_example(record: Record) -> Example:
    """One row as an example; without ``idx`` its number is its place in the file, counted from 0."""
    return Example(
        idx=record.integer("idx") if "idx" in record.fields else record.row - 1,
        question=record.text("question"),
        answer=record.text("answer"),
        prefix=record.text("prefix", may_be_empty=True),
        entity=record.text("entity"),
        full_output=record.text_or_none("full_output", may_be_empty=True),
        gt_entity=record.text_or_none("gt_entity"),
        full_entity=record.text_or_none("full_entity"),
    )


def _reasons(example: Example) -> list[str]:
    reasons = []
    if not example.answer.startswith(example.prefix):
        reasons.append("the answer does not begin with the prefix, so all of it is the reference")
    entity = example.gt_entity or example.entity
    if entity.strip() not in example.continuation:
        reasons.append(f'the entity "{entity}" is not in the answer after the prefix, so the row will be skipped')
    return reasons


def _refuse_shared_ids(records: list[Record], examples: list[Example]) -> None:
    seen: dict[int, tuple[int, str]] = {}
    for record, example in zip(records, examples, strict=True):
        row, question = seen.setdefault(example.idx, (record.row, example.question))
        if question != example.question:
            record.fail(f"{example.idx} already names another question, in row {row}", field="idx")
