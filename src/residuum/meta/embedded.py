"""The whole meta-evaluation on the embedded world: pools, unlearned models, attacks, table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from residuum.errors import DataError
from residuum.meta.attacked import ATTACKS, Attacked
from residuum.meta.attacks import Logs, check_attacks, run_robustness
from residuum.meta.bench import Bench, Relearning
from residuum.meta.catalogue import choose
from residuum.meta.pools import Pools, run_faithfulness
from residuum.meta.table import Table
from residuum.worlds.build import THREADS, World, build_world
from residuum.worlds.population import population, train_population
from residuum.worlds.recipe import RECIPES
from residuum.worlds.unlearned import RELEARNING, unlearn_world

SIZE = 8
"""Models per pool."""
LENGTHS = (1, 2)
"""Every method unlearns twice, as long as its settings say and twice as long; the published sweep has 5 and 10 epochs."""


def find_world(given: str, *, workers: int = 2) -> World:
    """The world in a folder, or one by name (``authors``, ``tiny``), built into the user cache when it is not there.

    Raises:
        DataError: the folder holds no finished world.
    """
    if given in RECIPES and not Path(given, "world.json").is_file():
        return build_world(name=given, workers=workers)
    if not Path(given, "world.json").is_file():
        raise DataError(
            "holds no finished world", path=given, hint=f"Build one with `residuum world build --out {given}`."
        )
    return World(Path(given))


def world_bench(world: World, bench: Bench | None = None, *, runs: str | Path | None = None) -> Bench:
    """Data, references and relearning of a world; everything else as in ``bench``.

    Args:
        world: a finished world.
        bench: settings to keep.
        runs: root of the run store; ``runs`` of the world when left out.
    """
    given = bench or Bench("", "", "", str(runs or world.folder / "runs"), device="cpu")
    return replace(
        given, data=str(world.data), full=str(world.model("full")), retain=str(world.model("retain90")),
        relearning=Relearning(**RELEARNING), threads=THREADS,
    )  # fmt: skip


def world_faithfulness(world: World, bench: Bench, *, size: int = SIZE, workers: int = 2, **options: Any) -> Pools:
    """Train the pools of a world, unless they are there, and judge every metric on them.

    Args:
        world: a finished world.
        bench: of `world_bench`.
        size: models per pool.
        workers: processes of one thread each.
        options: of `run_faithfulness`.
    """
    choose(options.get("metrics", "all"))
    members = population(size, seed=world.info["seed"])
    folders = train_population(world, members, workers=workers)
    pools = {pool: [str(folders[m.name]) for m in members if m.pool == pool] for pool in ("P", "N")}
    return run_faithfulness(bench, pools["P"], pools["N"], workers=workers, **options)


def world_robustness(
    world: World, bench: Bench, *, methods: Sequence[str] | None = None, workers: int = 2, **options: Any
) -> tuple[Attacked, Logs]:
    """Unlearn a world with every method at both `LENGTHS`, unless that is done, and attack the results.

    Utility goes without fluency: its classifier would be the only thing to come from the network.

    Args:
        world: a finished world.
        bench: of `world_bench`.
        methods: which of the eight; all by default.
        workers: processes of one thread each.
        options: of `run_robustness`.
    """
    check_attacks(options.get("attacks", ATTACKS))
    choose(options.get("metrics", "all"))
    models = [
        str(path)
        for longer in LENGTHS
        for path in unlearn_world(world, methods, workers=workers, longer=longer).values()
    ]
    return run_robustness(bench, models, fluency=False, workers=workers, **options)


def meta_evaluate_world(
    world: World,
    *,
    size: int = SIZE,
    methods: Sequence[str] | None = None,
    metrics: str = "all",
    out: str | Path | None = None,
    runs: str | Path | None = None,
    workers: int = 2,
) -> Table:
    """Table 2 of a world in one call; goes on where a killed run stopped.

    Args:
        world: a finished world.
        size: models per pool.
        methods: unlearning methods whose models are attacked; all eight by default.
        metrics: see `residuum.meta.catalogue.choose`.
        out: ``faithfulness/`` and ``meta_eval/`` with the table go below it; the run store when left out.
        runs: root of the run store; ``runs`` of the world when left out.
        workers: processes of one thread each.
    """
    check_attacks(ATTACKS)
    bench = world_bench(world, runs=runs)
    folder = Path(out or bench.runs)
    pools = world_faithfulness(world, bench, size=size, metrics=metrics, workers=workers)
    pools.save(folder / "faithfulness")
    attacked, logs = world_robustness(
        world, bench, methods=methods, metrics=metrics, thresholds=pools.thresholds, workers=workers
    )
    attacked.save(folder / "meta_eval", logs)
    table = Table(pools, attacked)
    table.save(folder / "meta_eval")
    return table
