"""The kinds of tasks: one function each, and nothing else of a sweep knows the other parts.

A new kind is one decorated function here: it is told places and options (`Work`), borrows what stays in memory between
tasks from the worker's `Bench`, and gives back the columns of its model's row in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.registry import Registry
from residuum.sweep import checks
from residuum.sweep.hubcache import is_cached
from residuum.sweep.sources import data_identity
from residuum.sweep.tasks import Work

if TYPE_CHECKING:
    from residuum.sweep.bench import Bench

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """What a task found or made."""

    columns: dict[str, Any]
    """Its part of the model's row: numbers and texts that depend on nothing but the task."""
    identity: str | None = None
    """Of a checkpoint that was made: what its manifest says it is."""


@dataclass(frozen=True)
class Kind:
    """How tasks of one kind are planned and done."""

    run: Callable[[Work, Bench], Found]
    makes: bool = False
    """Makes a model instead of asking one."""
    uses: tuple[str, ...] = ()
    """Which of full_model, retain_model, data and data_dir it reads."""
    reference: bool = False
    """What is asked of the retain model first serves all others."""
    files: tuple[str, ...] = ()
    """Options that name data."""
    checkpoints: tuple[str, ...] = ()
    """Options that name models."""
    fluency: bool = False
    """Reads the classifier that ``fluency_model`` names."""
    root: str | None = None
    """Option that names a folder to work in, by default the current one."""
    inputs: Callable[[Options], dict[str, Any]] = lambda _: {}
    """Content of further files that decide the result, by name."""
    check: Callable[[Options], None] = lambda _: None
    """Refuses options that do not exist or cannot be."""
    view: str | None = None
    """The folder of results below the runs root, with places for set and model; its summary.json comes last."""

    def models(self, work: Work) -> list[str | None]:
        """All that a task reads, the classifier only when it is there: it is small, and not every task asks for it."""
        from residuum.evidence.fluency import CLASSIFIER

        classifier = str(work.options.get("fluency_model", CLASSIFIER))
        others = [classifier] if self.fluency and is_cached(classifier) else []
        return [work.model, work.full_model, work.retain_model, *map(work.options.get, self.checkpoints), *others]


KINDS: Registry[Kind] = Registry("kind of task")


def kind(name: str, **how: Any) -> Callable[[Callable[[Work, Bench], Found]], Callable[[Work, Bench], Found]]:
    """File a function as a kind of task; ``how`` are the fields of `Kind`."""

    def add(function: Callable[[Work, Bench], Found]) -> Callable[[Work, Bench], Found]:
        KINDS.register(name)(Kind(function, **how))
        return function

    return add


@kind(
    "uds", uses=("full_model", "retain_model", "data"), reference=True, view="{set}/uds/{model}", check=checks.check_uds
)
def uds(work: Work, bench: Bench) -> Found:
    """How much is left, and in which layers."""
    from residuum.models.handles import ModelHandle, check_alike
    from residuum.patching.output import example_record, run_tag, summary
    from residuum.store import write_json

    loading = bench.loading(work.options)
    audit = bench.audit(work, loading)
    model = ModelHandle(str(work.model), **loading)
    check_alike(audit.full, model)
    result = audit.run(model, generations=bool(work.options.get("generations", False)))
    folder = bench.runs / work.set / "uds" / run_tag(work.name)
    # The two files that `evaluate` writes there too; pictures and logs are what `residuum uds` is for.
    write_json(folder / "results.json", [example_record(result, place) for place in range(len(result.examples))])
    write_json(folder / "summary.json", summary(result))
    low, high = result.ci95 or (None, None)
    counts = {"uds_n": result.n, "uds_skipped": len(result.skipped)}
    return Found({"uds": result.uds, "uds_low": low, "uds_high": high, **counts})


@kind(
    "evaluate", uses=("full_model", "retain_model", "data_dir"), reference=True, files=("members", "nonmembers"),
    fluency=True, check=checks.check_evaluate,
)  # fmt: skip
def evaluate(work: Work, bench: Bench) -> Found:
    """What the output metrics say."""
    evaluation = bench.evaluator(work, bench.loading(work.options)).run(str(work.model))
    evaluation.save(bench.runs / work.set)
    return Found({name: score.value for name, score in evaluation.items()})


@kind("meta", uses=("full_model", "retain_model", "data_dir"), reference=True, fluency=True, check=checks.check_meta)
def meta(work: Work, bench: Bench) -> Found:
    """What `residuum meta` needs of one model: every metric before and after each attack, filed where it looks."""
    from residuum.meta.bench import Bench as MetaBench
    from residuum.meta.bench import Case, Relearning, measure_or_raise
    from residuum.meta.catalogue import choose
    from residuum.metrics.evaluation import Settings

    given = work.options
    loading = bench.loading(given)
    how = MetaBench(
        data=str(work.data_dir), full=str(work.full_model), retain=str(work.retain_model), runs=str(bench.runs),
        forget=given.get("forget", "forget10"), settings=Settings.of(**{k: given[k] for k in checks.SETTINGS if k in given}),
        relearning=Relearning(**given.get("relearning", {})), **loading,
    )  # fmt: skip
    chosen = choose(given.get("metrics", "all"))
    utility = "utility_rel" if given.get("fluency", True) else "model_utility"
    cases = [Case(str(work.model), (*chosen, utility))]
    cases += [Case(str(work.model), chosen, attack) for attack in given.get("attacks", ())]
    for case in cases:
        how.evaluator(case.metrics)  # names, data and references, before anything is measured
    columns: dict[str, Any] = {}
    for case in cases:
        # What is not the model's fault is raised, so that the driver tries again or ends the sweep.
        record = measure_or_raise(how, case)
        after = "before" if case.attack == "none" else case.attack
        columns |= {f"{name}.{after}": record["metrics"].get(name) for name in chosen}
    return Found(columns)


@kind("unlearn", makes=True, files=("forget", "retain", "idk", "alternates"))
def unlearn(work: Work, bench: Bench) -> Found:
    """Make a model forget."""
    import json

    from residuum.models.weights import weights_fingerprint
    from residuum.training.unlearn import unlearn as make

    options = {key: value for key, value in work.options.items() if key != "method"}
    folder = make(
        work.options["method"], model=str(work.model), out=str(work.out), title=None, device=bench.device, **options
    )
    manifest = json.loads((folder / "manifest.json").read_bytes())
    last = manifest["losses"]["last"]
    losses = {f"{part}_loss": last[part] for part in ("forget", "retain", "total") if part in last}
    weights = weights_fingerprint(folder)
    return Found({"steps": manifest["losses"]["steps"], **losses, "weights": weights}, manifest["identity"])


@kind("rtt", files=("dataset",), checkpoints=("model", "naive_model"), check=checks.check_rtt)
def rtt(work: Work, bench: Bench) -> Found:
    """Whether it comes back after retraining on related facts; what all models share is in the store."""
    from residuum.patching.output import run_tag
    from residuum.rtt.protocol import check_failures, run_rtt

    given = {**work.options, "unlearn": {**work.options.get("unlearn", {}), "types": []}}
    result = run_rtt(
        given, runs=bench.runs, unlearned=(str(work.model),), devices=(str(bench.device),),
        results_dir=bench.runs / work.set / "rtt" / run_tag(work.name),
    )  # fmt: skip
    check_failures(result)
    (finding,) = result.findings
    found = finding.summary
    return Found({
        "rtt_base": found.base, "rtt_a": found.unlearned, "rtt_b": found.b.accuracy, "rtt_c": found.c.accuracy,
        "rtt_n": found.n.accuracy, "recovery_rate": found.recovery_rate, "gap_closed": found.gap_closed,
        "rtt_status": found.status,
    })  # fmt: skip


def _steer_inputs(options: Options) -> dict[str, Any]:
    """Vectors and questions; the results beside them are no input."""
    experiment, _, trait = str(options["vector_from_trait"]).partition("/")
    root = Path(options["root"])
    return {
        "vectors": data_identity(root / "experiments" / experiment / "extraction" / trait),
        "datasets": data_identity(root / "datasets"),
    }


@kind("steer", check=checks.check_steer, root="root", inputs=_steer_inputs)
def steer(work: Work, bench: Bench) -> Found:
    """Whether it comes back when the activations are steered."""
    from residuum.steering.evaluate import evaluate as steer_and_judge
    from residuum.steering.experiments import Experiment
    from residuum.steering.judge.base import JudgeOptions

    given = work.options
    result = steer_and_judge(
        Experiment(Path(given["root"]), given["experiment"]), given["vector_from_trait"], config=checks.steer_config(given),
        model=str(work.model), judge=given.get("judge", "openai"), judge_options=JudgeOptions(**given.get("judge_options", {})),
        runs=bench.runs, load_options=bench.loading(given),
    )  # fmt: skip
    best = result["best"] or {}
    flat = {key: value for key, value in best.items() if isinstance(value, int | float | str)}
    return Found({"steer_baseline": result["baseline"].get("trait_mean"), **{f"steer_{k}": v for k, v in flat.items()}})
