"""From a start model and settings to a finished checkpoint folder: what every training command does around the loop.

A folder belongs to one job. The job's identity (settings, data, start weights) is written first, so that a killed run is
continued only by the same job, and again into the manifest, so that a finished one is not done twice.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from filelock import FileLock
from torch import cuda

from residuum.models.anatomy import Anatomy, anatomy
from residuum.models.handles import ModelHandle
from residuum.store.hashing import content_hash
from residuum.store.origin import provenance
from residuum.training import lora, output
from residuum.training.loop import EVERYTHING, Objective, train
from residuum.training.setup import Setup

if TYPE_CHECKING:
    from residuum.models.loading import LM

_RANK, _PROCESSES = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
"""Set by ``accelerate launch``."""


@dataclass(frozen=True)
class Job:
    """What is to be trained; the start model aside, all that decides the weights."""

    kind: str
    """finetune, unlearn or relearn."""
    settings: Mapping[str, Any]
    """What the kind itself has to set."""
    data: Mapping[str, str]
    """Content hash of each set."""
    setup: Setup
    rows: int
    """Rows per epoch."""
    trained: Callable[[Anatomy], str] = lambda _: EVERYTHING
    """Regular expression for the names of the parameters that are trained in a model."""

    def identity(self, start: str) -> dict[str, Any]:
        """Everything that decides the weights, ready for JSON."""
        return {"kind": self.kind, **self.settings, **self.setup.identity, "data": dict(self.data), "start": start}


def produce(
    job: Job,
    start: str | Path | LM,
    folder: Path,
    objective: Callable[[LM], Objective[Any]],
    *,
    title: str | None,
) -> Path:
    """Train unless it is done, save, and say how it was made.

    Args:
        job: what is to be trained.
        start: name, path or a loaded model, of which a copy is trained.
        folder: becomes a checkpoint.
        objective: makes the objective for the loaded model.
        title: beside the progress bar; None shows none.

    Raises:
        InputError: the folder holds something else.
    """
    job.setup.train_config(job.rows).check()
    handle = ModelHandle(start, dtype=job.setup.dtype, device=_device(job.setup.device))
    known = job.identity(handle.weights_hash)
    identity = content_hash(known)
    with _alone(folder):
        if output.is_finished(folder, identity):
            return folder
        output.check_free(folder, identity, known)
        lm = handle.lm if isinstance(start, str | Path) else _copy(start)
        began = time.monotonic()
        if job.setup.lora_rank is not None:
            lm.model = lora.attach(lm.model, job.setup.lora_rank, seed=job.setup.seed)
        goal = objective(lm)
        goal.batches(0)  # rows that cannot be encoded show before the folder is taken
        prepared = time.monotonic()
        if _RANK == 0:
            output.claim(folder, identity, known)
        config = job.setup.train_config(job.rows, trainable=job.trained(lm.anatomy), processes=_PROCESSES)
        log = train(lm.model, goal, config, folder, title=title)
        model = lora.merge(lm.model) if job.setup.lora_rank is not None else lm.model
        if _RANK == 0:
            output.finish(folder, model, lm.tokenizer, identity, {
                "job": known, "start": handle.name, "config": asdict(config), "losses": _summary(log),
                "seconds": {"prepare": round(prepared - began, 2), "train": round(time.monotonic() - prepared, 2)},
                "provenance": provenance(seed=config.seed, dtype=str(lm.dtype), data=job.data, weights=handle.weights_hash),
            })  # fmt: skip
        PartialState().wait_for_everyone()
    return folder


def _copy(lm: LM) -> LM:
    """A model of one's own to train: the caller's stays as it is."""
    model = copy.deepcopy(lm.model)
    return replace(lm, model=model, anatomy=anatomy(model))


def _device(device: str | int) -> str | int:
    """Each process of a distributed run has a GPU of its own."""
    return (
        int(os.environ.get("LOCAL_RANK", "0"))
        if device == "auto" and _PROCESSES > 1 and cuda.is_available()
        else device
    )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else trains into this folder; the processes of one distributed run do so together."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock") if _RANK == 0 else nullcontext():
        yield


def _summary(log: Path) -> dict[str, Any]:
    """Number of steps, and the loss components of the first and the last one."""
    steps = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return {"steps": len(steps), "first": steps[0], "last": steps[-1]}
