"""What a plan will cost, from what the store knows of earlier tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from residuum.store import Store, table
from residuum.sweep.hubcache import cached_models
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
    """Bytes of the checkpoints to be made, each as large as its start; without what is fetched from the hub."""
    downloads: int
    """Models to be fetched from the hub: those of the plan that are not in its cache."""


def usual_seconds(plan: Plan, store: Store) -> dict[str, float]:
    """The mean time of a task by kind, for kinds of which the store has any."""
    found = {}
    for kind, unit_kind in {task.kind: task.unit.kind for task in plan.tasks}.items():
        known = [row["value.seconds"] for row in table(store, unit_kind, ["value.seconds"]) if row["value.seconds"]]
        if known:
            found[kind] = sum(known) / len(known)
    return found


def time_left(kinds: Sequence[str], usual: Mapping[str, float], *, workers: int) -> float | None:
    """Seconds until tasks of these kinds are done; None when no time is known.

    Args:
        kinds: of the tasks that are under way or wait.
        usual: seconds by kind; a kind without is taken for an average one.
        workers: how many are at work.
    """
    if not usual:
        return None
    average = sum(usual.values()) / len(usual)
    return sum(usual.get(kind, average) for kind in kinds) / max(1, workers)


def estimate(plan: Plan, store: Store) -> Estimate:
    """Look at a plan without doing anything."""
    usual = usual_seconds(plan, store)
    tasks = [(task, is_done(task, store), usual.get(task.kind)) for task in plan.tasks]
    left = [(task, seconds) for task, done, seconds in tasks if not done]
    known_all = all(seconds is not None for _, seconds in left)
    starts = [task.work.model for task, _ in left if KINDS[task.kind].makes and task.work.model]
    roles = ("model", "full_model", "retain_model")
    hub = {getattr(task.work, role) for task, _ in left for role in roles if "hub" in (task.spec.get(role) or {})}
    return Estimate(
        tasks=tasks,
        seconds=sum(seconds or 0.0 for _, seconds in left) if known_all else None,
        disk=sum(size_of(place) or 0 for place in starts),
        downloads=len(hub - cached_models()),
    )
