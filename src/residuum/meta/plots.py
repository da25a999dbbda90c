"""Histograms of both pools, one picture per metric."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from residuum.meta.catalogue import direction
from residuum.meta.faithfulness import in_knowledge_direction

if TYPE_CHECKING:
    from residuum.meta.pools import Pools

KNOWS, DOES_NOT = "#D55E00", "#0072B2"
"""Vermilion and blue of Okabe and Ito."""


def save_histograms(pools: Pools, folder: Path) -> list[Path]:
    """Write ``{metric}.png`` for every judged metric, in knowledge direction, with the threshold as a line."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, found in pools.metrics.items():
        known, unknown = (
            [in_knowledge_direction(v, direction(name)) for v in pools.values(name, pool).values() if v is not None]
            for pool in ("P", "N")
        )
        # A figure of its own, not pyplot's: no global state, no display.
        figure = Figure(figsize=(5.6, 3.2), layout="constrained")
        axes = figure.subplots()
        bins = np.histogram_bin_edges([*known, *unknown], bins=20).tolist()
        axes.hist(unknown, bins=bins, color=DOES_NOT, alpha=0.6, label=f"N: does not know ({len(unknown)})")
        axes.hist(known, bins=bins, color=KNOWS, alpha=0.6, label=f"P: knows ({len(known)})")
        if found.threshold is not None:
            axes.axvline(
                found.threshold, color="black", linestyle="--", linewidth=1, label=f"threshold {found.threshold:.3f}"
            )
        turned = "1 - " if direction(name) == "less knowledge" else ""
        axes.set(xlabel=f"{turned}{name}", ylabel="models", title=f"{name}: AUC {found.auc:.3f}")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=8)
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=120)
    return paths
