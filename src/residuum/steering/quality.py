"""How well a direction tells the two sides apart on scenarios it was not made from.

These numbers are proxies: a layer that classifies best need not be the one that steers best.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def quality(vector: Tensor, positive: Tensor, negative: Tensor) -> dict[str, Any]:
    """Separation of held-out activations by their cosine with a direction.

    accuracy is balanced, with the midpoint of the two means as threshold; d = |m_p - m_n| / sqrt((s_p^2 + s_n^2) / 2);
    overlap = max(0, 1 - d / 4); margin = (m_p - s_p) - (m_n + s_n).

    Args:
        vector: [hidden]
        positive: activations of the positive side.  # [n, hidden]
        negative: of the negative side.  # [m, hidden]

    Returns:
        The metrics; every one of them null, with ``reason``, when a side has fewer than two rows.
    """
    about = {"norm": float(vector.norm()), "sparsity": float((vector.abs() < 0.01).float().mean())}
    if min(len(positive), len(negative)) < 2:
        reason = f"{len(positive)} positive and {len(negative)} negative rows are held out, two of each are needed"
        names = ("accuracy", "auc", "effect_size", "p_value", "separation", "overlap", "margin", "polarity_correct")
        return {**dict.fromkeys(names), **about, "reason": reason}
    p, n = (torch.nn.functional.cosine_similarity(rows, vector[None], dim=1).double() for rows in (positive, negative))
    mean_p, mean_n, std_p, std_n = (float(x) for x in (p.mean(), n.mean(), p.std(), n.std()))
    threshold = (mean_p + mean_n) / 2
    pooled = math.sqrt((std_p**2 + std_n**2) / 2)
    signed = (mean_p - mean_n) / pooled if pooled > 0 else 0.0
    return {
        "accuracy": float(((p > threshold).double().mean() + (n <= threshold).double().mean()) / 2),
        "auc": area_under_curve(p, n),
        "effect_size": abs(signed),
        "signed_effect_size": signed,
        "p_value": _p_value(p, n),
        "separation": mean_p - mean_n,
        "overlap": max(0.0, 1 - abs(signed) / 4),
        "margin": (mean_p - std_p) - (mean_n + std_n),
        "polarity_correct": mean_p > mean_n,
        **about,
    }


def area_under_curve(positive: Tensor, negative: Tensor) -> float:
    """Share of (positive, negative) pairs in the right order, ties half: the area under the ROC curve."""
    gaps = positive[:, None] - negative[None]
    return float((gaps > 0).double().mean() + (gaps == 0).double().mean() / 2)


def pair_agreement(positive: Tensor, negative: Tensor) -> float | None:
    """Mean cosine between the differences of any two pairs: how far they point one way (Braun et al. 2025, arXiv:2505.22637).

    None without two pairs.
    """
    count = min(len(positive), len(negative))
    if count < 2:
        return None
    differences = torch.nn.functional.normalize(positive[:count] - negative[:count], dim=1)
    cosines = differences @ differences.T
    return float((cosines.sum() - cosines.diagonal().sum()) / (count * (count - 1)))


def combined_scores(rows: list[dict[str, Any]]) -> None:
    """Add ``combined`` to the metrics of one trait: (accuracy + d / largest d) / 2, or 0 for the wrong polarity."""
    largest = max((row["effect_size"] or 0.0 for row in rows), default=0.0) or 1.0
    for row in rows:
        if row["accuracy"] is None:
            row["combined"] = None
        else:
            row["combined"] = (row["accuracy"] + row["effect_size"] / largest) / 2 * row["polarity_correct"]


def _p_value(positive: Tensor, negative: Tensor) -> float | None:
    """Two-sided p of Welch's t-test; None when both sides are constant."""
    from scipy.stats import ttest_ind

    found = float(ttest_ind(positive.numpy(), negative.numpy(), equal_var=False).pvalue)
    return None if math.isnan(found) else found
