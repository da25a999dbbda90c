"""Likelihoods and divergences of labelled tokens: the pieces that every loss is made of.

All functions take logits [row, position, vocab] and labels [row, position] as a model gets them: not shifted, -100
where nothing is scored. The logits at position t predict the label at t + 1.

Notation: S(x) is the summed cross-entropy over the labelled tokens of one sequence, n(x) their number. Numbers are
float32 or better, whatever the logits are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from residuum.batching import Batch, labelled_rows


def read_logits(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Run a model on a batch, with its head only where labels are predicted.

    The head is applied from the first labelled row on: with long prompts and large vocabularies that is most of the
    memory of a training step.

    Returns:
        logits  # [row, kept position, vocab]
        labels  # [row, kept position]
    """
    keep = kept_positions(batch.labels)
    # No mask: the padding is on the right, and a causal model never looks there. Without one, attention is faster.
    logits = model(input_ids=batch.input_ids, logits_to_keep=keep, use_cache=False).logits
    return logits, batch.labels[:, -keep:]


def kept_positions(labels: Tensor) -> int:
    """How many positions, counted from the end, hold every row that predicts a label."""
    _, row, _ = labelled_rows(labels)
    return labels.shape[1] - (int(row.min()) if len(row) else 0)


def label_logits(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The logits that predict a label.

    Returns:
        logits  # [label, vocab]
        the labels  # [label]
        the sequence each of them belongs to  # [label]
    """
    sequence, row, label = labelled_rows(labels)
    return precise(logits[sequence, row]), label, sequence


def mean_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """NLL = (1 / sum n) sum S: the mean cross-entropy over all labelled tokens of the batch, a scalar."""
    scores, label, _ = label_logits(logits, labels)
    return F.cross_entropy(scores, label, reduction="none").mean()


def sequence_nll(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """S and n of each sequence: summed cross-entropy and number of labelled tokens, two of [row]."""
    scores, label, sequence = label_logits(logits, labels)
    per_label = F.cross_entropy(scores, label, reduction="none")
    zeros = per_label.new_zeros(labels.shape[0])
    return zeros.index_add(0, sequence, per_label), zeros.index_add(0, sequence, torch.ones_like(per_label))


def mean_kl(logits: Tensor, labels: Tensor, reference_logits: Tensor, *, compat: str | None = None) -> Tensor:
    """KL(reference || model), averaged over the rows that predict a label, a scalar.

    Args:
        logits: of the trained model.  # [row, position, vocab]
        labels: which rows count.  # [row, position]
        reference_logits: of the frozen reference.  # [row, position, vocab]
        compat: ``published`` averages over all positions instead, prompt and padding included.
    """
    if compat is None:
        rows, _, _ = label_logits(logits, labels)
        reference_rows, _, _ = label_logits(reference_logits, labels)
    else:
        rows, reference_rows = (precise(part).flatten(0, 1) for part in (logits, reference_logits))
    return F.kl_div(rows.log_softmax(-1), reference_rows.log_softmax(-1), log_target=True, reduction="batchmean")


def precise(numbers: Tensor) -> Tensor:
    """In float32, or in float64 if that is what they are."""
    return numbers if numbers.dtype == torch.float64 else numbers.float()
