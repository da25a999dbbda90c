"""Everything the stores know about each model, joined by the content of its weights.

A model is whatever was audited or evaluated. The references (full, retain), the pools of a meta-evaluation and the
attacked copies of a model are told from the models under test, because the units say who they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from residuum.errors import InputError
from residuum.report.blocks import Value
from residuum.report.model import Model, read_name
from residuum.report.published import read_published
from residuum.report.runs import DepthRun, identity, read_depth_runs
from residuum.report.shapes import ENDS, MAYBE, MODEL
from residuum.report.shelf import Shelf
from residuum.store.hashing import content_hash
from residuum.store.units import Unit

T = TypeVar("T")

_SCORE = {"value": MAYBE, "ci95?": ENDS, "notes?": [str], "higher_means": str, "ideal?": int | float}
_EVALUATION: dict[str, Any] = {"value": {
    "models": {str: MODEL, "model": MODEL}, "settings": dict, "data": {str: object}, "metrics": {str: _SCORE}, "left_out?": {str: str},
}}  # fmt: skip
_ATTACK: dict[str, Any] = {
    "spec": {"model": {"weights?": str, "quantize?": str}},
    "value": {"model": str, "attack?": str, "metrics": {str: MAYBE}, "failed?": str, "evaluated?": MODEL},
}
_GATE = {"gate": str, "met": bool, "value": MAYBE}
_AUDIT: dict[str, Any] = {
    "spec": {"model": {"weights?": str}},
    "value": {"model": str, "gates?": [_GATE], "skipped?": {str: str}},
}


class Findings:
    """All models and parts in some folders of runs.

    Args:
        folders: see `Shelf`.
        published: a table in the published form, whose models stand beside those of the folders.

    Raises:
        InputError: a folder or table cannot be used.
    """

    def __init__(self, folders: Sequence[str | Path], published: str | Path | None = None) -> None:
        if not folders and published is None:
            raise InputError("there are no runs to report on.\n  Name one or more folders, for instance runs/.")
        self.shelf = Shelf(folders)
        self._models: dict[str, Model] = {}
        self._roles: dict[str, str] = {}
        self._read: dict[Any, Any] = {}
        for run in read_depth_runs(self.shelf):
            self._add_depth(run)
        evaluations, attacked = self.shelf.units("evaluation", _EVALUATION), self.shelf.units("meta_values", _ATTACK)
        self._learn_roles(evaluations)
        # What an attack leaves as it was is still the model itself.
        copies = {identity(unit.value["evaluated"]) for unit in attacked if unit.value.get("evaluated")}
        copies -= {identity(unit.task.spec["model"]) for unit in attacked}
        for key, units in _by_model(evaluations).items():
            if key not in copies:
                self._add_evaluation(units)
        for unit in attacked:
            self._add_attack(unit)
        for unit in self.shelf.units("audit", _AUDIT):
            self._add_audit(unit)
        for model in read_published(Path(published), self.shelf) if published is not None else ():
            self._models[model.key] = model
        self._settle()
        self.shelf.look_for_unfinished()

    def check(self, sections: int) -> None:
        """Refuse a page without anything on it.

        Raises:
            InputError: with what was found instead.
        """
        if sections:
            return
        where = ", ".join(str(root) for root in self.shelf.roots)
        broken = [f"{problem.where} {problem.what}" for problem in self.shelf.problems]
        there = ", ".join(self.shelf.kinds())
        advice = "\n  ".join(broken) or (
            f"There are units of {there}, but no finished run." if there else
            "Make some first: `residuum uds`, `residuum evaluate`, or `residuum audit` for both."
        )  # fmt: skip
        raise InputError(f"{where} holds no finished run that a report could show.\n  {advice}")

    @cached_property
    def models(self) -> list[Model]:
        """Models under test and references, by role, method and name; pool models are left to the meta-evaluation."""
        order = {"full": 0, "retain": 1, "unlearned": 2}
        there = [model for model in self._models.values() if model.role != "pool" and (model.depths or model.scores)]
        return sorted(there, key=lambda model: (order[model.role], model.published, model.method, model.name))

    @cached_property
    def unlearned(self) -> list[Model]:
        """Models under test."""
        return [model for model in self.models if model.role == "unlearned"]

    @cached_property
    def retain(self) -> Model | None:
        """The retain model, when it was evaluated too."""
        return next((model for model in self.models if model.role == "retain"), None)

    @cached_property
    def full(self) -> Model | None:
        """The full model, when it was evaluated too."""
        return next((model for model in self.models if model.role == "full"), None)

    def find(self, *, name: str | None = None, weights: str | None = None) -> Model | None:
        """A model by weights, or by its name when only one has it."""
        if weights is not None and weights in self._models:
            return self._models[weights]
        named = [
            model for model in self._models.values() if name is not None and model.name == name and model.role != "pool"
        ]
        return named[0] if len(named) == 1 else None

    def is_about(self, model: Model, weights: str | None, *, named: bool) -> bool:
        """Whether a file is about a model: by the weights in it where any model has them, else by its name alone."""
        owner = self.find(weights=weights)
        return owner is model if owner is not None else named

    def cached(self, read: Callable[[Findings], T]) -> T:
        """What a section's reader finds, read once however many sections ask."""
        if read not in self._read:
            self._read[read] = read(self)
        found: T = self._read[read]
        return found

    def metrics(self) -> list[str]:
        """Metrics that any model has, in the order of the registry."""
        from residuum.metrics.registry import all_metrics

        there = {metric for model in self.models for metric in (*model.scores, *(["uds"] if model.depth else []))}
        known = [name for name in all_metrics() if name in there]
        return known + sorted(there - set(known))

    def meaning(self, metric: str) -> tuple[str, float | None]:
        """``higher_means`` and ``ideal`` of a metric, as the store or else the registry has it."""
        from residuum.metrics.registry import all_metrics

        for model in self.models:
            if metric in model.meanings:
                return str(model.meanings[metric]["higher_means"]), model.meanings[metric].get("ideal")
        known = all_metrics()
        return (known[metric].higher_means, known[metric].ideal) if metric in known else ("two-sided", None)

    def _model(self, key: str, name: str) -> Model:
        if key not in self._models:
            method, hyper = read_name(name)
            self._models[key] = Model(key, name, method=method, hyper=hyper)
        return self._models[key]

    def _add_depth(self, run: DepthRun) -> None:
        for role in ("full", "retain"):
            if role in run.summary["models"]:
                self._roles[identity(run.summary["models"][role])] = role
        model = self._model(run.key, run.name)
        # The latest plain run speaks for the model: variants and earlier runs go behind it.
        model.depths = sorted([run, *model.depths], key=lambda one: (bool(one.variant), not one.has_deltas))
        model.sources.append((f"UDS {run.variant}".strip(), run.source))

    def _learn_roles(self, units: Sequence[Unit]) -> None:
        for unit in units:
            for role in ("full", "retain"):
                if role in unit.value["models"]:
                    self._roles.setdefault(identity(unit.value["models"][role]), role)
        for pools in self.shelf.glob("faithfulness/results.json", "results.json"):
            records = self.shelf.json(pools)
            for record in records if isinstance(records, list) else []:
                if isinstance(record, Mapping) and record.get("pool") in ("P", "N") and record.get("weights"):
                    self._roles.setdefault(str(record["weights"]), "pool")

    def _add_evaluation(self, units: Sequence[Unit]) -> None:
        """The units of one model: those asked in the way that most metrics were asked in."""
        about = units[-1].value["models"]["model"]
        ways: dict[str, list[Unit]] = {}
        for unit in units:
            ways.setdefault(content_hash(_way(unit)), []).append(unit)
        chosen = max(
            ways.values(),
            key=lambda group: (len({name for unit in group for name in unit.value["metrics"]}), group[-1].created),
        )
        model = self._model(identity(about), str(about["name"]))
        if len(ways) > 1:
            self.shelf.note(
                model.name, f"was evaluated in {len(ways)} ways (settings or data); shown is the one with most metrics"
            )
        for unit in chosen:
            source = self.shelf.cite_unit(
                unit,
                model.name,
                {"settings": unit.value["settings"], "data": unit.value["data"], "models": unit.value["models"]},
            )
            model.sources.append(("evaluation", source))
            for name, record in unit.value["metrics"].items():
                model.scores[name] = Value.of(record, source)
                model.meanings[name] = record
                model.left_out.pop(name, None)
            model.left_out |= {
                name: why for name, why in (unit.value.get("left_out") or {}).items() if name not in model.scores
            }

    def _add_attack(self, unit: Unit) -> None:
        """Values before or after quantization or relearning."""
        value, attack = unit.value, unit.value.get("attack") or "none"
        key = identity(unit.task.spec["model"])
        model = self._model(key, str(value["model"]))
        if attack == "none":
            model.before |= value["metrics"]
            return
        source = self.shelf.cite_unit(unit, model.name)
        model.sources.append((attack, source))
        model.after[attack] = {"metrics": value["metrics"], "failed": value.get("failed"), "source": source}

    def _add_audit(self, unit: Unit) -> None:
        model = self._model(identity(unit.task.spec["model"]), str(unit.value["model"]))
        model.audit = unit.value
        model.sources.append(("audit", self.shelf.cite_unit(unit, model.name)))

    def _settle(self) -> None:
        """Roles, and names that tell apart."""
        for key, role in self._roles.items():
            if key in self._models:
                self._models[key].role = role
        often = Counter(model.name for model in self._models.values())
        for model in self._models.values():
            if often[model.name] > 1:
                weights, _, rounding = model.key.partition(":")
                model.name += " [published]" if model.published else f" [{' '.join((weights[:8], rounding)).strip()}]"
        seen = Counter(source.version for source in self.shelf.sources if source.version)
        if len(seen) > 1:
            counts = ", ".join(f"{number} by {version}" for version, number in sorted(seen.items()))
            self.shelf.note(
                "versions", f"the runs were made by different versions of residuum ({counts}); compare with care"
            )


def _by_model(units: Sequence[Unit]) -> dict[str, list[Unit]]:
    found: dict[str, list[Unit]] = {}
    for unit in units:
        found.setdefault(identity(unit.value["models"]["model"]), []).append(unit)
    return found


def _way(unit: Unit) -> dict[str, Any]:
    """How a model was asked; data of splits that only some metrics read do not make another way."""
    references = {role: identity(model) for role, model in unit.value["models"].items() if role != "model"}
    forget = next((data for split, data in sorted(unit.value["data"].items()) if split.startswith("forget")), None)
    return {"settings": unit.value["settings"], "full": references.get("full"), "forget": forget}
