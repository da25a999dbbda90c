"""Blocks as one HTML file: every text escaped, nothing from the network, scripts known by their hash."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.report.blocks import (
    Cards,
    Chart,
    Choice,
    Column,
    Prose,
    Section,
    Table,
    Value,
    interval,
    packed,
    shown,
    to_script,
)

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("charts.js", "page.js")
TINTS = 10
"""Steps between the two ends of a coloured column."""


def render(title: str, sections: Sequence[Section], about: str) -> str:
    """The page.

    Args:
        title: of the page.
        sections: what is on it, in this order.
        about: one line on when and from what it was made.
    """
    script = "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment().get_template("page.html").render(
        title=title, about=about, sections=sections, script=script, script_hash=f"sha256-{digest}",
        style=(_TEMPLATES / "page.css").read_text(encoding="utf-8"),
    )  # fmt: skip


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests.update({name: _is(kind) for name, kind in _BLOCKS.items()})
    environment.filters.update(
        shown=shown,
        interval=interval,
        chart=_chart,
        table=_table,
        packs=_packs,
        position=_position,
    )
    return environment


_BLOCKS = {"cards": Cards, "a_table": Table, "a_chart": Chart, "a_choice": Choice, "prose": Prose}


def _is(kind: type) -> Any:
    return lambda block: isinstance(block, kind)


def _chart(chart: Chart) -> Any:
    from markupsafe import Markup

    return Markup(to_script(chart.plain()))  # `to_script` leaves nothing that HTML could read


def _packs(choice: Choice) -> list[tuple[str, str]]:
    """Id and compressed blocks of each option, and of what they share."""
    packs = [
        (f"{choice.name}-{i}", packed([block if isinstance(block, dict) else block.plain() for block in blocks]))
        for i, blocks in enumerate(choice.options.values())
    ]
    return packs + [(key, packed(value)) for key, value in choice.shared.items()]


def _position(value: float | None) -> str:
    """A number between 0 and 1 as a length of CSS."""
    return f"{100 * min(max(value or 0.0, 0.0), 1.0):.1f}%"


def _table(table: Table) -> Any:
    """The rows of a table as HTML; by hand, because a benchmark has tens of thousands of cells."""
    from markupsafe import Markup, escape

    scales = {column.key: _scale(column, table.rows) for column in table.columns if column.good is not None}
    lines = []
    for row in table.rows:
        cells = []
        for place, column in enumerate(table.columns):
            value = row.get(column.key)
            off = "" if column.shown else " off"
            if isinstance(value, Value):
                cells.append(_number_cell(value, column, scales.get(column.key), off, table.intervals, escape))
            elif place == 0:
                links = " ".join(
                    f'<a href="#{escape(source)}">{escape(label)}</a>' for label, source in row.get("links", ())
                )
                cells.append(
                    f'<th scope="row"><span>{escape(shown(value))}</span>{f"<small>{links}</small>" if links else ""}</th>'
                )
            else:
                kind = " n" if isinstance(value, int | float) and not isinstance(value, bool) else ""
                cells.append(f'<td class="{kind}{off}">{_text_cell(column.key, value, column.digits, escape)}</td>')
        anchor = f' id="{escape(row["id"])}"' if "id" in row else ""
        lines.append(f"<tr{anchor}>{''.join(cells)}</tr>")
    return Markup("\n".join(lines))  # every part of it is escaped above


def _text_cell(key: str, value: Any, digits: int, escape: Any) -> str:
    text = escape(shown(value, digits))
    if key == "settings" and value:
        return f'<a href="#{text}">{text}</a>'
    return f"<code>{text}</code>" if key in ("command", "text", "hashes") else str(text)


def _number_cell(value: Value, column: Column, scale: Any, off: str, intervals: bool, escape: Any) -> str:
    number = value.value
    tint = "" if number is None or scale is None or not math.isfinite(number) else f" t{scale(number)}"
    ends = interval(value, column.digits)
    tip = "; ".join([*([f"95 % {ends}"] if ends else []), *value.notes])
    attributes = "" if number is None else f' data-v="{number:.6g}"'
    attributes += f' data-run="{escape(value.source)}"' if value.source else ""
    attributes += f' title="{escape(tip)}"' if tip and not (intervals and not value.notes) else ""
    small = f"<small>{ends}</small>" if ends and intervals else f'<small class="ci">{ends}</small>' if ends else ""
    return f'<td class="n{tint}{off}"{attributes}>{shown(number, column.digits)}{small}</td>'


def _scale(column: Column, rows: Sequence[Mapping[str, Any]]) -> Any:
    """From a number to a step between the undesired end (0) and the desired one."""
    values = [
        v.value
        for row in rows
        if isinstance(v := row.get(column.key), Value) and v.value is not None and math.isfinite(v.value)
    ]
    low, high = min([0.0, *values]), max([1.0, *values])
    if column.good == "ideal":
        widest = max([abs(v - column.ideal) for v in values] + [0.5 if high <= 1 else 0.0]) or 1.0
        return lambda v: round(TINTS * (1 - abs(v - column.ideal) / widest))
    sign = 1 if column.good == "high" else -1
    return lambda v: round(TINTS * ((v - low) if sign > 0 else (high - v)) / (high - low))
