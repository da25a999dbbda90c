"""What an evaluation comes to: the best run, how far it is from the baseline, and what any push would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from residuum.steering.bench import Bench
from residuum.steering.config import EvaluateConfig
from residuum.steering.plan import Plan
from residuum.steering.search import SearchConfig, Step, best_step
from residuum.steering.settings import Setting, significant
from residuum.steering.summary import against_baseline
from residuum.steering.vectors import Vector, read_quality
from residuum.store import Unit


def run_controls(
    report: Bench, setting: Setting, config: EvaluateConfig, on_step: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Random vectors of the same length at the same place: what any push does."""
    settings = [
        replace(setting, vectors=tuple(_random_like(v, seed) for v in setting.vectors), incremental=False)
        for seed in range(config.controls)
    ]
    notes = [{"control_of": report.task(setting).key[:16]}] * len(settings)
    units = report.run(settings, notes=notes)
    traits = [u.value["result"]["trait_mean"] for u in units if u.value["result"]["trait_mean"] is not None]
    for unit in units:
        on_step({"label": "random", **unit.value["result"], "status": unit.value["status"]})
    failed = sum(unit.value["status"] != "ok" for unit in units)
    if not traits:
        return {"n": 0, "failed": failed, "trait_mean": None, "bound": None}
    positive = config.search.direction == "positive"
    return {
        "n": len(traits), "failed": failed, "trait_mean": float(np.mean(traits)), "trait_means": traits,
        "coherence_mean": float(np.mean([u.value["result"].get("coherence_mean", 0.0) for u in units])),
        # With few controls this is all but the most extreme of them.
        "bound": float(np.percentile(traits, 95 if positive else 5)),
    }  # fmt: skip


def summarize_best(
    report: Bench, unit: Unit, best: dict[str, Any], controls: dict[str, Any] | None, config: EvaluateConfig
) -> dict[str, Any]:
    """The best run against its baseline and its controls."""
    gap = against_baseline(unit.value["items"], report.baseline().value["items"])
    sign = 1 if config.search.direction == "positive" else -1
    beyond = None
    if controls and controls["bound"] is not None and unit.value["result"]["trait_mean"] is not None:
        beyond = sign * (unit.value["result"]["trait_mean"] - controls["bound"])
    setting: Setting = best["setting"]
    return {
        "run_id": unit.task.key[:16], "layers": setting.layers, "coefficients": list(setting.coefficients),
        "relative": unit.value["relative_coefficients"], **unit.value["result"], **gap,
        "beyond_random": beyond, "threshold_met": best["threshold_met"], "held_out": bool(config.holdout),
    }  # fmt: skip


def best_row(rows: Sequence[dict[str, Any]], config: SearchConfig) -> dict[str, Any] | None:
    """The layer to report: by the rule that also chooses among the steps of one layer."""
    if not rows:
        return None
    steps = [
        Step(0.0, r["unit"].value["result"]["trait_mean"], r["unit"].value["result"]["coherence_mean"]) for r in rows
    ]
    return rows[best_step(steps, config)[0]]


def outcome(setting: Setting, unit: Unit) -> dict[str, Any]:
    """A run as the evaluation tells it."""
    return {
        "run_id": unit.task.key[:16], "coefficients": list(setting.coefficients),
        "relative": unit.value["relative_coefficients"], **unit.value["result"], "status": unit.value["status"],
    }  # fmt: skip


def classification_layer(plan: Plan) -> int | None:
    """The layer whose vector tells the two sides apart best, as the extraction measured it; None when it did not."""
    path = next(iter(plan.vector_set.files.values())).parents[2] / "quality.json"
    rows = [
        row
        for row in read_quality(path)["rows"]
        if (row["method"], row["component"]) == (plan.config.method, plan.config.component)
        and row["combined"] is not None
    ]
    return max(rows, key=lambda row: (row["combined"], -row["layer"]))["layer"] if rows else None


def _random_like(vector: Vector, seed: int) -> Vector:
    from residuum.steering.methods import random_direction

    values = random_direction(len(vector.values), 1000 * (vector.layer + 1) + seed) * significant(vector.norm)
    return Vector(vector.layer, "random_baseline", vector.component, values, vector.norm)
