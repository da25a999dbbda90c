"""What a model says about known texts: one teacher-forced pass, kept as compact arrays.

Every likelihood metric is a pure function of this evidence; a new metric needs no new pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from residuum.batching import Encoded, collate, labelled_rows, token_budget_batches

if TYPE_CHECKING:
    from residuum.models.loading import LM


@dataclass(frozen=True)
class TokenEvidence:
    """One labelled sequence under one model; all arrays are over its labelled tokens, closing EOS included."""

    labels: NDArray[np.int64]  # [T]
    predictions: NDArray[np.int64]  # [T], the most likely token at each step
    log_probs: NDArray[np.float32]  # [T], log-probability of the label


def teacher_force(lm: LM, encoded: Sequence[Encoded], max_tokens: int = 4096) -> list[TokenEvidence]:
    """Read ``encoded`` once and note what the model thought of every labelled token.

    Args:
        lm: the model.
        encoded: rows whose labels are the tokens after their prompt.
        max_tokens: padded tokens per batch.

    Returns:
        The evidence of each row, in the order given.
    """
    found: dict[int, TokenEvidence] = {}
    for group in token_budget_batches([len(row.ids) for row in encoded], max_tokens):
        batch = collate([encoded[i] for i in group], lm.pad_id, lm.device)
        sequence, row, label = labelled_rows(batch)
        with torch.inference_mode():
            logits = lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
            scores = logits[sequence, row].float()
            log_probs = scores.gather(1, label[:, None])[:, 0] - scores.logsumexp(dim=1)
            predictions = scores.argmax(dim=1)
        for place, i in enumerate(group):
            own = sequence == place
            found[i] = TokenEvidence(
                label[own].numpy(force=True), predictions[own].numpy(force=True), log_probs[own].numpy(force=True)
            )
    return [found[i] for i in range(len(encoded))]
