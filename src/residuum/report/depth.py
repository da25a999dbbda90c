"""Depth: where the knowledge sat and what is missing there, layer by layer and example by example."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from residuum.metrics.scores import draws, interval
from residuum.report.blocks import (
    Block,
    Chart,
    Choice,
    Column,
    Prose,
    Section,
    Table,
    Value,
    hue,
    rounded,
    rounded_all,
    rounded_rows,
    shown,
    with_interval,
)
from residuum.report.findings import Findings
from residuum.report.runs import DepthRun, identity
from residuum.report.shapes import MODEL
from residuum.uncertainty import RESAMPLES

TAUS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)
BINS = 20


def section(findings: Findings) -> Section | None:
    """Profile, heat map, histogram, thresholds and examples of each UDS run."""
    runs = depth_runs(findings)
    if not runs:
        return None
    shared: dict[str, Any] = {}
    said = _said(findings)
    options = {label: _blocks(run, shared, said.get(run.key, {})) for label, run in runs.items()}
    lead = (
        "Stage 1 puts retain's states into the full model, stage 2 the unlearned model's. Where both lose the same, "
        "the layer is erased; where only stage 1 loses, the knowledge is still there."
    )
    blocks: list[Block] = [Choice("depth", "model", options, shared)]
    if len(runs) > 1:
        blocks.insert(0, overview(findings))
    return Section("depth", "Depth", lead, blocks)


def depth_runs(findings: Findings) -> dict[str, DepthRun]:
    """All UDS runs by what the page calls them, models under test first."""
    models = sorted(findings.models, key=lambda model: model.role != "unlearned")
    return {
        model.name + (f" ({run.variant})" if run.variant else ""): run
        for model in models
        for run in reversed(model.depths)
    }


def _blocks(run: DepthRun, shared: dict[str, Any], said: Mapping[str, str]) -> list[Any]:
    if not run.examples:
        return [Prose("The examples of this run cannot be read; its summary is in the table below.")]
    low, high = run.ci95 or (None, None)
    counts = f"{run.summary['n_scored']} of {run.summary['total_examples']} examples"
    blocks: list[Any] = [Prose(f"UDS {with_interval(Value(run.uds, low, high))} over {counts}", run.source)]
    blocks += [profile(run)] if run.profile else []
    blocks += [heat(run), histogram(run)]
    if run.has_deltas:
        found = tau_rows(run)
        blocks += [tau_chart(run, found), tau_table(found)]
    return [*blocks, _examples(run, shared, said)]


def overview(findings: Findings) -> Chart:
    """UDS of all models side by side, with intervals."""
    models = [
        model for model in findings.models if (value := model.value("uds")) is not None and value.value is not None
    ]
    groups: dict[str, list[Any]] = {}
    for place, model in enumerate(models):
        value = model.value("uds") or Value(None)
        groups.setdefault(model.group, []).append(
            [place, rounded(value.value), rounded(value.low), rounded(value.high), model.name]
        )
    series = [{"name": group, "colour": hue(group), "points": points} for group, points in groups.items()]
    return Chart("uds-overview", "lines", "UDS of all models", {
        "x": {"label": "model", "names": [model.name for model in models]}, "y": {"label": "UDS (1 = erased like retain)", "min": 0, "max": 1},
        "series": series, "marks": [], "points_only": True,
    })  # fmt: skip


def profile(run: DepthRun) -> Chart:
    """Mean S1 and S2 delta per layer with 95 % bands."""
    series = [
        {
            "name": name, "colour": colour,
            "points": [[row["layer"], *(rounded(row[f"{stage}_{part}"]) for part in ("delta", "low", "high"))] for row in run.profile],
        }
        for stage, name, colour in (("s1", "retain into full (S1)", 0), ("s2", "unlearned into full (S2)", 1))
    ]  # fmt: skip
    marks = [{"y": run.tau, "label": f"threshold {run.tau:g}"}]
    return Chart("depth-profile", "lines", f"{run.name}: what each layer is worth", {
        "x": {"label": "layer"}, "y": {"label": "mean loss of log-probability (nats)"}, "series": series, "marks": marks,
    })  # fmt: skip


def heat(run: DepthRun) -> Chart:
    """What is erased of what each layer held, layer by example; empty where it held nothing."""
    first, second = run.tables
    held = np.array([[layer in e["ft_layers"] for layer in run.layers] for e in run.examples])
    if run.has_deltas:
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.clip(second / first, 0, 1)
    else:
        share = 1.0 - second  # with metric em, a cell is lost when its EM is
    cells = np.where(held, share, np.nan).T  # [layer, example]
    order = np.argsort([-1.0 if e["uds"] is None else e["uds"] for e in run.examples], kind="stable")
    return Chart("depth-heat", "heat", f"{run.name}: erased share by layer and example", {
        "x": {"label": "example, the least erased first", "names": [str(run.examples[i]["idx"]) for i in order]},
        "y": {"label": "layer", "names": [str(layer) for layer in run.layers]},
        "values": rounded_rows(cells[:, order], 2), "min": 0, "max": 1, "digits": 2,
        "scale": "erased", "legend": "erased share (1 = like retain)",
    })  # fmt: skip


def histogram(run: DepthRun) -> Chart:
    """How the depths of the examples are spread."""
    return histogram_of({run.name: run}, f"{run.name}: UDS of its examples")


def histogram_of(runs: Mapping[str, DepthRun], title: str, name: str = "uds-histogram") -> Chart:
    """Histograms of the examples' UDS, one series per run or group."""
    edges = [i / BINS for i in range(BINS + 1)]
    series = []
    for colour, (label, run) in enumerate(runs.items()):
        depths = [e["uds"] for e in run.examples if e["uds"] is not None]
        counts, _ = np.histogram(np.clip(depths, 0, 1), edges)
        series.append({"name": label, "colour": colour, "counts": [int(count) for count in counts]})
    return Chart(name, "histogram", title, {
        "edges": edges, "x": {"label": "UDS (1 = erased like retain)"}, "y": {"label": "examples"}, "series": series, "marks": [],
    })  # fmt: skip


def tau_rows(run: DepthRun) -> list[dict[str, Any]]:
    """UDS at several thresholds, as ``residuum tau`` gives it; without those that need layers nobody computed."""
    first, second = run.tables
    rows = []
    for tau in TAUS:
        held = first > tau
        if np.isnan(second[held]).any():
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            gone = np.where(held, first * np.clip(second / first, 0, 1), 0.0).sum(axis=1)
            depths = gone / np.where(held, first, 0.0).sum(axis=1)
        depths = depths[held.any(axis=1)]
        low, high = (None, None)
        if len(depths) > 1:
            low, high = interval(draws(len(depths), RESAMPLES, run.seed) @ depths / len(depths)) or (None, None)
        mean = float(depths.mean()) if len(depths) else None
        rows.append(
            {
                "tau": f"{tau:g}",
                "uds": Value(mean, low, high, run.source),
                "n": len(depths),
                "without": len(first) - len(depths),
            }
        )
    return rows


def tau_chart(run: DepthRun, found: list[dict[str, Any]]) -> Chart:
    """How UDS depends on the threshold."""
    points = [[float(r["tau"]), rounded(r["uds"].value), rounded(r["uds"].low), rounded(r["uds"].high)] for r in found]
    return Chart("tau", "lines", f"{run.name}: UDS against the threshold", {
        "x": {"label": "threshold tau (nats)"}, "y": {"label": "UDS", "min": 0, "max": 1},
        "series": [{"name": "UDS", "colour": 1, "points": points}], "marks": [{"x": run.tau, "label": "as run"}],
    })  # fmt: skip


def tau_table(found: list[dict[str, Any]]) -> Table:
    """The same as numbers."""
    columns = [
        Column("tau", "tau"),
        Column("uds", "UDS"),
        Column("interval", "95 %"),
        Column("n", "examples"),
        Column("without", "without FT layers"),
    ]
    rows = [
        {
            **row,
            "interval": f"{shown(row['uds'].low)} to {shown(row['uds'].high)}" if row["uds"].low is not None else "",
        }
        for row in found
    ]
    return Table("tau", columns, rows, "UDS at other thresholds, from the stored deltas")


def _examples(run: DepthRun, shared: dict[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """The example browser: texts and stage 1 once for all runs that share them, stage 2 for each."""
    first, second = run.tables
    texts = [
        [
            e["idx"],
            e["question"],
            e["prefix"],
            e["entity_text"],
            e["reference_text"],
            e.get("full_gen"),
            e.get("retain_gen"),
        ]
        for e in run.examples
    ]
    text_key, stage_key = _digest(repr(texts).encode()), _digest(first.tobytes())
    shared.setdefault(f"texts-{text_key}", texts)
    shared.setdefault(f"stage-{stage_key}", rounded_rows(first))
    own = [e.get("unlearn_gen") or said.get(e["question"]) for e in run.examples]
    return {
        "block": "examples", "model": run.name, "layers": run.layers, "what": "delta" if run.has_deltas else "EM",
        "texts": f"texts-{text_key}", "first": f"stage-{stage_key}", "second": rounded_rows(second),
        "uds": rounded_all([e["uds"] for e in run.examples]), "held": [e["ft_layers"] for e in run.examples],
        "said": own if any(own) else None,
    }  # fmt: skip


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _said(findings: Findings) -> dict[str, dict[str, str]]:
    """What each model, by its weights, answered in its evaluation, by question."""
    found: dict[str, dict[str, str]] = {}
    for path in findings.shelf.glob("*/generation/*/summary.json", "generation/*/summary.json"):
        about = findings.shelf.json(path, {"models": {"model": MODEL}})
        if about is None:
            continue
        rows = findings.shelf.json(path.with_name("results.json"), [{"question?": str, "generated?": str}]) or []
        texts = {row.get("question"): row["generated"] for row in rows if row.get("generated") is not None}
        found.setdefault(identity(about["models"]["model"]), {}).update(texts)
    return found
