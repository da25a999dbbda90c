"""Plain fine-tuning: the mean cross-entropy of the labelled tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from residuum.batching import Encoded, collate
from residuum.training.losses import label_logits, token_nll


class Finetune:
    """Next-token loss on given batches of encoded rows; what is labelled is the rows' own matter.

    L = (1 / sum n) sum S, the mean over all labelled tokens of a batch.

    Args:
        lessons: the micro-batches of an epoch; a function of the epoch alone.
        pad_id: fills short rows.
        device: where batches go.
    """

    def __init__(self, lessons: Callable[[int], Sequence[Sequence[Encoded]]], pad_id: int, device: str = "cpu") -> None:
        self.batches = lessons
        self.pad_id, self.device = pad_id, device

    def losses(self, model: nn.Module, batch: Sequence[Encoded]) -> dict[str, Tensor]:
        """The loss of one micro-batch."""
        logits, label, _ = label_logits(model, collate(batch, self.pad_id, self.device))
        return {"total": token_nll(logits, label).mean()}
