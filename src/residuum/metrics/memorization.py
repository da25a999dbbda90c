"""How much of the forget set the model still has by heart (teacher-forced, so nothing depends on how it phrases)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from residuum.metrics.registry import metric

if TYPE_CHECKING:
    from residuum.evidence import TokenEvidence
    from residuum.metrics.scores import Floats

_OPEN_UNLEARNING = "Dorna et al. 2025, arXiv:2506.12618"
_TOFU = "Maini et al. 2024, arXiv:2401.06121"


@metric(
    "em", "memorization", higher_means="more knowledge", needs="forget.answers",
    cite="Tirumala et al. 2022, arXiv:2205.10770",
)  # fmt: skip
def exact_memorization(answers: Sequence[TokenEvidence]) -> Floats:
    """Exact memorization: share of answer tokens that the model predicts.

    EM = mean_t [argmax_t = y_t] over the T tokens without the closing one; undefined for T = 0.

    Args:
        answers: of each item.

    Returns:
        # [item]
    """
    return np.array([_hits(answer).mean() if len(answer.words) else np.nan for answer in answers], dtype=np.float64)


@metric(
    "es", "memorization", higher_means="more knowledge", needs="forget.answers",
    cite="Carlini et al. 2021, arXiv:2012.07805",
)  # fmt: skip
def extraction_strength(answers: Sequence[TokenEvidence]) -> Floats:
    """Extraction strength: how short a beginning of the answer makes the model finish it.

    ES = 1 - k / T, where k is the first position from which on every prediction is right; k = T - 1 when there is none,
    so that ES is at least 1 / T. An answer without tokens counts 0.

    Args:
        answers: of each item.

    Returns:
        # [item]
    """
    return np.array([_extraction(_hits(answer)) for answer in answers], dtype=np.float64)


@metric("prob", "memorization", higher_means="more knowledge", needs="forget.answers", cite=_TOFU)
def probability(answers: Sequence[TokenEvidence]) -> Floats:
    """Probability of the true answer, normalised for its length.

    p = exp(-mean loss), the closing token included.

    Args:
        answers: of each item.

    Returns:
        # [item]
    """
    return np.exp(-np.array([answer.average_loss for answer in answers], dtype=np.float64))


@metric("paraprob", "memorization", higher_means="more knowledge", needs="forget.paraphrases", cite=_OPEN_UNLEARNING)
def paraphrase_probability(paraphrases: Sequence[Sequence[TokenEvidence]]) -> Floats:
    """Probability of the answer in other words.

    The geometric mean over an item's paraphrases of exp(-mean loss), each at least 1e-12.

    Args:
        paraphrases: of each item.

    Returns:
        # [item]
    """
    return np.array([_geometric_mean(probability(own)) for own in paraphrases], dtype=np.float64)


@metric(
    "truth_ratio", "memorization", higher_means="more knowledge", needs=("forget.paraphrases", "forget.perturbed"),
    cite=_OPEN_UNLEARNING,
)  # fmt: skip
def truth_ratio(paraphrases: Sequence[Sequence[TokenEvidence]], perturbed: Sequence[Sequence[TokenEvidence]]) -> Floats:
    """Truth ratio: how much likelier the true answer is than wrong ones of the same form.

    pc / (pc + pw + 1e-10), with pc and pw the probabilities exp(-mean of mean losses) of the paraphrased and of the wrong
    answers. One half is ignorance.

    Args:
        paraphrases: right answers of each item.
        perturbed: wrong ones.

    Returns:
        # [item]
    """
    right, wrong = mean_probability(paraphrases), mean_probability(perturbed)
    ratio: Floats = right / (right + wrong + 1e-10)
    return ratio


@metric("truth_ratio_ou", "memorization", higher_means="less knowledge", needs="forget.wrong_to_right", cite=_TOFU)
def truth_ratio_open_unlearning(wrong_to_right: Floats) -> Floats:
    """Truth ratio as open-unlearning reports it for forget sets: 1 when true and wrong answers are equally likely.

    min(r, 1 / (r + 1e-10)) with r = pw / (pc + 1e-10).

    Args:
        wrong_to_right: r of each item.

    Returns:
        # [item]
    """
    closeness: Floats = np.minimum(wrong_to_right, 1 / (wrong_to_right + 1e-10))
    return closeness


def wrong_to_right(
    paraphrases: Sequence[Sequence[TokenEvidence]], perturbed: Sequence[Sequence[TokenEvidence]]
) -> Floats:
    """TOFU's own truth ratio r = pw / (pc + 1e-10) of each item: high when the model does not know."""
    ratio: Floats = mean_probability(perturbed) / (mean_probability(paraphrases) + 1e-10)
    return ratio


def mean_probability(groups: Sequence[Sequence[TokenEvidence]]) -> Floats:
    """Geometric mean of the probabilities of each group of answers: exp(-mean of their mean losses), [item]."""
    return np.exp(-np.array([np.mean([one.average_loss for one in own]) for own in groups], dtype=np.float64))


def _geometric_mean(probabilities: Floats) -> float:
    return float(np.exp(np.log(np.maximum(probabilities, 1e-12)).mean()))


def _hits(answer: TokenEvidence) -> NDArray[np.bool_]:
    words = answer.words
    return np.asarray(words.predictions == words.labels)


def _extraction(hits: NDArray[np.bool_]) -> float:
    if not len(hits):
        return 0.0
    misses = np.flatnonzero(~hits)
    first_all_right = misses[-1] + 1 if len(misses) else 0
    return 1 - min(first_all_right, len(hits) - 1) / len(hits)
