"""Can one tell that the forget set was in the training data? Membership attacks, and the same against the retain model.

Every attack gives each answer a score that is higher when it looks less like training data. The AUC over forget answers
(members) and held-out ones is 1 when every member is recognised. Chance is 0.5, but the number to aim at is the retain
model's, which may lie elsewhere: the two sets differ. Far below both is not privacy but the trace of over-unlearning.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from residuum.metrics.registry import metric
from residuum.metrics.scores import Separation

if TYPE_CHECKING:
    from residuum.evidence import TokenEvidence
    from residuum.metrics.scores import Floats, Meaning

MIN_K = 0.4
"""The share of least likely tokens that Min-K looks at."""

_AUC: Meaning = "two-sided"
_BOTH = ("forget.answers", "holdout.answers")
_MUSE = "Shi et al. 2024, arXiv:2407.06460"


@metric(
    "mia_loss", "privacy", higher_means=_AUC, ideal=0.5, needs=_BOTH, cite="Yeom et al. 2018, arXiv:1709.01604"
)  # fmt: skip
def loss_attack(members: Sequence[TokenEvidence], nonmembers: Sequence[TokenEvidence]) -> Separation:
    """Membership attack by loss: AUC of the mean cross-entropy of the answer.

    Args:
        members: answers of the forget set.
        nonmembers: answers nobody was trained on.
    """
    return _attack(lambda answer: answer.average_loss, members, nonmembers)


@metric(
    "mia_zlib", "privacy", higher_means=_AUC, ideal=0.5,
    needs=(*_BOTH, "forget.answer_texts", "holdout.answer_texts"), cite="Carlini et al. 2021, arXiv:2012.07805",
)  # fmt: skip
def zlib_attack(
    members: Sequence[TokenEvidence],
    nonmembers: Sequence[TokenEvidence],
    member_texts: Sequence[str],
    nonmember_texts: Sequence[str],
) -> Separation:
    """Membership attack by loss per information: AUC of the mean loss over the length of the zlib-compressed answer.

    Args:
        members: answers of the forget set.
        nonmembers: answers nobody was trained on.
        member_texts: what the labelled tokens of the members spell, special tokens left out.
        nonmember_texts: the same of the others.
    """
    sides = ((members, member_texts), (nonmembers, nonmember_texts))
    found = [
        np.array([one.average_loss / len(zlib.compress(text.encode())) for one, text in zip(*side, strict=True)])
        for side in sides
    ]
    return Separation(*found)


@metric(
    "mia_min_k", "privacy", higher_means=_AUC, ideal=0.5, needs=_BOTH, cite="Shi et al. 2024, arXiv:2310.16789"
)  # fmt: skip
def min_k_attack(members: Sequence[TokenEvidence], nonmembers: Sequence[TokenEvidence]) -> Separation:
    """Membership attack by the least likely tokens: AUC of minus the mean log-probability of the lowest 40 %.

    The n = max(1, floor(0.4 T)) smallest of the T tokens without the closing one; 0 for an answer without tokens.

    Args:
        members: answers of the forget set.
        nonmembers: answers nobody was trained on.
    """
    return _attack(lambda answer: _lowest(answer.words.log_probs.astype(np.float64)), members, nonmembers)


@metric(
    "mia_min_kpp", "privacy", higher_means=_AUC, ideal=0.5, needs=_BOTH, cite="Zhang et al. 2024, arXiv:2404.02936"
)  # fmt: skip
def min_kpp_attack(members: Sequence[TokenEvidence], nonmembers: Sequence[TokenEvidence]) -> Separation:
    """Membership attack by normalised token surprise (Min-K++): AUC of minus the mean z of the lowest 40 %.

    z = (log p - mu) / sqrt(max(var, 1e-6)), with mu and var the mean and variance of the vocabulary's log-probabilities.

    Args:
        members: answers of the forget set.
        nonmembers: answers nobody was trained on.
    """

    def surprise(answer: TokenEvidence) -> float:
        words = answer.words
        spread = np.sqrt(np.maximum(words.variance.astype(np.float64), 1e-6))
        return _lowest((words.log_probs.astype(np.float64) - words.mean) / spread)

    return _attack(surprise, members, nonmembers)


@metric(
    "mia_gradnorm", "privacy", higher_means=_AUC, ideal=0.5, needs=("forget.gradient_norms", "holdout.gradient_norms"),
    cite="Wang et al. 2024, arXiv:2402.17012",
)  # fmt: skip
def gradient_norm_attack(members: Floats, nonmembers: Floats) -> Separation:
    """Membership attack by gradient: AUC of the mean L2 norm of the answer's loss gradient over parameter tensors.

    Args:
        members: norms of the forget answers.  # [item]
        nonmembers: of answers nobody was trained on.
    """
    return Separation(members, nonmembers)


@metric(
    "mia_reference", "privacy", higher_means=_AUC, ideal=0.5,
    needs=(*_BOTH, "retain_model:forget.answers", "retain_model:holdout.answers"),
    cite="Carlini et al. 2021, arXiv:2012.07805",
)  # fmt: skip
def reference_attack(
    members: Sequence[TokenEvidence],
    nonmembers: Sequence[TokenEvidence],
    reference_members: Sequence[TokenEvidence],
    reference_nonmembers: Sequence[TokenEvidence],
) -> Separation:
    """Membership attack by comparison: AUC of the loss minus the retain model's loss on the same answer.

    Args:
        members: answers of the forget set.
        nonmembers: answers nobody was trained on.
        reference_members: the same answers under the retain model.
        reference_nonmembers: likewise.
    """
    own, other = loss_attack(members, nonmembers), loss_attack(reference_members, reference_nonmembers)
    return Separation(own.members - other.members, own.nonmembers - other.nonmembers)


def retain_closeness(auc: float | None, retain_auc: float | None) -> float | None:
    """How near the attack's AUC is to that of the retain model, which never saw the forget set.

    s = clip(1 - |AUC - AUC_retain| / AUC_retain, 0, 1); undefined when AUC_retain is 0.

    Args:
        auc: of the model.
        retain_auc: of the retain model.
    """
    if auc is None or retain_auc is None or retain_auc <= 1e-12:
        return None
    return min(max(1 - abs(auc - retain_auc) / retain_auc, 0.0), 1.0)


for _name in ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp"):
    metric(f"s_{_name}", "privacy", higher_means="less knowledge", needs=(_name, f"retain_model:{_name}"), cite=_MUSE)(
        retain_closeness
    )


@metric(
    "privleak", "privacy", higher_means="two-sided", ideal=0.0, range=(-100.0, float("inf")),
    needs=("mia_min_k", "retain_model:mia_min_k"), cite=_MUSE,
)  # fmt: skip
def privacy_leakage(auc: float | None, retain_auc: float | None) -> float | None:
    """PrivLeak: relative distance of the Min-K attack's AUC from the retain model's, in per cent.

    ((1 - AUC) - (1 - AUC_retain)) / ((1 - AUC_retain) + 1e-10) * 100. Negative: members are still recognised. Positive:
    over-unlearned.

    Args:
        auc: of the model.
        retain_auc: of the retain model.
    """
    if auc is None or retain_auc is None:
        return None
    return ((1 - auc) - (1 - retain_auc)) / ((1 - retain_auc) + 1e-10) * 100


@metric(
    "forget_quality", "privacy", higher_means="less knowledge",
    needs=("forget.wrong_to_right", "retain_model:forget.wrong_to_right"), cite="Maini et al. 2024, arXiv:2401.06121",
)  # fmt: skip
def forget_quality(wrong_to_right: Floats, retain_wrong_to_right: Floats) -> float:
    """Forget quality: p-value of the test that truth ratios are distributed as the retain model's.

    Two-sample Kolmogorov-Smirnov test; 1 is indistinguishable, below 0.05 told apart.

    Args:
        wrong_to_right: r = pw / (pc + 1e-10) of each item under the model.  # [item]
        retain_wrong_to_right: under the retain model.
    """
    from scipy.stats import ks_2samp

    return float(ks_2samp(wrong_to_right, retain_wrong_to_right).pvalue)


def _attack(
    score: Callable[[TokenEvidence], float], members: Sequence[TokenEvidence], nonmembers: Sequence[TokenEvidence]
) -> Separation:
    return Separation(np.array([score(one) for one in members]), np.array([score(one) for one in nonmembers]))


def _lowest(values: Floats) -> float:
    """Minus the mean of the lowest share of values; 0 when there are none."""
    if not len(values):
        return 0.0
    count = max(1, int(MIN_K * len(values)))
    return -float(np.sort(values)[:count].mean())
