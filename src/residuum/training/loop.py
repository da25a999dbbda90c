"""The one training loop: fine-tuning, unlearning, relearning and RTT differ only in their objective.

An objective says which batches an epoch has and what their loss is; the loop does the rest: optimizer, schedule,
accumulation, clipping, logs, checkpoints. Two habits make a killed run end with the very same weights:

* the batches of epoch ``e`` are a function of (seed, e) only, and the random state is set anew before every step, so
  nothing has to be remembered but the weights, the optimizer's state and the step number;
* the learning rate is a function of the step.

Several GPUs: start the command with ``accelerate launch``; each process takes its share of every accumulation group.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from residuum.errors import Diverged, UnknownName, UsageError
from residuum.progress import progress
from residuum.training import checkpoints
from residuum.training.optimizers import OPTIMIZERS, build_optimizer

BatchT = TypeVar("BatchT")

EVERYTHING = ".*"
"""The pattern that trains all parameters."""


class Objective(Protocol[BatchT]):
    """What is learned: the batches of each epoch and their loss."""

    def batches(self, epoch: int) -> Sequence[BatchT]:
        """The micro-batches of one epoch, the same number in every epoch; a function of ``epoch`` alone."""

    def losses(self, model: nn.Module, batch: BatchT) -> Mapping[str, Tensor]:
        """The loss components of one micro-batch; ``total`` is the one that is minimised."""


@dataclass(frozen=True)
class TrainConfig:
    """How an objective is optimised."""

    epochs: int = 5
    """Passes over the objective's batches."""
    lr: float = 1e-5
    """Peak learning rate."""
    warmup: float = 0.0
    """Linear warm-up: a share of all steps when below 1, else a number of steps."""
    schedule: Literal["linear", "constant"] = "linear"
    """After the warm-up: linear to zero, or constant (then a shorter run is a prefix of a longer one)."""
    weight_decay: float = 0.01
    """Decay of matrices; vectors (norms, biases) are never decayed."""
    optimizer: str = "adamw"
    """adamw, lion, paged_adamw_32bit or adamw_8bit (the last two need the extra ``quant``)."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Moment decay rates of the optimizer."""
    max_grad_norm: float | None = 1.0
    """Gradients are clipped to this norm; None leaves them."""
    accumulation: int = 1
    """Micro-batches per optimizer step."""
    trainable: str = EVERYTHING
    """Regular expression: only parameters whose name matches it from the start are trained."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 computes under autocast; the weights keep their own type."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    seed: int = 0
    """Seeds everything random."""
    checkpoint_seconds: float = 60.0
    """A checkpoint is written when this much time has passed since the last; 0 writes one after every step."""

    def check(self) -> None:
        """Refuse settings that cannot train anything.

        Raises:
            InputError: names the setting and the value.
        """
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise UsageError(f"the learning rate must be a positive number, not {self.lr}.")
        if self.optimizer not in OPTIMIZERS:
            raise UnknownName("optimizer", self.optimizer, OPTIMIZERS)
        if self.epochs < 1:
            raise UsageError(f"at least one epoch is needed, not {self.epochs}.")
        if self.accumulation < 1:
            raise UsageError(f"accumulation counts micro-batches and must be at least 1, not {self.accumulation}.")


def learning_rate(config: TrainConfig, step: int, total: int) -> float:
    """The rate of optimizer step ``step`` (0-based) out of ``total``: warm-up, then linear to zero or constant."""
    warmup = round(config.warmup * total) if config.warmup < 1 else int(config.warmup)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.schedule == "constant":
        return config.lr
    return config.lr * (total - step) / max(1, total - warmup)


def train(
    model: nn.Module,
    objective: Objective[BatchT],
    config: TrainConfig,
    folder: Path,
    *,
    title: str | None = "training",
    on_epoch: Callable[[int], None] | None = None,
) -> Path:
    """Optimise ``model`` in place; called again after a kill, it goes on from the last checkpoint.

    Args:
        model: the trained module; its parameters that do not match ``config.trainable`` are frozen.
        objective: batches and losses.
        config: how to optimise.
        folder: receives ``losses.jsonl`` (one line a step) and, while running, ``checkpoints/``.
        title: shown beside the progress bar; None shows none.
        on_epoch: called with the 1-based number of each finished epoch (again after a resume for the epoch it fell in).

    Returns:
        The path of the loss log.

    Raises:
        Diverged: a loss is not finite; names the step. The last checkpoint stays.
        UsageError: a setting makes no sense.
    """
    from accelerate import Accelerator

    config.check()
    folder.mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(cpu=next(model.parameters()).device.type == "cpu")
    trained = freeze_all_but(model, config.trainable)
    optimizer = build_optimizer(trained, config)
    first_epoch = list(objective.batches(0))
    if not first_epoch:
        raise UsageError("there is nothing to train on: the objective has no batches.")
    per_epoch = math.ceil(len(first_epoch) / (config.accumulation * accelerator.num_processes))
    total = per_epoch * config.epochs

    done = checkpoints.restore(folder, model, optimizer, signature=_signature(config, total))
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable()  # type: ignore[operator]
    model, optimizer = accelerator.prepare(model, optimizer)
    model.train()
    log_path = folder / "losses.jsonl" if accelerator.is_main_process else Path(os.devnull)
    _cut_log(log_path, done)
    saved = time.monotonic()
    with log_path.open("a", encoding="utf-8") as log, progress(title, total, done=done) as bar:
        if done and done % per_epoch == 0 and on_epoch is not None:
            on_epoch(done // per_epoch)
        for epoch in range(done // per_epoch, config.epochs):
            batches = list(objective.batches(epoch)) if epoch else first_epoch
            # Every process takes as many: the first batches stand in for the missing ones, as in torch's own sampler.
            batches += batches[: -len(batches) % accelerator.num_processes]
            share = batches[accelerator.process_index :: accelerator.num_processes]
            groups = [share[i : i + config.accumulation] for i in range(0, len(share), config.accumulation)]
            for index, group in enumerate(groups):
                step = epoch * per_epoch + index
                if step < done:
                    continue
                _seed_step(config.seed, step)
                rate = learning_rate(config, step, total)
                for parameters in optimizer.param_groups:
                    parameters["lr"] = rate
                parts = _backward(accelerator, model, objective, group, config)
                if not math.isfinite(parts["total"]):
                    raise Diverged(
                        f"{folder.name}: the loss is {parts['total']} at step {step + 1} of {total} (lr {rate:g}).\n  The last checkpoint before it is kept in {folder / 'checkpoints'}; try a lower learning rate."
                    )
                # Only now have the weights of the step before shown that they give a finite loss.
                due = done < step and time.monotonic() - saved >= config.checkpoint_seconds
                if accelerator.is_main_process and due:
                    log.flush()
                    checkpoints.save(
                        folder, accelerator.unwrap_model(model), trained, optimizer, step, _signature(config, total)
                    )
                    saved = time.monotonic()
                if config.max_grad_norm is not None:
                    accelerator.clip_grad_norm_(trained.values(), config.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                log.write(json.dumps({"step": step + 1, "epoch": epoch + 1, "lr": rate, **parts}) + "\n")
                bar.advance(note=f"loss {parts['total']:.3f}")
            if on_epoch is not None:
                model.eval()
                on_epoch(epoch + 1)
                model.train()
    model.eval()
    return log_path


def freeze_all_but(model: nn.Module, pattern: str) -> dict[str, nn.Parameter]:
    """Train only the parameters whose name matches ``pattern`` from its start; return them by name."""
    chosen: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(bool(re.match(pattern, name)) and parameter.is_floating_point())
        if parameter.requires_grad:
            chosen[name] = parameter
    if not chosen:
        raise UsageError(f"no parameter of the model matches the trainable pattern {pattern!r}.")
    return chosen


def _backward(
    accelerator: object, model: nn.Module, objective: Objective[BatchT], group: Sequence[BatchT], config: TrainConfig
) -> dict[str, float]:
    """Add up the gradients of one accumulation group; return the mean of each loss component."""
    parts: dict[str, float] = {}
    device = next(model.parameters()).device.type
    for i, batch in enumerate(group):
        last = i == len(group) - 1
        with nullcontext() if last else accelerator.no_sync(model):  # type: ignore[attr-defined]
            with torch.autocast(device, torch.bfloat16, enabled=config.precision == "bfloat16"):
                losses = objective.losses(model, batch)
            accelerator.backward(losses["total"] / len(group))  # type: ignore[attr-defined]
        for name, value in losses.items():
            parts[name] = parts.get(name, 0.0) + value.item() / len(group)
    return parts


def _seed_step(seed: int, step: int) -> None:
    state = (seed * 1_000_003 + step) % 2**63
    random.seed(state)
    torch.manual_seed(state)


def _signature(config: TrainConfig, total: int) -> str:
    return f"{config} over {total} steps"


def _cut_log(path: Path, steps: int) -> None:
    """Drop what a killed run logged after its last checkpoint."""
    if path.is_file():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[:steps]), encoding="utf-8")
