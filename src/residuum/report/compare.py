"""What changed between two stores: the same models in both, metric by metric, with paired intervals where items are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from residuum.errors import InputError
from residuum.metrics.scores import draws, interval
from residuum.patching.output import run_tag
from residuum.report.blocks import Column, Prose, Section, Table, Value
from residuum.report.findings import Findings
from residuum.report.model import Model
from residuum.uncertainty import RESAMPLES

Items = Mapping[tuple[str, int], float]


@dataclass(frozen=True)
class Change:
    """One metric of one model in two stores."""

    model: str
    metric: str
    first: Value
    second: Value
    difference: Value
    """Second minus first; the interval is over items that both have, resampled together."""
    items: int
    """How many those are."""

    def row(self) -> dict[str, Any]:
        """Ready for JSON and for a table in the terminal."""
        return {
            "name": self.model, "metric": self.metric, "A": self.first.value, "B": self.second.value, "difference": self.difference.value,
            "low": self.difference.low, "high": self.difference.high, "items": self.items,
        }  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Two stores side by side."""

    first: Findings
    second: Findings
    changes: list[Change]
    notes: list[str]
    """Models that only one has, and what else differs: versions, settings, data, weights."""


def compare(first: str | Path, second: str | Path) -> Comparison:
    """Compare the models that two stores have in common, by name.

    Raises:
        InputError: a folder cannot be used, or they have no model in common.
    """
    one, other = Findings([first]), Findings([second])
    there = [{model.name: model for model in findings.models} for findings in (one, other)]
    shared = [name for name in there[0] if name in there[1]]
    if not shared:
        names = [", ".join(list(found)[:5]) or "no model" for found in there]
        raise InputError(
            f"{first} and {second} have no model in common.\n  The first has {names[0]}; the second has {names[1]}."
        )
    notes = []
    for folder, mine, others in ((first, there[0], there[1]), (second, there[1], there[0])):
        if alone := sorted(set(mine) - set(others)):
            notes.append(f"only in {folder}: {', '.join(alone)}")
    changes = []
    items = [{name: _items(findings, there[i][name]) for name in shared} for i, findings in enumerate((one, other))]
    for name in shared:
        pair = there[0][name], there[1][name]
        notes += _differences(*pair)
        for metric in one.metrics():
            before, after = (model.value(metric) for model in pair)
            if before is not None and after is not None:
                changes.append(
                    _change(name, metric, before, after, items[0][name].get(metric, {}), items[1][name].get(metric, {}))
                )
    return Comparison(one, other, changes, notes)


def section(comparison: Comparison) -> Section:
    """The comparison for a page."""
    columns = [Column("model", "model"), Column("metric", "metric", filter=True), Column("A", "A"), Column("B", "B"),
               Column("difference", "B - A"), Column("items", "paired items")]  # fmt: skip
    rows = [
        {
            "model": c.model,
            "metric": c.metric,
            "A": replace(c.first, source=None),
            "B": replace(c.second, source=None),
            "difference": c.difference,
            "items": c.items,
        }
        for c in comparison.changes
    ]
    lead = "Intervals of the difference are paired: the same items are resampled in both. Without items of both there is none."
    return Section(
        "compare",
        "What changed",
        lead,
        [
            Prose(
                comparison.notes
                or [
                    "Weights and UDS runs do not differ in data, settings or versions; the settings of evaluations were not compared."
                ]
            ),
            Table("compare", columns, rows, tools=True),
        ],
    )


def _change(model: str, metric: str, before: Value, after: Value, first: Items, second: Items) -> Change:
    gap = None if before.value is None or after.value is None else after.value - before.value
    both = sorted(set(first) & set(second))
    ends = None
    if len(both) > 1:
        gaps = np.array([second[key] - first[key] for key in both])
        # Only a mean of items moves as the mean of their differences; an AUC or an axis does not.
        if gap is not None and abs(float(gaps.mean()) - gap) < 1e-6:
            ends = interval(draws(len(both), RESAMPLES, 0) @ gaps / len(both))
    low, high = ends or (None, None)
    return Change(model, metric, before, after, Value(gap, low, high), len(both) if ends else 0)


def _items(findings: Findings, model: Model) -> dict[str, Items]:
    """Values by metric and item: UDS from its run, the rest from the evaluation's rows."""
    found: dict[str, dict[tuple[str, int], float]] = {}
    if model.depth is not None:
        found["uds"] = {("uds", e["idx"]): e["uds"] for e in model.depth.examples if e["uds"] is not None}
    tag = run_tag(model.name.partition(" [")[0])
    for path in findings.shelf.glob(f"*/*/{tag}/results.json"):
        if path.parent.parent.name == "uds":
            continue
        for row in findings.shelf.json(path, [dict]) or []:
            if "split" not in row or not isinstance(row.get("idx"), int):
                continue
            for metric, value in row.items():
                if metric in model.scores and metric != "uds" and isinstance(value, int | float):
                    found.setdefault(metric, {})[str(row["split"]), row["idx"]] = float(value)
    return dict(found)


def _differences(one: Model, other: Model) -> list[str]:
    notes = []
    if one.key != other.key:
        notes.append(f"{one.name}: the weights differ ({one.key[:12]}, {other.key[:12]})")
    if one.depth and other.depth:
        mine, theirs = one.depth, other.depth
        if mine.settings != theirs.settings:
            keys = [key for key in mine.settings if mine.settings[key] != theirs.settings.get(key)]
            notes.append(f"{one.name}: UDS was run with other settings: {', '.join(keys)}")
        origins = [run.summary.get("provenance") or {} for run in (mine, theirs)]
        if origins[0].get("data") != origins[1].get("data"):
            notes.append(f"{one.name}: UDS was run on other data")
        for package in ("residuum", "torch", "transformers"):
            versions = [(origin.get("versions") or {}).get(package) for origin in origins]
            if versions[0] != versions[1]:
                notes.append(f"{one.name}: {package} {versions[0]} against {versions[1]}")
    return notes
