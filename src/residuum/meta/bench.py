"""Every model asked in the same way, as it is or after an attack; each a unit of the store that a restart does not repeat.

The evidence below (passes, generations, patched scores) lives in the store too, so a model that `residuum evaluate` or
`residuum uds` has seen costs almost nothing here.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import repeat
from pathlib import Path
from typing import Any

from residuum.batching import is_out_of_memory
from residuum.data.tofu import data_hash, load_split
from residuum.errors import Diverged, NotFinite, ResiduumError
from residuum.metrics.evaluation import Settings
from residuum.metrics.evaluator import Evaluator
from residuum.metrics.splits import Splits
from residuum.models.handles import ModelHandle
from residuum.patching.output import run_tag
from residuum.processes import worker_pool
from residuum.progress import progress
from residuum.store import Task, content_hash, provenance

VERSION = 1
"""Part of every unit's identity: raised when the meaning of a record changes."""

Record = dict[str, Any]
"""Metrics of one model after one attack, or why there are none; ready for JSON."""


@dataclass(frozen=True)
class Relearning:
    """The relearning attack; the defaults are the published ones (spec 3.3)."""

    lr: float = 2e-5
    epochs: int = 1
    batch_size: int = 8
    accumulation: int = 4
    seed: int = 42


@dataclass(frozen=True)
class Bench:
    """Data, references and settings: one for all models, before and after any attack."""

    data: str
    """Folder of splits, or tofu."""
    full: str
    """The model that knows."""
    retain: str
    """The model that never saw the forget set."""
    runs: str
    """Root of the run store."""
    forget: str = "forget10"
    settings: Settings = field(default_factory=Settings)
    dtype: str = "auto"
    device: str | int = "auto"
    attn: str | None = None
    relearning: Relearning = field(default_factory=Relearning)
    keep_relearned: bool = False
    """Leave the relearned checkpoints below ``{runs}/relearned``."""
    threads: int | None = None
    """CPU threads per process; as torch likes when None."""

    @property
    def options(self) -> dict[str, Any]:
        """How every model is loaded."""
        return {"dtype": self.dtype, "device": self.device, "attn": self.attn}

    def evaluator(self, metrics: tuple[str, ...]) -> Evaluator:
        """The evaluator of these metrics; making it checks names, data and references.

        Raises:
            InputError: something of this cannot be used.
        """
        return _evaluator(self, metrics)

    def record(self) -> dict[str, Any]:
        """What decides the numbers, for the summaries."""
        return {
            "data": self.data, "forget": self.forget, "full_model": self.full, "retain_model": self.retain,
            **self.options, **self.settings.record(),
        }  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One model after one attack."""

    model: str
    metrics: tuple[str, ...]
    attack: str = "none"
    """none, quantization or relearning."""


def measure_all(bench: Bench, cases: Sequence[Case], *, workers: int = 1, title: str | None = None) -> list[Record]:
    """Measure every case, in the order given; a model that fails is recorded and the others go on.

    Args:
        bench: how models are asked.
        cases: which, after what.
        workers: processes; each holds a model and the full one.
        title: beside the progress bar.
    """
    for metrics in {case.metrics for case in cases}:
        bench.evaluator(metrics)
    found: list[Record] = []
    with progress(title, len(cases)) as bar:
        if workers < 2:
            for case in cases:
                found.append(measure(bench, case))
                bar.advance(note=Path(case.model).name)
        else:
            with worker_pool(workers) as pool:
                for record, case in zip(pool.map(measure, repeat(bench), cases), cases, strict=True):
                    found.append(record)
                    bar.advance(note=Path(case.model).name)
    return found


def measure(bench: Bench, case: Case) -> Record:
    """Metrics of one case, from the store when they are there; an error becomes a record with ``failed``.

    Only what diverged is a result and stored: a file or memory that was not there may be there the next time.
    """
    try:
        return measure_or_raise(bench, case)
    except Exception as error:
        if not (isinstance(error, ResiduumError | OSError) or is_out_of_memory(error)):
            raise
        why = str(error) or type(error).__name__
        return {"model": case.model, "attack": case.attack, "metrics": {}, "failed": why, "diverged": False}


def measure_or_raise(bench: Bench, case: Case) -> Record:
    """Metrics of one case, from the store when they are there."""
    with _threads(bench.threads):
        return _measure(bench, case)


def _measure(bench: Bench, case: Case) -> Record:
    evaluator = bench.evaluator(case.metrics)
    handle = ModelHandle(case.model, **bench.options)
    spec: dict[str, Any] = {
        "version": VERSION, "model": handle.identity, "attack": case.attack, "metrics": list(case.metrics),
        "references": {who: model.identity for who, model in evaluator.references.items()},
        "settings": bench.settings.record(), "data": _data_hashes(bench, case.metrics),
    }  # fmt: skip
    if relearned := case.attack == "relearning":
        taught = {"data": data_hash(load_split(bench.data, bench.forget)), "format": repr(bench.settings.form)}
        spec["relearning"] = {**asdict(bench.relearning), **taught}
    task = Task("meta_values", spec)

    def compute() -> Record:
        started = time.monotonic()
        about = {"model": handle.name, "source": handle.source, "weights": handle.weights_hash, "attack": case.attack}
        # A checkpoint that stays serves every list of metrics; one that goes belongs to this unit alone.
        shared = bench.keep_relearned and relearned
        key = content_hash([handle.identity, spec["relearning"]]) if shared else task.key
        made = _attacked(bench, case, run_tag(f"{handle.name}-{key[:12]}"))
        return {**about, "failed": None, "diverged": False, **made, "seconds": round(time.monotonic() - started, 2)}

    origin = provenance(
        seed=bench.settings.seed, dtype=handle.identity["dtype"], data=spec["data"],
        weights={handle.name: handle.weights_hash},
    )  # fmt: skip
    record: Record = evaluator.store.run(task, compute, provenance=origin).value
    return record


def _attacked(bench: Bench, case: Case, tag: str) -> Record:
    if case.attack == "quantization":
        weights = weights_in_memory(case.model, bench.options)
        return {"quantized_weights": weights, **_evaluate(bench, case, case.model, quantize="nf4")}
    if case.attack == "none":
        return _evaluate(bench, case, case.model)
    folder = Path(bench.runs) / "relearned" / tag
    try:
        relearned = _relearn(bench, case.model, folder)
        try:
            return _evaluate(bench, case, str(relearned))
        except NotFinite as error:  # the last step may have left the finite numbers, which no loss shows any more
            raise Diverged(str(error)) from error
    except Diverged as error:
        # Relearning is repeatable: the same settings would diverge again, so this is the model's result.
        return {"metrics": {}, "failed": str(error).split("\n")[0], "diverged": True}
    finally:
        if not bench.keep_relearned:
            shutil.rmtree(folder, ignore_errors=True)
            (folder.parent / f".{folder.name}.lock").unlink(missing_ok=True)


def _relearn(bench: Bench, model: str, folder: Path) -> Path:
    from residuum.training.relearn import relearn

    return relearn(
        model=model, data=load_split(bench.data, bench.forget), out=folder, title=None, format=bench.settings.form,
        dtype=bench.dtype, device=bench.device, **asdict(bench.relearning),
    )  # fmt: skip


def _evaluate(bench: Bench, case: Case, model: str, **options: Any) -> Record:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        evaluation = bench.evaluator(case.metrics).run(model, **options)
    ours = [str(warning.message) for warning in said if warning.category.__module__.startswith("residuum")]
    return {
        "evaluated": evaluation.record["models"]["model"],
        "metrics": {name: score.value for name, score in evaluation.items()},
        "notes": {name: list(score.notes) for name, score in evaluation.items() if score.notes},
        "utility_parts": evaluation.record["utility_parts"],
        "warnings": list(dict.fromkeys(ours)),
    }


def weights_in_memory(model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Bytes that a model's weights take plain and as NF4, and what its linear layers are made of then."""
    from collections import Counter

    from torch import nn

    from residuum.models.loading import load

    plain = int(load(model, **options).model.get_memory_footprint())
    quantized = load(model, **options, quantize="nf4").model
    layers = Counter(
        f"{type(module).__name__} {str(module.weight.dtype).removeprefix('torch.')}"
        for module in quantized.modules()
        if isinstance(module, nn.Linear)
    )
    return {"bytes_plain": plain, "bytes_nf4": int(quantized.get_memory_footprint()), "linear_layers": dict(layers)}


@lru_cache(maxsize=4)
def _evaluator(bench: Bench, metrics: tuple[str, ...]) -> Evaluator:
    return Evaluator(
        Splits(bench.data, forget=bench.forget), metrics, retain=bench.retain, full=bench.full,
        settings=bench.settings, options=bench.options, runs=bench.runs,
    )  # fmt: skip


@lru_cache(maxsize=4)
def _data_hashes(bench: Bench, metrics: tuple[str, ...]) -> dict[str, str]:
    evaluator = bench.evaluator(metrics)
    splits = evaluator.splits
    return {
        splits.names[role]: data_hash(
            [asdict(row) for row in (splits.examples() if role == "entities" else splits.rows(role))]
        )
        for role in evaluator.plan.roles
    }


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Work with so many CPU threads: small models are slower, and round differently, with more."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
