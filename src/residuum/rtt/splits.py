"""Which splits are held out, and what is trained on meanwhile.

Facts are cut into K independent splits. In each V run one split v is held out and T, all others, is trained on; a gain
on v can then only come from what was left in the weights (Deeb and Roger 2024, arXiv:2410.08827).
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Sequence

from residuum.errors import UsageError


def resolve_eval_split_ids(
    dataset: str,
    num_total_splits: int,
    *,
    eval_split_ids: str | Sequence[int | str] | None = None,
    num_splits: int = 2,
    eval_seed: int | None = None,
    data_seed: int = 0,
) -> list[int]:
    """The splits that are held out, one V run each: as given, or drawn with a seed.

    Args:
        dataset: its name, part of the seed.
        num_total_splits: K.
        eval_split_ids: numbers, or their text (``"0,2"``, ``"[0, 2]"``); those outside 0..K-1 and repeats are dropped,
            the order is kept.
        num_splits: how many to draw when none are given; at most K.
        eval_seed: of the draw; ``data_seed`` when None.
        data_seed: stands in for ``eval_seed``.

    Raises:
        UsageError: ids were given and none of them is a split.
    """
    if eval_split_ids is not None:
        given = [_whole(part) for part in _parts(eval_split_ids)]
        kept = [split for split in dict.fromkeys(given) if 0 <= split < num_total_splits]
        if not kept:
            raise UsageError(
                f"none of the eval_split_ids {given} is a split of {dataset}: it has 0 to {num_total_splits - 1}."
            )
        return kept
    seed = data_seed if eval_seed is None else eval_seed
    digest = hashlib.md5(f"{seed}-{dataset}".encode(), usedforsecurity=False).hexdigest()
    return sorted(random.Random(int(digest, 16)).sample(range(num_total_splits), min(num_splits, num_total_splits)))


def train_split_ids(held_out: int, num_total_splits: int) -> list[int]:
    """T: every split but the one that is held out.

    Raises:
        UsageError: there is only one split, so nothing is left to train on.
    """
    if num_total_splits < 2:
        raise UsageError("retraining on T needs at least two splits: one is held out, the others are trained on.")
    return [split for split in range(num_total_splits) if split != held_out]


def _parts(ids: str | Sequence[int | str]) -> Sequence[int | str]:
    if not isinstance(ids, str):
        return ids
    try:
        value = ast.literal_eval(ids.strip() or "[]")
    except (ValueError, SyntaxError):
        raise UsageError(f"eval_split_ids is a list of numbers such as 0,2, not {ids!r}.") from None
    return value if isinstance(value, list | tuple) else [value]


def _whole(part: object) -> int:
    try:
        if isinstance(part, bool) or (isinstance(part, float) and not part.is_integer()):
            raise ValueError
        return int(part)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise UsageError(f"eval_split_ids are whole numbers, not {part!r}.") from None
