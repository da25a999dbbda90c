"""From judged answers to the numbers of a run: one function for live runs, rebuilt ones and old files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from residuum.uncertainty import bootstrap_ci

ENOUGH = 0.8
"""Share of answers that must be scored for a run to count."""
SUCCESS = 50.0
"""A trait score above this is a success."""


def summarize(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The result of a run.

    trait_std is the population form and only there for n > 1; coherence_mean is absent when nothing has a coherence;
    ci95 is a bootstrap over questions, whose rollouts are averaged first.

    Args:
        items: with ``question_id`` and the records ``trait`` and ``coherence``, whose ``score`` may be None.
    """
    traits = [item["trait"]["score"] for item in items if item["trait"]["score"] is not None]
    coherences = [item["coherence"]["score"] for item in items if item["coherence"]["score"] is not None]
    result: dict[str, Any] = {"trait_mean": float(np.mean(traits)) if traits else None}
    if len(traits) > 1:
        result["trait_std"] = float(np.std(traits))
    if coherences:
        result["coherence_mean"] = float(np.mean(coherences))
    result["n"] = len(traits)
    result["n_total"] = len(items)
    result["n_unscored"] = len(items) - len(traits)
    if traits:
        result["success_rate"] = float(np.mean([score > SUCCESS for score in traits]))
        result["min_score"], result["max_score"] = float(min(traits)), float(max(traits))
    result["ci95"] = bootstrap_ci(list(question_means(items).values()))
    return result


def question_means(items: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean trait score of each question that has one."""
    found: dict[str, list[float]] = {}
    for item in items:
        if item["trait"]["score"] is not None:
            found.setdefault(item["question_id"], []).append(item["trait"]["score"])
    return {question: float(np.mean(scores)) for question, scores in found.items()}


def against_baseline(items: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The effect of steering by question: the mean hides those that go the other way (Tan et al. 2024, arXiv:2407.12404).

    Returns:
        ``delta`` with its interval, and ``anti_steered``, the share of questions that moved down.
    """
    before, after = question_means(baseline), question_means(items)
    shared = [question for question in after if question in before]
    gaps = [after[question] - before[question] for question in shared]
    if not gaps:
        return {"delta": None, "delta_ci95": None, "anti_steered": None}
    return {
        "delta": float(np.mean(gaps)),
        "delta_ci95": bootstrap_ci(gaps),
        "anti_steered": float(np.mean([gap < 0 for gap in gaps])),
    }


def status_of(items: Sequence[Mapping[str, Any]]) -> str:
    """``ok``, or ``judge_failed`` when too few answers have both scores."""
    scored = sum(item["trait"]["score"] is not None and item["coherence"]["score"] is not None for item in items)
    return "ok" if items and scored >= ENOUGH * len(items) else "judge_failed"
