"""Likelihoods of labelled tokens, computed only where a label is.

Notation: S(x) is the summed cross-entropy over the labelled tokens of one sequence, n(x) their number.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from residuum.batching import Batch, labelled_rows


def label_logits(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Logits at the rows that predict a label.

    The head is applied from the first labelled row on: with long prompts and large vocabularies that is most of the
    memory of a training step.

    Returns:
        logits  # [label, vocab]
        the labels  # [label]
        the sequence each of them belongs to  # [label]
    """
    sequence, row, label = labelled_rows(batch)
    first = int(row.min()) if len(row) else 0
    keep = batch.input_ids.shape[1] - first
    # No mask: the padding is on the right, and a causal model never looks there. Without one, attention is faster.
    logits = model(input_ids=batch.input_ids, logits_to_keep=keep, use_cache=False).logits
    return logits[sequence, row - first], label, sequence


def sequence_sums(per_label: Tensor, sequence: Tensor, sequences: int) -> Tensor:
    """Add up a per-label quantity over each sequence: [label] to [sequence]."""
    return torch.zeros(sequences, dtype=per_label.dtype, device=per_label.device).index_add(0, sequence, per_label)


def token_nll(logits: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy of each label, [label], in float32 or better."""
    return F.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), label, reduction="none")
