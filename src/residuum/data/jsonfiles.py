"""Rows of JSON files, and errors that say where in the file they are.

A file is a JSON array or JSON lines; which of them is seen from its first character. What cannot be used raises a
``DataError`` with file, line (or row of the array) and field. What can be worked around becomes a ``RowProblem``.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from residuum.errors import DataError

T = TypeVar("T")


class DataWarning(UserWarning):
    """Some rows have a problem that was worked around."""


@dataclass(frozen=True)
class RowProblem:
    """One row that is not as it should be, and what was done about it."""

    row: int
    """1-based line (JSON lines) or row (JSON array)."""
    reason: str
    """A sentence for the person who owns the file."""


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """What came out of a file: the usable rows, and the problems of some of them."""

    rows: list[T]
    problems: list[RowProblem]
    source: str
    """The file, or ``rows`` for data that was already in memory."""

    def warn(self) -> Loaded[T]:
        """Say once how many rows have a problem, with the first reason; returns itself."""
        if self.problems:
            first, count = self.problems[0], len(self.problems)
            listing = "" if self.source == "rows" else f"\n  `residuum data check {self.source}` lists all of them."
            text = f"{count} problem{'s' * (count > 1)} in {self.source} (first: row {first.row}, {first.reason}).{listing}"
            warnings.warn(text, DataWarning, stacklevel=3)
        return self


@dataclass(frozen=True)
class Record:
    """One row with typed access to its fields; every failure names file, line and field."""

    fields: Mapping[str, Any]
    row: int
    """1-based line (JSON lines) or row (JSON array)."""
    path: Path | None = None
    """None for rows that never were in a file."""
    in_array: bool = True
    """Whether ``row`` counts elements of an array; if not it counts lines."""

    def fail(self, problem: str, *, field: str | None = None, hint: str | None = None) -> NoReturn:
        """Raise the ``DataError`` of this row."""
        # The place is written like a line number, which for an array would send the reader to the wrong line.
        problem += f" (row {self.row} of the array)" if self.in_array else ""
        raise DataError(problem, path=self.path, line=self.row if self.path else None, field=field, hint=hint)

    def text(self, field: str, *, may_be_empty: bool = False) -> str:
        """A string that holds more than white space."""
        return self._text(self._get(field), field, may_be_empty=may_be_empty)

    def text_or_none(self, field: str, *, may_be_empty: bool = False) -> str | None:
        """A string, or None when the field is absent or null."""
        return None if self.fields.get(field) is None else self.text(field, may_be_empty=may_be_empty)

    def texts(self, field: str) -> tuple[str, ...]:
        """One string or a non-empty list of strings, always as a tuple."""
        value = self._get(field)
        if isinstance(value, str):
            return (self._text(value, field),)
        if not isinstance(value, list | tuple):
            self.fail(f"must be a string or a list of strings, not {_kind(value)}", field=field)
        if not value:
            self.fail("is an empty list", field=field)
        return tuple(self._text(item, f"{field}[{i}]") for i, item in enumerate(value))

    def texts_or_empty(self, field: str) -> tuple[str, ...]:
        """Like ``texts``, but nothing when the field is absent or null."""
        return () if self.fields.get(field) is None else self.texts(field)

    def integer(self, field: str) -> int:
        """A whole number."""
        value = self._get(field)
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(f"must be a whole number, not {_kind(value)}", field=field)
        return value

    def label_or_none(self, field: str) -> str | None:
        """A string or number as a string, or None when the field is absent or null."""
        return None if self.fields.get(field) is None else self._label(self.fields[field], field)

    def labels(self, field: str) -> tuple[str, ...]:
        """A list of strings or numbers, all of them as strings."""
        value = self._get(field)
        if not isinstance(value, list | tuple):
            self.fail(f"must be a list, not {_kind(value)}", field=field)
        return tuple(self._label(item, f"{field}[{i}]") for i, item in enumerate(value))

    def _get(self, field: str) -> Any:
        if field not in self.fields:
            there = ", ".join(map(str, self.fields)) or "none"
            self.fail("is missing", field=field, hint=f"The row has: {there}.")
        return self.fields[field]

    def _label(self, value: Any, field: str) -> str:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return self._text(str(value) if number else value, field)

    def _text(self, value: Any, field: str, *, may_be_empty: bool = False) -> str:
        if not isinstance(value, str):
            self.fail(f"must be a string, not {_kind(value)}", field=field)
        if not may_be_empty and not value.strip():
            self.fail("is empty", field=field)
        try:
            value.encode()
        except UnicodeEncodeError:
            self.fail("holds half of a surrogate pair, which is no text", field=field)
        return value


Source = str | Path | Iterable[Mapping[str, Any]] | Iterable[Record]
"""A file, or rows that are already in memory."""


def read_records(source: Source) -> list[Record]:
    """All rows of a file (JSON array or JSON lines), or of rows that are already in memory.

    Raises:
        DataError: the file is missing, empty, not UTF-8, not JSON, or a row is not an object.
    """
    if not isinstance(source, str | Path):
        return [_record(row, i, None, in_array=True) for i, row in enumerate(source, start=1)]
    path = Path(source)
    text = read_text(path)
    in_array = text.lstrip()[:1] == "["
    rows = enumerate(_parse(text, path), start=1) if in_array else _json_lines(text, path)
    records = [_record(row, i, path, in_array=in_array) for i, row in rows]
    if not records:
        raise DataError("holds no rows", path=path)
    return records


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file; a byte order mark at its start is left out.

    Raises:
        DataError: there is no such file, or it is not UTF-8 (then it says which byte on which line).
    """
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError("there is no such file", path=path) from None
    except IsADirectoryError:
        raise DataError("is a folder, not a file", path=path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from error
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{data[error.start]:02x} at offset {error.start} is not UTF-8"
        raise DataError(problem, path=path, line=line, hint="Save the file as UTF-8.") from None


def repeated(rows: Iterable[tuple[int, Hashable]]) -> dict[int, int]:
    """Rows whose key an earlier row has: ``{row: the first row with this key}``."""
    first: dict[Hashable, int] = {}
    return {row: first[key] for row, key in rows if first.setdefault(key, row) != row}


def source_name(source: Source) -> str:
    """How messages call the source of some rows."""
    return str(source) if isinstance(source, str | Path) else "rows"


def data_hash(source: str | Path | Iterable[object]) -> str:
    """SHA-256 of the content of some rows: their order counts, the spelling of their JSON does not.

    Args:
        source: a JSON file, a text file (``.txt``: one row a line), or rows (mappings, dataclasses or strings).
    """
    rows: Iterable[object]
    if not isinstance(source, str | Path):
        rows = source
    elif Path(source).suffix == ".txt":
        rows = read_text(source).splitlines()
    else:
        rows = (record.fields for record in read_records(source))
    digest = hashlib.sha256()
    for row in rows:
        plain = asdict(row) if is_dataclass(row) and not isinstance(row, type) else row
        digest.update(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode() + b"\n")
    return digest.hexdigest()


def _record(row: object, number: int, path: Path | None, *, in_array: bool) -> Record:
    if isinstance(row, Record):
        return row
    if not isinstance(row, Mapping):
        Record({}, number, path, in_array).fail(f"must be an object with named fields, not {_kind(row)}")
    return Record(row, number, path, in_array)


def _json_lines(text: str, path: Path) -> Iterator[tuple[int, object]]:
    # Not splitlines(): it would also cut at characters such as U+2028, which JSON allows inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, _parse(line, path, line_number=number)


def _parse(text: str, path: Path, *, line_number: int | None = None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        cut = not text[error.pos :].strip() or error.msg.startswith("Unterminated string")
        problem = f"the JSON {'breaks off' if cut else 'is not valid'} at column {error.colno}: {error.msg}"
        hint = "The file looks truncated: fetch or write it again." if cut else None
        raise DataError(problem, path=path, line=line_number or error.lineno, hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"the JSON cannot be read: {error}", path=path, line=line_number) from None


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names = {
        bool: "true/false",
        str: "a string",
        int: "a whole number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), type(value).__name__)
