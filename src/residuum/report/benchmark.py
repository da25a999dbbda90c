"""Benchmark table: all models by all metrics, coloured in each metric's own direction."""

from __future__ import annotations

from typing import Any

from residuum.report.blocks import Column, Section, Table, Value
from residuum.report.findings import Findings
from residuum.report.model import Model

SHOWN = ("uds", "mem", "privacy", "utility_rel", "overall", "em", "es", "prob", "rouge", "mia_loss")
"""Visible before somebody chooses, so that the table fits on paper."""
GOOD = {"less knowledge": "high", "more knowledge": "low", "more utility": "high", "two-sided": "ideal"}
"""The desired end for somebody who wants the forget set gone and everything else kept."""


def section(findings: Findings) -> Section | None:
    """The table."""
    if not findings.models:
        return None
    lead = (
        "Blue is the desired end of a metric, orange the other; the direction of each is in the tip of its heading. "
        "Choose rows and columns, sort by a heading, take what you see as CSV or LaTeX."
    )
    return Section("benchmark", "Benchmark table", lead, [table(findings)])


def table(findings: Findings) -> Table:
    """Models as rows, metrics as columns."""
    metrics = findings.metrics()
    rows = [_row(model, metrics) for model in findings.models]
    columns = [Column("model", "model"), *_about(rows), *(metric_column(findings, name) for name in metrics)]
    return Table("benchmark", columns, rows, tools=True, intervals=False)


def metric_column(findings: Findings, metric: str) -> Column:
    """How a metric is shown."""
    from residuum.metrics.registry import all_metrics

    higher_means, ideal = findings.meaning(metric)
    tip = f"higher means {higher_means}" if ideal is None else f"best at {ideal:g}"
    known = all_metrics()
    if metric in known:
        tip = f"{known[metric].meaning} ({tip})"
    good: Any = GOOD.get(higher_means)
    return Column(metric, metric, good=good, ideal=ideal or 0.0, tip=tip, shown=metric in SHOWN)


def _row(model: Model, metrics: list[str]) -> dict[str, Any]:
    hyper = model.hyper
    values: dict[str, Value | None] = {metric: model.value(metric) for metric in metrics}
    return {
        "model": model.name, "links": model.sources, "method": model.method or model.role,
        "epochs": _plain(hyper.get("epoch")), "lr": _plain(hyper.get("lr")), "alpha": _plain(hyper.get("alpha")), **values,
    }  # fmt: skip


def _about(rows: list[dict[str, Any]]) -> list[Column]:
    """Method and hyper-parameters, as far as the names say them."""
    wanted = ("method", "epochs", "lr", "alpha")
    return [Column(key, key, filter=True) for key in wanted if any(row[key] for row in rows)]


def _plain(number: float | None) -> str | None:
    return None if number is None else f"{number:g}"
