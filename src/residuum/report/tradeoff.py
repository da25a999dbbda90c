"""Trade-off: forgetting against utility, and what learning rate, retain weight and target layer do to both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from residuum.report.blocks import Block, Chart, Choice, Section, hue, rounded
from residuum.report.depth import BINS
from residuum.report.findings import Findings
from residuum.report.model import Model

_LABELS = {"uds": "UDS (1 = erased like retain)", "mem": "memorization axis (1 = nothing reproduced)"}


def section(findings: Findings) -> Section | None:
    """Scatter with the Pareto front, trends by hyper-parameter, histograms and layers by method."""
    forgetting = _forgetting(findings)
    if forgetting is None:
        return None
    blocks: list[Block] = [scatter(findings)]
    blocks += [chart for option in ("lr", "alpha") if (chart := trend(findings, option)) is not None]
    blocks += [chart for chart in (layers_by_method(findings), rmu_layers(findings)) if chart is not None]
    spreads = {
        f"by {title}": [chart]
        for title, chart in (("method", histograms(findings, "method")), ("learning rate", histograms(findings, "lr")))
        if chart
    }
    if spreads:
        blocks.append(Choice("spread", "UDS of examples", spreads))
    lead = "Up and right is better. The line joins the models that no other beats in both; hover or open the numbers for names."
    return Section("tradeoff", "Trade-off", lead, blocks)


def _forgetting(findings: Findings) -> str | None:
    """The measure of forgetting that the models with a utility have."""
    for metric in ("uds", "mem"):
        if any(_pair(model, metric) for model in findings.unlearned):
            return metric
    return None


def _pair(model: Model, metric: str) -> tuple[float, float] | None:
    forgetting, utility = model.value(metric), model.value("utility_rel")
    if forgetting is None or utility is None or forgetting.value is None or utility.value is None:
        return None
    return utility.value, forgetting.value


def scatter(findings: Findings) -> Chart:
    """Forgetting against utility, one colour and shape per method, references included."""
    metric = _forgetting(findings) or "uds"
    groups: dict[str, list[Any]] = {}
    for model in findings.models:
        if _pair(model, metric) is None:
            continue
        own, utility = model.value(metric), model.value("utility_rel")
        assert own is not None and utility is not None  # noqa: PT018  `_pair` has seen both
        numbers = (utility.value, own.value, utility.low, utility.high, own.low, own.high)
        x, y, *ends = (rounded(number) for number in numbers)
        groups.setdefault(model.group, []).append([x, y, model.name, *ends])
    pairs = [pair for model in findings.unlearned if (pair := _pair(model, metric))]
    return Chart("trade-off", "scatter", "Forgetting against utility", {
        "x": {"label": "utility relative to the full model"}, "y": {"label": _LABELS[metric]},
        "series": [{"name": name, "colour": hue(name), "points": points} for name, points in groups.items()],
        "front": [[rounded(x), rounded(y)] for x, y in pareto(pairs)],
    })  # fmt: skip


def pareto(pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The pairs that no other is at least as good as in both and better in one, from left to right."""
    front: list[tuple[float, float]] = []
    for x, y in sorted(set(pairs), reverse=True):
        if not front or y > front[-1][1]:
            front.append((x, y))
    return front[::-1]


def trend(findings: Findings, option: str) -> Chart | None:
    """Mean UDS of each method against one hyper-parameter; None when no method has two values of it."""
    series: list[dict[str, Any]] = []
    ticks: set[float] = set()
    for method, models in _by_method(findings).items():
        by_value: dict[float, list[float]] = {}
        for model in models:
            value = model.value("uds")
            if option in model.hyper and value is not None and value.value is not None:
                by_value.setdefault(model.hyper[option], []).append(value.value)
        if len(by_value) > 1:
            points = [
                [x, rounded(float(np.mean(y))), rounded(min(y)), rounded(max(y))] for x, y in sorted(by_value.items())
            ]
            series.append({"name": method, "colour": hue(method), "points": points})
            ticks |= set(by_value)
    if not series:
        return None
    label = {"lr": "learning rate", "alpha": "alpha, the weight of the retain loss"}[option]
    return Chart(f"{option}-trend", "lines", f"UDS by {label.split(',')[0]}", {
        "x": {"label": label, "log": option == "lr", "ticks": sorted(ticks)}, "y": {"label": "mean UDS (band: least to most)", "min": 0, "max": 1},
        "series": series, "marks": [],
    })  # fmt: skip


def layers_by_method(findings: Findings) -> Chart | None:
    """Which layers lack the knowledge after each method, beside what they held."""
    series: list[dict[str, Any]] = []
    known: list[dict[str, Any]] | None = None
    for method, models in _by_method(findings).items():
        profiles = [m.depth.profile for m in models if m.depth and not m.depth.variant and m.depth.profile]
        profiles = [profile for profile in profiles if len(profile) == len(profiles[0])]
        if not profiles:
            continue
        known = known or profiles[0]
        points = []
        for rows in zip(*profiles, strict=True):
            deltas = [row["s2_delta"] for row in rows if row["s2_delta"] is not None]
            points.append([rows[0]["layer"], rounded(float(np.mean(deltas))) if deltas else None, None, None])
        series.append({"name": method, "colour": hue(method), "points": points})
    if known is None or len(series) < 2:
        return None
    held = [[row["layer"], rounded(row["s1_delta"]), None, None] for row in known]
    series.append({"name": "retain (S1): what was there", "colour": "ink", "points": held})
    return Chart("layers-by-method", "lines", "Where each method takes effect (S2), and where the knowledge was (S1)", {
        "x": {"label": "layer"}, "y": {"label": "mean loss of log-probability (nats)"}, "series": series, "marks": [],
    })  # fmt: skip


def rmu_layers(findings: Findings) -> Chart | None:
    """RMU's target layer against the layers that hold the knowledge; None without two target layers."""
    by_layer: dict[float, list[float]] = {}
    profile: list[dict[str, Any]] = []
    for model in findings.unlearned:
        value = model.value("uds")
        if model.method == "rmu" and "layer" in model.hyper and value is not None and value.value is not None:
            by_layer.setdefault(model.hyper["layer"], []).append(value.value)
            profile = profile or (model.depth.profile if model.depth else [])
    if not by_layer or not profile:
        return None
    points = [
        [layer, rounded(float(np.mean(y))), rounded(min(y)), rounded(max(y))] for layer, y in sorted(by_layer.items())
    ]
    held = [[row["layer"], rounded(row["ft_share"]), None, None] for row in profile]
    return Chart("rmu-layers", "lines", "RMU: target layer against the layers that hold the knowledge", {
        "x": {"label": "layer"}, "y": {"label": "UDS, and share of examples", "min": 0, "max": 1}, "marks": [],
        "series": [
            {"name": "UDS by target layer", "colour": 1, "points": points},
            {"name": "examples whose knowledge is in this layer", "colour": 0, "points": held},
        ],
    })  # fmt: skip


def histograms(findings: Findings, by: str) -> Chart | None:
    """UDS of all examples, one series per method or learning rate."""
    groups: dict[str, list[float]] = {}
    for model in findings.unlearned:
        label = model.method if by == "method" else (f"lr {model.hyper['lr']:g}" if "lr" in model.hyper else "")
        if label and model.depth is not None:
            groups.setdefault(label, []).extend(e["uds"] for e in model.depth.examples if e["uds"] is not None)
    if len(groups) < 2:
        return None
    edges = [i / BINS for i in range(BINS + 1)]
    order = (
        sorted(groups.items(), key=lambda pair: float(pair[0].removeprefix("lr ")))
        if by == "lr"
        else list(groups.items())
    )
    series = [
        {
            "name": label,
            "colour": hue(label) if by == "method" else i,
            "counts": [int(n) for n in np.histogram(np.clip(depths, 0, 1), edges)[0]],
        }
        for i, (label, depths) in enumerate(order)
    ]
    title = "method" if by == "method" else "learning rate"
    return Chart(f"uds-by-{by}", "histogram", f"UDS of all examples, by {title}", {
        "edges": edges, "x": {"label": "UDS (1 = erased like retain)"}, "y": {"label": "examples"}, "series": series,
        "marks": [], "rows": True,
    })  # fmt: skip


def _by_method(findings: Findings) -> dict[str, list[Model]]:
    found: dict[str, list[Model]] = {}
    for model in findings.unlearned:
        if model.method:
            found.setdefault(model.method, []).append(model)
    return found
