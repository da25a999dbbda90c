"""What is tried: the coefficient of every layer is searched, or those given are taken; all layers go in one batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from residuum.steering.bench import Bench
from residuum.steering.config import DEFAULT_COEFFICIENT, TINY
from residuum.steering.outcome import outcome
from residuum.steering.plan import Plan
from residuum.steering.search import Search, best_step, new_search
from residuum.steering.settings import Setting
from residuum.steering.traits import SteeringWarning
from residuum.steering.vectors import Vector
from residuum.store import Unit

OnStep = Callable[[dict[str, Any]], None]


@dataclass
class Candidate:
    """One layer, or all at once, on its way to a coefficient."""

    label: str
    make: Callable[[float], Setting]
    search: Search
    failed: bool = False


@dataclass(frozen=True)
class Trials:
    """The settings of a plan on a bench.

    Each row that comes back has label, status, steps, the index of the best of them, whether it met the threshold, its
    setting and its unit.
    """

    plan: Plan
    bench: Bench
    on_step: OnStep

    def run(self) -> list[dict[str, Any]]:
        """A row per candidate of the search, or per setting without one."""
        return self._search() if self.plan.config.searching else self._fixed()

    def _search(self) -> list[dict[str, Any]]:
        """All candidates step together: each step is one batch."""
        candidates = [self._candidate(vectors) for vectors in self.plan.candidates]
        while active := [c for c in candidates if not c.failed and c.search.propose() is not None]:
            settings = [c.make(c.search.propose() or 0.0) for c in active]
            units = self.bench.run(settings)
            if failed := [s for s, unit in zip(settings, units, strict=True) if unit.value["status"] != "ok"]:
                again = dict(zip(map(id, failed), self.bench.run(failed, force=False), strict=True))
                units = [again.get(id(s), unit) for s, unit in zip(settings, units, strict=True)]
            for candidate, setting, unit in zip(active, settings, units, strict=True):
                self._record(candidate, setting, unit)
        return [self._finish(candidate) for candidate in candidates]

    def _candidate(self, vectors: tuple[Vector, ...]) -> Candidate:
        """Layers that are steered at once share the push."""
        bases = [self._base(vector) / len(vectors) for vector in vectors]
        label = "L" + "_".join(str(vector.layer) for vector in vectors)
        return Candidate(
            label,
            lambda scale: self.plan.setting(vectors, [scale * base for base in bases]),
            new_search(self.plan.config.search),
        )

    def _base(self, vector: Vector) -> float:
        """The coefficient at which the push is as long as the activation."""
        return self.bench.norms[vector.layer] / vector.norm

    def _record(self, candidate: Candidate, setting: Setting, unit: Unit) -> None:
        result, config = unit.value["result"], self.plan.config.search
        if unit.value["status"] != "ok":
            candidate.failed = True
            self.on_step({"label": setting.label, **result, "status": unit.value["status"]})
            return
        candidate.search.record(result["trait_mean"], result["coherence_mean"])
        step = candidate.search.steps[-1]
        self.on_step({
            "label": candidate.label, "step": len(candidate.search.steps), "coefficients": setting.coefficients,
            "relative": unit.value["relative_coefficients"], **result, "status": "ok",
            "coherent": step.coherent(config.min_coherence), "starred": step.starred(config),
        })  # fmt: skip

    def _finish(self, candidate: Candidate) -> dict[str, Any]:
        """Mark every step of a search, and the best of them, in their runs."""
        steps, config = candidate.search.steps, self.plan.config.search
        status = "judge_failed" if candidate.failed or not steps else "ok"
        row: dict[str, Any] = {"label": candidate.label, "status": status, "steps": []}
        if not steps:
            return {**row, "best": None}
        best, met = best_step(steps, config)
        notes = [
            {"search": {"step": i + 1, "best": i == best, "threshold_met": met if i == best else step.coherent(config.min_coherence)}}
            for i, step in enumerate(steps)
        ]  # fmt: skip
        settings = [candidate.make(step.scale) for step in steps]
        units = self.bench.run(settings, notes=notes, force=False)
        row["steps"] = [
            {"scale": step.scale, **outcome(setting, unit)}
            for step, setting, unit in zip(steps, settings, units, strict=True)
        ]
        return {**row, "best": best, "threshold_met": met, "setting": settings[best], "unit": units[best]}

    def _fixed(self) -> list[dict[str, Any]]:
        """The coefficients given, all in one batch."""
        settings, config = self.plan.settings(), self.plan.config
        if config.coefficients is None and config.operator == "add":
            base = min(self._base(vector) for vector in self.plan.vectors)
            if base * TINY > DEFAULT_COEFFICIENT:
                warnings.warn(
                    f"the default coefficient {DEFAULT_COEFFICIENT:g} is tiny here: base_coef is {base:.3g} or more.",
                    SteeringWarning,
                    stacklevel=2,
                )
        units = self.bench.run(settings)
        rows = []
        for setting, unit in zip(settings, units, strict=True):
            status, result = unit.value["status"], unit.value["result"]
            self.on_step({
                "label": setting.label, "coefficients": setting.coefficients,
                "relative": unit.value["relative_coefficients"], **result, "status": status,
            })  # fmt: skip
            met = status == "ok" and result["coherence_mean"] >= config.search.min_coherence
            rows.append({
                "label": setting.label, "status": status, "steps": [outcome(setting, unit)], "best": 0,
                "threshold_met": met, "setting": setting, "unit": unit,
            })  # fmt: skip
        return rows
