"""The axes: memorization, privacy, utility, and all of them in one number (spec 2.7)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from residuum.metrics.registry import metric

EPSILON = 1e-12
_UDS = "unlearning-depth-score, https://github.com/gnueaj/unlearning-depth-score"
_UTILITY_PARTS = tuple(
    f"{split}_{kind}" for split in ("retain", "ra", "wf") for kind in ("q_prob", "q_rouge", "truth_ratio")
)


def harmonic_mean(values: Iterable[float | None], epsilon: float = EPSILON) -> float | None:
    """Harmonic mean n / sum 1 / (v + epsilon) of the values that are there; None when none is, or one is not positive.

    With an epsilon, 0 is allowed and pulls the mean to nearly 0.
    """
    there = [value for value in values if value is not None and not math.isnan(value)]
    if not there or any(value + epsilon <= 0 for value in there):
        return None
    return len(there) / sum(1 / (value + epsilon) for value in there)


@metric(
    "mem", "memorization", higher_means="less knowledge", needs=("es", "em", "paraprob", "truth_ratio"), cite=_UDS
)  # fmt: skip
def memorization(es: float | None, em: float | None, paraprob: float | None, truth_ratio: float | None) -> float | None:
    """Memorization axis: harmonic mean of 1 - ES, 1 - EM, 1 - Para.Prob and 1 - Truth Ratio.

    Not defined when one of them is 1.

    Args:
        es: extraction strength.
        em: exact memorization.
        paraprob: paraphrase probability.
        truth_ratio: truth ratio.
    """
    parts = [None if part is None else 1 - part for part in (es, em, paraprob, truth_ratio)]
    return None if None in parts else harmonic_mean(parts, epsilon=0.0)


@metric(
    "privacy_mia", "privacy", higher_means="less knowledge",
    needs=("s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp"), cite=_UDS,
)  # fmt: skip
def privacy_mia(*closeness: float | None) -> float | None:
    """How retain-like the model is to four membership attacks: harmonic mean of the four s_mia.

    Args:
        closeness: the four.
    """
    return harmonic_mean(closeness)


@metric("privacy", "privacy", higher_means="less knowledge", needs=("privacy_mia", "uds"), cite=_UDS)
def privacy(privacy_mia: float | None, uds: float | None) -> float | None:
    """Privacy axis: harmonic mean of the attacks' retain-likeness and the unlearning depth.

    Args:
        privacy_mia: from outside.
        uds: from inside.
    """
    return harmonic_mean([privacy_mia, uds])


@metric(
    "model_utility",
    "utility",
    higher_means="more utility",
    needs=_UTILITY_PARTS,
    cite="Maini et al. 2024, arXiv:2401.06121",
)
def model_utility(*parts: float | None) -> float | None:
    """Model utility: harmonic mean of Prob, ROUGE and Truth Ratio on retained authors, real authors and world facts.

    Args:
        parts: the nine.
    """
    return harmonic_mean(parts)


@metric("utility", "utility", higher_means="more utility", needs=("model_utility", "fluency?"), cite=_UDS)
def utility(model_utility: float | None, fluency: float | None) -> float | None:
    """Utility axis: harmonic mean of model utility and fluency; model utility alone where fluency cannot be had.

    Args:
        model_utility: of the nine parts.
        fluency: None without its classifier.
    """
    return model_utility if fluency is None else harmonic_mean([model_utility, fluency])


@metric("utility_rel", "utility", higher_means="more utility", needs=("utility", "full_model:utility"), cite=_UDS)
def relative_utility(utility: float | None, full_utility: float | None) -> float | None:
    """Utility as a share of the full model's, at most 1.

    clip(utility / (full utility + 1e-12), 0, 1).

    Args:
        utility: of the model.
        full_utility: of the full model, made of the same parts.
    """
    if utility is None or full_utility is None:
        return None
    return min(max(utility / (full_utility + EPSILON), 0.0), 1.0)


@metric("overall", "overall", higher_means="less knowledge", needs=("mem", "privacy", "utility_rel"), cite=_UDS)
def overall(mem: float | None, privacy: float | None, utility_rel: float | None) -> float | None:
    """Overall: harmonic mean of the memorization, privacy and utility axes.

    Args:
        mem: memorization axis.
        privacy: privacy axis.
        utility_rel: utility axis relative to the full model.
    """
    return None if None in (mem, privacy, utility_rel) else harmonic_mean([mem, privacy, utility_rel])
