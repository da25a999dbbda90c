"""What does an engine cost per task, what do two workers bring, and how quick is a table over 100,000 units?

Overhead: the time between two short tasks that no worker spends on a task: handing out, sending back, filing the unit.
Start-up (imports, a Ray cluster) is shown apart.
Speed-up: the same unlearnings with one and with two worker processes of one thread each. Takes about five minutes, most
of it for writing the 100,000 units.

    python benchmarks/sweep.py
    python benchmarks/sweep.py --units 20000 --tasks 12
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from residuum.store import Store, Task, table
from residuum.store.units import write_unit
from residuum.sweep.plan import make_plan
from residuum.sweep.request import read_request
from residuum.sweep.run import run_plan
from residuum.worlds.build import World, build_world

LIMIT = 2.0
"""Seconds for a table over all units."""
ENGINES: dict[str, dict[str, Any]] = {
    "serial": {"name": "serial"},
    "process": {"name": "process", "workers": 1},
    "ray": {"name": "ray", "workers": 1, "address": "local"},
}


def request(world: World, engine: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "do": ["uds"], "full_model": str(world.model("full")), "retain_model": str(world.model("retain90")),
        "data_dir": str(world.data), "engine": engine, **more,
    }  # fmt: skip


def overhead_per_task(runs: Path, plan: dict[str, Any]) -> tuple[float, float]:
    """Median time between two finished tasks beyond the worker's own time for the second; and the time before the first.

    The difference, because the tasks themselves take longer on a machine that is busy with something else.
    """
    began, tasks = time.time(), make_plan(read_request(plan)).tasks
    outcome = run_plan(make_plan(read_request(plan)), runs)
    if outcome.errors:
        sys.exit(f"a task failed: {outcome.errors}")
    store = Store(runs)
    units = [(store.path(task.unit).stat().st_mtime, store.get(task.unit)) for task in tasks]
    ends = sorted((end, unit.value["seconds"]) for end, unit in units if unit is not None)
    gaps = [later - sooner - own for (sooner, _), (later, own) in itertools.pairwise(ends)]
    return statistics.median(gaps), ends[0][0] - began


def copies(world: World, folder: Path, number: int) -> list[str]:
    """The base model under many names: same content, so audited once, then only looked up."""
    for i in range(number):
        shutil.copytree(world.model("base"), folder / f"copy{i:03}")
    return [str(folder / "copy*")]


def measure_overhead(world: World, scratch: Path, number: int) -> None:
    models = copies(world, scratch / "models", number)
    runs = scratch / "runs"
    overhead_per_task(runs, request(world, ENGINES["serial"], models=models, set="warm"))
    print(f"{'engine':10} {'overhead per task':>18} {'beyond serial':>14} {'start-up':>9}")
    base = None
    for name, engine in ENGINES.items():
        if name == "ray" and not find_spec("ray"):
            print("ray        is not installed")
            continue
        each, start = overhead_per_task(runs, request(world, engine, models=models, set=f"for-{name}"))
        base = each if base is None else base
        print(f"{name:10} {each * 1e3:15.1f} ms {(each - base) * 1e3:+11.1f} ms {start:7.1f} s")


def measure_speed_up(world: World, scratch: Path) -> None:
    walls, busy = {}, {}
    for workers in (1, 2):
        grid = {"method": "npo", "lr": [1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4, 7e-4, 8e-4], "epochs": 12, "batch_size": 5,
                "accumulation": 1, "out": str(scratch / f"made{workers}")}  # fmt: skip
        plan = make_plan(read_request(request(world, {"name": "process", "workers": workers}, unlearn=[grid], do=[])))
        store = Store(scratch / f"runs{workers}")
        run_plan(plan, store.root)
        ends = sorted(store.path(task.unit).stat().st_mtime for task in plan.tasks)
        walls[workers] = ends[-1] - ends[1]  # from the second on: both workers are up by then
        later = [store.get(task.unit) for task in plan.tasks if store.path(task.unit).stat().st_mtime > ends[1]]
        busy[workers] = sum(unit.value["seconds"] for unit in later if unit) / walls[workers] / workers
    print(
        f"\nsix unlearnings: {walls[1]:.1f} s with 1 worker, {walls[2]:.1f} s with 2: speed-up {walls[1] / walls[2]:.2f}"
    )
    # On a machine that others use too, two workers get no more than the cores that are left.
    print(f"share of the time that workers had a task: {busy[1]:.0%} and {busy[2]:.0%}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")  # fmt: skip


def measure_table(scratch: Path, number: int) -> float:
    store, began = Store(scratch / "large"), time.monotonic()
    flush, os.fsync = os.fsync, lambda _: None  # neither the disk's patience nor locks are what is measured
    try:
        for i in range(number):
            task = Task("sweep_uds", {"name": f"model{i:06}", "options": {"tau": 0.05}})
            value = {"model": f"model{i:06}", "columns": {"uds": i / number, "uds_n": 367}}
            write_unit(store.path(task), task, value, None, {})
    finally:
        os.fsync = flush
    wrote, began = time.monotonic() - began, time.monotonic()
    table(store, "sweep_uds")
    indexed = time.monotonic() - began
    time.sleep(6)  # a folder is believed once its last change is five seconds old
    table(store, "sweep_uds")
    began = time.monotonic()
    rows = table(store, "sweep_uds", ["spec.name", "value.columns.uds"])
    seconds = time.monotonic() - began
    print(
        f"\n{len(rows):,} units: written in {wrote:.0f} s, indexed in {indexed:.0f} s, table in {seconds:.2f} s (limit {LIMIT:g} s)"
    )
    return seconds


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tasks", type=int, default=40)
    options.add_argument("--units", type=int, default=100_000)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        world = build_world(name="tiny", workers=1)
        measure_overhead(world, scratch, chosen.tasks)
        measure_speed_up(world, scratch)
        if measure_table(scratch, chosen.units) > LIMIT:
            sys.exit("the table is too slow")


if __name__ == "__main__":
    main()
