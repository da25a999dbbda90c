"""Steering probes: does one direction bring the forgotten answers back? From the files of ``residuum steer probe``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from residuum.report.blocks import Block, Chart, Choice, Column, Prose, Table, Value, rounded, shown, with_interval
from residuum.report.findings import Findings
from residuum.report.model import Model
from residuum.report.rules import Comeback
from residuum.report.shapes import ENDS, MAYBE
from residuum.store.units import Unit

MOST_TEXTS = 20
"""Rows of texts side by side."""
_PROBE = {
    "probe": str, "weights?": str, "models": {"unlearned": str}, "accuracy": dict.fromkeys(("original", "unlearned", "steered"), MAYBE),
    "recovery": MAYBE, "recovery_ci95?": ENDS, "random": {"p95": MAYBE}, "retain_recovery?": MAYBE, "retain_accuracy": {"kept": bool},
    "beyond_random?": MAYBE, "beyond_retain?": MAYBE, "beyond_guessing?": MAYBE, "beyond_guessing_ci95?": ENDS, "finding": str,
    "layers?": [{"layer": int, "forget?": MAYBE, "linear_probe?": MAYBE}], "texts?": [dict],
}  # fmt: skip


def probe_blocks(findings: Findings) -> list[Block]:
    """Recovery against what it is held to, and the answers; nothing when there are no probes."""
    probes = findings.cached(read_probes)
    if not probes:
        return []
    rows = [_probe_row(probe) for probe in probes]
    texts = {probe["label"]: _probe_blocks(probe) for probe in probes}
    return [
        probe_bars(probes),
        Table("probes", _PROBE_COLUMNS, rows, "Probes: does a direction bring the answers back?"),
        Choice("probe-texts", "answers under probe", texts),
    ]


def of_model(findings: Findings, model: Model) -> list[dict[str, Any]]:
    """The probes of one model."""
    return [
        probe
        for probe in findings.cached(read_probes)
        if findings.is_about(model, probe.get("weights"), named=probe["models"]["unlearned"] == model.name)
    ]


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
    guessing = (probe.get("beyond_guessing_ci95") or (0.0, 0.0))[0] or 0.0
    kept = bool((probe.get("retain_accuracy") or {}).get("kept"))
    return kept and guessing > 0 and all(part is not None and part > 0 for part in beyond)


def read_probes(findings: Findings) -> list[dict[str, Any]]:
    """The probes' results, with the id of their source and a label of their own."""
    shelf, found = findings.shelf, []
    for path in shelf.glob("probes/*/*.json", "probes/*/*/*.json"):
        probe = shelf.json(path, _PROBE)
        if probe is None:
            continue
        name = probe["models"]["unlearned"]
        unit = _probe_unit(findings, probe)
        settings = {"config": probe.get("config"), "score": probe.get("score"), "probe": probe["probe"]}
        source = (
            shelf.cite_unit(unit, name, settings)
            if unit
            else shelf.cite("steer-probe", name, shelf.place(path), settings=settings)
        )
        found.append({**probe, "source": source, "label": _probe_label(probe)})
    often = Counter(probe["label"] for probe in found)
    for probe in found:
        if often[probe["label"]] > 1 and probe.get("weights"):
            probe["label"] += f" [{probe['weights'][:8]}]"
    return found


def _probe_unit(findings: Findings, probe: Mapping[str, Any]) -> Unit | None:
    """The unit behind a probe's file: its attack on the unlearned model."""
    for unit in reversed(findings.shelf.units("steer-probe", {"spec": dict})):
        spec = unit.task.spec
        same = spec.get("probe") == probe["probe"] and spec.get("part") == "attack" and spec.get("role") == "unlearned"
        weights = (unit.provenance.get("weights") or {}).get(probe["models"]["unlearned"])
        if same and weights is not None and weights == (probe.get("weights") or weights):
            return unit
    return None


def probe_bars(probes: Sequence[Mapping[str, Any]]) -> Chart:
    """Recovery by probe, beside the 95th percentile of random directions and the retain model."""
    series = [
        {"name": "recovery", "colour": 1, "values": [[rounded(p["recovery"]), *(rounded(end) for end in p.get("recovery_ci95") or (None, None))] for p in probes]},
        {"name": "random directions, 95th percentile", "colour": 6, "values": [[rounded(p["random"]["p95"]), None, None] for p in probes]},
        {"name": "same attack on retain", "colour": 0, "values": [[rounded(p.get("retain_recovery")), None, None] for p in probes]},
    ]  # fmt: skip
    return Chart("probes", "bars", "Recovery under steering probes", {
        "groups": [probe["label"] for probe in probes], "series": series, "marks": [{"y": 0, "label": ""}], "x": {"label": ""}, "y": {"label": "recovery"},
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
        for text in (probe.get("texts") or [])[:MOST_TEXTS]
    ]
    columns = [
        Column("question", "question"),
        Column("truth", "truth"),
        Column("before", "unsteered"),
        Column("after", "steered"),
    ]
    blocks: list[Any] = [Prose(str(probe.get("description") or probe["probe"]), probe["source"])]
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
        blocks.append(Chart("probe-layers", "lines", f"{probe['label']}: by layer", {
            "x": {"label": "layer"}, "y": {"label": "accuracy", "min": 0, "max": 1}, "series": series, "marks": [],
        }))  # fmt: skip
    return [*blocks, Table("probe-texts", columns, rows, "Answers on the half that nothing was chosen on")]
