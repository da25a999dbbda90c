"""Robustness of all metrics over attacked models, and its folder.

summary.json     per metric Q, R and their harmonic mean with intervals; how many models each filter took away
results.json     one object per model: values before and after each attack, and what they give
logs/            one file per model
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from residuum.errors import DataError, UsageError
from residuum.meta.catalogue import threshold_metric
from residuum.meta.faithfulness import in_knowledge_direction
from residuum.meta.folder import named, write_logs
from residuum.meta.robustness import (
    UTILITY_FLOOR,
    Change,
    Form,
    Robustness,
    measure_robustness,
    quantization_score,
    relearning_score,
    usable_models,
)
from residuum.store import write_json

ATTACKS = ("quantization", "relearning")

Model = dict[str, Any]
"""One attacked model: ``model``, ``role`` (unlearned or retain), ``utility_rel``, ``before`` and ``after`` (raw values by
metric, ``after`` by attack first), ``failed`` (reasons by stage: before or an attack), ``diverged``; ready for JSON."""


@dataclass(frozen=True)
class Rules:
    """What decides which models count, and how."""

    attacks: tuple[str, ...] = ATTACKS
    form: Form = "symmetric"
    thresholds: Mapping[str, float | None] | None = None
    """By metric, in knowledge direction; None: no faithfulness is known and every model with its utility kept counts."""
    utility_floor: float = UTILITY_FLOOR
    common_subset: bool = False
    """Judge all metrics on the models that all of them can use."""
    directions: Mapping[str, str] = field(default_factory=dict)
    """``higher_means`` by metric."""
    seed: int = 0


@dataclass(frozen=True)
class Attacked:
    """Attacked models and what they say about each metric."""

    models: list[Model]
    metrics: dict[str, Robustness]
    counts: dict[str, dict[str, int]]
    """Per metric: all, undefined, low_utility, still_knows, usable; in a common subset also not_common; then what an attack
    took: diverged, lost."""
    usable: dict[str, list[str]]
    notes: list[str]
    rules: Rules
    settings: dict[str, Any]

    @property
    def failed(self) -> dict[str, dict[str, str]]:
        """Reasons by model and stage; a diverged relearning is among them."""
        return {model["model"]: model["failed"] for model in self.models if model["failed"]}

    @property
    def diverged(self) -> list[str]:
        """Models whose relearning left the finite numbers."""
        return [model["model"] for model in self.models if model["diverged"]]

    def summary(self) -> dict[str, Any]:
        """Ready for JSON."""
        unlearned = [model for model in self.models if model["role"] == "unlearned"]
        kept = sum((model["utility_rel"] or 0) >= self.rules.utility_floor for model in unlearned)
        known = any(model["utility_rel"] is not None for model in unlearned)
        thresholds = self.rules.thresholds
        return {
            "attacks": list(self.rules.attacks),
            "form": self.rules.form,
            "common_subset": self.rules.common_subset,
            "models": len(unlearned),
            "utility": {"floor": self.rules.utility_floor, "pass": kept if known else None, "of": len(unlearned)},
            "diverged": self.diverged,
            "failed": self.failed,
            "metrics": {
                name: {
                    "Q": found.quantization, "Q_ci95": found.quantization_ci95, "Q_n": found.quantization_n,
                    "R": found.relearning, "R_ci95": found.relearning_ci95, "R_n": found.relearning_n,
                    "HM": found.robustness, "HM_ci95": found.robustness_ci95, "counts": self.counts[name],
                    "usable": self.usable[name], "higher_means": self.rules.directions[name],
                    "threshold": None if thresholds is None else thresholds.get(_decides(name, self.rules)),
                }
                for name, found in self.metrics.items()
            },
            "thresholds": None if thresholds is None else dict(thresholds),
            "notes": self.notes,
            "seed": self.rules.seed,
            "settings": self.settings,
        }  # fmt: skip

    def save(self, folder: Path, logs: Mapping[str, Sequence[Mapping[str, Any]]] | None = None) -> Path:
        """Write the folder; ``summary.json`` comes last, so its presence means the run is whole.

        Args:
            folder: target.
            logs: what was measured, by model; without it, the logs are of the values alone.
        """
        write_json(folder / "results.json", [{**model, "scores": self._scores(model)} for model in self.models])
        write_logs(folder / "logs", logs or {model["model"]: _plain_logs(model) for model in self.models})
        write_json(folder / "summary.json", self.summary())
        return folder

    @classmethod
    def load(cls, folder: Path, metrics: Sequence[str] | None = None, **changes: Any) -> Attacked:
        """What a finished folder says, computed anew from its values.

        Args:
            folder: of `save`.
            metrics: only these; all that are there when left out.
            changes: fields of `Rules` to judge by instead of the folder's own.

        Raises:
            DataError: it is not such a folder, or has none of these metrics.
        """
        try:
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            models = json.loads((folder / "results.json").read_text(encoding="utf-8"))
            rules = Rules(
                tuple(summary["attacks"]), summary["form"], summary["thresholds"], summary["utility"]["floor"],
                summary["common_subset"], {name: row["higher_means"] for name, row in summary["metrics"].items()},
                summary["seed"],
            )  # fmt: skip
            chosen = named(summary["metrics"], metrics, folder)
            return weigh(models, chosen, replace(rules, **changes), summary["settings"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"this is not the folder of a finished robustness run ({type(error).__name__}: {error})", path=folder,
                hint="Make one with `residuum meta robustness`.",
            ) from error  # fmt: skip

    def _scores(self, model: Model) -> dict[str, dict[str, Any]]:
        """Q and R of one model by metric, whether or not it counts."""
        retain = _retain(self.models)
        found = {}
        for name in self.metrics:
            quantized = _change(model, name, "quantization", self.rules)
            relearned = _change(model, name, "relearning", self.rules)
            reference = _change(retain, name, "relearning", self.rules) if retain else None
            found[name] = {
                "Q": quantization_score(quantized.before, quantized.after, self.rules.form) if quantized else None,
                "R": relearning_score(relearned.shift, reference.shift, self.rules.form)
                if relearned and reference
                else None,
                "usable": model["model"] in self.usable[name],
            }
        return found


def weigh(models: list[Model], metrics: Sequence[str], rules: Rules, settings: dict[str, Any]) -> Attacked:
    """Robustness of every metric from the models' values before and after.

    Args:
        models: the unlearned ones and retain.
        metrics: what to judge.
        rules: which models count, and how.
        settings: what the values rest on, for the record.

    Raises:
        UsageError: relearned models are there, but no retain model to compare them with.
    """
    unlearned = [model for model in models if model["role"] == "unlearned"]
    retain = _retain(models)
    notes = _notes(unlearned, metrics, rules)
    if "relearning" in rules.attacks and retain is None:
        raise UsageError("relearning is judged against the retain model's own shift: retain is not among the models.")
    filtered = {name: _usable(unlearned, name, rules) for name in metrics}
    usable = {name: names for name, (names, _) in filtered.items()}
    if rules.common_subset:
        whole = {m["model"] for m in unlearned if all(_change(m, n, a, rules) for n in metrics for a in rules.attacks)}
        shared = whole.intersection(*usable.values())
        usable = {name: [model for model in names if model in shared] for name, names in usable.items()}
        notes.append(f"common subset: {len(shared)} models are usable for all {len(metrics)} metrics")
    found, counts = {}, {}
    for name in metrics:
        own = [model for model in unlearned if model["model"] in usable[name]]
        changes = {
            attack: [c for model in own if (c := _change(model, name, attack, rules))] for attack in rules.attacks
        }
        reference = _change(retain, name, "relearning", rules) if retain else None
        relearned = changes.get("relearning", [])
        if relearned and reference is None:
            notes.append(f"{name}: no R, because the relearned retain model has no value")
        found[name] = measure_robustness(
            name, changes.get("quantization", []), relearned if reference else [], reference, form=rules.form, seed=rules.seed
        )  # fmt: skip
        counts[name] = {
            **filtered[name][1],
            "usable": len(own),
            **({"not_common": filtered[name][1]["usable"] - len(own)} if rules.common_subset else {}),
            "diverged": sum(model["diverged"] for model in own),
            "lost": sum(len(own) - len(made) for made in changes.values()) - sum(model["diverged"] for model in own),
        }
    return Attacked(models, found, counts, usable, notes, rules, settings)


def _usable(unlearned: Sequence[Model], metric: str, rules: Rules) -> tuple[list[str], dict[str, int]]:
    """Models that the metric may be judged on; those without a value of its own count as undefined."""
    decides = _decides(metric, rules)
    before = {
        model["model"]: _knowledge(model["before"].get(decides), rules.directions[decides])
        if model["before"].get(metric) is not None
        else None
        for model in unlearned
    }
    unknown = all(model["utility_rel"] is None for model in unlearned)
    utility = {model["model"]: 1.0 if unknown else model["utility_rel"] for model in unlearned}
    threshold = None if rules.thresholds is None else rules.thresholds.get(decides)
    return usable_models(before, utility, threshold, utility_floor=rules.utility_floor)


def _decides(metric: str, rules: Rules) -> str:
    """The metric whose values are held against its threshold; itself where a raw attack's are not there."""
    raw = threshold_metric(metric)
    return raw if raw in rules.directions else metric


def _notes(unlearned: Sequence[Model], metrics: Sequence[str], rules: Rules) -> list[str]:
    notes = [
        f"{name}: no values of {threshold_metric(name)}, whose threshold would decide; its own is used if there is one"
        for name in metrics
        if _decides(name, rules) != threshold_metric(name)
    ]
    if rules.thresholds is None:
        notes.append(
            "no faithfulness thresholds are given: models that a metric calls unlearned are not told from others"
        )
    elif bare := [name for name in metrics if rules.thresholds.get(_decides(name, rules)) is None]:
        notes.append(f"no faithfulness threshold, so every model that kept its utility counts: {', '.join(bare)}")
    if all(model["utility_rel"] is None for model in unlearned):
        notes.append("no relative utility is given: no model is left out for it")
    if diverged := [model["model"] for model in unlearned if model["diverged"]]:
        notes.append(f"relearning diverged for {len(diverged)} model(s), which have no R: {', '.join(diverged)}")
    return notes


def _change(model: Model, metric: str, attack: str, rules: Rules) -> Change | None:
    higher_means = rules.directions[metric]
    before = _knowledge(model["before"].get(metric), higher_means)
    after = _knowledge((model["after"].get(attack) or {}).get(metric), higher_means)
    return None if before is None or after is None else Change(model["model"], before, after)


def _knowledge(value: float | None, higher_means: str) -> float | None:
    return None if value is None else in_knowledge_direction(value, higher_means)


def _retain(models: Sequence[Model]) -> Model | None:
    return next((model for model in models if model["role"] == "retain"), None)


def _plain_logs(model: Model) -> list[dict[str, Any]]:
    stages = {"none": model["before"], **{attack: values or {} for attack, values in model["after"].items()}}
    return [
        {"attack": attack, "metrics": values, "failed": model["failed"].get(attack)}
        for attack, values in stages.items()
    ]
