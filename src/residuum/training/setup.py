"""How a checkpoint is trained: what fine-tuning, unlearning and relearning have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from residuum.data.prompts import ChatFormat, PromptFormat, RawFormat
from residuum.errors import UsageError, nearest
from residuum.registry import one_of
from residuum.training.loop import EVERYTHING, TrainConfig
from residuum.training.lora import ADAPTER_PATTERN

FORMATS: Mapping[str, PromptFormat] = {"chat": ChatFormat(), "raw": RawFormat()}
"""Prompt formats by name."""


@dataclass(frozen=True)
class Setup:
    """Settings of a training run; the defaults are those of unlearning on TOFU."""

    lr: float = 1e-5
    """Peak learning rate; linear to zero after the warm-up."""
    epochs: int = 10
    """Passes over the data."""
    batch_size: int = 8
    """Rows per micro-batch; an unlearning method reads as many retain rows beside them."""
    accumulation: int = 4
    """Micro-batches per optimizer step."""
    warmup_epochs: float = 1.0
    """Length of the linear warm-up."""
    weight_decay: float = 0.01
    """Decay of matrices."""
    optimizer: str = "adamw"
    """adamw, lion, paged_adamw_32bit or adamw_8bit (the last two need the extra ``quant``)."""
    seed: int = 0
    """Seeds the order, the pairing and every draw."""
    format: str | PromptFormat | tuple[PromptFormat, ...] = "chat"
    """chat, raw, a format, or several of which one is drawn for each row and epoch."""
    lora_rank: int | None = None
    """Train a low-rank adapter of this rank and merge it at the end; None trains the weights themselves."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    precision: str = "float32"
    """bfloat16 computes under autocast; the weights keep their own type."""
    dtype: str = "auto"
    """Number format of the weights: float32 on CPU, bfloat16 on CUDA."""
    device: str | int = "auto"
    """GPU 0 if there is one, else the CPU."""
    checkpoint_seconds: float = 60.0
    """Time between two checkpoints from which a killed run goes on."""

    def __post_init__(self) -> None:
        one_of("precision", self.precision, "float32", "bfloat16")
        for name in ("batch_size", "accumulation", "lora_rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}.")

    @property
    def forms(self) -> tuple[PromptFormat, ...]:
        """The prompt formats to draw from."""
        if isinstance(self.format, str):
            return (FORMATS[one_of("format", self.format, *FORMATS)],)
        return self.format if isinstance(self.format, tuple) else (self.format,)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides the weights that come out, ready for JSON."""
        known = asdict(replace(self, format="chat"))
        for name in ("dtype", "device", "checkpoint_seconds", "gradient_checkpointing"):
            known.pop(name)
        return known | {"format": [repr(form) for form in self.forms]}

    def train_config(self, rows: int, *, trainable: str = EVERYTHING, processes: int = 1) -> TrainConfig:
        """The loop's settings for a data set of ``rows`` rows."""
        steps_per_epoch = rows // (self.batch_size * self.accumulation * processes)
        return TrainConfig(
            epochs=self.epochs,
            lr=self.lr,
            warmup=int(self.warmup_epochs * steps_per_epoch),
            weight_decay=self.weight_decay,
            optimizer=self.optimizer,
            accumulation=self.accumulation,
            trainable=trainable if self.lora_rank is None else ADAPTER_PATTERN,
            precision=one_of("precision", self.precision, "float32", "bfloat16"),
            gradient_checkpointing=self.gradient_checkpointing,
            seed=self.seed,
            checkpoint_seconds=self.checkpoint_seconds,
        )


def split_options(
    options: Mapping[str, Any], other: Mapping[str, Any], what: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide options between a setup and something else that has options; one that both know goes to both.

    Args:
        options: as the user gave them.
        other: the other's options.
        what: how an error calls the other.

    Raises:
        UsageError: neither has such an option.
    """
    ours = {field.name for field in fields(Setup)}
    for name in options:
        if name not in ours and name not in other:
            near = nearest(name, [*ours, *other])
            raise UsageError(
                f"{what} has no option {name}.{f' Did you mean {near[0]}?' if near else ''}\n"
                f"  Its own: {', '.join(other) or 'none'}. Of the training: {', '.join(sorted(ours))}."
            )
    return {k: v for k, v in options.items() if k in ours}, {k: v for k, v in options.items() if k in other}
