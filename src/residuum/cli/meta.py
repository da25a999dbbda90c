"""``residuum meta``: which metric can be trusted?"""

# ruff: noqa: ARG001  what all three commands share is read from their context, in one place

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from residuum.cli.app import app, group
from residuum.cli.meta_checks import (
    check_asked,
    check_folders,
    check_unused,
    form_named,
    nearby_thresholds,
    read_thresholds,
    said,
)
from residuum.cli.meta_options import (
    Against,
    AsJson,
    Attack,
    Attn,
    BatchTokens,
    Common,
    Compat,
    DataDir,
    Date,
    Dtype,
    Floor,
    Fluency,
    ForgetSplit,
    Format,
    FormOption,
    FullModel,
    Gpu,
    InWorld,
    Keep,
    MaskMode,
    Methods,
    Metrics,
    Models,
    PoolN,
    PoolP,
    RelearnEpochs,
    RelearnLr,
    RetainModel,
    Runs,
    Seed,
    Size,
    SystemPrompt,
    Workers,
)
from residuum.cli.metatables import show_attacked, show_pools, show_table
from residuum.data.prompts import ChatFormat
from residuum.errors import PartlyFailed, UsageError
from residuum.models.names import FULL, POOL_N, POOL_P, RETAIN, subset_150

if TYPE_CHECKING:
    from residuum.meta.attacked import Attacked
    from residuum.meta.bench import Bench
    from residuum.meta.pools import Pools
    from residuum.worlds.build import World

meta = group(
    "Which metric can be trusted: faithfulness over pools of models, robustness under attacks, both in a table."
)
app.add_typer(meta, name="meta")

_WITH_FOLDERS = {"metrics", "utility_floor", "form", "common_subset", "faithfulness", "robustness", "out", "runs", "as_json"}  # fmt: skip
_WITH_VALUES = {"metrics", "attack", "from_values", "faithfulness", "retain_model", "utility_floor", "form", "common_subset", "out", "seed", "runs", "as_json"}  # fmt: skip
"""What still has a meaning when no model is asked."""


@meta.command("faithfulness")
def faithfulness_command(
    ctx: typer.Context, pool_p: PoolP = "published", pool_n: PoolN = "published", metrics: Metrics = "all", world: InWorld = None,
    size: Size = 8, compare: Against = "uds",
    out: Annotated[Path | None, typer.Option(help="Target folder; {runs}/faithfulness.")] = None,
    data_dir: DataDir = "tofu", full_model: FullModel = FULL, retain_model: RetainModel = RETAIN,
    forget_split: ForgetSplit = "forget10", format: Format = "chat", system_prompt: SystemPrompt = ChatFormat.system_prompt,
    date: Date = str(ChatFormat.date), mask_mode: MaskMode = "length", compat: Compat = None, batch_tokens: BatchTokens = 4096,
    gpu: Gpu = None, dtype: Dtype = "auto", attn: Attn = None, seed: Seed = 42, workers: Workers = None, runs: Runs = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Does a metric tell models that know from models that do not?

    AUC per metric in knowledge direction, with intervals over models, thresholds and paired comparisons. Resumes model by
    model.

    Examples: `residuum meta faithfulness --pool-p published --pool-n published --gpu 0`,
    `residuum meta faithfulness --pool-p p.txt --pool-n n.txt --data-dir w/data --full-model w/models/full --retain-model w/models/retain90`
    """
    check_asked(ctx)
    bench, place = _bench(ctx.params)
    pools = _pools(bench, place, pool_p, pool_n, metrics, compare, size, workers)
    folder = pools.save(out or Path(bench.runs) / "faithfulness")
    show_pools(pools, folder, as_json)
    _end(pools.failed)


@meta.command("robustness")
def robustness_command(
    ctx: typer.Context, models: Models = "published", attack: Attack = "quantization,relearning", metrics: Metrics = "all",
    from_values: Annotated[Path | None, typer.Option(help="CSV of before and after numbers instead of models: model,metric,attack,before,after and, if known, utility_rel.")] = None,
    faithfulness: Annotated[Path | None, typer.Option(help="Folder (or summary.json) with the thresholds; {runs}/faithfulness if it is of the same models and data.")] = None,
    world: InWorld = None, methods: Methods = None, utility_floor: Floor = 0.8, form: FormOption = "symmetric",
    common_subset: Common = False, relearn_lr: RelearnLr = None, relearn_epochs: RelearnEpochs = None, keep_relearned: Keep = False,
    fluency_model: Fluency = None,
    out: Annotated[Path | None, typer.Option(help="Target folder; {runs}/meta_eval.")] = None,
    data_dir: DataDir = "tofu", full_model: FullModel = FULL, retain_model: RetainModel = RETAIN,
    forget_split: ForgetSplit = "forget10", format: Format = "chat", system_prompt: SystemPrompt = ChatFormat.system_prompt,
    date: Date = str(ChatFormat.date), mask_mode: MaskMode = "length", compat: Compat = None, batch_tokens: BatchTokens = 4096,
    gpu: Gpu = None, dtype: Dtype = "auto", attn: Attn = None, seed: Seed = 42, workers: Workers = None, runs: Runs = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Does a metric keep its verdict when the model is quantized, or relearns a little?

    Q and R per metric over the models that kept their utility and that the metric calls unlearned, with intervals over
    models; before and after are always asked in the same way. Resumes model by model.

    Examples: `residuum meta robustness --attack quantization,relearning --models published --gpu 0`,
    `residuum meta robustness --from-values numbers.csv --out here`
    """
    from residuum.folders import runs_folder

    if from_values is not None:
        check_unused(ctx, "with --from-values", set(ctx.params) - _WITH_VALUES)
        attacked = _from_values(from_values, faithfulness, retain_model, metrics, attack, utility_floor, form, common_subset, seed)  # fmt: skip
        folder = attacked.save(out or Path(runs or runs_folder()) / "meta_eval")
    else:
        check_asked(ctx)
        bench, place = _bench(ctx.params)
        thresholds = read_thresholds(faithfulness) if faithfulness else nearby_thresholds(bench)
        attacked, logs = _attack(bench, place, models, attack, metrics, thresholds, utility_floor, form, common_subset, methods, workers)  # fmt: skip
        folder = attacked.save(out or Path(bench.runs) / "meta_eval", logs)
    show_attacked(attacked, folder, as_json)
    _end(_broken(attacked))


@meta.command("table")
def table_command(
    ctx: typer.Context, pool_p: PoolP = "published", pool_n: PoolN = "published", models: Models = "published",
    attack: Attack = "quantization,relearning", metrics: Metrics = "all", world: InWorld = None, size: Size = 8,
    methods: Methods = None, compare: Against = "uds", utility_floor: Floor = 0.8, form: FormOption = "symmetric",
    common_subset: Common = False, relearn_lr: RelearnLr = None, relearn_epochs: RelearnEpochs = None, keep_relearned: Keep = False,
    fluency_model: Fluency = None,
    faithfulness: Annotated[Path | None, typer.Option(help="Finished faithfulness folder; with --robustness, no model is asked.")] = None,
    robustness: Annotated[Path | None, typer.Option(help="Finished robustness folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="faithfulness/ and meta_eval/ (with table2.html, .json, .csv) go below it; {runs}.")] = None,
    data_dir: DataDir = "tofu", full_model: FullModel = FULL, retain_model: RetainModel = RETAIN,
    forget_split: ForgetSplit = "forget10", format: Format = "chat", system_prompt: SystemPrompt = ChatFormat.system_prompt,
    date: Date = str(ChatFormat.date), mask_mode: MaskMode = "length", compat: Compat = None, batch_tokens: BatchTokens = 4096,
    gpu: Gpu = None, dtype: Dtype = "auto", attn: Attn = None, seed: Seed = 42, workers: Workers = None, runs: Runs = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Which metric can be trusted? Faithfulness and robustness of all metrics, with intervals, as one table.

    Examples: `residuum meta table --world authors`,
    `residuum meta table --faithfulness runs/faithfulness --robustness runs/meta_eval`
    """
    from residuum.folders import runs_folder
    from residuum.meta.attacked import Attacked
    from residuum.meta.catalogue import choose
    from residuum.meta.pools import Pools
    from residuum.meta.table import Table

    if (faithfulness is None) != (robustness is None):
        raise UsageError("--faithfulness and --robustness go together: give both folders, or neither.")
    if faithfulness and robustness:
        check_unused(ctx, "with finished folders", set(ctx.params) - _WITH_FOLDERS)
        names = None if metrics == "all" else choose(metrics)
        pools = Pools.load(faithfulness, names)
        changes: dict[str, Any] = {"form": form_named(form)} if said(ctx, "form") else {}
        changes |= {"utility_floor": utility_floor} if said(ctx, "utility_floor") else {}
        changes |= {"common_subset": True} if common_subset else {}
        table = Table(pools, Attacked.load(robustness, names, thresholds=pools.thresholds, **changes))
        check_folders(table.pools, table.attacked)
        folder = table.save(out or robustness)
    else:
        check_asked(ctx)
        bench, place = _bench(ctx.params)
        root = out or Path(runs or runs_folder())
        pools = _pools(bench, place, pool_p, pool_n, metrics, compare, size, workers)
        pools.save(root / "faithfulness")
        attacked, logs = _attack(bench, place, models, attack, metrics, pools.thresholds, utility_floor, form, common_subset, methods, workers)  # fmt: skip
        attacked.save(root / "meta_eval", logs)
        table = Table(pools, attacked)
        folder = table.save(root / "meta_eval")
    show_table(table, folder, as_json)
    _end({**table.pools.failed, **_broken(table.attacked)})


def _bench(given: dict[str, Any]) -> tuple[Bench, World | None]:
    """How models are asked, from a command's options; in a world, data and references are the world's."""
    from residuum.evidence.fluency import CLASSIFIER
    from residuum.folders import runs_folder
    from residuum.meta.bench import Bench, Relearning
    from residuum.metrics.evaluation import Settings

    classifier = given.get("fluency_model")
    settings = Settings.of(
        format=given["format"], system_prompt=given["system_prompt"], date=given["date"] or None,
        mask_mode=given["mask_mode"], compat=given["compat"], batch_tokens=given["batch_tokens"], seed=given["seed"],
        fluency_model=classifier or CLASSIFIER,
    )  # fmt: skip
    wishes = {"lr": given.get("relearn_lr"), "epochs": given.get("relearn_epochs")}
    asked = {name: value for name, value in wishes.items() if value is not None}
    bench = Bench(
        data=given["data_dir"], full=given["full_model"], retain=given["retain_model"],
        runs=str(given["runs"] or runs_folder()), forget=given["forget_split"], settings=settings, dtype=given["dtype"],
        device="auto" if given["gpu"] is None else given["gpu"], attn=given["attn"], relearning=Relearning(**asked),
        keep_relearned=given.get("keep_relearned", False),
    )  # fmt: skip
    if given["world"] is None:
        return bench, None
    from dataclasses import replace

    from residuum.meta.embedded import find_world, world_bench

    place = find_world(given["world"])
    made = world_bench(place, bench)
    return replace(made, relearning=replace(made.relearning, **asked)), place


def _pools(
    bench: Bench, place: World | None, pool_p: str, pool_n: str, metrics: str, compare: str, size: int, workers: int | None
) -> Pools:  # fmt: skip
    from residuum.meta.folder import read_models
    from residuum.meta.pools import run_faithfulness

    if place is not None and (pool_p, pool_n) == ("published", "published"):
        from residuum.meta.embedded import world_faithfulness

        return world_faithfulness(place, bench, size=size, metrics=metrics, against=compare, workers=workers or 2)
    p, n = read_models(pool_p, POOL_P), read_models(pool_n, POOL_N)
    return run_faithfulness(bench, p, n, metrics=metrics, against=compare, workers=workers or 1)


def _attack(
    bench: Bench, place: World | None, models: str, attack: str, metrics: str, thresholds: dict[str, float | None] | None,
    utility_floor: float, form: str, common_subset: bool, methods: str | None, workers: int | None,
) -> tuple[Attacked, Any]:  # fmt: skip
    from residuum.meta.attacks import run_robustness
    from residuum.meta.folder import read_models

    options = {
        "attacks": attack.split(","), "metrics": metrics, "thresholds": thresholds, "utility_floor": utility_floor,
        "form": form_named(form), "common_subset": common_subset,
    }  # fmt: skip
    if place is not None and models == "published":
        from residuum.meta.embedded import world_robustness

        chosen = None if methods is None else [name.strip() for name in methods.split(",")]
        return world_robustness(place, bench, methods=chosen, workers=workers or 2, **options)
    return run_robustness(
        bench,
        read_models(models, subset_150()),
        fluency=place is None and bench.settings.fluency_model != "none",
        workers=workers or 1,
        **options,
    )


def _from_values(
    path: Path, faithfulness: Path | None, retain: str, metrics: str, attack: str, utility_floor: float, form: str,
    common_subset: bool, seed: int,
) -> Attacked:  # fmt: skip
    from residuum.meta.attacked import ATTACKS, Rules
    from residuum.meta.values import robustness_from_values
    from residuum.registry import one_of

    rules = Rules(
        attacks=tuple(one_of("attack", word.strip(), *ATTACKS) for word in attack.split(",")), form=form_named(form), thresholds=read_thresholds(faithfulness) if faithfulness else None, utility_floor=utility_floor,
        common_subset=common_subset, seed=seed,
    )  # fmt: skip
    names = None if metrics == "all" else [name.strip() for name in metrics.split(",")]
    return robustness_from_values(path, rules, retain="retain" if retain == RETAIN else retain, metrics=names)


def _broken(attacked: Attacked) -> dict[str, str]:
    """What failed other than by diverging, which is a result."""
    return {
        f"{model['model']} ({'before any attack' if stage == 'none' else stage})": reason
        for model in attacked.models
        for stage, reason in model["failed"].items()
        if not (stage == "relearning" and model["diverged"])
    }


def _end(failed: dict[str, str]) -> None:
    if failed:
        reasons = "\n  ".join(f"{model}: {reason}" for model, reason in failed.items())
        raise PartlyFailed(
            f"{len(failed)} measurement(s) failed and are left out; the next run tries them again.\n  {reasons}"
        )
