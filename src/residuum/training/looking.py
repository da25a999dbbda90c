"""What the trained and the start model see of a micro-batch: all sides of it in one forward pass each.

One pass is a tenth faster than one per side on a small model, and it is what distributed training expects.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from residuum.batching import Encoded, collate, token_budget_batches
from residuum.hooks import capture
from residuum.models.anatomy import anatomy
from residuum.training.lora import is_adapted, switched_off
from residuum.training.losses import kept_positions, read_logits, sequence_nll
from residuum.training.methods.base import Side, SideName

if TYPE_CHECKING:
    from residuum.models.loading import LM

_TOKENS = 4096
"""Padded tokens per batch of the pass before training."""


def look(
    model: nn.Module,
    rows: Mapping[SideName, Sequence[Encoded]],
    *,
    pad_id: int,
    device: torch.device | str,
    logits: bool = True,
    block: nn.Module | None = None,
    cut: bool = True,
    mask: bool = False,
) -> dict[SideName, Side]:
    """Run a model once over all sides of a micro-batch.

    Args:
        model: called as it is, wrapped or not.
        rows: the sides.
        pad_id: fills short rows.
        device: where the batch goes.
        logits: whether they are wanted; without them the head is skipped.
        block: the decoder block whose output is wanted as ``states``; they go with uncut labels.
        cut: let each side begin at its first row that predicts a label, which saves most of the head.
        mask: mask the padding, for losses that count it. Nobody else needs it: the padding is on the right, a causal
            model never looks there, and attention is faster without.
    """
    batch = collate([row for side in rows.values() for row in side], pad_id, device)
    keep = kept_positions(batch.labels) if cut else batch.labels.shape[1]
    masked = {"attention_mask": batch.attention_mask} if mask else {}
    with nullcontext() if block is None else capture([block]) as captured:
        out = model(input_ids=batch.input_ids, logits_to_keep=keep if logits else 1, use_cache=False, **masked).logits
    states = captured[0] if captured is not None else None

    seen: dict[SideName, Side] = {}
    dropped, start = batch.labels.shape[1] - keep, 0
    for name, side in rows.items():
        own, width = slice(start, start + len(side)), max(map(len, side))
        labels = batch.labels[own, :width]
        first = width - kept_positions(labels) if cut else 0
        seen[name] = Side(
            labels[:, first:],
            logits=out[own, first - dropped : width - dropped] if logits else None,
            states=states[own, :width] if states is not None else None,
        )
        start = own.stop
    return seen


class StartModel:
    """The start model, frozen, to compare with: a copy; with an adapter the model itself with the adapter off."""

    def __init__(self, lm: LM) -> None:
        self._adapted = is_adapted(lm.model)
        self._model = lm.model if self._adapted else copy.deepcopy(lm.model).eval().requires_grad_(False)
        self._blocks = lm.anatomy.blocks if self._adapted else anatomy(self._model).blocks

    def look(
        self, rows: Mapping[SideName, Sequence[Encoded]], *, logits: bool, block: int | None, **how: Any
    ) -> dict[SideName, Side]:
        """``look`` through the start model, without gradients; the block is given by its number."""
        module = None if block is None else self._blocks[block]
        with torch.no_grad(), switched_off(self._model) if self._adapted else nullcontext(self._model) as model:
            return look(model, rows, logits=logits, block=module, **how)


def reference_nll(lm: LM, rows: Iterable[Encoded], *, precision: str = "float32") -> dict[Encoded, float]:
    """S(x) of each distinct row under the start model: one pass before training, one number a row to keep."""
    distinct = list(dict.fromkeys(rows))
    known: dict[Encoded, float] = {}
    for group in token_budget_batches([len(row) for row in distinct], _TOKENS):
        batch = collate([distinct[i] for i in group], lm.pad_id, lm.device)
        with torch.inference_mode(), torch.autocast(lm.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
            nll, _ = sequence_nll(*read_logits(lm.model, batch))
        known |= zip([distinct[i] for i in group], nll.tolist(), strict=True)
    return known


def gather_nll(known: Mapping[Encoded, float], rows: Sequence[Encoded], device: torch.device | str) -> Tensor:
    """The known S(x) of some rows, [row]."""
    return torch.tensor([known[row] for row in rows], device=device)
