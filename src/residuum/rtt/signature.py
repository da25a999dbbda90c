"""Names by content: the signature of a sweep, and the id of one run in it.

Rows belong together only when their signatures agree, so everything that decides a number is part of it. Lists are
sorted and numbers typed first: the order of a grid and ``"1e-6"`` for ``1e-6`` change nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from residuum.store.hashing import canonical

VERSION = 1

_LISTS: Mapping[str, type] = {"eval_split_ids": int, "loss_types": str, "lrs": float, "epochs_lst": int}


def canonical_config(config: Mapping[str, Any]) -> str:
    """The one text of a sweep's settings: sorted keys, compact, ASCII, no NaN."""
    typed = {key: sorted(_LISTS[key](item) for item in config[key]) for key in _LISTS if key in config}
    return canonical({**config, **typed})


def signature(config: Mapping[str, Any]) -> str:
    """The first 12 hex digits of the SHA-256 of `canonical_config`.

    Args:
        config: version, dataset, data_sha256, num_total_splits, eval_split_ids, loss_types, lrs, epochs_lst,
            data_format, freeze_layers, optimizer, batch_size, warmup_steps, max_seq_len, seed, adapter, base_model.
    """
    return hashlib.sha256(canonical_config(config).encode()).hexdigest()[:12]


def run_id(sweep: str, condition: str, start: str, held_out: int, *, loss_type: str, lr: float, seed: int) -> str:
    """The name of one run: 16 hex digits over sweep, condition, start weights, held-out split and cell.

    The number of epochs is no part of it: one run serves the whole list.
    """
    identity = [sweep, condition, start, held_out, loss_type, float(lr), seed]
    return hashlib.sha256(canonical(identity).encode()).hexdigest()[:16]


def legacy_signature(
    dataset: str,
    *,
    loss_types: Sequence[str],
    lrs: Sequence[float],
    epochs_lst: Sequence[int],
    num_splits: int,
    freeze_layers: object,
    data_format: str,
    eval_split_ids: Sequence[int] | None,
) -> str:
    """The signature that the fork of the published code writes: 12 hex digits of the MD5 of a tuple's repr."""
    identity = (
        dataset,
        sorted(loss_types),
        sorted(lrs),
        sorted(epochs_lst),
        num_splits,
        str(freeze_layers),
        data_format,
        None if eval_split_ids is None else tuple(sorted(eval_split_ids)),
    )
    return hashlib.md5(repr(identity).encode(), usedforsecurity=False).hexdigest()[:12]
