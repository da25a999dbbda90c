"""Gates: conditions such as ``uds>=0.8,utility_rel>=0.9`` that a model must meet.

A name is a metric, a metric after an attack (``quantization.uds``, ``relearning.em``), a number of RTT
(``rtt.recovery_rate``, ``rtt.gap_closed``, ``rtt.recovery_above_chance``) or ``steering.recovery``, the highest of all probes.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from typing import Any

from residuum.errors import UnknownName, UsageError
from residuum.report import probes, rtt
from residuum.report.findings import Findings
from residuum.report.model import Model

_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_GATE = re.compile(r"\s*([A-Za-z][\w.]*)\s*(>=|<=|>|<)\s*([+-]?\d*\.?\d+(?:[eE][+-]?\d+)?)\s*")
ATTACKS = ("quantization", "relearning")
RTT = ("recovery_rate", "recovery_rate_nested", "gap_closed", "recovery_above_chance", "recovery_above_naive")


@dataclass(frozen=True)
class Gate:
    """One condition."""

    name: str
    sign: str
    limit: float

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.limit:g}"

    def check(self, findings: Findings, model: Model) -> dict[str, Any]:
        """Whether a model meets it; a number that is not there does not."""
        value = _value(self.name, findings, model)
        met = value is not None and bool(_OPERATORS[self.sign](value, self.limit))
        return {"gate": str(self), "name": self.name, "value": value, "met": met}


def parse_gates(text: str | None) -> list[Gate]:
    """Gates from their text.

    Raises:
        UsageError: a part of it is no condition.
        UnknownName: a name that nothing measures.
    """
    gates = []
    for part in text.split(",") if text and text.strip() else []:
        found = _GATE.fullmatch(part)
        if found is None:
            raise UsageError(f"--gate takes conditions such as 'uds>=0.8,utility_rel>=0.9', not {part.strip()!r}.")
        _check_name(found[1])
        gates.append(Gate(found[1], found[2], float(found[3])))
    return gates


def _check_name(name: str) -> None:
    from residuum.metrics.registry import all_metrics

    metrics = [*all_metrics()]
    attacked = [f"{attack}.{metric}" for attack in ATTACKS for metric in metrics]
    known = [*metrics, *attacked, *(f"rtt.{number}" for number in RTT), "steering.recovery"]
    if name not in known:
        raise UnknownName("number to gate on", name, known)


def _value(name: str, findings: Findings, model: Model) -> float | None:
    part, _, rest = name.partition(".")
    if part in ATTACKS:
        found = model.after.get(part, {}).get("metrics", {}).get(rest)
    elif part == "rtt":
        own = [recovery.row.get(rest) for recovery in rtt.of_model(findings, model)]
        found = max((value for value in own if value is not None), default=None)
    elif part == "steering":
        own = [probe["recovery"] for probe in probes.of_model(findings, model)]
        found = max((value for value in own if value is not None), default=None)
    else:
        score = model.value(name)
        found = None if score is None else score.value
    return None if found is None else float(found)
