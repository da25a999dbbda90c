"""Steering: what a direction does to behaviour, and whether one brings the forgotten answers back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from residuum.report.blocks import (
    Block,
    Chart,
    Choice,
    Column,
    Prose,
    Section,
    Table,
    Value,
    rounded,
    shown,
    with_interval,
)
from residuum.report.findings import Findings
from residuum.report.model import Model
from residuum.report.rules import Comeback
from residuum.store.hashing import content_hash
from residuum.store.units import Unit

MOST_TEXTS = 20
"""Rows of texts side by side."""


def section(findings: Findings) -> Section | None:
    """Traits: heat maps, trait against coherence, texts. Probes: recovery against what it is held to."""
    traits, probes = findings.cached(read_traits), findings.cached(read_probes)
    if not traits and not probes:
        return None
    blocks: list[Block] = []
    if probes:
        blocks += [
            probe_bars(probes),
            Table(
                "probes",
                _PROBE_COLUMNS,
                [_probe_row(probe) for probe in probes],
                "Probes: does a direction bring the answers back?",
            ),
        ]
        blocks.append(
            Choice(
                "probe-texts", "answers under probe", {_probe_label(probe): _probe_blocks(probe) for probe in probes}
            )
        )
    if traits:
        blocks.append(
            Choice("traits", "trait", {label: _trait_blocks(label, units) for label, units in traits.items()})
        )
    lead = (
        "A probe adds or removes one direction and asks the forgotten questions again. It counts as far as it exceeds random "
        "directions and the same attack on a model that never knew; success proves that knowledge is left, failure proves nothing."
    )
    return Section("steering", "Steering", lead, blocks)


def of_model(findings: Findings, model: Model) -> list[dict[str, Any]]:
    """The probes of one model; their files know it by name."""
    name = model.name.partition(" [")[0]
    return [probe for probe in findings.cached(read_probes) if probe["models"]["unlearned"] == name]


def comebacks(findings: Findings, model: Model) -> list[Comeback]:
    """The best probe on the card of a model."""
    own = of_model(findings, model)
    if not own:
        return []
    best = max(own, key=lambda probe: (knows(probe), probe["recovery"] if probe["recovery"] is not None else -1.0))
    sentence = (
        f"{best['probe']}: accuracy {shown(best['accuracy']['unlearned'])} to {shown(best['accuracy']['steered'])}, recovery "
        f"{with_interval(_recovery(best))}, random directions up to {shown(best['random']['p95'])}; {best['finding']}"
    )
    return [Comeback("steering", sentence, knows(best), best["source"])]


def knows(probe: Mapping[str, Any]) -> bool:
    """Whether a probe shows that knowledge is left: beyond random directions, the retain model, and guessing."""
    beyond = [probe.get("beyond_random"), probe.get("beyond_retain")]
    guessing = (probe.get("beyond_guessing_ci95") or (0.0, 0.0))[0]
    kept = bool((probe.get("retain_accuracy") or {}).get("kept"))
    return kept and guessing > 0 and all(part is not None and part > 0 for part in beyond)


def read_probes(findings: Findings) -> list[dict[str, Any]]:
    """The probes' results, with the id of their source."""
    shelf, found = findings.shelf, []
    for path in shelf.glob("probes/*/*.json"):
        probe = shelf.json(path)
        if not isinstance(probe, dict) or "recovery" not in probe or "probe" not in probe:
            continue
        name = str(probe["models"]["unlearned"])
        unit = _probe_unit(findings, probe)
        settings = {"config": probe.get("config"), "score": probe.get("score"), "probe": probe["probe"]}
        source = (
            shelf.cite_unit(unit, name, settings)
            if unit
            else shelf.cite("steer-probe", name, shelf.place(path), settings=settings)
        )
        found.append({**probe, "source": source})
    return found


def _probe_unit(findings: Findings, probe: Mapping[str, Any]) -> Unit | None:
    """The unit behind a probe's file: its attack on the unlearned model."""
    for unit in reversed(findings.shelf.units("steer-probe")):
        spec = unit.task.spec
        same = spec.get("probe") == probe["probe"] and spec.get("part") == "attack" and spec.get("role") == "unlearned"
        if same and probe["models"]["unlearned"] in (unit.provenance.get("weights") or {}):
            return unit
    return None


def read_traits(findings: Findings) -> dict[str, list[Unit]]:
    """Steering runs by trait and context; contexts get a number when a trait has several."""
    groups: dict[tuple[str, str, str], list[Unit]] = {}
    for unit in findings.shelf.units("steer"):
        spec = unit.task.spec
        groups.setdefault((spec["experiment"], spec["trait"], content_hash(spec["context"])[:8]), []).append(unit)
    found = {}
    for (experiment, trait, context), units in groups.items():
        model = units[0].task.spec["context"]["model"]["name"]
        several = sum(key[:2] == (experiment, trait) for key in groups) > 1
        label = f"{trait} on {model}, {experiment}" + (f" [{context}]" if several else "")
        found[label] = units
        failed = sum(unit.value.get("status") != "ok" for unit in units)
        if failed:
            findings.shelf.partial(label, f"{failed} of {len(units)} steering runs were not judged")
        findings.shelf.cite_unit(
            units[-1], model, {"experiment": experiment, "trait": trait, "context": units[-1].task.spec["context"]}
        )
    return found


def _runs(units: Sequence[Unit]) -> list[Unit]:
    """Judged single-layer runs that are no controls."""
    return [
        u
        for u in units
        if u.task.spec["run"] and not u.value.get("control_of") and u.value["result"].get("trait_mean") is not None
    ]


def _trait_blocks(label: str, units: Sequence[Unit]) -> list[Any]:
    runs = _runs(units)
    baseline = next((unit for unit in reversed(units) if unit.task.spec["run"] is None), None)
    if not runs:
        return [Prose("No steered run has been judged yet.")]
    best = max(
        runs,
        key=lambda unit: (unit.value["result"].get("coherence_mean", 0.0) >= 70, unit.value["result"]["trait_mean"]),
    )
    blocks: list[Any] = [
        heat(label, units, "trait_mean"),
        heat(label, units, "coherence_mean"),
        against_coherence(label, units),
    ]
    return [*blocks, _texts(baseline, best)]


def heat(label: str, units: Sequence[Unit], what: str) -> Chart:
    """Mean score by layer and coefficient, single layers only."""
    cells: dict[tuple[int, float], float | None] = {}
    for unit in _runs(units):
        run = unit.task.spec["run"]
        if len(run["layers"]) == 1 and run.get("operator", "add") == "add":
            cells[run["layers"][0], run["coefficients"][0]] = unit.value["result"].get(what)
    layers, coefficients = sorted({key[0] for key in cells}), sorted({key[1] for key in cells})
    name = what.removesuffix("_mean")
    return Chart(f"steering-{name}", "heat", f"{label}: {name}", {
        "x": {"label": "coefficient", "names": [f"{c:.4g}" for c in coefficients]}, "y": {"label": "layer", "names": [str(layer) for layer in layers]},
        "values": [[rounded(cells.get((layer, c)), 1) for c in coefficients] for layer in layers], "min": 0, "max": 100, "digits": 1,
        "scale": "score", "legend": f"mean {name} (0 to 100)",
    })  # fmt: skip


def against_coherence(label: str, units: Sequence[Unit]) -> Chart:
    """What the trait costs in coherence; controls and the baseline beside it."""
    groups: dict[str, list[Any]] = {"steered": [], "random control": [], "baseline": []}
    for unit in units:
        result, run = unit.value["result"], unit.task.spec["run"]
        if result.get("trait_mean") is None or result.get("coherence_mean") is None:
            continue
        kind = "baseline" if run is None else "random control" if unit.value.get("control_of") else "steered"
        name = (
            "baseline"
            if run is None
            else f"L{'_'.join(map(str, run['layers']))} c{'_'.join(f'{c:.4g}' for c in run['coefficients'])}"
        )
        low, high = result.get("ci95") or (None, None)
        groups[kind].append(
            [
                rounded(result["coherence_mean"], 1),
                rounded(result["trait_mean"], 1),
                name,
                None,
                None,
                rounded(low, 1),
                rounded(high, 1),
            ]
        )
    series = [
        {"name": name, "colour": colour, "points": points}
        for (name, points), colour in zip(groups.items(), (1, 6, 0), strict=True)
        if points
    ]
    return Chart("trait-coherence", "scatter", f"{label}: trait against coherence", {
        "x": {"label": "coherence"}, "y": {"label": "trait"}, "series": series, "front": [], "digits": 1,
    })  # fmt: skip


def _texts(baseline: Unit | None, best: Unit) -> Table:
    """Answers before and after, side by side."""
    before = {item["question_id"]: item for item in reversed(baseline.value["items"])} if baseline else {}
    run = best.task.spec["run"]
    rows = []
    for item in best.value["items"][:MOST_TEXTS]:
        plain = before.get(item["question_id"])
        rows.append({
            "question": item["question"], "before": plain["response"] if plain else None, "before_trait": _score(plain),
            "after": item["response"], "after_trait": _score(item),
        })  # fmt: skip
    layers, coefficients = "_".join(map(str, run["layers"])), "_".join(f"{c:.4g}" for c in run["coefficients"])
    columns = [
        Column("question", "question"),
        Column("before", "unsteered"),
        Column("before_trait", "trait", 1),
        Column("after", "steered"),
        Column("after_trait", "trait", 1),
    ]
    return Table("texts", columns, rows, f"Before and after: layer {layers}, coefficient {coefficients}")


def _score(item: Mapping[str, Any] | None) -> float | None:
    return None if item is None else item["trait"]["score"]


def probe_bars(probes: Sequence[Mapping[str, Any]]) -> Chart:
    """Recovery by probe, beside the 95th percentile of random directions and the retain model."""
    series = [
        {"name": "recovery", "colour": 1, "values": [[rounded(p["recovery"]), *(rounded(end) for end in p.get("recovery_ci95") or (None, None))] for p in probes]},
        {"name": "random directions, 95th percentile", "colour": 6, "values": [[rounded(p["random"]["p95"]), None, None] for p in probes]},
        {"name": "same attack on retain", "colour": 0, "values": [[rounded(p.get("retain_recovery")), None, None] for p in probes]},
    ]  # fmt: skip
    return Chart("probes", "bars", "Recovery under steering probes", {
        "groups": [_probe_label(probe) for probe in probes], "series": series, "marks": [{"y": 0, "label": ""}], "x": {"label": ""}, "y": {"label": "recovery"},
    })  # fmt: skip


_PROBE_COLUMNS = [
    Column("probe", "probe"), Column("model", "model"), Column("original", "original"), Column("unlearned", "unlearned"), Column("steered", "steered"),
    Column("recovery", "recovery"), Column("random", "random, p95"), Column("retain", "on retain"), Column("guessing", "beyond guessing"),
    Column("kept", "retain kept"), Column("finding", "finding"),
]  # fmt: skip


def _probe_row(probe: Mapping[str, Any]) -> dict[str, Any]:
    source, accuracy = probe["source"], probe["accuracy"]
    low, high = probe.get("beyond_guessing_ci95") or (None, None)
    return {
        "probe": probe["probe"], "links": [("probe", source)], "model": probe["models"]["unlearned"],
        **{key: Value(accuracy[key], source=source) for key in ("original", "unlearned", "steered")}, "recovery": _recovery(probe),
        "random": Value(probe["random"]["p95"], source=source), "retain": Value(probe.get("retain_recovery"), source=source),
        "guessing": Value(probe.get("beyond_guessing"), low, high, source), "kept": bool(probe["retain_accuracy"]["kept"]), "finding": probe["finding"],
    }  # fmt: skip


def _recovery(probe: Mapping[str, Any]) -> Value:
    low, high = probe.get("recovery_ci95") or (None, None)
    return Value(probe["recovery"], low, high, probe["source"])


def _probe_label(probe: Mapping[str, Any]) -> str:
    return f"{probe['probe']} on {probe['models']['unlearned']}"


def _probe_blocks(probe: Mapping[str, Any]) -> list[Any]:
    rows = [
        {key: text.get(key) for key in ("question", "truth", "before", "after")}
        for text in probe.get("texts", [])[:MOST_TEXTS]
    ]
    columns = [
        Column("question", "question"),
        Column("truth", "truth"),
        Column("before", "unsteered"),
        Column("after", "steered"),
    ]
    blocks: list[Any] = [Prose(str(probe.get("description") or ""))]
    if layers := probe.get("layers"):
        points = {
            key: [[row["layer"], rounded(row.get(key)), None, None] for row in layers if row.get(key) is not None]
            for key in ("forget", "linear_probe")
        }
        names = {
            "forget": "forget accuracy, best setting",
            "linear_probe": "linear probe: forget from retain questions",
        }
        series = [
            {"name": names[key], "colour": i, "points": own} for i, (key, own) in enumerate(points.items()) if own
        ]
        blocks.append(Chart("probe-layers", "lines", f"{_probe_label(probe)}: by layer", {
            "x": {"label": "layer"}, "y": {"label": "accuracy", "min": 0, "max": 1}, "series": series, "marks": [],
        }))  # fmt: skip
    return [*blocks, Table("probe-texts", columns, rows, "Answers on the half that nothing was chosen on")]
