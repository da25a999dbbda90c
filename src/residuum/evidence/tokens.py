"""What a model thinks of the tokens of an answer, as compact arrays; and the one place that knows where an answer ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]


@dataclass(frozen=True)
class TokenEvidence:
    """One answer under one model; all arrays are over its labelled tokens, a closing end-of-sequence token included."""

    labels: NDArray[np.int32]  # [T]
    predictions: NDArray[np.int32]  # [T], the most likely token at each step
    log_probs: NDArray[np.float32]  # [T], log-probability of the label
    mean: NDArray[np.float32]  # [T], mu = sum_v p_v log p_v over the vocabulary
    variance: NDArray[np.float32]  # [T], sum_v p_v (log p_v - mu)^2
    closed: bool
    """Whether the last label is the end-of-sequence token."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def words(self) -> TokenEvidence:
        """The answer without the token that closes it: what EM, ES and Min-K look at."""
        if not self.closed:
            return self
        return TokenEvidence(**{name: getattr(self, name)[:-1] for name in ARRAYS}, closed=False)

    @property
    def average_loss(self) -> float:
        """Mean cross-entropy over all labelled tokens, the closing one included; 0 for an answer without tokens."""
        return -float(self.log_probs.mean(dtype=np.float64)) if len(self) else 0.0


ARRAYS = tuple(field.name for field in fields(TokenEvidence) if field.name != "closed")
"""The names of the arrays of `TokenEvidence`."""


def split_answers(arrays: Mapping[str, Array], lengths: Sequence[int], end: int | None) -> list[TokenEvidence]:
    """Cut arrays over the tokens of many answers, one after the other, into the answers.

    Args:
        arrays: one for each of `ARRAYS`.  # [all tokens]
        lengths: labelled tokens of each answer.
        end: id of the end-of-sequence token, if there is one.
    """
    parts = _cut(arrays, lengths)
    return [
        TokenEvidence(
            **{name: parts[name][i] for name in ARRAYS},
            closed=bool(length) and int(parts["labels"][i][-1]) == end,
        )
        for i, length in enumerate(lengths)
    ]


def pack(evidence: Sequence[TokenEvidence]) -> dict[str, Array]:
    """Many answers as a few flat arrays, for the store."""
    flat: dict[str, Array] = {
        name: np.concatenate([getattr(one, name) for one in evidence]) if evidence else np.zeros(0) for name in ARRAYS
    }
    return flat | {
        "lengths": np.array([len(one) for one in evidence], dtype=np.int32),
        "closed": np.array([one.closed for one in evidence], dtype=np.bool_),
    }


def unpack(arrays: Mapping[str, Array]) -> list[TokenEvidence]:
    """The answers that `pack` packed."""
    parts = _cut(arrays, arrays["lengths"].tolist())
    return [
        TokenEvidence(**{name: parts[name][i] for name in ARRAYS}, closed=bool(closed))
        for i, closed in enumerate(arrays["closed"])
    ]


def _cut(arrays: Mapping[str, Array], lengths: Sequence[int]) -> dict[str, list[Any]]:
    ends = np.cumsum(lengths)
    return {
        name: [arrays[name][end - length : end] for end, length in zip(ends, lengths, strict=True)] for name in ARRAYS
    }
