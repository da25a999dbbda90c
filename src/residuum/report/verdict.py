"""Verdict: one card per model with its depth, the three axes, what came back, and flags."""

from __future__ import annotations

from typing import Any

from residuum.errors import InputError
from residuum.report import attacks, probes, rtt
from residuum.report.blocks import Card, Cards, Meter, Prose, Section, shown
from residuum.report.findings import Findings
from residuum.report.model import Model
from residuum.report.rules import Comeback, flags

AXES = {
    "uds": ("UDS", "unlearning depth: 1 = erased like retain, 0 = intact"),
    "mem": ("memorization", "1 = nothing of the forget set is reproduced"),
    "privacy": ("privacy", "1 = attacks see what they see on retain"),
    "utility_rel": ("utility", "share of the full model's utility"),
}


def section(findings: Findings) -> Section | None:
    """The cards of all models."""
    cards = [card for model in findings.models if (card := _card(findings, model)).meters or card.lines]
    if not cards:
        return None
    lead = (
        "Is the knowledge gone, or only hidden? 1 is the desired end of every bar; the line on it is the 95 % interval. "
        "The rules behind the flags are in the documentation of the report, the runs behind the numbers at the end of the page."
    )
    return Section("verdict", "Verdict", lead, [*_missing(findings), Cards(cards)])


def verdict_of(findings: Findings, weights: str) -> dict[str, Any]:
    """The card of one model as JSON.

    Raises:
        InputError: there is no such model.
    """
    model = findings.find(weights=weights)
    if model is None:
        raise InputError(f"no run of a model with the weights {weights[:16]} is in these stores.")
    found = comebacks(findings, model)
    values = {AXES[key][0]: value for key in AXES if (value := model.value(key)) is not None}
    return {
        "model": model.name,
        "numbers": [{"name": label, "value": v.value, "low": v.low, "high": v.high} for label, v in values.items()],
        "lines": {comeback.attack: comeback.sentence for comeback in found},
        "flags": [
            {"name": flag.key, "title": flag.title, "sentence": flag.sentence} for flag in flags(findings, model, found)
        ],
    }


def comebacks(findings: Findings, model: Model) -> list[Comeback]:
    """What came back under each attack that was tried."""
    return [*attacks.comebacks(findings, model), *rtt.comebacks(findings, model), *probes.comebacks(findings, model)]


def _card(findings: Findings, model: Model) -> Card:
    found = comebacks(findings, model)
    meters = [Meter(label, value, tip) for key, (label, tip) in AXES.items() if (value := model.value(key)) is not None]
    lines = [(comeback.attack, comeback.sentence, comeback.source) for comeback in found]
    lines += _undefined(model) + _audit(model)
    return Card(model.name, _badge(model), meters, lines, flags(findings, model, found), model.sources)


def _badge(model: Model) -> str:
    if model.role != "unlearned":
        return {"full": "the model that knows", "retain": "never saw the forget set"}[model.role]
    hyper = ", ".join(f"{name} {value:g}" for name, value in model.hyper.items())
    return f"{model.method} {hyper}".strip()


def _undefined(model: Model) -> list[tuple[str, str, str | None]]:
    """Axes that are not there, with the reason."""
    reasons = {AXES[key][0]: why for key, why in model.left_out.items() if key in AXES}
    lines: list[tuple[str, str, str | None]] = [
        (label, f"not computed: {why.splitlines()[0]}", None) for label, why in reasons.items()
    ]
    if model.depth is not None:
        run = model.depth.summary
        parts = [f"over {run['n_scored']} of {run['total_examples']} examples"]
        if run.get("n_without_ft_layers"):
            parts.append(f"{run['n_without_ft_layers']} hold nothing to erase")
        if run.get("skipped_count"):
            parts.append(f"{run['skipped_count']} skipped")
        lines.append(("UDS", ", ".join(parts), model.depth.source))
    return lines


def _audit(model: Model) -> list[tuple[str, str, str | None]]:
    """Gates, and steps of the audit that were not done."""
    if model.audit is None:
        return []
    lines: list[tuple[str, str, str | None]] = [
        ("gate", f"{gate['gate']}: {'met' if gate['met'] else 'not met'} ({shown(gate['value'])})", None)
        for gate in model.audit.get("gates") or []
    ]
    return lines + [(step, f"not done: {why}", None) for step, why in (model.audit.get("skipped") or {}).items()]


def _missing(findings: Findings) -> list[Prose]:
    """References that were never run, and so cannot stand beside the others."""
    absent = [role for role, model in (("full", findings.full), ("retain", findings.retain)) if model is None]
    if not absent or not findings.unlearned:
        return []
    return [Prose(
        f"There is no run of the {' and no run of the '.join(absent)} model in these stores: its row is missing, and flags "
        "that compare with it cannot be given. `residuum evaluate` and `residuum uds` take it like any other model."
    )] if "retain" in absent else []  # fmt: skip
