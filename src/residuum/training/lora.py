"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): train a few small matrices, then add them to the weights.

W' = W + (alpha / r) B A, with alpha = 2 r; B starts at zero, so the adapted model starts as the model itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from residuum.errors import MissingExtra

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER_PATTERN = r".*\.lora_"
"""Matches the names of an adapter's own parameters."""


def attach(model: PreTrainedModel, rank: int, *, seed: int = 0) -> Any:
    """Put an adapter on every linear layer but the head; the model's own weights are frozen.

    Args:
        model: changed in place; its blocks stay the same modules.
        rank: r.
        seed: draws A.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MissingExtra("peft", "lora", "a low-rank adapter") from None
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(seed)
        warnings.simplefilter("ignore")  # advice of peft about layers that store their weights transposed
        return get_peft_model(model, config)


def is_adapted(model: nn.Module) -> bool:
    """Whether ``attach`` was here."""
    return hasattr(model, "merge_and_unload")


def merge(model: Any) -> PreTrainedModel:
    """The model with its adapter added to the weights; an ordinary checkpoint again."""
    merged: PreTrainedModel = model.merge_and_unload()
    return merged


@contextmanager
def switched_off(model: Any) -> Iterator[nn.Module]:
    """The adapted model as it was at the start: adapter and dropout off for the length of the block."""
    training = model.training
    model.eval()
    try:
        with model.disable_adapter():
            yield model
    finally:
        model.train(training)
