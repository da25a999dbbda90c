"""Three pictures of a UDS run: depth profile, heat map over layers and examples, histogram of depths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from residuum.patching.depth import ExampleDepth, delta_tables, depth_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGE_1, STAGE_2 = "#0072B2", "#D55E00"
"""Blue and vermilion of Okabe and Ito: told apart by everyone."""


def save_plots(examples: Sequence[ExampleDepth], folder: Path, *, title: str) -> list[Path]:
    """Write ``depth_profile.png``, ``delta_heatmap.png`` and ``erasure_histogram.png``; nothing to show writes nothing.

    Args:
        examples: the scored examples.
        folder: target.
        title: of the pictures, usually the model's name.
    """
    from matplotlib.figure import Figure

    drawings = {"erasure_histogram.png": draw_histogram}
    if examples and examples[0].s1_deltas is not None:
        drawings |= {"depth_profile.png": draw_profile, "delta_heatmap.png": draw_heatmap}
    paths = []
    for name, draw in drawings.items():
        # A figure of its own, not pyplot's: no global state, no display.
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        draw(axes, examples)
        axes.set_title(title)
        paths.append(folder / name)
        figure.savefig(paths[-1], dpi=140)
    return paths


def draw_profile(axes: Axes, examples: Sequence[ExampleDepth]) -> None:
    """Mean S1 and S2 delta per layer with 95 % bands."""
    rows = depth_profile(examples)
    layers = examples[0].layers
    for stage, label, colour in (("s1", "retain into full (S1)", STAGE_1), ("s2", "unlearned into full (S2)", STAGE_2)):
        table = np.array([[row[f"{stage}_{key}"] for key in ("delta", "low", "high")] for row in rows], dtype=float)
        axes.plot(layers, table[:, 0], color=colour, label=label, marker="o", markersize=3)
        axes.fill_between(layers, table[:, 1], table[:, 2], color=colour, alpha=0.2, linewidth=0)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xlabel="layer", ylabel="mean delta (nats)")
    axes.legend(frameon=False)


def draw_heatmap(axes: Axes, examples: Sequence[ExampleDepth]) -> None:
    """What is erased of what each layer held: clipped S2/S1 ratio in FT layers; grey where there was nothing."""
    first, second = delta_tables(examples)
    ft = np.array([[layer in example.ft_layers for layer in example.layers] for example in examples])
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(ft, np.clip(second / first, 0, 1), np.nan)
    axes.set_facecolor("0.85")
    image = axes.imshow(ratio, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
    axes.set(xlabel="layer", ylabel="example")
    axes.set_xticks(range(len(examples[0].layers)), [str(layer) for layer in examples[0].layers], fontsize=7)
    axes.figure.colorbar(image, ax=axes, label="erased share (1 = like retain)")


def draw_histogram(axes: Axes, examples: Sequence[ExampleDepth]) -> None:
    """How the examples' depths are spread."""
    depths = [example.uds for example in examples if example.uds is not None]
    axes.hist(depths, bins=[i / 20 for i in range(21)], color=STAGE_2)
    axes.set(xlabel="UDS (1 = erased like retain)", ylabel="examples", xlim=(0, 1))
