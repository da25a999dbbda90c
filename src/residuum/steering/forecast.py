"""What an evaluation would do and what is finished of it, found out from files alone: no model, no judge.

Finished runs are looked for by everything that files tell: questions, prompts, generation, names of model and judge, content
of the vectors. A search is followed along its finished steps. Weights, number format and the judge's scoring show only when
the evaluation runs, so what is left may be more when one of them has changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from residuum.folders import runs_folder
from residuum.models.names import ALIASES, shorten
from residuum.steering.config import EvaluateConfig
from residuum.steering.experiments import Experiment
from residuum.steering.judge import panel  # noqa: F401  registers the judges
from residuum.steering.judge.base import JUDGES, JudgeOptions
from residuum.steering.judge.prompts import LONGEST
from residuum.steering.outcome import best_row
from residuum.steering.plan import Plan, make_plan
from residuum.steering.results import Results
from residuum.steering.search import best_step, new_search
from residuum.steering.settings import context_id
from residuum.steering.traits import Question
from residuum.steering.vectors import Vector
from residuum.store import Store, Unit
from residuum.store.hashing import content_hash

CHARACTERS = 4
"""Of a token of English text, roughly."""
FRAME = 60
"""Tokens of a call beside template, question and answer, roughly."""


def forecast(
    experiment: Experiment,
    source: str,
    *,
    config: EvaluateConfig,
    trait: str | None = None,
    model: str | None = None,
    judge: str = "openai",
    judge_options: JudgeOptions | None = None,
    prompts_file: Path | None = None,
    runs: Path | None = None,
    fresh: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """The plan of ``evaluate`` with the same arguments: what is finished, and how much is left at most.

    Raises:
        InputError: what ``evaluate`` would refuse before it asks the judge.
    """
    plan = make_plan(experiment, source, config, trait=trait, prompts_file=prompts_file, has_model=model is not None)
    JUDGES[judge]
    results = Results(experiment, plan.trait, Store(runs or runs_folder()))
    if not fresh:
        results.check_prompts(plan.prompts)
    known = _Known(plan, model or experiment.model(None), judge, judge_options or JudgeOptions())
    units = [] if fresh or force else [unit for unit in results.units() if unit.value["status"] == "ok"]
    return _tell(plan, known.runs(units, plan.questions), known.runs(units, plan.reported))


def _tell(plan: Plan, tried_units: Sequence[Unit], reported_units: Sequence[Unit]) -> dict[str, Any]:
    config = plan.config
    chosen, finished, left = _settings(plan, tried_units)
    held_out = 0
    if config.holdout:
        held_out = sum(unit is not None and _find(reported_units, unit.task.spec["run"]) is not None for unit in chosen)
    controlled = min(config.controls, _controls(plan, chosen, reported_units))

    answers = len(plan.questions) * config.generation.effective_rollouts
    more = len(plan.reported) * config.generation.effective_rollouts
    generations = (left + (not _has_baseline(tried_units))) * answers + (config.controls - controlled) * more
    if config.holdout:
        generations += (len(chosen) - held_out + (not _has_baseline(reported_units))) * more
    calls = 2 * generations + 2 * more * len(config.also_judge)
    return {
        "experiment": plan.experiment.name, "trait": plan.trait, "vectors_from": plan.source,
        "method": config.method, "component": config.component, "layers": [v.layer for v in plan.vectors],
        "prompts_file": str(plan.prompts.path), "questions": len(plan.questions), "reported_on": len(plan.reported),
        "settings": finished + left, "controls": config.controls,
        "finished": {
            "baseline": _has_baseline(tried_units), "settings": finished, "held_out": held_out, "controls": controlled,
        },
        "generations": generations, "judge_calls_at_most": calls, "judge_tokens_at_most": calls * _tokens(plan),
        "notes": plan.notes,
    }  # fmt: skip


@dataclass(frozen=True)
class _Known:
    """What can be known of a context without its model and its judge."""

    plan: Plan
    model: str
    judge: str
    options: JudgeOptions

    def runs(self, units: Sequence[Unit], questions: Sequence[Question]) -> list[Unit]:
        """The units of the context that fits; of several, the one with most of them."""
        groups: dict[str, list[Unit]] = {}
        for unit in units:
            if self._fits(unit.task.spec["context"], questions):
                groups.setdefault(context_id(unit.task.spec["context"]), []).append(unit)
        return max(groups.values(), key=len, default=[])

    def _fits(self, context: Mapping[str, Any], questions: Sequence[Question]) -> bool:
        settings = self.plan.experiment.config()
        generation = replace(self.plan.config.generation, system_prompt=settings.system_prompt).identity()
        generation["chat"] = context["generation"]["chat"]  # the tokenizer may decide it
        return (
            context["prompts"] == self.plan.prompts.hash
            and context["questions"] == [question.id for question in questions]
            and context["generation"] == generation
            and context["model"]["name"] in _names(self.model)
            and self._fits_judge(context["judge"])
        )

    def _fits_judge(self, judge: Mapping[str, Any]) -> bool:
        if judge["coherence_prompt"] != content_hash(self.plan.coherence_prompt):
            return False
        if self.judge == "replay":
            return True  # its recording says whose readings they are
        model = self.options.model or JUDGES[self.judge].default_model or ""
        return (
            judge["provider"] == self.judge
            and judge["model"] in _names(model)
            and self.options.scoring in ("auto", judge["scoring"])
        )


def _settings(plan: Plan, units: Sequence[Unit]) -> tuple[list[Unit | None], int, int]:
    """The run that each layer or setting comes to, None while it is open; how many are finished, and left at most."""
    chosen: list[Unit | None] = []
    if not plan.config.searching:
        chosen += [_find(units, setting.identity()) for setting in plan.settings()]
        return chosen, len(chosen) - chosen.count(None), chosen.count(None)
    finished = left = 0
    for vectors in plan.candidates:
        search, steps = new_search(plan.config.search), []
        while (scale := search.propose()) is not None and (unit := _step(plan, vectors, scale, units)) is not None:
            search.record(unit.value["result"]["trait_mean"], unit.value["result"]["coherence_mean"])
            steps.append(unit)
        finished += len(steps)
        left += plan.config.search.steps - len(steps) if scale is not None else 0
        # Another step may be better than those so far.
        chosen.append(steps[best_step(search.steps, plan.config.search)[0]] if scale is None else None)
    return chosen, finished, left


def _controls(plan: Plan, chosen: Sequence[Unit | None], units: Sequence[Unit]) -> int:
    """Finished controls of the best run; none while another may yet be the best."""
    best = best_row([{"unit": unit} for unit in chosen if unit is not None], plan.config.search)
    if best is None or None in chosen:
        return 0
    final = _find(units, best["unit"].task.spec["run"])
    return 0 if final is None else sum(unit.value.get("control_of") == final.task.key[:16] for unit in units)


def _find(units: Sequence[Unit], run: Mapping[str, Any]) -> Unit | None:
    return next((unit for unit in units if unit.task.spec["run"] == run), None)


def _step(plan: Plan, vectors: tuple[Vector, ...], scale: float, units: Sequence[Unit]) -> Unit | None:
    """The finished run of one step: its push says which it is, because the coefficient depends on the model."""
    wanted = plan.setting(vectors, [0.0] * len(vectors)).identity()
    for unit in units:
        run, pushes = unit.task.spec["run"], unit.value["relative_coefficients"]
        if (
            run is not None
            and {**run, "coefficients": wanted["coefficients"]} == wanted
            and all(push and math.isclose(push, scale / len(vectors), rel_tol=1e-4) for push in pushes)
        ):
            return unit
    return None


def _has_baseline(units: Sequence[Unit]) -> bool:
    return any(unit.task.spec["run"] is None for unit in units)


def _names(model: str) -> set[str]:
    """What a model given by name, hub id or folder may be called in a run."""
    return {model, Path(model).name, shorten(ALIASES.get(model, model))}


def _tokens(plan: Plan) -> int:
    """Of one judge call, roughly and at most."""
    templates = (len(plan.prompts.eval_prompt) + len(plan.coherence_prompt)) / 2
    question = sum(len(question.text) for question in plan.prompts.questions) / len(plan.prompts.questions)
    answer = min(plan.config.generation.max_new_tokens, LONGEST // CHARACTERS)
    return round((templates + question) / CHARACTERS) + answer + FRAME
