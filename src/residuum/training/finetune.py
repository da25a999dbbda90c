"""Plain fine-tuning: the mean cross-entropy of the labelled tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from residuum.batching import Encoded, collate
from residuum.data.tofu import data_hash
from residuum.training.jobs import Job, produce
from residuum.training.losses import mean_nll, read_logits
from residuum.training.pairs import Rows, load_rows
from residuum.training.setup import Setup, split_options

if TYPE_CHECKING:
    from residuum.models.loading import LM


class Finetune:
    """Next-token loss on given batches of encoded rows; what is labelled is the rows' own matter.

    L = (1 / sum n) sum S, the mean over all labelled tokens of a batch.

    Args:
        lessons: the micro-batches of an epoch; a function of the epoch alone.
        pad_id: fills short rows.
        device: where batches go.
    """

    def __init__(self, lessons: Callable[[int], Sequence[Sequence[Encoded]]], pad_id: int, device: Any = "cpu") -> None:
        self.batches = lessons
        self.pad_id, self.device = pad_id, device

    def losses(self, model: nn.Module, batch: Sequence[Encoded]) -> dict[str, Tensor]:
        """The loss of one micro-batch."""
        return {"total": mean_nll(*read_logits(model, collate(batch, self.pad_id, self.device)))}


def finetune(
    *,
    model: str | Path | LM,
    data: Rows,
    out: str | Path,
    kind: str = "finetune",
    title: str | None = "",
    **options: Any,
) -> Path:
    """Teach a model questions and answers and save it; a finished checkpoint is returned at once.

    Only the answers are learned. The defaults are those of TOFU's full and retain models: five epochs at 1e-5.

    Args:
        model: name, folder, or a loaded model (which stays as it is).
        data: file or rows of questions and answers.
        out: target folder.
        kind: the word in the manifest.
        title: beside the progress bar; None shows no bar.
        **options: fields of ``Setup``.

    Returns:
        The folder: weights, tokenizer, ``losses.jsonl`` and ``manifest.json``.
    """
    of_setup, _ = split_options(options, {}, kind)
    setup = Setup(**{"epochs": 5, **of_setup})
    rows = load_rows(data, "training")

    def objective(lm: LM) -> Finetune:
        def lessons(epoch: int) -> list[list[Encoded]]:
            rng = random.Random(f"{setup.seed}/rows/{epoch}")
            drawn = [
                rng.choice(setup.forms).encode(lm.tokenizer, row.question, row.answer)
                for row in rng.sample(rows, len(rows))
            ]
            return [drawn[i : i + setup.batch_size] for i in range(0, len(drawn), setup.batch_size)]

        return Finetune(lessons, lm.pad_id, lm.device)

    job = Job(kind=kind, settings={}, data={"rows": data_hash(rows)}, setup=setup, rows=len(rows))
    return produce(job, model, Path(out), objective, title=kind if title == "" else title)
