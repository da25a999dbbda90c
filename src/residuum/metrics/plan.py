"""What can be computed from what is given: checked before any weights are read, and said with names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from residuum.errors import DataError, InputError, UsageError
from residuum.metrics.registry import Metric, Need, Who, evidence_needs
from residuum.metrics.splits import Splits, fields_of


@dataclass(frozen=True)
class Plan:
    """The metrics that will be computed, and those that cannot be."""

    metrics: list[Metric]
    left_out: dict[str, str] = field(default_factory=dict)
    """Reasons, by metric."""
    message: str | None = None
    """The same for a reader."""

    def needs(self, who: Who | None = None) -> list[Need]:
        """Every piece of evidence that the metrics rest on, of one model or of all."""
        found = {need: None for metric in self.metrics for need in evidence_needs(metric)}
        return [need for need in found if who is None or need.who == who]

    @property
    def roles(self) -> list[str]:
        """The splits that are read."""
        return sorted({need.role for need in self.needs()})


def make_plan(chosen: Sequence[Metric], references: Collection[Who], *, strict: bool) -> Plan:
    """Leave out the metrics whose reference models are not given.

    Args:
        chosen: what was asked for.
        references: the reference models that are given.
        strict: nothing may be left out, because everything was asked for by name.

    Raises:
        UsageError: something is missing and nothing may be left out, or nothing is left.
    """
    lacking: dict[str, list[str]] = {}
    for metric in chosen:
        wanted = {who for need in evidence_needs(metric) if not need.optional for who in _models(need)}
        if absent := sorted(wanted - set(references), reverse=True):
            lacking[metric.name] = [who.removesuffix("_model") for who in absent]
    able = [metric for metric in chosen if metric.name not in lacking]
    if not lacking:
        return Plan(able)
    roles = sorted({role for absent in lacking.values() for role in absent}, reverse=True)
    options = " and ".join(f"--{role}-model" for role in roles)
    text = f"no {' and no '.join(roles)} model is given, but needed by: {', '.join(lacking)}."
    if strict or not able:
        rest = f"\n  The rest can run: --metrics {_names(able)}" if able else ""
        raise UsageError(f"{text}\n  Give {options} (in Python {', '.join(f'{role}=' for role in roles)}).{rest}")
    reasons = {name: f"needs the {' and the '.join(absent)} model" for name, absent in lacking.items()}
    return Plan(able, reasons, f"{text}\n  They are left out; give {options} to have them.")


def check_data(splits: Splits, metrics: Sequence[Metric]) -> None:
    """See that every split is there and every row has the fields that the metrics ask for.

    Raises:
        DataError: with the metrics that need what is missing, and those that can run without.
    """
    needs = {metric.name: [need for need in evidence_needs(metric) if not need.optional] for metric in metrics}
    roles = dict.fromkeys(need.role for own in needs.values() for need in own)
    fields = dict.fromkeys((need.role, name) for own in needs.values() for need in own for name in fields_of(need))
    problems: list[tuple[InputError, set[str]]] = []
    missing: set[str] = set()
    for role in roles:
        try:
            splits.check(role)
        except InputError as error:
            missing.add(role)
            problems.append((error, {name for name, own in needs.items() if any(need.role == role for need in own)}))
    for role, name in fields:
        if role in missing:
            continue
        try:
            splits.check_field(role, name)
        except InputError as error:
            needy = {
                metric
                for metric, own in needs.items()
                if any(need.role == role and name in fields_of(need) for need in own)
            }
            problems.append((error, needy))
    if problems:
        raise _lacking(problems, metrics) from problems[0][0]


def _lacking(problems: Sequence[tuple[InputError, set[str]]], metrics: Sequence[Metric]) -> DataError:
    """Everything that is missing, who needs it, and what can run without any of it."""
    needy = {name for _, own in problems for name in own}
    rest = [metric for metric in metrics if metric.name not in needy]
    advice = f"\n  The rest can run: --metrics {_names(rest)}" if rest else ""
    said = [
        f"{error}\n  Needed by: {', '.join(metric.name for metric in metrics if metric.name in own)}."
        for error, own in problems
    ]
    return DataError("\n".join(said) + advice)


def _models(need: Need) -> set[Who]:
    """The reference models that a piece of evidence rests on."""
    inside: set[Who] = {"full_model", "retain_model"} if need.role == "entities" else set()
    return inside | ({need.who} if need.who != "model" else set())


def _names(metrics: Sequence[Metric]) -> str:
    return ",".join(metric.name for metric in metrics)
