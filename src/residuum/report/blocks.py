"""What a section is made of: prose, cards, tables, charts, and choices between several of them.

Blocks are data. The page draws them with HTML and a small script, `residuum.report.figures` draws the same charts for papers.
Every number that goes to the script is rounded to the digits that are shown, here and only here: the script pads, it never
rounds.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Number = float | None
Spec = dict[str, Any]
DIGITS = 3

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#8C510A")
"""Okabe and Ito's colours without black and yellow, then grey and brown; shapes and dashes tell groups apart as well."""


_HUES = {"npo": 0, "rmu": 1, "altpo": 2, "idkdpo": 3, "graddiff": 4, "idknll": 5, "simnpo": 6, "undial": 7}


def hue(group: str) -> int | str:
    """The place of a method in `PALETTE`, the same in every chart; references are drawn in the colour of the text."""
    return "ink" if group in ("full", "retain") else _HUES.get(group, 1)


@dataclass(frozen=True)
class Value:
    """A number of the store with its interval, and the run it comes from."""

    value: Number
    low: Number = None
    high: Number = None
    source: str | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Mapping[str, Any], source: str | None = None) -> Value:
        """From a record with ``value``, ``ci95`` and ``notes``."""
        low, high = record.get("ci95") or (None, None)
        return cls(record.get("value"), low, high, source, tuple(record.get("notes") or ()))


@dataclass(frozen=True)
class Chart:
    """A picture as data."""

    name: str
    """As ``residuum plot`` calls it."""
    kind: Literal["lines", "bars", "histogram", "scatter", "heat"]
    title: str
    spec: Spec = field(repr=False)

    def plain(self) -> Spec:
        """For the script."""
        return {"block": "chart", "name": self.name, "kind": self.kind, "title": self.title, **self.spec}


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    key: str
    title: str
    digits: int = DIGITS
    good: Literal["high", "low", "ideal"] | None = None
    """Which end of the numbers is the desired one; None: not coloured."""
    ideal: float = 0.0
    tip: str = ""
    shown: bool = True
    """Whether it is visible before somebody chooses."""
    filter: bool = False
    """Rows can be chosen by its values."""


@dataclass(frozen=True)
class Table:
    """Rows of texts, numbers and `Value`."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    """``links`` (label and source id) goes with the first column."""
    caption: str = ""
    tools: bool = False
    """Filters, choice of columns, CSV and LaTeX."""
    intervals: bool = True
    """Show them below the numbers at once."""

    def plain(self) -> Spec:
        """For the script: texts as they are shown."""
        rows = [[shown(row.get(column.key), column.digits) for column in self.columns] for row in self.rows]
        return {"block": "table", "caption": self.caption, "columns": [c.title for c in self.columns], "rows": rows}


@dataclass(frozen=True)
class Flag:
    """What a reader should notice about a model, and why."""

    key: str
    title: str
    sentence: str
    level: Literal["bad", "warn", "good"] = "bad"


@dataclass(frozen=True)
class Meter:
    """A number between 0 and 1 with a bar."""

    label: str
    value: Value
    tip: str = ""


@dataclass(frozen=True)
class Card:
    """One model at a glance."""

    title: str
    badge: str
    meters: Sequence[Meter]
    lines: Sequence[tuple[str, str, str | None]]
    """Label, sentence, source id."""
    flags: Sequence[Flag]
    links: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Cards:
    """The cards of all models."""

    cards: Sequence[Card]


@dataclass(frozen=True)
class Prose:
    """A paragraph, or a list of some."""

    text: str | Sequence[str]
    source: str | None = None
    """The run that its numbers come from."""

    @property
    def lines(self) -> list[str]:
        """Its paragraphs."""
        return [self.text] if isinstance(self.text, str) else list(self.text)

    def plain(self) -> Spec:
        """For the script."""
        return {"block": "text", "text": self.lines, "source": self.source}


@dataclass(frozen=True)
class Choice:
    """One of several groups of blocks at a time; each is unpacked when it is chosen."""

    name: str
    label: str
    options: Mapping[str, Sequence[Any]]
    """Blocks by what the option is called: `Chart`, `Table`, `Prose`, or objects for the script."""
    shared: Spec = field(default_factory=dict, repr=False)
    """What the script's own objects refer to."""


Block = Prose | Cards | Table | Chart | Choice


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    key: str
    title: str
    lead: str
    blocks: Sequence[Block]


def rounded(value: Number, digits: int = DIGITS) -> Number:
    """A number as the script gets it; what is not finite is nothing."""
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


def rounded_all(values: Sequence[Number], digits: int = DIGITS) -> list[Number]:
    """Numbers as the script gets them."""
    return [rounded(value, digits) for value in values]


def rounded_rows(table: NDArray[np.float64], digits: int = DIGITS) -> list[list[Number]]:
    """A table as the script gets it: like `rounded`, quick for millions of numbers."""
    scaled = np.abs(table) * 10.0**digits
    found = np.round(table, digits).astype(object)
    # numpy multiplies before it rounds, which can tip the scale near a half: there Python's own rounding decides.
    for place in zip(*np.nonzero(np.abs(scaled % 1.0 - 0.5) < 1e-6), strict=True):
        found[place] = round(float(table[place]), digits)
    found[~np.isfinite(table)] = None
    rows: list[list[Number]] = found.tolist()
    return rows


def shown(value: Any, digits: int = DIGITS) -> str:
    """Anything as text: numbers to so many digits, whole ones as they are, nothing as a dash."""
    if isinstance(value, Value):
        value = value.value
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}f}" if math.isfinite(value) else "–"
    return str(value)


def interval(value: Value, digits: int = DIGITS) -> str:
    """The interval of a value, or nothing."""
    if value.low is None or value.high is None:
        return ""
    return f"{value.low:.{digits}f} to {value.high:.{digits}f}"


def with_interval(value: Value, digits: int = DIGITS) -> str:
    """``0.551 (0.441 to 0.652)``."""
    ends = interval(value, digits)
    return shown(value, digits) + (f" ({ends})" if ends else "")


def to_script(value: Any) -> str:
    """JSON that can stand inside a script element whatever texts are in it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign, code in (
        ("&", "\\u0026"),
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(sign, code)
    return text


def packed(value: Any) -> str:
    """JSON, compressed and in letters: what is looked at one at a time need not be read by the browser at once."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=6, mtime=0)).decode()
