"""Gradients of single examples: their norm (a membership attack) and their squares in the decoder blocks (Fisher).

One backward pass per example: squares of a batch's summed gradient would not be the sum of squares.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from residuum.batching import Encoded
from residuum.data.spans import Located
from residuum.evidence.forcing import MaskMode, last_states
from residuum.models.anatomy import anatomy
from residuum.progress import progress

if TYPE_CHECKING:
    from residuum.models.loading import LM

FRACTIONS = (1e-4, 1e-3, 1e-2)
"""Shares of a block's parameters that a Fisher mask keeps."""


def gradient_norms(
    lm: LM, encoded: Sequence[Encoded], *, mask_mode: MaskMode = "length", title: str | None = None
) -> NDArray[np.float64]:
    """How hard each answer pulls at the weights: mean over parameter tensors of the L2 norm of the loss gradient.

    The loss is the mean cross-entropy of the answer without its closing token (Wang et al. 2024, arXiv:2402.17012, as
    open-unlearning computes it).

    Returns:
        One norm per row; 0 for an answer without tokens.  # [row]
    """
    weights = list(lm.model.parameters())
    norms: list[float] = []
    with _with_gradients(lm, weights), progress(title, len(encoded)) as bar:
        for row in encoded:
            first = max(row.prompt_length, 1)
            last = len(row) - (row.ids[-1] == lm.tokenizer.eos_token_id)
            if first < last:
                rows, labels = range(first - 1, last - 1), row.ids[first:last]
                gradients = torch.autograd.grad(_loss(lm, row.ids, rows, labels, mask_mode), weights, allow_unused=True)
                lengths = [gradient.float().norm() for gradient in gradients if gradient is not None]
                norms.append(torch.stack(lengths).mean().item())
            else:
                norms.append(0.0)
            bar.advance()
    return np.array(norms)


def fisher_mask(full: LM, retain: LM, contexts: Sequence[Located]) -> list[NDArray[np.int64]]:
    """The parameters of each block that matter more to the retain model than to the full one, most of all first.

    ``a = max(F_retain - F_full, 0)`` with ``F`` the mean squared gradient over examples; the largest of `FRACTIONS` of
    each block is kept, and a smaller fraction is the beginning of it.

    Returns:
        Indices into the block's parameters, concatenated in the order of ``parameters()``.  # [block][kept]
    """
    excess = [
        (of_retain - of_full).clamp_min_(0)
        for of_retain, of_full in zip(_fisher(retain, contexts), _fisher(full, contexts), strict=True)
    ]
    return [
        torch.topk(values, mask_size(len(values), max(FRACTIONS))).indices.numpy().astype(np.int64) for values in excess
    ]


def mask_size(parameters: int, fraction: float) -> int:
    """How many parameters a fraction of them is, at least one."""
    return max(1, int(parameters * fraction))


def masked_fisher(
    lm: LM, contexts: Sequence[Located], mask: Sequence[NDArray[np.int64]], *, title: str | None = None
) -> NDArray[np.float64]:
    """Mean squared gradient of each example over the masked parameters of each block.

    Returns:
        # [example, block, fraction]
    """
    picked = [torch.from_numpy(indices).to(lm.device) for indices in mask]
    values = np.zeros((len(contexts), len(mask), len(FRACTIONS)))
    with progress(title, len(contexts)) as bar:
        for i, squares in enumerate(_squared_gradients(lm, contexts)):
            for block, square in enumerate(squares):
                kept = square[picked[block]]
                sizes = [mask_size(len(square), fraction) for fraction in FRACTIONS]
                values[i, block] = [kept[:size].mean().item() for size in sizes]
            bar.advance()
    return values


def _fisher(lm: LM, contexts: Sequence[Located]) -> list[Tensor]:
    """Mean squared gradient over examples, [block][parameter], in float32 on the CPU."""
    sums: list[Tensor] = []
    for squares in _squared_gradients(lm, contexts):
        sums = squares if not sums else [total.add_(square) for total, square in zip(sums, squares, strict=True)]
    return [(total / len(contexts)).cpu() for total in sums]


def _squared_gradients(lm: LM, contexts: Sequence[Located]) -> Iterator[list[Tensor]]:
    """Per example and block, the squared gradient of minus the mean log-probability of the entity, in float32."""
    blocks = [list(block.parameters()) for block in lm.anatomy.blocks]
    sizes = [len(block) for block in blocks]
    weights = [weight for block in blocks for weight in block]
    with _with_gradients(lm, weights):
        for spot in contexts:
            loss = _loss(lm, spot.ids, spot.rows, spot.labels, "length")
            gradients = torch.autograd.grad(loss, weights, allow_unused=True)
            # A weight that an example does not use (an expert not chosen) has gradient zero.
            flat = [
                (torch.zeros_like(weight) if gradient is None else gradient).float().square().flatten()
                for weight, gradient in zip(weights, gradients, strict=True)
            ]
            ends = np.cumsum(sizes)
            yield [torch.cat(flat[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def differentiable(lm: LM) -> LM:
    """A model whose weights have gradients: itself, or a dequantized copy of a quantized one."""
    if lm.quantize is None:
        return lm
    model = copy.deepcopy(lm.model).dequantize().eval()
    return replace(lm, model=model, anatomy=anatomy(model), quantize=None)


def _loss(lm: LM, ids: Sequence[int], rows: Sequence[int], labels: Sequence[int], mask_mode: MaskMode) -> Tensor:
    """Mean cross-entropy of ``labels``, which the logits of ``rows`` predict."""
    states = last_states(lm, torch.tensor([list(ids)], device=lm.device), mask_mode)[0, list(rows)]
    return nn.functional.cross_entropy(lm.anatomy.head(states).float(), torch.tensor(list(labels), device=lm.device))


@contextmanager
def _with_gradients(lm: LM, weights: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let exactly ``weights`` require gradients, and put everything back afterwards."""
    before = [(weight, weight.requires_grad) for weight in lm.model.parameters()]
    wanted = {id(weight) for weight in weights}
    try:
        for weight, _ in before:
            weight.requires_grad_(id(weight) in wanted)
        with torch.enable_grad():
            yield
    finally:
        for weight, wanted_before in before:
            weight.requires_grad_(wanted_before)
