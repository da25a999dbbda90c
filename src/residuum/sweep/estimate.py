"""What a plan will cost, from what the store knows of earlier tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from residuum.store import Store, table
from residuum.sweep.kinds import KINDS
from residuum.sweep.plan import Plan, is_done
from residuum.sweep.sources import size_of
from residuum.sweep.tasks import SweepTask


@dataclass(frozen=True)
class Estimate:
    """The cost of what is left of a plan."""

    tasks: Sequence[tuple[SweepTask, bool, float | None]]
    """Each task, whether it is done, and its usual seconds where tasks of its kind were done before."""
    seconds: float | None
    """Of all tasks left, by one worker; None when nothing of a kind was done before."""
    disk: int
    """Bytes of the checkpoints to be made, each as large as its start."""
    downloads: int
    """Models that are on the hub, as far as the plan knows."""


def estimate(plan: Plan, store: Store) -> Estimate:
    """Look at a plan without doing anything."""
    usual: dict[str, float | None] = {}
    for kind in dict.fromkeys(task.kind for task in plan.tasks):
        unit_kind = next(task.unit.kind for task in plan.tasks if task.kind == kind)
        known = [row["value.seconds"] for row in table(store, unit_kind, ["value.seconds"]) if row["value.seconds"]]
        usual[kind] = sum(known) / len(known) if known else None
    tasks = [(task, is_done(task, store), usual[task.kind]) for task in plan.tasks]
    left = [(task, seconds) for task, done, seconds in tasks if not done]
    known_all = all(seconds is not None for _, seconds in left)
    starts = [task.work.model for task, _ in left if KINDS[task.kind].makes and task.work.model]
    hub = {task.work.model for task, _ in left if "hub" in (task.spec.get("model") or {})}
    return Estimate(
        tasks=tasks,
        seconds=sum(seconds or 0.0 for _, seconds in left) if known_all else None,
        disk=sum(size_of(place) or 0 for place in starts),
        downloads=len(hub),
    )
