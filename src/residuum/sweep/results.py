"""The table of a sweep: one row per model, made from the units and from nothing else, so every engine makes the same."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

from residuum.store import Store, write_json, write_text
from residuum.sweep.plan import Plan, is_done


def table(plan: Plan, store: Store) -> list[dict[str, Any]]:
    """Rows in the order of the plan; a column that two kinds of tasks have is named after its kind."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for task in plan.tasks:
        unit = store.get(task.unit) if is_done(task, store) else None
        name = task.kind if task.name == f"{task.kind}/{task.work.name}" else task.name
        if unit is not None:
            found.setdefault(task.work.name, {})[name] = unit.value["columns"]
    kinds: dict[str, dict[str, None]] = {}  # an ordered set of columns for each kind
    for parts in found.values():
        for name, columns in parts.items():
            kinds.setdefault(name, {}).update(dict.fromkeys(columns))
    shared = {
        column for column, times in Counter(c for columns in kinds.values() for c in columns).items() if times > 1
    }
    names = {(kind, c): f"{kind}.{c}" if c in shared else c for kind, columns in kinds.items() for c in columns}
    return [
        {"model": model, **{shown: parts.get(kind, {}).get(column) for (kind, column), shown in names.items()}}
        for model, parts in found.items()
    ]


def write_table(rows: list[dict[str, Any]], folder: Path) -> None:
    """Write table.csv and table.json; numbers with all their digits."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    write_text(folder / "table.csv", text.getvalue())
    write_json(folder / "table.json", rows)
