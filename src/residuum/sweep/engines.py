"""Who does the work: one small protocol, and the engine that does everything here and now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from residuum.errors import InputError, UsageError
from residuum.sweep.request import EngineConfig
from residuum.sweep.work import Order, Report, Worker


class Engine(Protocol):
    """Workers that take one order each at a time."""

    def free(self) -> Sequence[int]:
        """Numbers of the workers that can take an order now."""

    def submit(self, worker: int, order: Order) -> None:
        """Give an order to a free worker."""

    def wait(self, seconds: float) -> Sequence[tuple[int, Report]]:
        """Reports that have come in, each once; waits for the first one at most this long.

        A worker that died reports too: without a value, and worth another try.
        """

    def close(self) -> None:
        """End all workers at once."""


class SerialEngine:
    """One order after the other, in this process."""

    def __init__(self, config: EngineConfig) -> None:
        self._worker = Worker(devices(config)[0], config.threads)
        self._order: Order | None = None

    def free(self) -> Sequence[int]:
        """The one worker, unless it has an order."""
        return [] if self._order else [0]

    def submit(self, worker: int, order: Order) -> None:  # noqa: ARG002  there is only one
        """Take the order; `wait` does it."""
        self._order = order

    def wait(self, seconds: float) -> Sequence[tuple[int, Report]]:  # noqa: ARG002  takes as long as it takes
        """Do the order."""
        order, self._order = self._order, None
        return [] if order is None else [(0, self._worker.do(order))]

    def close(self) -> None:
        """Nothing to end."""


def devices(config: EngineConfig) -> list[str]:
    """One device per worker of this machine; never two workers on one GPU.

    Raises:
        InputError: a GPU is asked for that is not here.
    """
    import os

    import torch

    count = torch.cuda.device_count()
    here = ", ".join(f"{n} ({torch.cuda.get_device_name(n)})" for n in range(count)) or "none"
    if config.gpus_per_task:
        raise UsageError(
            f"gpus_per_task is for the ray engine; {config.name} takes the numbers of GPUs with --gpus. GPUs here: {here}."
        )
    if config.address is not None or config.storage != "auto":
        raise UsageError(f"--address and --storage belong to the ray engine, not to {config.name}.")
    gpus = range(count) if config.gpus is None else config.gpus
    for gpu in gpus:
        if not 0 <= gpu < count:
            raise InputError(f"the plan asks for GPU {gpu}, which does not exist. GPUs here: {here}.\n  Leave --gpus out to use what is here.")  # fmt: skip
    if not gpus:
        usual = min(2, os.cpu_count() or 1)
        return ["cpu"] * (1 if config.name == "serial" else config.workers or usual)
    if config.workers is not None and config.workers > len(gpus):
        raise UsageError(f"{config.workers} workers need as many GPUs; there are {len(gpus)}.\n  Two tasks never share a GPU here; the ray engine allows it.")  # fmt: skip
    return [f"cuda:{gpu}" for gpu in gpus][: config.workers]


def open_engine(config: EngineConfig) -> Engine:
    """The engine that a config means, ready to work.

    Raises:
        InputError: what it asks for is not here; nothing has been started then.
        MissingExtra: ray is not installed.
    """
    if config.name == "serial":
        return SerialEngine(config)
    if config.name == "process":
        from residuum.sweep.process import ProcessEngine

        return ProcessEngine(config)
    from residuum.sweep.cluster import RayEngine

    return RayEngine(config)
