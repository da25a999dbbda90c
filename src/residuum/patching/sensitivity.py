"""UDS under other thresholds, from the deltas a run has stored."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from residuum.errors import InputError, UsageError
from residuum.patching.depth import ExampleDepth, at_threshold, mean_depth


def read_examples(run: Path) -> list[ExampleDepth]:
    """The scored examples of a finished run folder.

    Raises:
        InputError: this is not a finished UDS run.
    """
    try:
        records = json.loads((run / "results.json").read_text(encoding="utf-8"))
        return [
            ExampleDepth(
                idx=r["idx"], uds=r["uds"], ft_layers=r["ft_layers"], erased_layers=r["erased_layers"],
                full_score=r["full_score"], layers=[row["layer"] for row in r["layer_records"]], s1_scores=r["s1_scores"],
                s2_scores=r["s2_scores"], s1_deltas=r["s1_deltas"], s2_deltas=r["s2_deltas"], retain_em=r["retain_em_full"],
            )
            for r in records
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run} is not a finished UDS run: {error}.") from error


def tau_table(run: Path, thresholds: Sequence[float]) -> list[dict[str, Any]]:
    """Model UDS at each threshold, with n and interval.

    Raises:
        UsageError: the run has no deltas (metric em), or was computed only in the layers its own threshold needs.
    """
    examples = read_examples(run)
    seed = json.loads((run / "summary.json").read_text(encoding="utf-8"))["settings"]["seed"]
    if any(example.s1_deltas is None for example in examples):
        raise UsageError(f"{run} was made with metric em, which has no deltas.")
    rows = []
    for threshold in thresholds:
        if not (math.isfinite(threshold) and threshold >= 0):
            raise UsageError(f"a threshold is a number of at least 0, not {threshold}.")
        try:
            moved = [at_threshold(example, threshold) for example in examples]
        except ValueError as error:
            raise UsageError(
                f"{run} has only the layers its own threshold needs: {error}.\n  Run it again without --layers needed."
            ) from error
        uds, n, interval = mean_depth(moved, seed=seed)
        low, high = interval or (None, None)
        rows.append({"tau": threshold, "uds": uds, "low": low, "high": high, "n": n, "without_ft": len(moved) - n})
    return rows
