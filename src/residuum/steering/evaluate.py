"""The evaluation: how far can a vector push a trait before the text falls apart, and is that more than any push does?

Checks come in the order arguments, files, prompts, judge, model, so that the cheap ones fail first.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import Unavailable
from residuum.folders import runs_folder
from residuum.steering.bench import Bench
from residuum.steering.config import EvaluateConfig
from residuum.steering.cross import judge_across
from residuum.steering.experiments import Experiment
from residuum.steering.judge.base import JudgeOptions
from residuum.steering.judge.panel import Panel
from residuum.steering.outcome import best_row, classification_layer, outcome, run_controls, summarize_best
from residuum.steering.plan import Plan, fit, make_plan
from residuum.steering.results import Results
from residuum.steering.traits import SteeringWarning
from residuum.steering.trials import OnStep, Trials
from residuum.store import Store, Unit

if TYPE_CHECKING:
    from residuum.models.handles import ModelHandle
    from residuum.models.loading import LM

BROKEN = 50.0
"""Below this coherence a trait score means little."""
NORM_QUESTIONS = 3


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
    keep_previous: bool = False,
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
        keep_previous: keep what a forced run replaces beside it, as ``.json.prev``.
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
        return _Evaluation(
            fit(plan, handle), results, panel, handle, force=force, keep_previous=keep_previous, on_step=on_step
        ).run()
    finally:
        if panel is not judge:
            panel.close()


def open_panel(judge: str, options: JudgeOptions | None, store: Store, *, cached: bool = True) -> Panel:
    """A judge by name with the cache of a store."""
    return Panel.open(judge, options or JudgeOptions(), cache=store.root / "judge.sqlite" if cached else None)


class _Evaluation:
    """One evaluation from the loaded model on."""

    def __init__(
        self, plan: Plan, results: Results, panel: Panel, handle: ModelHandle,
        *, force: bool, keep_previous: bool, on_step: OnStep,
    ) -> None:  # fmt: skip
        self.plan, self.config, self.results, self.on_step = plan, plan.config, results, on_step
        generation = _settled(plan, handle)
        self.bench = Bench(
            results, handle, plan.prompts, plan.questions, generation, panel, plan.coherence_prompt,
            norms=_norms(plan, handle, generation), vector_source=plan.foreign,
            split="search" if plan.config.holdout else None, together=plan.config.batch_layers, force=force,
            keep_previous=keep_previous,
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        """Baseline, search or fixed coefficients, report, controls, other traits."""
        self.results.sync(prompts=self.plan.prompts)
        baseline = self._baseline(self.bench)
        rows = Trials(self.plan, self.bench, self.on_step).run()
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
        self._warn_of_breakdown(rows, best)
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
            "tried": len(self.plan.vectors), "notes": self.plan.notes, "runs": len(view["runs"]),
            "failed": _failed(rows, controls, cross),
        }  # fmt: skip

    def _baseline(self, bench: Bench) -> Unit:
        """The unsteered answers; a judge that cannot rate them cannot rate anything."""
        (unit,) = bench.run([None])
        if unit.value["status"] != "ok":
            statuses = sorted({item[kind]["status"] for item in unit.value["items"] for kind in ("trait", "coherence")})
            scored = unit.value["result"]["n"]
            raise Unavailable(
                f"the judge gave a usable rating for {scored} of {len(unit.value['items'])} unsteered answers "
                f"({', '.join(statuses)}).\n  Use another --judge-model or --judge-scoring; the answers are kept."
            )
        self.on_step({"label": "baseline", **unit.value["result"], "status": "ok"})
        return unit

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

    def _warn_of_breakdown(self, rows: Sequence[dict[str, Any]], best: dict[str, Any] | None) -> None:
        """Trait scores of broken text mean little, whether they are the best or only on the way to it."""
        runs = [
            (row, step) for row in rows for step in (*row["steps"], *([row["reported"]] if "reported" in row else []))
        ]
        broken = [(row, run) for row, run in runs if run.get("coherence_mean", BROKEN) < BROKEN]
        if broken:
            row, lowest = min(broken, key=lambda pair: pair[1]["coherence_mean"])
            shown = [] if best is None else [best["steps"][best["best"]], best.get("reported")]
            _warn(
                f"coherence falls below {BROKEN:g} in {len(broken)} of {len(runs)} runs, to {lowest['coherence_mean']:.0f} in "
                f"{row['label']}: their trait scores mean little."
                + (" The best run is one of them." if any(run in shown for _, run in broken) else "")
            )
        if best is not None and not best["threshold_met"]:
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
