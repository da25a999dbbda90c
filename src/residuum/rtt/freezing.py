"""Which parameters are trained while the others stay: ranges of the depth, or the matrices that CUT steers with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from residuum.errors import UsageError
from residuum.rtt.config import RttConfig, UnlearnConfig
from residuum.training.loop import EVERYTHING

if TYPE_CHECKING:
    from residuum.models.anatomy import Anatomy


def trained_parts(config: UnlearnConfig, parts: Anatomy) -> str:
    """Regular expression for the names of the parameters that a method trains.

    CUT trains the MLP output weights of the steered block and the two below it.
    """
    if config.type != "CUT":
        return unfrozen(parts, config.freeze)
    _check_layer(config, parts.num_layers)
    if parts.row.mlp_out is None:
        raise UsageError(f"CUT trains MLP output weights, and those of {parts.family} are not one matrix.")
    layers = range(max(0, config.layer - 2), config.layer + 1)
    return "|".join(re.escape(f"{_block(parts, layer)}{parts.row.mlp_out.removeprefix('{}.')}.") for layer in layers)


def unfrozen(parts: Anatomy, frozen: Sequence[tuple[float, float]] | None) -> str:
    """Regular expression for the names of the parameters that are not frozen.

    Args:
        parts: of the model.
        frozen: fractions of the depth, [from, to); whenever there are any, all that is not a block is frozen too.
    """
    if not frozen:
        return EVERYTHING
    return "|".join(re.escape(_block(parts, layer)) for layer in trained_blocks(parts.num_layers, frozen))


def trained_blocks(depth: int, frozen: Sequence[tuple[float, float]]) -> list[int]:
    """The blocks outside the frozen ranges.

    Raises:
        UsageError: there are none.
    """
    kept = [layer for layer in range(depth) if not any(low * depth <= layer < high * depth for low, high in frozen)]
    if not kept:
        raise UsageError(f"the frozen ranges {list(frozen)} leave no block of {depth} to train.")
    return kept


def check_depth(config: RttConfig, depth: int) -> None:
    """Refuse, before anything is loaded, what a model of so many blocks cannot do.

    Raises:
        UsageError: nothing would be trained, or CUT would steer a block that is not there.
    """
    trained_blocks(depth, config.ft.freeze_layers or ())
    for made in config.unlearn:
        trained_blocks(depth, made.freeze or ())
        if made.type == "CUT":
            _check_layer(made, depth)


def _check_layer(config: UnlearnConfig, depth: int) -> None:
    if config.layer >= depth:
        raise UsageError(
            f"CUT cannot steer layer {config.layer}: the model has layers 0 to {depth - 1}.\n  Set unlearn.layer (--layer)."
        )


def _block(parts: Anatomy, layer: int) -> str:
    # The closing dot keeps block 1 from matching block 10.
    return f"{parts.row.blocks}.{layer}."
