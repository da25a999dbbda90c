"""The kinds of tasks: one function each, and nothing else of a sweep knows the other parts.

A new kind is one decorated function here: it is told places and options (`Work`), borrows what stays in memory between
tasks from the worker's `Bench`, and gives back the columns of its model's row in the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import PartlyFailed, UsageError, nearest
from residuum.registry import Registry
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
    root: str | None = None
    """Option that names a folder to work in, by default the current one."""
    inputs: Callable[[Options], dict[str, Any]] = lambda _: {}
    """Content of further files that decide the result, by name."""
    check: Callable[[Options], None] = lambda _: None
    """Refuses options that do not exist."""
    view: str | None = None
    """The folder of results below the runs root, with places for set and model; its summary.json comes last."""


KINDS: Registry[Kind] = Registry("kind of task")


def kind(name: str, **how: Any) -> Callable[[Callable[[Work, Bench], Found]], Callable[[Work, Bench], Found]]:
    """File a function as a kind of task; ``how`` are the fields of `Kind`."""

    def add(function: Callable[[Work, Bench], Found]) -> Callable[[Work, Bench], Found]:
        KINDS.register(name)(Kind(function, **how))
        return function

    return add


def accepts(home: str, function: str, *planned: str) -> Callable[[Options], None]:
    """A check against the keywords of a function, but for those that the plan itself gives."""

    def check(options: Options) -> None:
        parameters = signature(getattr(import_module(home), function)).parameters.values()
        refuse_unknown(options, [p.name for p in parameters if p.kind is Parameter.KEYWORD_ONLY and p.name not in planned], function)  # fmt: skip

    return check


def refuse_unknown(options: Options, known: list[str], what: str) -> None:
    """Every option must exist.

    Raises:
        UsageError: names the nearest.
    """
    for name in options:
        if name not in known:
            near = nearest(name, known)
            hint = f" Did you mean {near[0]}?" if near else f"\n  Its options: {', '.join(known)}."
            raise UsageError(f"{what} has no option {name} in a sweep.{hint}")


def _check_uds(options: Options) -> None:
    from residuum.patching.uds import uds_config

    accepts("residuum.patching.uds", "uds", "full", "retain", "unlearned", "data", "device", "runs", "on_result")(
        options
    )
    uds_config(**{k: v for k, v in options.items() if k not in _LOADING})


_LOADING = ("dtype", "attn", "generations")


@kind(
    "uds", uses=("full_model", "retain_model", "data"), reference=True, view="{set}/uds/{model}", check=_check_uds
)  # fmt: skip
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
    check=accepts("residuum.metrics.evaluate", "evaluate", "data", "retain", "full", "device", "runs"),
)  # fmt: skip
def evaluate(work: Work, bench: Bench) -> Found:
    """What the output metrics say."""
    evaluation = bench.evaluator(work, bench.loading(work.options)).run(str(work.model))
    evaluation.save(bench.runs / work.set)
    return Found({name: score.value for name, score in evaluation.items()})


def _check_meta(options: Options) -> None:
    from residuum.meta.attacks import check_attacks
    from residuum.meta.bench import Relearning
    from residuum.meta.catalogue import choose

    refuse_unknown(
        options, ["attacks", "metrics", "forget", "relearning", "fluency", "dtype", "attn", *_SETTINGS], "meta"
    )
    refuse_unknown(options.get("relearning", {}), [f.name for f in fields(Relearning)], "meta.relearning")
    check_attacks(options.get("attacks", ()))
    choose(options.get("metrics", "all"))


_SETTINGS = ("format", "system_prompt", "date", "mask_mode", "compat", "fluency_model", "batch_tokens", "seed")


@kind("meta", uses=("full_model", "retain_model", "data_dir"), reference=True, check=_check_meta)
def meta(work: Work, bench: Bench) -> Found:
    """What `residuum meta` needs of one model: every metric before and after each attack, filed where it looks."""
    from residuum.meta.bench import Bench as MetaBench
    from residuum.meta.bench import Case, Relearning, measure
    from residuum.meta.catalogue import choose
    from residuum.metrics.evaluation import Settings

    given = work.options
    loading = bench.loading(given)
    how = MetaBench(
        data=str(work.data_dir), full=str(work.full_model), retain=str(work.retain_model), runs=str(bench.runs),
        forget=given.get("forget", "forget10"), settings=Settings.of(**{k: given[k] for k in _SETTINGS if k in given}),
        relearning=Relearning(**given.get("relearning", {})), **loading,
    )  # fmt: skip
    chosen = choose(given.get("metrics", "all"))
    utility = "utility_rel" if given.get("fluency", True) else "model_utility"
    columns: dict[str, Any] = {}
    for attack in ("none", *given.get("attacks", ())):
        record = measure(how, Case(str(work.model), (*chosen, utility) if attack == "none" else chosen, attack))
        if record["failed"] and not record["diverged"]:
            raise PartlyFailed(record["failed"])
        after = "before" if attack == "none" else attack
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


def _check_rtt(options: Options) -> None:
    from residuum.rtt.config import read_config

    refuse_planned(options, "rtt", "unlearned", "results_dir", "devices")
    read_config(options)


def refuse_planned(options: Options, what: str, *planned: str) -> None:
    """Refuse options that the plan itself gives.

    Raises:
        UsageError: names the first.
    """
    for name in planned:
        if name in options:
            raise UsageError(f"{what}.{name} is given by the plan: its models, folders and devices.\n  Leave it out.")


@kind("rtt", files=("dataset",), checkpoints=("model", "naive_model"), check=_check_rtt)
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


_STEER = ("experiment", "vector_from_trait", "root", "judge", "judge_options", "search", "generation", "dtype", "attn")


def _check_steer(options: Options) -> None:
    from residuum.steering.config import EvaluateConfig
    from residuum.steering.judge.base import JudgeOptions
    from residuum.steering.search import SearchConfig
    from residuum.steering.settings import Generation

    refuse_unknown(options, [*_STEER, *(f.name for f in fields(EvaluateConfig))], "steer")
    parts: dict[str, Any] = {"judge_options": JudgeOptions, "search": SearchConfig, "generation": Generation}
    for name, kind_of in parts.items():
        refuse_unknown(options.get(name, {}), [f.name for f in fields(kind_of)], f"steer.{name}")
    for name in ("experiment", "vector_from_trait"):
        if not isinstance(options.get(name), str):
            raise UsageError(f"a steer task says its {name}.\n  Write it into the [steer] table of the plan.")


def _steer_inputs(options: Options) -> dict[str, Any]:
    """Vectors and questions; the results beside them are no input."""
    experiment, _, trait = str(options["vector_from_trait"]).partition("/")
    root = Path(options["root"])
    return {
        "vectors": data_identity(root / "experiments" / experiment / "extraction" / trait),
        "datasets": data_identity(root / "datasets"),
    }


@kind("steer", check=_check_steer, root="root", inputs=_steer_inputs)
def steer(work: Work, bench: Bench) -> Found:
    """Whether it comes back when the activations are steered."""
    from residuum.steering.config import EvaluateConfig
    from residuum.steering.evaluate import evaluate as steer_and_judge
    from residuum.steering.experiments import Experiment
    from residuum.steering.judge.base import JudgeOptions
    from residuum.steering.search import SearchConfig
    from residuum.steering.settings import Generation

    given = dict(work.options)
    own: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items() if k not in _STEER}
    search, generation = SearchConfig(**given.get("search", {})), Generation(**given.get("generation", {}))
    config = EvaluateConfig(search=search, generation=generation, **own)
    result = steer_and_judge(
        Experiment(Path(given["root"]), given["experiment"]), given["vector_from_trait"], config=config,
        model=str(work.model), judge=given.get("judge", "openai"), judge_options=JudgeOptions(**given.get("judge_options", {})),
        runs=bench.runs, load_options=bench.loading(given),
    )  # fmt: skip
    best = result["best"] or {}
    flat = {key: value for key, value in best.items() if isinstance(value, int | float | str)}
    return Found({"steer_baseline": result["baseline"].get("trait_mean"), **{f"steer_{k}": v for k, v in flat.items()}})
