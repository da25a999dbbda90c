"""Steering: what a direction does to behaviour, from units ``steer``; the probes of unlearned models beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from residuum.report.blocks import Chart, Choice, Column, Prose, Section, Table, rounded
from residuum.report.findings import Findings
from residuum.report.probes import MOST_TEXTS, probe_blocks
from residuum.report.shapes import ENDS, MAYBE
from residuum.store.hashing import content_hash
from residuum.store.units import Unit

COHERENT = 70
"""Least mean coherence of a run that is shown as the best."""
_RUN = {"layers": [int], "coefficients": [int | float]}
_ITEM = {"question_id": str | int, "question": str, "response": str, "trait": {"score": MAYBE}}
_STEER: dict[str, Any] = {
    "spec": {"experiment": str, "trait": str, "context": {"model": {"name": str}}, "run": (type(None), _RUN)},
    "value": {"result": {"trait_mean?": MAYBE, "coherence_mean?": MAYBE, "ci95?": ENDS}, "items": [_ITEM]},
}


@dataclass(frozen=True)
class Trait:
    """The runs of one trait in one context."""

    label: str
    units: list[Unit] = field(repr=False)
    source: str

    @property
    def runs(self) -> list[Unit]:
        """Judged runs that are no controls."""
        steered = [unit for unit in self.units if unit.task.spec["run"] and not unit.value.get("control_of")]
        return [unit for unit in steered if unit.value["result"].get("trait_mean") is not None]


def section(findings: Findings) -> Section | None:
    """Traits: heat maps, trait against coherence, texts. Probes: recovery against what it is held to."""
    traits, blocks = findings.cached(read_traits), probe_blocks(findings)
    if traits:
        blocks = [*blocks, Choice("traits", "trait", {trait.label: _trait_blocks(trait) for trait in traits})]
    if not blocks:
        return None
    lead = (
        "A probe adds or removes one direction and asks the forgotten questions again. It counts as far as it exceeds random "
        "directions and the same attack on a model that never knew; success proves that knowledge is left, failure proves nothing."
    )
    return Section("steering", "Steering", lead, blocks)


def read_traits(findings: Findings) -> list[Trait]:
    """Steering runs by trait, root folder and context; the last two are told apart when a trait has several."""
    groups: dict[tuple[str, str, str], list[Unit]] = {}
    for unit in findings.shelf.units("steer", _STEER):
        spec = unit.task.spec
        context = content_hash([spec.get("root"), spec["context"]])[:8]
        groups.setdefault((spec["experiment"], spec["trait"], context), []).append(unit)
    found = []
    for (experiment, trait, context), units in groups.items():
        model = units[0].task.spec["context"]["model"]["name"]
        split = next((unit.value["split"] for unit in units if unit.value.get("split")), None)
        label = f"{trait} on {model}, {experiment}" + (f", {split} questions" if split else "")
        if sum(key[:2] == (experiment, trait) for key in groups) > 1:
            label += f" [{context}]"
        failed = sum(unit.value.get("status") != "ok" for unit in units)
        if failed:
            findings.shelf.partial(label, f"{failed} of {len(units)} steering runs were not judged")
        about = {"experiment": experiment, "trait": trait, "context": units[-1].task.spec["context"]}
        found.append(Trait(label, units, findings.shelf.cite_unit(units[-1], model, about)))
    return found


def _trait_blocks(trait: Trait) -> list[Any]:
    if not trait.runs:
        return [Prose("No steered run has been judged yet.", trait.source)]
    baseline = next((unit for unit in reversed(trait.units) if unit.task.spec["run"] is None), None)
    best = max(trait.runs, key=_rank)
    about = Prose(f"{len(trait.runs)} steered runs of {len(trait.units)} in all.", trait.source)
    return [
        about,
        heat(trait, "trait_mean"),
        heat(trait, "coherence_mean"),
        against_coherence(trait),
        _texts(baseline, best),
    ]


def _rank(unit: Unit) -> tuple[bool, float]:
    """Coherent runs before others, then by how much of the trait they show."""
    result = unit.value["result"]
    return (result.get("coherence_mean") or 0.0) >= COHERENT, result["trait_mean"]


def heat(trait: Trait, what: str) -> Chart:
    """Mean score by layer and coefficient, single layers only."""
    cells: dict[tuple[int, float], float | None] = {}
    for unit in trait.runs:
        run = unit.task.spec["run"]
        if len(run["layers"]) == 1 and (run.get("operator") or "add") == "add":
            cells[run["layers"][0], run["coefficients"][0]] = unit.value["result"].get(what)
    layers, coefficients = sorted({key[0] for key in cells}), sorted({key[1] for key in cells})
    name = what.removesuffix("_mean")
    return Chart(f"steering-{name}", "heat", f"{trait.label}: {name}", {
        "x": {"label": "coefficient", "names": [f"{c:.4g}" for c in coefficients]}, "y": {"label": "layer", "names": [str(layer) for layer in layers]},
        "values": [[rounded(cells.get((layer, c)), 1) for c in coefficients] for layer in layers], "min": 0, "max": 100, "digits": 1,
        "scale": "score", "legend": f"mean {name} (0 to 100)",
    })  # fmt: skip


def against_coherence(trait: Trait) -> Chart:
    """What the trait costs in coherence; controls and the baseline beside it."""
    groups: dict[str, list[Any]] = {"steered": [], "random control": [], "baseline": []}
    for unit in trait.units:
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
    return Chart("trait-coherence", "scatter", f"{trait.label}: trait against coherence", {
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
