"""Workers on a Ray cluster: actors that hold their share of GPUs, replaced when a node goes and added when one comes."""

from __future__ import annotations

import itertools
import logging
import math
import os
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from residuum.errors import InputError, MissingExtra, ResiduumError, UsageError
from residuum.sweep.request import EngineConfig
from residuum.sweep.work import Order, Report, Worker

LOCAL = "local"
_LOOK_AGAIN = 2.0
"""Seconds between two looks at what the cluster has."""
_PATIENCE = 60.0
"""Seconds until it is said that no worker could be placed."""

log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """One actor; it can take an order once it has answered."""

    actor: Any
    answer: Any
    """What it owes: the reference of its greeting, then of the report."""
    greeted: bool = False


class RayEngine:
    """Actors on an existing cluster, or on one of its own when the address is ``local``."""

    def __init__(self, config: EngineConfig) -> None:
        try:
            import ray
        except ImportError:
            raise MissingExtra("ray", "ray", "the ray engine") from None
        if config.address is None:
            raise UsageError(
                "the ray engine works on a cluster that is there.\n"
                "  Give --address HOST:PORT, or --address local to start one on this machine."
            )
        if config.gpus is not None:
            raise UsageError("Ray itself chooses the GPUs.\n  Say how many a task needs with --gpus-per-task.")
        self._ray, self._config = ray, config
        _connect(ray, config)
        try:
            self._check()
        except BaseException:
            ray.shutdown()
            raise
        share = {"num_cpus": config.threads, "num_gpus": config.gpus_per_task}
        self._make = ray.remote(max_restarts=0, max_task_retries=0, **share)(_RayWorker).remote
        self._numbers = itertools.count()
        self._slots: dict[int, _Slot] = {}
        self._looked = -math.inf
        self._hopeful_until = time.monotonic() + _PATIENCE
        self._stillborn: str | None = None

    def free(self) -> Sequence[int]:
        """Actors that are up and have nothing to do.

        Raises:
            ResiduumError: every actor dies before it answers, for instance where residuum is not installed.
        """
        self._grow()
        for number, slot in list(self._slots.items()):
            if not slot.greeted and self._is_there(slot.answer):
                if isinstance(answer := self._get(slot.answer), Report):  # it died before it could answer
                    self._stillborn = answer.error
                    del self._slots[number]
                else:
                    slot.greeted, slot.answer = True, None
        now = time.monotonic()
        if any(slot.greeted for slot in self._slots.values()):
            self._hopeful_until, self._stillborn = now + _PATIENCE, None
        elif now > self._hopeful_until:
            if self._stillborn is not None:
                raise ResiduumError(
                    f"no worker on the cluster could be started: {self._stillborn}\n"
                    "  Every node needs residuum with its dependencies, and the same Python and Ray as here."
                )
            self._hopeful_until = now + _PATIENCE
            free = self._ray.available_resources()
            log.warning(
                "waiting for room: the cluster has %g CPUs and %g GPUs free", free.get("CPU", 0), free.get("GPU", 0)
            )
        return [number for number, slot in self._slots.items() if slot.greeted and slot.answer is None]

    def submit(self, worker: int, order: Order) -> None:
        """Send an order."""
        slot = self._slots[worker]
        slot.answer = slot.actor.do.remote(order)

    def wait(self, seconds: float) -> Sequence[tuple[int, Report]]:
        """Reports, also of actors that went with their process or node."""
        owed = {slot.answer: number for number, slot in self._slots.items() if slot.greeted and slot.answer is not None}
        if not owed:
            time.sleep(seconds)
            return []
        there, _ = self._ray.wait(list(owed), num_returns=1, timeout=seconds)
        if there:
            there, _ = self._ray.wait(list(owed), num_returns=len(owed), timeout=0)
        found = []
        for answer in there:
            number, report = owed[answer], self._get(answer)
            self._slots[number].answer = None
            if report.where == "":
                self._ray.kill(self._slots.pop(number).actor)
            found.append((number, report))
        return found

    def close(self) -> None:
        """End the actors, and the cluster if it is ours."""
        for slot in self._slots.values():
            self._ray.kill(slot.actor)
        self._ray.shutdown()

    def _grow(self) -> None:
        """As many actors as fit, no more than asked for."""
        if time.monotonic() - self._looked < _LOOK_AGAIN:
            return
        self._looked = time.monotonic()
        for _ in range(min(self._config.workers or 10**6, self._capacity()) - len(self._slots)):
            actor = self._make("cuda:0" if self._config.gpus_per_task else "cpu", self._config.threads)
            self._slots[next(self._numbers)] = _Slot(actor, actor.greet.remote())

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def _capacity(self) -> int:
        """Workers that the cluster has room for, whoever uses it now."""
        gpus = self._config.gpus_per_task
        return sum(
            int(min(node.get("CPU", 0) / self._config.threads, node.get("GPU", 0) / gpus if gpus else math.inf) + 1e-9)
            for node in self._nodes()
        )

    def _check(self) -> None:
        """A task that no node can take would wait for ever."""
        if self._capacity():
            return
        nodes = self._nodes()
        cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
        raise InputError(
            f"every task asks for {self._config.gpus_per_task:g} GPUs and {self._config.threads} CPU threads, and no node of"
            f" the cluster has that: {len(nodes)} nodes with {gpus:g} GPUs and {cpus:g} CPUs in all.\n"
            "  Ask for less with --gpus-per-task and --threads, or add a node."
        )

    def _is_there(self, answer: Any) -> bool:
        return bool(self._ray.wait([answer], timeout=0)[0])

    def _get(self, answer: Any) -> Any:
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            return Report(error=f"its worker was lost ({type(error).__name__}): {error}", retry=True)


class _RayWorker(Worker):
    """A worker as an actor."""

    def greet(self) -> int:
        """Answer once this process is up."""
        return os.getpid()


def _connect(ray: Any, config: EngineConfig) -> None:
    """Join the cluster of the given address; none is started unless that was asked for.

    Raises:
        InputError: there is none.
    """
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    if config.address == LOCAL:
        workers = config.workers or max(1, (os.cpu_count() or 1) // config.threads)
        ray.init(address="local", num_cpus=workers * config.threads, include_dashboard=False, **quiet)
        return
    _check_reachable(ray, str(config.address))
    try:
        ray.init(address=config.address, **quiet)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise _no_cluster(str(config.address), str(error).split("\n")[0]) from error


def _check_reachable(ray: Any, address: str) -> None:
    """Knock first: Ray itself would try for minutes."""
    found = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    if not found:
        return  # auto, which Ray looks up by itself
    host, port = found[1].strip("[]"), int(found[2])
    # Ray takes loopback for this machine's own address, where its processes listen.
    places = [host, *([ray.util.get_node_ip_address()] if host in ("127.0.0.1", "localhost", "::1") else [])]
    for place in places:
        with suppress(OSError), socket.create_connection((place, port), timeout=5):
            return
    raise _no_cluster(address, "nobody answers there")


def _no_cluster(address: str, reason: str) -> InputError:
    return InputError(
        f"there is no Ray cluster at {address}: {reason}.\n"
        "  Start one with `ray start --head`, or on this machine only with --address local; see docs/cluster.md."
    )
