"""The arithmetic of the Unlearning Depth Score: pure functions from patched scores to numbers.

With S(m, l) the mean log-probability of the entity when the states of model m stand in layer l of the full model, and S
the unpatched score:

    delta_retain[l] = S - S(retain, l)        what the layer is worth: FT layers are those above tau
    delta_unlearned[l] = S - S(unlearned, l)  what the unlearned model lacks there
    UDS_i = sum_FT delta_retain * clip(delta_unlearned / delta_retain, 0, 1) / sum_FT delta_retain

1 means erased like retain, 0 means intact: higher is better. ``udr`` is an older name for the same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from residuum.uncertainty import Interval, bootstrap_ci, bootstrap_columns

TAU = 0.05
"""Deltas up to this are taken for noise."""

MaybeFloat = float | None


@dataclass(frozen=True)
class DepthRules:
    """How patched scores become a depth."""

    metric: Literal["logprob", "em"] = "logprob"
    """Compare log-probabilities, or whether the tokens are still predicted."""
    delta_threshold: float = TAU
    """tau: a layer counts when its delta is above this."""
    em_threshold: float = 1.0
    """With metric em: a layer keeps the knowledge when its EM is at least this."""
    em_type: Literal["token", "exact"] = "token"
    """Share of tokens right, or all or nothing."""


@dataclass(frozen=True)
class ExampleDepth:
    """One example: what each layer is worth and how much of it the unlearned model lacks."""

    idx: int
    uds: MaybeFloat
    """None when no layer is above the threshold: there is nothing to erase."""
    ft_layers: list[int]
    """Layers that hold the knowledge: patching retain's states there loses it."""
    erased_layers: list[int]
    """FT layers where the unlearned model's states lose it too."""
    full_score: float
    layers: list[int]
    """The layers that the lists below are over."""
    s1_scores: list[float]
    s2_scores: list[MaybeFloat]
    """None where the layer was not computed."""
    s1_deltas: list[float] | None
    s2_deltas: list[MaybeFloat] | None
    """None as a whole with metric em, which has no deltas."""
    retain_em: MaybeFloat = None
    """EM of the retain model by itself; only with metric em."""

    @property
    def udr(self) -> MaybeFloat:
        """The older name of ``uds``; the same number, higher is better."""
        return self.uds

    @property
    def weight(self) -> float:
        """Summed delta of the FT layers: how much knowledge there was to erase."""
        return float(sum(self._over_ft(self.s1_deltas))) if self.s1_deltas is not None else float(len(self.ft_layers))

    def _over_ft(self, values: Sequence[MaybeFloat]) -> list[float]:
        found = dict(zip(self.layers, values, strict=True))
        return [value for layer in self.ft_layers if (value := found[layer]) is not None]


def measure_depth(
    idx: int,
    layers: Sequence[int],
    full_score: float,
    s1_scores: Sequence[float],
    s2_scores: Sequence[MaybeFloat],
    rules: DepthRules,
    *,
    retain_em: MaybeFloat = None,
) -> ExampleDepth:
    """The depth of one example from its scores.

    Args:
        idx: the example's number.
        layers: the layers the scores are over.
        full_score: the unpatched full model (log-probability, or EM).
        s1_scores: with retain's states, one per layer.
        s2_scores: with the unlearned model's states; None where not computed.
        rules: metric and thresholds.
        retain_em: EM of the retain model unpatched.
    """
    if rules.metric == "em":
        return _measure_em(idx, layers, full_score, s1_scores, s2_scores, rules, retain_em)
    s1_deltas = [full_score - score for score in s1_scores]
    s2_deltas = [None if score is None else full_score - score for score in s2_scores]
    example = ExampleDepth(
        idx=idx, uds=None, ft_layers=[], erased_layers=[], full_score=full_score, layers=list(layers),
        s1_scores=list(s1_scores), s2_scores=list(s2_scores), s1_deltas=s1_deltas, s2_deltas=s2_deltas,
    )  # fmt: skip
    return at_threshold(example, rules.delta_threshold)


def at_threshold(example: ExampleDepth, delta_threshold: float) -> ExampleDepth:
    """The same example under another tau, from its stored deltas: no model is needed.

    Raises:
        ValueError: a layer above this tau was not computed for the unlearned model.
    """
    assert example.s1_deltas is not None
    assert example.s2_deltas is not None
    worth = {
        layer: (retain, lost)
        for layer, retain, lost in zip(example.layers, example.s1_deltas, example.s2_deltas, strict=True)
        if retain > delta_threshold
    }
    if any(lost is None for _, lost in worth.values()):
        raise ValueError(f"example {example.idx}: a layer above {delta_threshold} was not computed")
    total = sum(retain for retain, _ in worth.values())
    erased = sum(retain * min(max((lost or 0.0) / retain, 0.0), 1.0) for retain, lost in worth.values())
    return replace(
        example,
        uds=erased / total if worth else None,
        ft_layers=list(worth),
        erased_layers=[layer for layer, (_, lost) in worth.items() if lost is not None and lost > delta_threshold],
    )


def _measure_em(
    idx: int,
    layers: Sequence[int],
    full_score: float,
    s1_scores: Sequence[float],
    s2_scores: Sequence[MaybeFloat],
    rules: DepthRules,
    retain_em: MaybeFloat,
) -> ExampleDepth:
    """Metric em: a layer is lost when its EM is below the threshold; the depth is the share of lost layers."""

    def score(em: MaybeFloat) -> MaybeFloat:
        return em if em is None or rules.em_type == "token" else float(em == 1.0)

    first, second = [score(em) for em in s1_scores], [score(em) for em in s2_scores]
    ft = [layer for layer, em in zip(layers, first, strict=True) if em is not None and em < rules.em_threshold]
    lost = {layer for layer, em in zip(layers, second, strict=True) if em is not None and em < rules.em_threshold}
    erased = [layer for layer in ft if layer in lost]
    return ExampleDepth(
        idx=idx,
        uds=len(erased) / len(ft) if ft else 0.0,  # as published: an example without FT layers enters the mean as 0
        ft_layers=ft,
        erased_layers=erased,
        full_score=score(full_score) or 0.0,
        layers=list(layers),
        s1_scores=[em or 0.0 for em in first],
        s2_scores=second,
        s1_deltas=None,
        s2_deltas=None,
        retain_em=score(retain_em),
    )


def mean_depth(examples: Sequence[ExampleDepth], *, seed: int = 0) -> tuple[float, int, Interval | None]:
    """Model UDS: the plain mean over examples with a depth, how many those are, and its bootstrap interval."""
    depths = [example.uds for example in examples if example.uds is not None]
    return (float(np.mean(depths)) if depths else 0.0), len(depths), bootstrap_ci(depths, seed=seed)


def over_erased_share(examples: Sequence[ExampleDepth]) -> MaybeFloat:
    """Share of FT cells where the unlearned model lacks more than retain does: clipping hides them from UDS."""
    cells = [
        lost > retain
        for example in examples
        if example.s1_deltas is not None and example.s2_deltas is not None
        for layer, retain, lost in zip(example.layers, example.s1_deltas, example.s2_deltas, strict=True)
        if lost is not None and layer in example.ft_layers
    ]
    return float(np.mean(cells)) if cells else None


def depth_profile(examples: Sequence[ExampleDepth], *, seed: int = 0) -> list[dict[str, MaybeFloat]]:
    """Per layer: mean S1 and S2 delta with intervals, and the share of examples for which it is an FT layer."""
    if not examples or examples[0].s1_deltas is None:
        return []
    first, second = delta_tables(examples)
    ft = np.array([[layer in example.ft_layers for layer in example.layers] for example in examples])
    bands = [bootstrap_columns(table, seed=seed) for table in (first, second)]
    rows: list[dict[str, MaybeFloat]] = []
    for column, layer in enumerate(examples[0].layers):
        row: dict[str, MaybeFloat] = {"layer": layer, "ft_share": float(ft[:, column].mean())}
        for name, table, band in (("s1", first, bands[0]), ("s2", second, bands[1])):
            present = table[~np.isnan(table[:, column]), column]
            row[f"{name}_delta"] = float(present.mean()) if len(present) else None
            row[f"{name}_low"], row[f"{name}_high"] = (_number(end) for end in band[:, column])
            row[f"{name}_n"] = len(present)
        rows.append(row)
    return rows


def delta_tables(examples: Sequence[ExampleDepth]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """S1 and S2 deltas as [example, layer]; NaN where not computed."""
    return (
        np.array([example.s1_deltas for example in examples], dtype=np.float64),
        np.array([example.s2_deltas for example in examples], dtype=np.float64),
    )


def _number(value: float) -> MaybeFloat:
    return None if np.isnan(value) else float(value)
