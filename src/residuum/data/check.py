"""What is in a data file, and what is wrong with it: the whole list at once, for ``residuum data check``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from residuum.data.examples import parse_example, read_examples
from residuum.data.jsonfiles import Record, RowProblem, data_hash, read_records
from residuum.data.mcq import parse_mcq, parse_statement, read_mcq
from residuum.data.tofu import load_idk, parse_qa, read_split
from residuum.errors import DataError


@dataclass(frozen=True)
class FileReport:
    """What ``check_file`` found."""

    path: str
    kind: str
    """``examples``, ``tofu``, ``mcq``, ``corpus`` or ``idk``."""
    rows: int
    """Rows in the file, good or bad."""
    data_hash: str
    errors: list[str]
    """One message for each row that cannot be used."""
    problems: list[RowProblem]
    """Rows that can be used, or left out, with a warning."""

    @property
    def ok(self) -> bool:
        """Whether the file can be used."""
        return not self.errors


def check_file(path: str | Path) -> FileReport:
    """Check every row of a file of examples, TOFU rows, multiple-choice questions, sentences or IDK answers.

    Raises:
        DataError: the file as a whole cannot be read, or its rows are of no known kind.
    """
    path = Path(path)
    if path.suffix == ".txt":
        return FileReport(str(path), "idk", len(load_idk(path)), data_hash(path), [], [])
    records = read_records(path)
    kind = _kind(records, path)
    parse, find_problems = _reader(kind, path.stem)
    errors, good = [], []
    for record in records:
        try:
            parse(record)
            good.append(record)
        except DataError as error:
            errors.append(str(error))
    problems: list[RowProblem] = []
    try:
        problems = find_problems(good)
    except DataError as error:
        errors.append(str(error))
    return FileReport(str(path), kind, len(records), data_hash(path), errors, problems)


def _kind(records: list[Record], path: Path) -> str:
    """The kind of most rows, so that one row without its tell-tale field is an error and not another kind."""
    kinds = Counter(kind for record in records if (kind := _kind_of_row(record)))
    if not kinds:
        hint = "Known rows have: question, answer, prefix, entity; or question, answer; or question, choices, answer; or text."
        raise DataError("these rows are of no known kind", path=path, hint=hint)
    return kinds.most_common(1)[0][0]


def _kind_of_row(record: Record) -> str | None:
    tell_tales = {"choices": "mcq", "entity": "examples", "prefix": "examples", "text": "corpus", "question": "tofu"}
    return next((kind for field, kind in tell_tales.items() if field in record.fields), None)


def _reader(kind: str, stem: str) -> tuple[Callable[[Record], object], Callable[[list[Record]], list[RowProblem]]]:
    """How rows of a kind are parsed, and how their problems are found."""
    readers: dict[str, tuple[Callable[[Record], object], Callable[[list[Record]], list[RowProblem]]]] = {
        "examples": (parse_example, lambda rows: read_examples(rows).problems),
        "tofu": (lambda row: parse_qa(row, stem), lambda rows: read_split(rows, stem).problems),
        "mcq": (parse_mcq, lambda rows: read_mcq(rows).problems),
        "corpus": (parse_statement, lambda _: []),
    }
    return readers[kind]
