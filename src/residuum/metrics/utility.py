"""What must not be lost: the retained authors, real authors, world facts, and language itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from residuum.metrics.generation import rouge
from residuum.metrics.memorization import mean_probability, probability
from residuum.metrics.registry import metric

if TYPE_CHECKING:
    from residuum.evidence import TokenEvidence
    from residuum.metrics.scores import Floats

_TOFU = "Maini et al. 2024, arXiv:2401.06121"

metric("retain_q_prob", "utility", higher_means="more utility", needs="retain.answers", cite=_TOFU)(probability)
for _split, _short in (("retain", "retain"), ("real_authors", "ra"), ("world_facts", "wf")):
    metric(
        f"{_short}_q_rouge", "utility", higher_means="more utility", needs=(f"{_split}.texts", f"{_split}.truths"),
        cite="Lin 2004, ACL W04-1013",
    )(rouge)  # fmt: skip


@metric(
    "ra_q_prob", "utility", higher_means="more utility", needs=("real_authors.answers", "real_authors.perturbed"),
    cite=_TOFU,
)  # fmt: skip
@metric(
    "wf_q_prob", "utility", higher_means="more utility", needs=("world_facts.answers", "world_facts.perturbed"),
    cite=_TOFU,
)  # fmt: skip
def chosen_probability(answers: Sequence[TokenEvidence], perturbed: Sequence[Sequence[TokenEvidence]]) -> Floats:
    """Probability of the true answer among the true and the wrong ones.

    p / (p + sum of the wrong answers' p + 1e-12), each p = exp(-mean loss).

    Args:
        answers: of each item.
        perturbed: wrong answers of each item.

    Returns:
        # [item]
    """
    right = probability(answers)
    wrong = np.array([probability(own).sum() for own in perturbed], dtype=np.float64)
    chosen: Floats = right / (right + wrong + 1e-12)
    return chosen


@metric(
    "retain_truth_ratio", "utility", higher_means="more utility", needs=("retain.paraphrases", "retain.perturbed"),
    cite=_TOFU,
)  # fmt: skip
def truth_advantage(
    paraphrases: Sequence[Sequence[TokenEvidence]], perturbed: Sequence[Sequence[TokenEvidence]]
) -> Floats:
    """How much likelier the true answer is than wrong ones: 0 when it is not, 1 when they are impossible.

    max(0, 1 - w / (c + 1e-12)), with c and w the geometric means of the probabilities of right and of wrong answers.

    Args:
        paraphrases: right answers of each item.
        perturbed: wrong ones.

    Returns:
        # [item]
    """
    advantage: Floats = np.maximum(0.0, 1 - mean_probability(perturbed) / (mean_probability(paraphrases) + 1e-12))
    return advantage


@metric(
    "ra_truth_ratio", "utility", higher_means="more utility", needs=("real_authors.answers", "real_authors.perturbed"),
    cite=_TOFU,
)  # fmt: skip
@metric(
    "wf_truth_ratio", "utility", higher_means="more utility", needs=("world_facts.answers", "world_facts.perturbed"),
    cite=_TOFU,
)  # fmt: skip
def answer_advantage(answers: Sequence[TokenEvidence], perturbed: Sequence[Sequence[TokenEvidence]]) -> Floats:
    """How much likelier the true answer is than wrong ones, for sets without paraphrases.

    As `truth_advantage`, with the one true answer as the right ones.

    Args:
        answers: of each item.
        perturbed: wrong answers of each item.

    Returns:
        # [item]
    """
    return truth_advantage([[answer] for answer in answers], perturbed)


@metric(
    "fluency", "utility", higher_means="more utility", needs="forget.clean_probabilities",
    cite="Dorna et al. 2025, arXiv:2506.12618",
)  # fmt: skip
def fluency(clean_probabilities: Floats) -> Floats:
    """Fluency of the answers to forget questions: probability that a classifier takes them for language.

    Args:
        clean_probabilities: class 0 of the gibberish detector for each greedy answer.  # [item]

    Returns:
        # [item]
    """
    return clean_probabilities
