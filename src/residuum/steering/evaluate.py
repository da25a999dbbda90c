"""The evaluation: how far can a vector push a trait before the text falls apart, and is that more than any push does?

Checks come in the order arguments, files, prompts, judge, model, so that the cheap ones fail first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import Unavailable
from residuum.folders import runs_folder
from residuum.steering.bench import Bench
from residuum.steering.config import DEFAULT_COEFFICIENT, TINY, EvaluateConfig
from residuum.steering.cross import judge_across
from residuum.steering.experiments import Experiment
from residuum.steering.judge.base import JudgeOptions
from residuum.steering.judge.panel import Panel
from residuum.steering.outcome import best_row, classification_layer, outcome, run_controls, summarize_best
from residuum.steering.plan import Plan, check_fit, make_plan
from residuum.steering.results import Results
from residuum.steering.search import Search, best_step, new_search
from residuum.steering.settings import Setting
from residuum.steering.traits import SteeringWarning
from residuum.steering.vectors import Vector
from residuum.store import Store, Unit

if TYPE_CHECKING:
    from residuum.models.handles import ModelHandle
    from residuum.models.loading import LM

BROKEN = 50.0
"""Below this coherence a trait score means little."""
NORM_QUESTIONS = 3
OnStep = Callable[[dict[str, Any]], None]


@dataclass
class Candidate:
    """One layer, or all at once, on its way to a coefficient."""

    label: str
    make: Callable[[float], Setting]
    search: Search
    units: list[Unit]
    failed: bool = False


def evaluate(
    experiment: Experiment,
    source: str,
    *,
    config: EvaluateConfig | None = None,
    trait: str | None = None,
    model: str | Path | LM | None = None,
    judge: str | Panel = "openai",
    judge_options: JudgeOptions | None = None,
    judge_cache: bool = True,
    prompts_file: Path | None = None,
    runs: Path | None = None,
    fresh: bool = False,
    force: bool = False,
    load_options: Mapping[str, Any] | None = None,
    on_step: OnStep = lambda _: None,
) -> dict[str, Any]:
    """Steer a model with the vectors of a trait and judge what it says.

    Args:
        experiment: where results go; its config names the model.
        source: where the vectors come from, ``experiment/category/trait``.
        config: what to steer and how to measure.
        trait: the trait that is judged; that of the vectors when left out.
        model: what is steered; the experiment's model when left out.
        judge: a judge by name, or one that is open already.
        judge_options: model, address, scoring and limits of a judge by name.
        judge_cache: ask the same thing only once, ever.
        prompts_file: evaluation questions; the trait's own when left out.
        runs: root of the run store.
        fresh: archive earlier runs of this trait first.
        force: make finished runs again.
        load_options: dtype, device, attn of ``load``.
        on_step: told about every finished run.

    Returns:
        Baseline, layers with their steps, the best run, controls and where everything is; ready for JSON.

    Raises:
        InputError: something given cannot be used.
        Unavailable: the judge cannot rate, or is out of reach; what is finished is saved.
    """
    plan = make_plan(
        experiment, source, config or EvaluateConfig(), trait=trait, prompts_file=prompts_file, has_model=model is not None
    )  # fmt: skip
    store = Store(runs or runs_folder())
    results = Results(experiment, plan.trait, store)
    if fresh:
        results.archive()
    results.check_prompts(plan.prompts)
    panel = judge if isinstance(judge, Panel) else open_panel(judge, judge_options, store, cached=judge_cache)
    try:
        panel.probe()
        from residuum.models.handles import ModelHandle

        handle = ModelHandle(model or experiment.model(None), **(load_options or {}))
        check_fit(plan, handle)
        return _Evaluation(plan, results, panel, handle, force=force, on_step=on_step).run()
    finally:
        if panel is not judge:
            panel.close()


def open_panel(judge: str, options: JudgeOptions | None, store: Store, *, cached: bool = True) -> Panel:
    """A judge by name with the cache of a store."""
    return Panel.open(judge, options or JudgeOptions(), cache=store.root / "judge.sqlite" if cached else None)


class _Evaluation:
    """One evaluation from the loaded model on."""

    def __init__(
        self, plan: Plan, results: Results, panel: Panel, handle: ModelHandle, *, force: bool, on_step: OnStep
    ) -> None:
        self.plan, self.config, self.results, self.on_step = plan, plan.config, results, on_step
        generation = _settled(plan, handle)
        self.bench = Bench(
            results, handle, plan.prompts, plan.questions, generation, panel, plan.coherence_prompt,
            norms=_norms(plan, handle, generation), vector_source=plan.foreign,
            split="search" if plan.config.holdout else None, together=plan.config.batch_layers, force=force,
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        """Baseline, search or fixed coefficients, report, controls, other traits."""
        self.results.sync(prompts=self.plan.prompts)
        baseline = self._baseline(self.bench)
        rows = self._search() if self.config.searching else self._fixed()
        best = best_row([row for row in rows if row["status"] == "ok"], self.config.search)
        report = self._report_bench()
        final = self._report(report, rows, best)
        controls = None
        if best is not None and self.config.controls:
            controls = run_controls(report, best["setting"], self.config, self.on_step)
        cross = []
        if best is not None and self.config.also_judge:
            cross = judge_across(report, final, report.baseline(), self.config.also_judge)
        view = self.results.sync(prompts=self.plan.prompts)
        self._warn_of_breakdown(best)
        summary = None
        if best is not None and final is not None:
            summary = summarize_best(report, final, best, controls, self.config)
        return {
            "experiment": self.plan.experiment.name, "trait": self.plan.trait, "vectors_from": self.plan.source,
            "results": str(self.results.path), "context_id": report.context_id, "judge": report.panel.identity,
            "judge_usage": report.panel.judge.usage(), "direction": self.config.search.direction,
            "baseline": baseline.value["result"] if report is self.bench else report.baseline().value["result"],
            "layers": [_plain(row) for row in rows], "best": summary,
            "controls": controls, "cross": cross, "best_classification_layer": classification_layer(self.plan),
            "tried": len(self.plan.vectors), "notes": list(self.plan.notes), "runs": len(view["runs"]),
            "failed": _failed(rows, controls, cross),
        }  # fmt: skip

    def _baseline(self, bench: Bench) -> Unit:
        """The unsteered answers; a judge that cannot rate them cannot rate anything."""
        unit = bench.baseline()
        if unit.value["status"] != "ok":
            statuses = sorted({item[kind]["status"] for item in unit.value["items"] for kind in ("trait", "coherence")})
            scored = unit.value["result"]["n"]
            raise Unavailable(
                f"the judge gave a usable rating for {scored} of {len(unit.value['items'])} unsteered answers "
                f"({', '.join(statuses)}).\n  Use another --judge-model or --judge-scoring; the answers are kept."
            )
        self.on_step({"label": "baseline", **unit.value["result"], "status": "ok"})
        return unit

    # Coefficients

    def _search(self) -> list[dict[str, Any]]:
        """All candidates step together: each step is one batch."""
        candidates = self._candidates()
        while active := [c for c in candidates if not c.failed and c.search.propose() is not None]:
            settings = [c.make(c.search.propose() or 0.0) for c in active]
            units = self.bench.run(settings)
            if failed := [s for s, unit in zip(settings, units, strict=True) if unit.value["status"] != "ok"]:
                again = dict(zip(map(id, failed), self.bench.run(failed, force=False), strict=True))
                units = [again.get(id(s), unit) for s, unit in zip(settings, units, strict=True)]
            for candidate, setting, unit in zip(active, settings, units, strict=True):
                self._record(candidate, setting, unit)
        return [self._finish(candidate) for candidate in candidates]

    def _candidates(self) -> list[Candidate]:
        vectors, config = self.plan.vectors, self.config.search
        if self.config.multi_layer:
            base = [self._base(v) / len(vectors) for v in vectors]

            def all_at_once(scale: float) -> Setting:
                return self.plan.setting(vectors, [scale * b for b in base])

            layers = "_".join(str(v.layer) for v in vectors)
            return [Candidate(f"L{layers}", all_at_once, new_search(config), [])]

        def alone(vector: Vector) -> Callable[[float], Setting]:
            return lambda scale: self.plan.setting([vector], [scale * self._base(vector)])

        return [Candidate(f"L{v.layer}", alone(v), new_search(config), []) for v in vectors]

    def _base(self, vector: Vector) -> float:
        """The coefficient at which the push is as long as the activation."""
        return self.bench.norms[vector.layer] / vector.norm

    def _record(self, candidate: Candidate, setting: Setting, unit: Unit) -> None:
        result, threshold = unit.value["result"], self.config.search.min_coherence
        if unit.value["status"] != "ok":
            candidate.failed = True
            self.on_step({"label": setting.label, **result, "status": unit.value["status"]})
            return
        candidate.units.append(unit)
        candidate.search.record(result["trait_mean"], result["coherence_mean"])
        step = candidate.search.steps[-1]
        self.on_step({
            "label": candidate.label, "step": len(candidate.search.steps), "coefficients": setting.coefficients,
            "relative": unit.value["relative_coefficients"], **result, "status": "ok",
            "coherent": step.coherent(threshold), "starred": step.starred(self.config.search),
        })  # fmt: skip

    def _finish(self, candidate: Candidate) -> dict[str, Any]:
        """Mark every step of a search, and the best of them, in their runs."""
        steps = candidate.search.steps
        row: dict[str, Any] = {
            "label": candidate.label,
            "status": "judge_failed" if candidate.failed else "ok",
            "steps": [],
        }
        if not steps:
            return {**row, "status": "judge_failed", "best": None}
        best, met = best_step(steps, self.config.search)
        notes = [
            {"search": {"step": i + 1, "best": i == best, "threshold_met": met if i == best else step.coherent(self.config.search.min_coherence)}}
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
        settings = self.plan.settings()
        if self.config.coefficients is None and self.config.operator == "add":
            base = min(self._base(vector) for vector in self.plan.vectors)
            if base * TINY > DEFAULT_COEFFICIENT:
                _warn(f"the default coefficient {DEFAULT_COEFFICIENT:g} is tiny here: base_coef is {base:.3g} or more.")
        units = self.bench.run(settings)
        rows = []
        for setting, unit in zip(settings, units, strict=True):
            status, result = unit.value["status"], unit.value["result"]
            self.on_step({
                "label": setting.label, "coefficients": setting.coefficients,
                "relative": unit.value["relative_coefficients"], **result, "status": status,
            })  # fmt: skip
            met = status == "ok" and result["coherence_mean"] >= self.config.search.min_coherence
            rows.append({
                "label": setting.label, "status": status, "steps": [outcome(setting, unit)], "best": 0,
                "threshold_met": met, "setting": setting, "unit": unit,
            })  # fmt: skip
        return rows

    # What is reported

    def _report_bench(self) -> Bench:
        if not self.config.holdout:
            return self.bench
        return replace(self.bench, questions=self.plan.reported, split="report")

    def _report(self, report: Bench, rows: Sequence[dict[str, Any]], best: dict[str, Any] | None) -> Unit | None:
        """The best run on the questions it was not chosen on; every layer's best goes along, in the same batch."""
        if report is self.bench:
            return best["unit"] if best else None
        self._baseline(report)
        chosen = [row for row in rows if row["status"] == "ok"]
        for row, unit in zip(chosen, report.run([row["setting"] for row in chosen]), strict=True):
            row["reported"] = outcome(row["setting"], unit)
            row["reported_unit"] = unit
        return best["reported_unit"] if best else None

    def _warn_of_breakdown(self, best: dict[str, Any] | None) -> None:
        if best is None:
            return
        coherence = best["unit"].value["result"].get("coherence_mean")
        if coherence is not None and coherence < BROKEN:
            _warn(
                f"the coherence of {best['label']} is {coherence:.0f}: below {BROKEN:g} the trait score means little."
            )
        elif not best["threshold_met"]:
            _warn(
                f"no setting keeps a coherence of {self.config.search.min_coherence:g}; the most coherent one is shown."
            )


def _settled(plan: Plan, handle: ModelHandle) -> Any:
    """Generation with template and system prompt as the experiment has them."""
    settings = plan.experiment.config()
    chat = settings.use_chat_template
    if chat is None:
        chat = bool(handle.tokenizer().chat_template)
    return replace(plan.config.generation, chat=chat, system_prompt=settings.system_prompt)


def _norms(plan: Plan, handle: ModelHandle, generation: Any) -> dict[int, float]:
    from residuum.steering.activations import encode_questions, residual_norms

    prompts = encode_questions(
        handle.lm.tokenizer, plan.prompts.questions[:NORM_QUESTIONS], chat=generation.chat, system_prompt=generation.system_prompt
    )  # fmt: skip
    return residual_norms(handle.lm, prompts, sorted({vector.layer for vector in plan.vectors}))


def _failed(
    rows: Sequence[Mapping[str, Any]], controls: Mapping[str, Any] | None, cross: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Everything that the judge could not rate: settings, their held-out runs, controls, other traits."""
    failed = [row["label"] for row in rows if row["status"] != "ok"]
    failed += [f"{row['label']} held out" for row in rows if row.get("reported", {}).get("status", "ok") != "ok"]
    if controls and controls["failed"]:
        failed.append(f"{controls['failed']} random vectors")
    return failed + [row["judged_trait"] for row in cross if row["status"] != "ok"]


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in ("setting", "unit", "reported_unit")}


def _warn(message: str) -> None:
    warnings.warn(message, SteeringWarning, stacklevel=3)
