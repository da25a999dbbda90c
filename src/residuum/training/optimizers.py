"""Optimizers by name: AdamW, Lion, and the memory-saving ones of bitsandbytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from residuum.errors import MissingExtra

if TYPE_CHECKING:
    from residuum.training.loop import TrainConfig

OPTIMIZERS = ("adamw", "lion", "paged_adamw_32bit", "adamw_8bit")


class Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum (Chen et al. 2023, arXiv:2302.06675).

    c = b1 m + (1 - b1) g;  w <- w - lr (sign(c) + wd w);  m <- b2 m + (1 - b2) g.
    """

    def __init__(self, params: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Take one step; accelerate always hands a closure over, and it is always None."""
        for group in self.param_groups:
            keep, slow = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                momentum: Tensor = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                update = momentum.mul(keep).add_(weight.grad, alpha=1 - keep).sign_()
                weight.add_(update.add_(weight, alpha=group["weight_decay"]), alpha=-group["lr"])
                momentum.mul_(slow).add_(weight.grad, alpha=1 - slow)


def build_optimizer(trained: Mapping[str, nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """The configured optimizer over the trained parameters; only matrices are decayed."""
    matrices = [weight for weight in trained.values() if weight.ndim >= 2]
    vectors = [weight for weight in trained.values() if weight.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
    if config.optimizer == "lion":
        return Lion(groups, lr=config.lr, betas=config.betas)
    try:
        import bitsandbytes
    except ImportError:
        raise MissingExtra("bitsandbytes", "quant", f"the optimizer {config.optimizer}") from None
    make = {"paged_adamw_32bit": bitsandbytes.optim.PagedAdamW32bit, "adamw_8bit": bitsandbytes.optim.AdamW8bit}
    optimizer: torch.optim.Optimizer = make[config.optimizer](groups, lr=config.lr, betas=config.betas)
    return optimizer
