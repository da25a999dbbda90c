"""What quantization and relearning brought back: values before and after, from ``meta_values`` units."""

from __future__ import annotations

from residuum.report.blocks import shown
from residuum.report.findings import Findings
from residuum.report.model import Model
from residuum.report.rules import BACK, Comeback

WATCHED = {"uds": "UDS", "em": "EM", "es": "ES", "prob": "probability", "rouge": "ROUGE"}
_NAMES = {"quantization": "quantization", "relearning": "relearning"}


def comebacks(findings: Findings, model: Model) -> list[Comeback]:
    """One line per attack that was tried."""
    return [_comeback(findings, model, attack) for attack in _NAMES if attack in model.after]


def _comeback(findings: Findings, model: Model, attack: str) -> Comeback:
    record = model.after[attack]
    if record["failed"]:
        return Comeback(attack, f"failed: {record['failed']}", False, record["source"])
    parts, back = [], False
    for metric, label in WATCHED.items():
        before, after = _before(model, metric), record["metrics"].get(metric)
        if before is None or after is None:
            continue
        gained = knowledge(findings, metric, after) - knowledge(findings, metric, before)
        own = _retain_shift(findings, metric) if attack == "relearning" else 0.0
        compared = attack == "relearning" and own is not None and model.role != "retain"
        beside = f" (retain {own:+.3f})" if compared else ""
        parts.append(f"{label} {shown(before)} to {shown(after)}{beside}")
        back |= own is not None and gained - own > BACK
    return Comeback(attack, "; ".join(parts) or "no metric was measured before and after", back, record["source"])


def knowledge(findings: Findings, metric: str, value: float) -> float:
    """The value so that higher means the model knows more."""
    return 1.0 - value if findings.meaning(metric)[0] == "less knowledge" else value


def _before(model: Model, metric: str) -> float | None:
    if metric in model.before:
        return model.before[metric]
    found = model.value(metric)
    return None if found is None else found.value


def _retain_shift(findings: Findings, metric: str) -> float | None:
    """What the same relearning does to the model that had nothing to remember."""
    retain = findings.retain
    if retain is None or "relearning" not in retain.after or retain.after["relearning"]["failed"]:
        return None
    before, after = _before(retain, metric), retain.after["relearning"]["metrics"].get(metric)
    if before is None or after is None:
        return None
    return knowledge(findings, metric, after) - knowledge(findings, metric, before)
