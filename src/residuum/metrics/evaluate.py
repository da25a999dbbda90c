"""All metrics of a model from one teacher-forced pass and one generation pass per split."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from residuum.data.prompts import ChatFormat
from residuum.evidence.fluency import CLASSIFIER
from residuum.metrics.evaluation import Evaluation, EvaluationWarning, Settings
from residuum.metrics.evaluator import Evaluator
from residuum.metrics.splits import Data, Splits

if TYPE_CHECKING:
    from residuum.data.jsonfiles import Source
    from residuum.models.loading import LM

    Model = str | Path | LM

__all__ = ["Evaluation", "EvaluationWarning", "Evaluator", "Settings", "evaluate"]


def evaluate(
    model: Model,
    *,
    data: Data | None = None,
    metrics: str | Iterable[str] = "all",
    retain: Model | None = None,
    full: Model | None = None,
    members: Source | None = None,
    nonmembers: Source | None = None,
    forget: str = "forget10",
    format: str = "chat",
    system_prompt: str = ChatFormat.system_prompt,
    date: str | None = ChatFormat.date,
    mask_mode: str = "length",
    compat: str | None = None,
    fluency_model: str = CLASSIFIER,
    batch_tokens: int = 4096,
    seed: int = 42,
    dtype: str = "auto",
    device: str | int = "auto",
    attn: str | None = None,
    runs: str | Path | None = None,
) -> Evaluation:
    """Ask a model everything the metrics need, once, and compute them.

    Args:
        model: name, hub id, folder, GGUF file or loaded model.
        data: a folder of splits, ``"tofu"`` for the hub, or rows by split.
        metrics: keys, categories, ``mia``, or ``all``; a text may list several with commas. With ``all``, metrics whose
            reference model is not given are left out with a warning; asked for by name, they are an error.
        retain: the model that never saw the forget set.
        full: the model that knows.
        members: a file or rows to take for the forget set, for membership attacks on data of one's own.
        nonmembers: likewise for the held-out set.
        forget: the forget split of TOFU.
        format: chat, or raw for a tokenizer without a chat template.
        system_prompt: of the chat; empty for none.
        date: what Llama 3's template calls today.
        mask_mode: length, or pad_id as open-unlearning has it.
        compat: "published" computes UDS as the published code does.
        fluency_model: the gibberish classifier; without it utility is model utility.
        batch_tokens: padded tokens per batch.
        seed: of all resampling.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu, cuda:N or a GPU number.
        attn: sdpa, eager or flash_attention_2.
        runs: root of the run store.

    Returns:
        Scores by metric.

    Raises:
        InputError: names, data, references or checkpoints that cannot be used, before any weights are read.
    """
    settings = Settings.of(
        format=format, system_prompt=system_prompt, date=date, mask_mode=mask_mode, compat=compat,
        fluency_model=fluency_model, batch_tokens=batch_tokens, seed=seed,
    )  # fmt: skip
    splits = Splits(data, forget=forget, members=members, nonmembers=nonmembers)
    options = {"dtype": dtype, "device": device, "attn": attn}
    return Evaluator(splits, metrics, retain=retain, full=full, settings=settings, options=options, runs=runs).run(
        model
    )
