"""Is the knowledge gone from the inside? The rows that predict an entity, compared with full and retain.

All of these are 0 for a model like full and 1 for a model like retain, on the contexts and rows of the unlearning depth
score.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import TYPE_CHECKING

import numpy as np

from residuum.metrics.registry import metric
from residuum.metrics.scores import Sampled

if TYPE_CHECKING:
    from residuum.metrics.scores import Floats

TAU = 0.05
"""A layer counts for the logit lens when retain lacks more than this there."""
_EPSILON = 1e-8
_UDS = "unlearning-depth-score, https://github.com/gnueaj/unlearning-depth-score"


@metric("uds", "uds", higher_means="less knowledge", needs="entities.depths", cite=_UDS)
def unlearning_depth(depths: Floats) -> Floats:
    """Unlearning Depth Score: how much of what the full model's layers hold is missing from this model's.

    See `residuum uds`, which computes it layer by layer; undefined where retain lacks nothing.

    Args:
        depths: of each example.  # [example]
    """
    return depths


@metric("cka", "representation", higher_means="less knowledge", needs=("entities.cka", "full_model:entities.cka"),
        cite="Kornblith et al. 2019, arXiv:1905.00414")  # fmt: skip
def cka(model: Floats, full: Floats) -> Sampled:
    """CKA: how far the geometry of the hidden states has moved from full towards retain.

    Per layer e = clip((CKA(model, retain) - c) / (1 - c + 1e-8), 0, 1) with c = CKA(full, retain), averaged with weights
    max(1 - c, 0).

    Args:
        model: linear CKA to the retain model; the first row over all examples, the others over resampled ones.
            # [1 + draw, layer]
        full: the same of the full model.
    """
    weights = np.maximum(1 - full, 0)
    erased = np.clip((model - full) / (1 - full + _EPSILON), 0, 1)
    values = weighted_mean(erased, weights)
    return Sampled(float(values[0]), values[1:])


@metric(
    "logit_lens", "representation", higher_means="less knowledge",
    needs=("entities.lens", "full_model:entities.lens", "retain_model:entities.lens"),
    cite="nostalgebraist 2020, interpreting GPT: the logit lens",
)  # fmt: skip
def logit_lens(model: Floats, full: Floats, retain: Floats) -> Floats:
    """Logit lens: how much less of the entity the full model's head can read from the states, layer by layer.

    With k the mean log-probability of the entity, d_retain = k_full - k_retain and d = k_full - k: over layers with
    d_retain > 0.05, sum d_retain clip(d / (d_retain + 1e-8), 0, 1) / sum d_retain; undefined when there are none.

    Args:
        model: k of the model.  # [example, layer]
        full: k of the full model.
        retain: k of the retain model.

    Returns:
        # [example]
    """
    lacking, worth = full - model, full - retain
    weights = np.where(worth > TAU, worth, 0.0)
    erased = np.clip(lacking / (np.where(worth > TAU, worth, 1.0) + _EPSILON), 0, 1)
    return weighted_mean(erased, weights, empty=np.nan)


def fisher_masked(model: Floats, full: Floats, retain: Floats, *, place: int) -> float:
    """Fisher mask: how far the weights that matter only to retain matter to this model too.

    F is the mean squared gradient of the entity's loss. In each layer the parameters where F_retain exceeds F_full most
    are kept: 0.01 %, 0.1 % or 1 % of them. e = 1 - clip((F_retain - F) / (F_retain - F_full + 1e-8), 0, 1) of the means over
    these, averaged over layers with weights F_retain - F_full.

    Args:
        model: mean of F over the kept parameters.  # [example, layer, fraction]
        full: the same of the full model.
        retain: of the retain model.
        place: which fraction.
    """
    own, of_full, of_retain = (values[..., place].mean(axis=0) for values in (model, full, retain))
    excess = of_retain - of_full
    erased = np.where(excess <= _EPSILON, 1.0, 1 - np.clip((of_retain - own) / (excess + _EPSILON), 0, 1))
    return float(weighted_mean(erased, excess))


def weighted_mean(values: Floats, weights: Floats, empty: float = 0.0) -> Floats:
    """Mean over the last axis with weights above 1e-8; ``empty`` where there are none."""
    kept = np.where(weights > _EPSILON, weights, 0.0)
    total = kept.sum(axis=-1)
    mean: Floats = np.where(total > 0, (kept * values).sum(axis=-1) / np.where(total > 0, total, 1.0), empty)
    return mean


def _fraction(place: int) -> Callable[..., float]:
    return update_wrapper(partial(fisher_masked, place=place), fisher_masked)


for _place, _share in enumerate(("0.0001", "0.001", "0.01")):
    metric(
        f"fisher_masked_{_share}", "representation", higher_means="less knowledge",
        needs=("entities.fisher", "full_model:entities.fisher", "retain_model:entities.fisher"), cite=_UDS,
    )(_fraction(_place))  # fmt: skip
