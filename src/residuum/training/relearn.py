"""Relearning: does a little training bring the knowledge back?

Full fine-tuning on the forget set, answers only, as in the published robustness evaluation: one epoch at 2e-5, batches
of 32, no warm-up, no weight decay, linear decay, clipping at 1, seed 42.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.training.finetune import finetune
from residuum.training.pairs import Rows

if TYPE_CHECKING:
    from residuum.models.loading import LM

RELEARN: dict[str, Any] = {"lr": 2e-5, "epochs": 1, "warmup_epochs": 0.0, "weight_decay": 0.0, "seed": 42}
"""Where relearning differs from fine-tuning."""


def relearn(*, model: str | Path | LM, data: Rows, out: str | Path, title: str | None = "", **options: Any) -> Path:
    """Train a model on what it was made to forget and save it; a finished checkpoint is returned at once.

    Args:
        model: the unlearned (or retain) model.
        data: the forget set.
        out: target folder.
        title: beside the progress bar; None shows no bar.
        **options: fields of ``Setup``; the defaults are ``RELEARN``.
    """
    return finetune(model=model, data=data, out=out, kind="relearn", title=title, **{**RELEARN, **options})
