"""From evidence to scores: calls each metric with what it needs, and says what a reader should know."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from residuum.metrics.registry import METRICS, Metric, Need, Who, evidence_needs
from residuum.metrics.scores import (
    Score,
    Separation,
    auc_score,
    composite_score,
    mean_score,
    statistic_score,
)

if TYPE_CHECKING:
    from residuum.metrics.subject import Bench, Subject

FAR_BELOW_CHANCE = 0.25
"""An attack's AUC below this recognises members by how strange they have become."""

_SEEDS = {"entities": 0, "forget": 1, "holdout": 2, "retain": 3, "real_authors": 4, "world_facts": 5}
"""Items of one split are resampled alike for all metrics and models, those of two splits apart."""


class Scorer:
    """Scores of a model and its references, each computed once.

    Args:
        subjects: the models, with their evidence.
        bench: what they were asked.
        missing: evidence that could not be had.
    """

    def __init__(self, subjects: Mapping[Who, Subject], bench: Bench, missing: Collection[str] = ()) -> None:
        self.subjects, self.bench, self.missing = subjects, bench, missing
        self._scores: dict[tuple[str, Who], Score] = {}

    def score(self, name: str, who: Who = "model") -> Score:
        """One metric of one model."""
        if (name, who) not in self._scores:
            self._scores[name, who] = self._compute(METRICS[name], who)
        return self._scores[name, who]

    def _compute(self, metric: Metric, who: Who) -> Score:
        owners = [need.who if need.who != "model" else who for need in metric.needs]
        if all(need.what in METRICS for need in metric.needs):
            parts = [self._part(need, owner) for need, owner in zip(metric.needs, owners, strict=True)]
            score = composite_score(metric.function, parts, metric.higher_means, ideal=metric.ideal)
            if metric.name == "utility" and parts[1] is None:
                score = score.noting("without fluency, whose classifier cannot be loaded: this is model utility")
            absent = [need.what for need, part in zip(metric.needs, parts, strict=True) if part and part.value is None]
            if absent and score.value is not None:
                score = score.noting(f"without {', '.join(absent)}, not defined here")
            return score
        inputs = [self.subjects[o].evidence(n.what) for n, o in zip(metric.needs, owners, strict=True)]
        roles = list(dict.fromkeys(need.role for need in metric.needs))
        seeds = [self.bench.seed + _SEEDS[role] for role in roles]
        found = metric.function(*inputs)
        if isinstance(found, np.ndarray):
            return self._with_absent(mean_score(found, seeds[0], metric.higher_means, ideal=metric.ideal), roles)
        if isinstance(found, Separation):
            score = auc_score(found, (seeds[0], seeds[1]), metric.higher_means, ideal=metric.ideal)
            return self._reading(self._with_absent(score, roles), metric, who)
        return self._with_absent(
            statistic_score(metric.function, inputs, seeds[0], metric.higher_means, ideal=metric.ideal), roles
        )

    def _part(self, need: Need, owner: Who) -> Score | None:
        if need.optional and any(below.what in self.missing for below in evidence_needs(METRICS[need.what])):
            return None
        return self.score(need.what, owner)

    def _with_absent(self, score: Score, roles: Sequence[str]) -> Score:
        """Count the items that the models could not be asked, and leave them a place among the values."""
        if roles == ["entities"]:
            audit = self.bench.audit()
            n = score.n if score.values else len(audit.located)
            return replace(score, n=n, n_undefined=score.n_undefined + len(audit.skipped))
        values: list[float | None] = []
        start = absent = 0
        for role in roles:
            split = self.bench.split(role)
            own = dict(zip(split.kept, score.values[start : start + len(split.kept)], strict=False))
            values += [own.get(i) for i in range(split.total)]
            start += len(split.kept)
            absent += split.total - len(split.kept)
        return replace(score, values=values if score.values else [], n_undefined=score.n_undefined + absent)

    def _reading(self, score: Score, metric: Metric, who: Who) -> Score:
        """Flag an attack that recognises the forget set by how unlike training data it has become."""
        if score.value is None or score.value >= FAR_BELOW_CHANCE:
            return score
        retain, said = self.subjects.get("retain_model"), ""
        alone = all(need.who == "model" for need in metric.needs)
        if who == "model" and alone and retain is not None and all(retain.knows(need.what) for need in metric.needs):
            said = f" (the retain model has {self.score(metric.name, 'retain_model').value:.3f})"
        return score.noting(f"far below 0.5{said}: over-unlearned, members stand out by how strange they have become")

    def utility_parts(self) -> list[str] | None:
        """What ``utility`` is made of in this evaluation; None when it was not asked for."""
        if ("utility", "model") not in self._scores:
            return None
        return [need.what for need in METRICS["utility"].needs if self._part(need, "model") is not None]
