"""``residuum.steer``: the evaluation from Python, with names instead of objects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.steering.config import EvaluateConfig
from residuum.steering.evaluate import evaluate
from residuum.steering.experiments import Experiment
from residuum.steering.judge.base import JudgeOptions

if TYPE_CHECKING:
    from residuum.models.loading import LM


def steer(
    experiment: str,
    vector_from_trait: str,
    *,
    root: str | Path = ".",
    config: EvaluateConfig | None = None,
    model: str | Path | LM | None = None,
    judge: str = "openai",
    judge_options: JudgeOptions | None = None,
    runs: str | Path | None = None,
    fresh: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """Steer a model with the vectors of a trait and judge what it says; the command is ``residuum steer evaluate``.

    Args:
        experiment: name of the experiment that receives the results.
        vector_from_trait: where the vectors come from, ``experiment/category/trait``.
        root: folder with ``experiments/`` and ``datasets/``.
        config: layers, method, search, generation and everything else that has a flag.
        model: what is steered; the experiment's model when left out.
        judge: openai, gemini, openai-compatible, hf or replay.
        judge_options: model, address, scoring and limits of the judge.
        runs: root of the run store.
        fresh: archive earlier runs of this trait first.
        force: make finished runs again.

    Returns:
        Baseline, layers with their steps, the best run, controls; as ``--json`` prints it.
    """
    return evaluate(
        Experiment(Path(root), experiment),
        vector_from_trait,
        config=config,
        model=model,
        judge=judge,
        judge_options=judge_options,
        runs=None if runs is None else Path(runs),
        fresh=fresh,
        force=force,
    )
