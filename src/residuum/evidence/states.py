"""Hidden states of the rows that predict an entity: how alike two models are there, and what the logit lens reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from residuum.batching import Encoded, collate, token_budget_batches, with_shrinking
from residuum.data.spans import Located
from residuum.hooks import capture
from residuum.progress import progress

if TYPE_CHECKING:
    from residuum.models.loading import LM


def entity_states(
    lm: LM, contexts: Sequence[Located], max_tokens: int = 4096, *, title: str | None = None
) -> list[Tensor]:
    """What each block puts out at the rows that predict an entity, before any final norm.

    Returns:
        One tensor per block, all contexts one after the other, float32 on the CPU.  # [block][row, hidden]
    """
    found: dict[int, list[Tensor]] = {}

    def read(group: list[int]) -> list[list[Tensor]]:
        spots = [contexts[i] for i in group]
        batch = collate([Encoded(spot.ids, len(spot.prompt_ids)) for spot in spots], lm.pad_id, lm.device)
        width = max(len(spot.rows) for spot in spots)
        # Short spans repeat their last row, which is cut off again below.
        rows = torch.tensor([[*spot.rows, *[spot.rows[-1]] * (width - len(spot.rows))] for spot in spots])
        with torch.inference_mode(), capture(lm.anatomy.blocks, rows=rows) as states:
            lm.model.base_model(input_ids=batch.input_ids, use_cache=False)
        return [[state[i, : len(spot.rows)].float().cpu() for state in states] for i, spot in enumerate(spots)]

    lengths = [len(spot.ids) for spot in contexts]
    with progress(title, len(contexts)) as bar:
        for group, states in with_shrinking(read, token_budget_batches(lengths, max_tokens)):
            found |= dict(zip(group, states, strict=True))
            bar.advance(len(group))
    return [torch.cat([found[i][block] for i in range(len(contexts))]) for block in range(lm.anatomy.num_layers)]


def logit_lens(full: LM, states: Sequence[Tensor], contexts: Sequence[Located]) -> NDArray[np.float64]:
    """Mean log-probability of each entity when the full model's norm and head read another model's states.

    Args:
        full: whose final norm and head are applied.
        states: of `entity_states`.  # [block][row, hidden]
        contexts: the same ones.

    Returns:
        # [context, block]
    """
    labels = torch.tensor([label for spot in contexts for label in spot.labels], device=full.device)
    counts = np.array([len(spot.labels) for spot in contexts])
    owner = np.repeat(np.arange(len(contexts)), counts)
    columns = []
    with torch.inference_mode():
        for state in states:
            scores = [
                torch.log_softmax(full.anatomy.logits(rows.to(full.device, full.dtype)).float(), dim=1)
                .gather(1, own[:, None])[:, 0]
                .numpy(force=True)
                for rows, own in zip(torch.split(state, 512), torch.split(labels, 512), strict=True)
            ]
            columns.append(np.bincount(owner, weights=np.concatenate(scores), minlength=len(contexts)) / counts)
    return np.stack(columns, axis=1)


def cka(
    first: Sequence[Tensor], second: Sequence[Tensor], contexts: Sequence[Located], draws: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Linear CKA of two models' states, per block, over all contexts and over resampled ones.

    ``||Y'X||_F^2 / (||X'X||_F ||Y'Y||_F)`` of column-centred X and Y (Kornblith et al. 2019, arXiv:1905.00414), written
    with the Gram matrices K = XX' and L = YY': resampling rows is then only a matter of weights.

    Args:
        first: X of each block.  # [block][row, hidden]
        second: Y of each block.
        contexts: to which the rows belong.
        draws: how often each resample holds each context.  # [draw, context]

    Returns:
        The first entry is over all contexts as they are.  # [1 + draw, block]
    """
    counts = np.array([len(spot.rows) for spot in contexts])
    weights = np.vstack([np.ones(len(contexts)), draws]).repeat(counts, axis=1)
    return np.stack([_cka(x, y, weights) for x, y in zip(first, second, strict=True)], axis=1)


def _cka(x: Tensor, y: Tensor, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    grams = [((z - z.mean(dim=0)) @ (z - z.mean(dim=0)).T).double().numpy() for z in (x, y)]
    sums = weights.sum(axis=1)
    means = [weights @ gram / sums[:, None] for gram in grams]  # k_i = sum_j w_j K_ij / W

    def inner(a: int, b: int) -> NDArray[np.float64]:
        """sum_ij w_i w_j K_ij L_ij of the weighted-centred Gram matrices."""
        raw = ((weights @ (grams[a] * grams[b])) * weights).sum(axis=1)
        cross = (weights * means[a] * means[b]).sum(axis=1)
        both = [(weights * mean).sum(axis=1) / sums for mean in (means[a], means[b])]
        centred: NDArray[np.float64] = raw - 2 * sums * cross + sums**2 * both[0] * both[1]
        return centred

    scale = np.sqrt(np.maximum(inner(0, 0), 0) * np.maximum(inner(1, 1), 0))
    found: NDArray[np.float64] = np.divide(inner(0, 1), scale, out=np.zeros(len(weights)), where=scale >= 1e-8)
    return found
