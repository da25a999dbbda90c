"""One model and what the stores know about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from residuum.report.blocks import Value
from residuum.report.runs import DepthRun


@dataclass
class Model:
    """One model and what is known about it."""

    key: str
    name: str
    role: str = "unlearned"
    """unlearned, retain, full or pool."""
    method: str = ""
    hyper: dict[str, float] = field(default_factory=dict)
    depths: list[DepthRun] = field(default_factory=list)
    """All UDS runs, the plain one first."""
    scores: dict[str, Value] = field(default_factory=dict)
    meanings: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """``higher_means`` and ``ideal`` by metric."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Metrics that were not computed, with the reason."""
    after: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By attack: ``metrics`` (raw), ``source``, ``failed``."""
    before: dict[str, float | None] = field(default_factory=dict)
    """Raw values under the attacks' own settings."""
    audit: Mapping[str, Any] | None = None
    """What ``residuum audit`` recorded: steps, gates."""
    sources: list[tuple[str, str]] = field(default_factory=list)
    """Label and id of every run behind it."""

    @property
    def published(self) -> bool:
        """Whether it stands in the published table, not in a store."""
        return self.key.startswith("published:")

    @property
    def group(self) -> str:
        """What it is shown together with: its method, else its role."""
        return self.method or ("under test" if self.role == "unlearned" else self.role)

    @property
    def depth(self) -> DepthRun | None:
        """The UDS run that speaks for the model."""
        return self.depths[0] if self.depths else None

    def value(self, metric: str) -> Value | None:
        """A metric: UDS from the run folder when there is one, else what the evaluation says."""
        if metric == "uds" and self.depth is not None and not self.depth.variant:
            low, high = self.depth.ci95 or (None, None)
            return Value(self.depth.uds, low, high, self.depth.source)
        return self.scores.get(metric)


def read_name(name: str) -> tuple[str, dict[str, float]]:
    """Method and hyper-parameters of a name that follows the grammar; of a method's bare name, the method alone."""
    from residuum.models.names import ALIASES, try_parse

    if name in ALIASES:  # somebody's own folder, not the published model behind the alias
        return ("", {}) if name in ("full", "retain") else (name, {})
    parsed = try_parse(name)
    return ("", {}) if parsed is None else (parsed.method, dict(parsed.hyper))
