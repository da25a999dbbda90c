"""Who does the work: one small protocol, and the engine that does everything here and now."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from residuum.errors import InputError, StoreError, UsageError
from residuum.folders import user_cache
from residuum.store import Busy, claim
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
        device = devices(config)[0]
        self._gpus = hold([device])
        self._worker = Worker(device, config.threads)
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
        """Let others have the GPU."""
        self._gpus.close()


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


def hold(devices: Sequence[str]) -> ExitStack:
    """Have GPUs for this driver alone until the stack is closed: two heavy tasks never meet on one.

    Raises:
        InputError: another sweep of this user has one of them.
    """
    import torch

    held = ExitStack()
    for device in devices:
        if device == "cpu":
            continue
        # By its own number: with CUDA_VISIBLE_DEVICES every job may call another GPU cuda:0.
        gpu = torch.cuda.get_device_properties(device).uuid
        try:
            held.enter_context(claim(user_cache() / "gpus" / f"{platform.node()}-{gpu}", device, timeout=0))
        except Busy as busy:
            held.close()
            raise InputError(
                f"{device} is in use by another sweep, {busy.owner or 'of another process'}.\n"
                "  Give each its own with --gpus, or wait for it."
            ) from None
        except StoreError:
            continue  # a cache that cannot be written guards nothing
    return held


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
