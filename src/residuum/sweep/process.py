"""One worker process per device: a dead one costs the task it had, nothing else."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path

from residuum.processes import end_with
from residuum.sweep.engines import devices, hold
from residuum.sweep.request import EngineConfig
from residuum.sweep.work import Order, Report, Worker, open_log

_THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class _Child:
    """A worker process and the pipe to it."""

    def __init__(self, context: SpawnContext, device: str, threads: int) -> None:
        self.busy = False
        self.pipe, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_serve, args=(theirs, device, threads, os.getpid()), daemon=True
        )
        with _environment(threads):
            self.process.start()
        theirs.close()


class ProcessEngine:
    """Worker processes of this machine.

    Spawned, because a forked process inherits torch's thread pools in an unknown state. They end with this process,
    however it ends.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._threads, self._devices = config.threads, devices(config)
        self._gpus = hold(self._devices)
        self._context = multiprocessing.get_context("spawn")
        self._children: dict[int, _Child] = {}

    def free(self) -> Sequence[int]:
        """Workers without an order."""
        return [n for n in range(len(self._devices)) if n not in self._children or not self._children[n].busy]

    def submit(self, worker: int, order: Order) -> None:
        """Send an order; a worker is started with its first one, and a new one when it died."""
        if worker not in self._children or not self._children[worker].process.is_alive():
            self._drop(worker)
            self._children[worker] = _Child(self._context, self._devices[worker], self._threads)
        child = self._children[worker]
        child.busy = True
        with contextlib.suppress(BrokenPipeError):  # it died this moment, which `wait` reports
            child.pipe.send(order)

    def wait(self, seconds: float) -> Sequence[tuple[int, Report]]:
        """Reports of finished tasks and of dead workers."""
        busy = {number: child for number, child in self._children.items() if child.busy}
        if not busy:
            time.sleep(seconds)
        wait([x for child in busy.values() for x in (child.pipe, child.process.sentinel)], seconds)
        found: list[tuple[int, Report]] = []
        for number, child in busy.items():
            alive = child.process.is_alive()  # asked first: what it sent before it died is in the pipe
            report = _receive(child.pipe)
            if report is None and alive:
                continue
            child.busy = False
            if report is None:
                report = Report(error=_last_words(child.process), retry=True, where=f"process {child.process.pid}")
                self._drop(number)
            found.append((number, report))
        return found

    def close(self) -> None:
        """Kill the workers: finished units are safe, and unfinished ones are done again."""
        for child in self._children.values():
            child.process.kill()
        for number in list(self._children):
            self._drop(number)
        self._gpus.close()

    def _drop(self, number: int) -> None:
        """Bury a dead worker."""
        if child := self._children.pop(number, None):
            child.process.join()
            child.pipe.close()


def _receive(pipe: Connection[Order, Report]) -> Report | None:
    """A report that is there, whole."""
    try:
        return pipe.recv() if pipe.poll() else None
    except (EOFError, OSError):
        return None


def _last_words(process: SpawnProcess) -> str:
    process.join()
    code = process.exitcode or 0
    if code >= 0:
        return f"its worker ended with exit code {code}."
    name = signal.Signals(-code).name
    hint = "\n  Often the system had no memory left." if name == "SIGKILL" else ""
    return f"its worker was killed by {name}.{hint}"


def _serve(pipe: Connection[Report, Order], device: str, threads: int, parent: int) -> None:
    """The life of a worker: order in, report out, until the pipe closes."""
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's to handle
    worker = Worker(device, threads)
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            return
        with contextlib.suppress(OSError), open_log(Path(order.log)) as log:
            # Also what libraries in C say, which Python does not see.
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        pipe.send(worker.do(order))


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Libraries read the number of threads when they are imported, so a new process must find it in its environment."""
    before = {name: os.environ.get(name) for name in _THREAD_SETTINGS}
    os.environ.update(dict.fromkeys(_THREAD_SETTINGS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
