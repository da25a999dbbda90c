"""The driver: gives ready tasks to workers, files what comes back, and never starts what somebody else is at.

Before a task is handed out the driver claims its unit, so any number of drivers may work on one store: each does what
the others have not begun. A claim dies with its driver, and the workers do too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from residuum.errors import StoreError
from residuum.store import Busy, Store, Unit
from residuum.sweep.engines import Engine
from residuum.sweep.estimate import time_left
from residuum.sweep.folder import SweepFolder
from residuum.sweep.kinds import KINDS
from residuum.sweep.plan import Plan, is_done
from residuum.sweep.tasks import SweepTask
from residuum.sweep.watch import Running, Snapshot, Watch
from residuum.sweep.work import Order, Report, open_log, unpack

_LOOK_AGAIN = 1.0
"""Seconds until a task that another driver has is looked at again."""


@dataclass(frozen=True)
class Shard:
    """Part i of n of the models, for array jobs that share nothing but the store."""

    number: int = 1
    of: int = 1

    def has(self, task: SweepTask) -> bool:
        """Whether a task belongs to this part; what all models need belongs to every one."""
        return task.group is None or task.group % self.of == self.number - 1


@dataclass(frozen=True)
class _Held:
    """A task that a worker has, and the claim on it."""

    task: SweepTask
    claim: ExitStack
    finish: Callable[..., Unit]
    since: float


class Driver:
    """Runs a plan to its end.

    Args:
        plan: the tasks.
        folder: where logs and failures go.
        engine: who does the work.
        shard: the part of the plan to do.
        watch: who is told.
    """

    def __init__(self, plan: Plan, folder: SweepFolder, engine: Engine, *, shard: Shard, watch: Watch) -> None:
        self.plan, self.folder, self.engine, self.shard, self.watch = plan, folder, engine, shard, watch
        self.store = Store(folder.runs)
        self.states: dict[str, str] = {}
        self.errors: dict[str, str] = {}
        self.cached = 0
        self._waiting: dict[str, SweepTask] = {}
        self._held: dict[int, _Held] = {}
        self._attempts: Counter[str] = Counter()
        self._later: dict[str, float] = {}
        self._last: dict[int, str] = {}
        self._ahead: dict[int, str] = {}
        self._seconds: dict[str, list[float]] = {}
        self._began = time.monotonic()

    def run(self) -> dict[str, str]:
        """Do everything that can be done; returns the state of every task of this shard.

        Raises:
            StoreError: the disk is full or may not be written; what is finished is kept.
        """
        self._look()
        try:
            while self._waiting or self._held:
                self._assign()
                if not self._held and not any(map(self._is_ready, self._waiting.values())):
                    break  # the rest waits for tasks of other shards
                for worker, report in self.engine.wait(0.2):
                    self._end(worker, report)
                self.watch.show(self.snapshot())
        finally:
            # Workers first: nobody may take a task over while one of ours is still at it.
            self.engine.close()
            for held in self._held.values():
                held.claim.close()
        self.watch.show(self.snapshot())
        return self.states

    def snapshot(self) -> Snapshot:
        """How far it is."""
        now = time.monotonic()
        counts = Counter(self.states.values())
        usual = {kind: sum(known) / len(known) for kind, known in self._seconds.items()}
        open_tasks = [*self._waiting.values(), *(held.task for held in self._held.values())]
        left = time_left([task.kind for task in open_tasks], usual, workers=len(self._held))
        return Snapshot(
            total=len(self.states), done=counts["done"], cached=self.cached, failed=counts["failed"],
            blocked=counts["blocked"], elsewhere=len(self._later), left=left, elapsed=now - self._began,
            running=[Running(worker, held.task.name, now - held.since) for worker, held in self._held.items()],
        )  # fmt: skip

    def _look(self) -> None:
        """What is done, what failed earlier, what is to be done."""
        for task in self.plan.tasks:
            if not self.shard.has(task):
                continue
            if is_done(task, self.store):
                self.states[task.name] = "done"
                self.cached += 1
            else:
                self.states[task.name] = "waiting"
                self._waiting[task.name] = task
        for task in list(self._waiting.values()):
            if task.name in self._waiting and (failure := self.folder.failure(task)):
                self._give_up(task, failure.error)

    def _assign(self) -> None:
        """Give tasks to free workers."""
        for worker in self.engine.free():
            for task in self._candidates(worker):
                if self._take(worker, task):
                    break

    def _candidates(self, worker: int) -> Iterator[SweepTask]:
        """Ready tasks, best first for this worker: of the model it has, of the one it read ahead, of one nobody has."""
        now = time.monotonic()
        elsewhere = {held.task.work.name for held in self._held.values()}
        read_by_others = {name for other, name in self._ahead.items() if other != worker}

        def rank(task: SweepTask) -> int:
            name = task.work.name
            if name == self._last.get(worker):
                return 0
            if name == self._ahead.get(worker):
                return 1
            return 4 if name in elsewhere else 3 if name in read_by_others else 2

        ready = [t for t in self._waiting.values() if self._later.get(t.name, 0) <= now and self._is_ready(t)]
        yield from sorted(ready, key=rank)

    def _is_ready(self, task: SweepTask) -> bool:
        return all(self._need_is_done(need) for need in task.needs)

    def _need_is_done(self, name: str) -> bool:
        if name in self.states:
            return self.states[name] == "done"
        return is_done(self.plan.by_name[name], self.store)  # of another shard

    def _take(self, worker: int, task: SweepTask) -> bool:
        """Claim a task and hand it out, unless it is done, given up or held by another driver."""
        claim = ExitStack()
        try:
            finish = claim.enter_context(self.store.hold(task.unit, timeout=0))
        except Busy:
            self._later[task.name] = time.monotonic() + _LOOK_AGAIN
            self.states[task.name] = "elsewhere"
            return False
        self._later.pop(task.name, None)
        # Its last holder may have finished it, or given it up.
        finished, failure = is_done(task, self.store), self.folder.failure(task)
        if finished or failure:
            claim.close()
            self._settle(task, "done")
            if failure and not finished:
                self._give_up(task, failure.error)
            return False
        del self._waiting[task.name]
        self.states[task.name] = "running"
        self._attempts[task.name] += 1
        self._held[worker] = _Held(task, claim, finish, time.monotonic())
        self._last[worker] = task.work.name
        self.engine.submit(worker, self._order(worker, task))
        return True

    def _order(self, worker: int, task: SweepTask) -> Order:
        engine = self.plan.request.engine
        log = self.folder.log(task)
        log.parent.mkdir(parents=True, exist_ok=True)
        return Order(
            name=task.name, kind=task.kind, work=task.work, runs=str(self.folder.runs), log=str(log.absolute()),
            attempt=self._attempts[task.name], ahead=self._next_model(worker, task), max_disk=engine.max_disk,
            evict=engine.evict, storage=engine.storage if engine.name == "ray" else "shared",
        )  # fmt: skip

    def _next_model(self, worker: int, task: SweepTask) -> str | None:
        """The model to read while this task runs; one that is still to be made cannot be."""
        taken = {held.task.work.name for held in self._held.values()} | {task.work.name} | set(self._ahead.values())
        for other in self._waiting.values():
            if other.work.name not in taken and not KINDS[other.kind].makes and self._is_ready(other):
                self._ahead[worker] = other.work.name
                return other.work.model
        self._ahead.pop(worker, None)
        return None

    def _end(self, worker: int, report: Report) -> None:
        """File what came of a task."""
        held = self._held.pop(worker)
        task = held.task
        try:
            if report.log:
                with open_log(self.folder.log(task)) as log:
                    log.write(report.log)
            if report.files:
                unpack(report.files, self.folder.runs)
            if report.value is not None:
                about = {"name": task.name, "model": task.work.name, "seconds": report.seconds, "where": report.where}
                held.finish({**about, **report.value})
                self._seconds.setdefault(task.kind, []).append(report.seconds)
                self._settle(task, "done")
                self.watch.tell(f"{task.name} done in {report.seconds:.1f} s", self.snapshot())
                return
            error = str(report.error)
            if report.fatal:
                raise StoreError(
                    f"{task.name}: {error}\n  Free some space and start again: everything finished is kept."
                )
            with suppress(OSError), open_log(self.folder.log(task)) as log:
                log.write(f"--- attempt {self._attempts[task.name]} did not end well: {error}\n")
            if report.retry and self._attempts[task.name] <= self.plan.request.engine.retries:
                self.states[task.name] = "waiting"
                self._waiting = {task.name: task, **self._waiting}
                self.watch.tell(f"{task.name} will be tried again: {error}", self.snapshot())
                return
            self.folder.fail(task, error, self._attempts[task.name], report.where)
            self._give_up(task, error)
            self.watch.tell(f"{task.name} failed: {error}", self.snapshot())
        finally:
            held.claim.close()

    def _settle(self, task: SweepTask, state: str) -> None:
        self._waiting.pop(task.name, None)
        self._later.pop(task.name, None)
        self.states[task.name] = state

    def _give_up(self, task: SweepTask, error: str) -> None:
        """A failed task, and all that cannot be done without it."""
        self._settle(task, "failed")
        self.errors[task.name] = error
        lost = {task.name}
        while more := {t.name for t in self.plan.tasks if t.name not in lost and lost & set(t.needs)}:
            lost |= more
        for name in lost - {task.name}:
            if self.states.get(name) in ("waiting", "elsewhere"):
                self._settle(self.plan.by_name[name], "blocked")
                self.errors[name] = f"needs {task.name}, which failed"


def check_writable(folder: Path) -> None:
    """See that a folder can be written to before anything is started.

    Raises:
        StoreError: it cannot.
    """
    from residuum.store import write_text

    write_text(folder / ".writable", "").unlink(missing_ok=True)
