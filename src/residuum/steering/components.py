"""Where a direction is read and added: the residual stream, or what a sublayer writes to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from residuum.registry import one_of

if TYPE_CHECKING:
    from torch import nn

    from residuum.models.anatomy import Anatomy

COMPONENTS = ("residual", "attn_out", "mlp_out", "attn_contribution", "mlp_contribution")
"""residual: output of the block. ``*_out``: output of the sublayer's last projection. ``*_contribution``: what is
really added to the residual stream, which differs in blocks that norm after the sublayer (Gemma 2 and 3, OLMo 2)."""


def component_module(anatomy: Anatomy, component: str, layer: int) -> nn.Module:
    """The module whose output a component is, in one layer."""
    one_of("--component", component, *COMPONENTS)
    if component == "residual":
        return anatomy.blocks[layer]
    find = {
        "attn_out": anatomy.attention_out,
        "mlp_out": anatomy.mlp_out,
        "attn_contribution": anatomy.attention_contribution,
        "mlp_contribution": anatomy.mlp_contribution,
    }[component]
    return find(layer)
