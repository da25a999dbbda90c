"""Does what a plan asks for: evaluates, unlearns, retrains. Any number of processes may work on one plan.

Every piece of work is claimed before it is begun, and its result is a unit in the run store. A process passes over what
others hold and comes back for it later; the claim of a killed process ends with it. So a restart goes on where the last
one stopped, two processes share the work, and one process per device needs nobody to hand it out.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from residuum.batching import is_out_of_memory
from residuum.errors import Diverged, ResiduumError
from residuum.models.handles import ModelHandle
from residuum.progress import progress
from residuum.rtt.facts import McqFacts
from residuum.rtt.losses import Retraining
from residuum.rtt.plan import Plan, RunSpec, Start
from residuum.rtt.splits import train_split_ids
from residuum.store import Busy, Store, claim, content_hash, provenance
from residuum.training.loop import train
from residuum.training.output import is_finished

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig

    from residuum.models.loading import LM

SMALL = 256
"""Models that are no wider get one thread: a second one costs more than it brings."""


@dataclass(frozen=True)
class Piece:
    """One piece of work: what it is called, how to see that it is done, whether it can begin, and how to do it."""

    name: str
    is_done: Callable[[], bool]
    is_ready: Callable[[], bool]
    do: Callable[[], None]


class Engine:
    """Works on a plan with the first of its devices.

    Args:
        plan: what to do.
        store: receives the results.
    """

    def __init__(self, plan: Plan, store: Store) -> None:
        self.plan, self.store = plan, store
        self.failures: dict[str, str] = {}
        """What went wrong, by piece; everything else goes on."""
        self._start: Start | None = None
        self._handle: ModelHandle | None = None
        self._weights: dict[str, Tensor] = {}

    def work(self, *, title: str | None = "rtt") -> None:
        """Do everything that is not done and that nobody else is doing, then wait for the others."""
        waiting = self.pieces()
        with progress(title, len(waiting)) as bar:
            while waiting:
                left = [piece for piece in waiting if not self._attempt(piece, patience=0)]
                if left and len(left) == len(waiting):
                    # Nothing moved: others hold the rest. Wait for the first that could be done.
                    ready = [piece for piece in left if piece.is_ready()]
                    if not ready:
                        self.failures |= {piece.name: "what it starts from could not be made" for piece in left}
                        break
                    self._attempt(ready[0], patience=None)
                    left = [piece for piece in left if piece is not ready[0]]
                bar.advance(len(waiting) - len(left))
                waiting = left
        self._release()

    def evaluate(self, start: Start) -> None:
        """Measure a start before anything else is done; waits for whoever is at it."""
        self._attempt(self._evaluation(start), patience=None)

    def pieces(self) -> list[Piece]:
        """All work of the plan, ordered so that a model is loaded as seldom as possible."""
        found = []
        for start in self.plan.starts:
            if start.job is not None:
                found.append(self._unlearning(start))
            found.append(self._evaluation(start))
            found += [self._retraining(run) for run in self.plan.runs if run.start is start]
        return found

    def _attempt(self, piece: Piece, *, patience: float | None) -> bool:
        """Do a piece; False when somebody else is at it or it cannot begin yet."""
        if piece.is_done():
            return True
        if not piece.is_ready():
            return False
        try:
            with claim(self.store.root / "claims" / piece.name, piece.name, timeout=patience):
                if not piece.is_done():
                    piece.do()
        except Busy:
            return False
        except ResiduumError as error:
            self.failures[piece.name] = str(error)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._release()
            self.failures[piece.name] = f"out of memory: {error}"
        return True

    def _unlearning(self, start: Start) -> Piece:
        def do() -> None:
            from residuum.rtt.methods import unlearn

            facts, config = self.plan.facts, self.plan.config
            assert start.job is not None and start.unlearning is not None and isinstance(facts, McqFacts)  # noqa: PT018
            self._release()  # so that a model that the caller brought is as it was
            with few_threads(self.plan.handles[self.plan.base.path].config()):
                unlearn(
                    start.job, start.unlearning, facts, config.model, Path(start.path), retain_files=config.retain_files
                )

        def is_done() -> bool:
            # A model need not exist any more once it and all its offspring are measured.
            measured = all(self.plan.is_done(self.store, run) for run in self.plan.runs if run.start is start)
            return self._exists(start) or (measured and self.plan.is_evaluated(self.store, start))

        return Piece(f"rtt-unlearn-{start.digest[:16]}", is_done, lambda: True, do)

    def _evaluation(self, start: Start) -> Piece:
        def do() -> None:
            for split in self.plan.splits_of(start):
                task = self.plan.accuracy_task(start, split)
                if not self.store.has(task):
                    with self._model(start) as lm:
                        scores = self.plan.facts.score(lm, split)
                    arrays = {"scores": scores.scores}
                    self.store.put(task, scores.plain(), arrays=arrays, provenance=self._provenance(start))

        name = f"rtt-evaluate-{start.digest[:16]}"
        return Piece(name, lambda: self.plan.is_evaluated(self.store, start), lambda: self._exists(start), do)

    def _retraining(self, run: RunSpec) -> Piece:
        name = f"rtt-retrain-{run.run_id}"
        return Piece(
            name,
            lambda: self.plan.is_done(self.store, run),
            lambda: self._exists(run.start) and self.plan.is_evaluated(self.store, run.start),
            lambda: self.retrain(run),
        )

    def retrain(self, run: RunSpec) -> None:
        """Train once for the longest number of epochs and note the accuracy on V after each."""
        from residuum.rtt.freezing import unfrozen
        from residuum.rtt.methods import constant_config

        plan, ft, facts = self.plan, self.plan.config.ft, self.plan.facts
        folder = self.store.root / "work" / run.run_id
        with self._model(run.start) as lm:
            rows = facts.training_rows(lm.tokenizer, train_split_ids(run.held_out, len(facts.splits)), run.loss_type)
            objective = Retraining(
                rows, loss_type=run.loss_type, batch_size=ft.batch_size, seed=run.seed, pad_id=lm.pad_id,
                device=lm.device, compat=plan.config.compat,
            )  # fmt: skip
            config = constant_config(
                epochs=plan.epochs, lr=run.lr, warmup_steps=ft.warmup_steps, optimizer=ft.optimizer, seed=run.seed,
                trainable=unfrozen(lm.anatomy, ft.freeze_layers), checkpoint_seconds=plan.config.checkpoint_seconds,
            )  # fmt: skip
            began = time.monotonic()

            def measure(epoch: int) -> None:
                task = plan.epoch_task(run, epoch)
                if self.store.has(task):
                    return  # a run that goes on from a checkpoint meets its last epoch again
                scores = facts.score(lm, facts.splits[run.held_out])
                retain = self._pooled(lm, facts.retain)
                value = {**scores.plain(), "retain_accuracy": retain, "seconds": round(time.monotonic() - began, 3)}
                if epoch == plan.epochs:
                    value |= self._after(lm, run)
                arrays = {"scores": scores.scores}
                self.store.put(task, value, arrays=arrays, provenance=self._provenance(run.start, run))

            try:
                train(lm.model, objective, config, folder, title=None, on_epoch=measure)
            except Diverged as error:
                self._note_divergence(run, str(error))
        shutil.rmtree(folder, ignore_errors=True)

    def _after(self, lm: LM, run: RunSpec) -> dict[str, Any]:
        """What is only worth measuring once: accuracy on T, share of changed weights."""
        facts = self.plan.facts
        taught = [facts.splits[i] for i in train_split_ids(run.held_out, len(facts.splits))]
        state = lm.model.state_dict()
        changed = sum(int((state[name].cpu() != start).sum()) for name, start in self._weights.items())
        return {
            "train_accuracy": self._pooled(lm, taught),
            "changed_weights": changed / sum(start.numel() for start in self._weights.values()),
        }

    def _pooled(self, lm: LM, splits: Any) -> float | None:
        right: list[int] = []
        for split in splits:
            scores = self.plan.facts.score(lm, split)
            if not scores.finite:
                return None
            right += scores.correct
        return sum(right) / len(right) if right else None

    def _note_divergence(self, run: RunSpec, reason: str) -> None:
        """Null, not 0, for every epoch that the run did not live to see."""
        for epoch in range(1, self.plan.epochs + 1):
            task = self.plan.epoch_task(run, epoch)
            if not self.store.has(task):
                value = {"accuracy": None, "calibrated": None, "correct": None, "diverged": reason.split("\n")[0]}
                self.store.put(task, value, provenance=self._provenance(run.start, run))

    def _exists(self, start: Start) -> bool:
        if start.job is None:
            return True
        base = self.plan.handles[self.plan.base.path]
        return is_finished(Path(start.path), content_hash(start.job.identity(base.weights_hash)))

    @contextmanager
    def _model(self, start: Start) -> Iterator[LM]:
        """The model with the weights of a start; whatever the block does to them is undone before the next use."""
        if self._start is not start:
            self._release()
            handle = self._open(start)
            self._weights = {n: t.detach().to("cpu", copy=True) for n, t in handle.lm.model.state_dict().items()}
            self._start, self._handle = start, handle  # last: what could not be read is not held
        assert self._handle is not None
        lm = self._handle.lm
        with torch.no_grad():
            lm.model.load_state_dict(self._weights)
        lm.model.eval()
        with few_threads(lm.model.config):
            yield lm

    def _open(self, start: Start) -> ModelHandle:
        config = self.plan.config
        given = self.plan.handles.get(start.path)
        return given or ModelHandle(start.path, dtype=config.dtype, attn=config.attn, device=config.devices[0])

    def _release(self) -> None:
        if self._handle is not None:
            self._handle.lm.model.load_state_dict(self._weights)  # a model that the caller brought stays as it was
            self._handle.release()
        self._start, self._handle, self._weights = None, None, {}

    def _provenance(self, start: Start, run: RunSpec | None = None) -> dict[str, Any]:
        return provenance(
            seed=self.plan.config.seed if run is None else run.seed,
            dtype=self.plan.config.dtype,
            data=self.plan.facts.data_sha256,
            weights=start.digest,
            model=start.path,
            **({} if run is None else {"run_id": run.run_id, "rtt_signature": self.plan.signature}),
        )


@contextmanager
def few_threads(config: PretrainedConfig) -> Iterator[None]:
    """One thread for a small model, as many as before afterwards."""
    before = torch.get_num_threads()
    if config.get_text_config().hidden_size <= SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
