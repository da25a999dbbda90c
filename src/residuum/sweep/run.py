"""A sweep from start to end: check, freeze, work, write the table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residuum.store import Store
from residuum.sweep.driver import Driver, Shard, check_writable
from residuum.sweep.engines import open_engine
from residuum.sweep.folder import SweepFolder
from residuum.sweep.plan import Plan
from residuum.sweep.results import table, write_table
from residuum.sweep.watch import Watch


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended."""

    folder: Path
    states: dict[str, str]
    """Of the tasks of this driver's shard."""
    errors: dict[str, str]
    """What went wrong, by task."""
    rows: list[dict[str, Any]]
    """The table."""


def run_plan(plan: Plan, runs: Path, *, shard: Shard | None = None, folder: str | None = None) -> Outcome:
    """Do what is left of a plan.

    Args:
        plan: the tasks.
        runs: root of the run store.
        shard: the part to do; all of it by default.
        folder: name of the sweep's folder; that of the request by default.

    Raises:
        InputError: the engine asks for what is not here.
        StoreError: the run store cannot be written, or a newer residuum made it.
    """
    place = SweepFolder(runs / "sweeps" / (folder or plan.request.folder_name))
    store = Store(runs)
    check_writable(place.path)
    engine = open_engine(plan.request.engine)
    place.save(plan)
    with Watch() as watch:
        driver = Driver(plan, place, engine, shard=shard or Shard(), watch=watch)
        states = driver.run()
    rows = table(plan, store)
    write_table(rows, place.path)
    return Outcome(place.path, states, driver.errors, rows)
