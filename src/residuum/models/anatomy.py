"""Where the parts of a decoder sit: the table of model families, the only place that knows module names.

A new family is one row of ``FAMILIES``. A family without a row is guessed, and the guess is proven on a few tokens
before anyone relies on it. Either can be corrected with ``anatomy(model, override={"final_norm": "model.ln_out"})``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from residuum.errors import ModelError, UnknownName
from residuum.models.guess import MODEL_PARTS, check_head, guess, hint, observe, unproven


@dataclass(frozen=True)
class Family:
    """One row of the table. The defaults are Llama's layout.

    Paths are dotted from the model; ``{}`` stands for the decoder block. A number or flag may also be the name of the
    config attribute that holds it.
    """

    blocks: str = "model.layers"
    """The list of decoder blocks."""
    attention: str | None = "{}.self_attn"
    attention_out: str | None = "{}.self_attn.o_proj"
    """Projection of the heads back to the residual stream."""
    mlp: str | None = "{}.mlp"
    """The feed-forward part; in a mixture of experts the sparse block with its router."""
    mlp_out: str | None = "{}.mlp.down_proj"
    """Projection back to the residual stream; None where several experts have one each."""
    mlp_norm: str | None = "{}.post_attention_layernorm"
    """The norm through which the mlp reads the residual stream (the mlp itself where there is none)."""
    post_attention_norm: str | None = None
    """Norm between the attention and the residual stream, in blocks that norm after the sublayer."""
    post_mlp_norm: str | None = None
    """The same after the mlp."""
    final_norm: str = "model.norm"
    head: str = "lm_head"
    logit_scale: float | str = 1.0
    """Logits are multiplied by this (Cohere)."""
    logit_divisor: float | str = 1.0
    """Logits are divided by this (Granite)."""
    soft_cap: float | str | None = None
    """Logits pass through c * tanh(logits / c) (Gemma 2)."""
    residual_scale: float | str | None = 1.0
    """Both sublayers are multiplied by this before they are added (Granite); None when it could not be found out."""
    parallel: bool | str = False
    """True when the mlp reads the block's input beside the attention instead of the residual after it."""


_LLAMA = Family()
_POST_NORM = Family(
    post_attention_norm="{}.post_attention_layernorm",
    post_mlp_norm="{}.post_feedforward_layernorm",
)
_GEMMA = replace(_POST_NORM, mlp_norm="{}.pre_feedforward_layernorm", soft_cap="final_logit_softcapping")

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": Family(mlp_out=None),
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma2": _GEMMA,
    "gemma3_text": _GEMMA,
    # The wrapper with a vision tower never caps its logits, whatever the text config says.
    "gemma3": replace(
        _GEMMA, blocks="model.language_model.layers", final_norm="model.language_model.norm", soft_cap=None
    ),
    "phi3": _LLAMA,
    "phi": Family(
        attention_out="{}.self_attn.dense",
        mlp_out="{}.mlp.fc2",
        mlp_norm="{}.input_layernorm",
        final_norm="model.final_layernorm",
        parallel=True,
    ),
    "gpt_neox": Family(
        blocks="gpt_neox.layers",
        attention="{}.attention",
        attention_out="{}.attention.dense",
        mlp_out="{}.mlp.dense_4h_to_h",
        final_norm="gpt_neox.final_layer_norm",
        parallel="use_parallel_residual",
    ),
    "gpt2": Family(
        blocks="transformer.h",
        attention="{}.attn",
        attention_out="{}.attn.c_proj",
        mlp_out="{}.mlp.c_proj",
        mlp_norm="{}.ln_2",
        final_norm="transformer.ln_f",
    ),
    "olmo2": replace(_POST_NORM, mlp_norm="{}.mlp"),
    "falcon": Family(
        blocks="transformer.h",
        attention="{}.self_attention",
        attention_out="{}.self_attention.dense",
        mlp_out="{}.mlp.dense_4h_to_h",
        final_norm="transformer.ln_f",
        parallel="parallel_attn",
    ),
    "stablelm": Family(parallel="use_parallel_residual"),
    "granite": Family(logit_divisor="logits_scaling", residual_scale="residual_multiplier"),
    "cohere": Family(mlp_norm="{}.input_layernorm", logit_scale="logit_scale", parallel=True),
}
"""Keyed by ``config.model_type``."""

_BLOCK_PARTS = (
    "attention", "attention_out", "mlp", "mlp_out", "mlp_norm", "post_attention_norm", "post_mlp_norm",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The parts of one loaded model.

    Written out for block l with input x, attention a and mlp m (each after its post-norm, where the family has one),
    residual scale s: ``mid = x + s * a`` and ``output = mid + s * m``. In parallel blocks m does not depend on a.
    """

    family: str
    row: Family
    blocks: list[nn.Module]
    """Decoder blocks in order."""
    embedding: nn.Module
    """Token embedding. Block 0 may read more than its output (GPT-2 adds positions, Granite scales)."""
    final_norm: nn.Module
    lm_head: nn.Module
    """The bare projection; use `head`, which knows about scale and cap."""
    hidden_size: int
    logit_scale: float
    logit_divisor: float
    soft_cap: float | None
    residual_scale: float | None
    parallel: bool

    @property
    def num_layers(self) -> int:
        """Number of decoder blocks."""
        return len(self.blocks)

    @property
    def post_norm(self) -> bool:
        """Whether blocks norm after the sublayer (Gemma 2 and 3, OLMo 2)."""
        return self.row.post_attention_norm is not None

    def attention(self, layer: int) -> nn.Module:
        """The attention module of one block."""
        return self._part(layer, "attention")

    def attention_out(self, layer: int) -> nn.Module:
        """The attention's output projection."""
        return self._part(layer, "attention_out")

    def attention_contribution(self, layer: int) -> nn.Module:
        """The module whose output, times `residual_scale`, the attention adds to the residual stream."""
        return self._contribution(layer, "post_attention_norm", "attention")

    def mlp(self, layer: int) -> nn.Module:
        """The feed-forward module of one block."""
        return self._part(layer, "mlp")

    def mlp_out(self, layer: int) -> nn.Module:
        """The mlp's output projection."""
        return self._part(layer, "mlp_out")

    def mlp_contribution(self, layer: int) -> nn.Module:
        """The module whose output, times `residual_scale`, the mlp adds to the residual stream."""
        return self._contribution(layer, "post_mlp_norm", "mlp")

    def mlp_norm(self, layer: int) -> nn.Module:
        """The module whose input is what the mlp reads: the residual after attention, unless the block is parallel."""
        return self._part(layer, "mlp_norm")

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of states that have passed the final norm.

        Args:
            hidden: [..., hidden]

        Returns:
            [..., vocab], with logit scale and soft cap as the model itself applies them.
        """
        logits: Tensor = self.lm_head(hidden)
        if self.logit_scale != 1:
            logits = logits * self.logit_scale
        if self.logit_divisor != 1:
            logits = logits / self.logit_divisor
        if self.soft_cap is not None:
            logits = torch.tanh(logits / self.soft_cap) * self.soft_cap
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of a block's raw output: ``head(final_norm(hidden))``."""
        return self.head(self.final_norm(hidden))

    def _part(self, layer: int, field: str) -> nn.Module:
        path = getattr(self.row, field)
        if path is None:
            raise ModelError(
                f'{field} of block {layer}: the family "{self.family}" has no such single module, or it is not known.\n'
                f"  {hint(field)}"
            )
        return _submodule(self.blocks[layer], path.removeprefix("{}."), field)

    def _contribution(self, layer: int, norm: str, sublayer: str) -> nn.Module:
        if self.residual_scale is None:
            raise ModelError(
                f'block {layer}: what the {sublayer} adds to the residual stream is not known for "{self.family}".\n'
                "  Override residual_scale, and post_attention_norm and post_mlp_norm where the family has them."
            )
        return self._part(layer, norm if getattr(self.row, norm) is not None else sublayer)


def anatomy(model: nn.Module, override: Mapping[str, Any] | None = None) -> Anatomy:
    """Find the parts of a causal language model.

    Args:
        model: a transformers model with a language-model head, also inside a PEFT wrapper, in eval mode.
        override: fields of `Family` that replace what the table or the guess says.

    Raises:
        ModelError: a part is not where it should be, or the head does not reproduce the model's logits.
        UnknownName: the override has a field that `Family` lacks.
    """
    # A PEFT wrapper changes the layers in place; the paths of the base model stay valid under it.
    base: Any = getattr(model, "get_base_model", lambda: model)()
    family: str = base.config.model_type
    given = _valid(base, override or {})
    row = FAMILIES.get(family)
    if row is not None and not given:
        return _assemble(base, family, row)

    found = _assemble(base, family, Family(**{**(asdict(row) if row else guess(base, given)), **given}))
    seen = observe(base, found)
    check_head(found, seen)
    if row is None:
        # What the observation contradicts is better unknown than wrong.
        withheld = dict.fromkeys(unproven(found, seen) - given.keys())
        found = _assemble(base, family, Family(**{**asdict(found.row), **withheld}))
    return found


def families() -> list[dict[str, Any]]:
    """The table as plain data, one entry per family: ``name`` and the fields of its row."""
    return [{"name": name, **asdict(row)} for name, row in FAMILIES.items()]


def _valid(model: nn.Module, override: Mapping[str, Any]) -> dict[str, Any]:
    known = [field.name for field in fields(Family)]
    for field, value in override.items():
        if field not in known:
            raise UnknownName("field of a model family", field, known)
        if field in MODEL_PARTS:
            part = _submodule(model, str(value), field)
            if field == "blocks" and not isinstance(part, nn.ModuleList):
                raise ModelError(f'override blocks="{value}": a {type(part).__name__}, not the list of decoder blocks.')
        elif field in _BLOCK_PARTS and value is not None and not value.startswith("{}."):
            raise ModelError(f'override {field}="{value}": a path inside a block begins with "{{}}.".\n  {hint(field)}')
    return dict(override)


def _assemble(model: Any, family: str, row: Family) -> Anatomy:
    config = model.config.get_text_config()

    def setting(value: Any) -> Any:
        if isinstance(value, str) and not hasattr(config, value):
            raise ModelError(f'{type(config).__name__} of "{family}" has no "{value}".')
        return getattr(config, value) if isinstance(value, str) else value

    return Anatomy(
        family=family,
        row=row,
        blocks=list(cast(nn.ModuleList, _submodule(model, row.blocks, "blocks"))),
        embedding=model.get_input_embeddings(),
        final_norm=_submodule(model, row.final_norm, "final_norm"),
        lm_head=_submodule(model, row.head, "head"),
        hidden_size=config.hidden_size,
        logit_scale=setting(row.logit_scale),
        logit_divisor=setting(row.logit_divisor),
        soft_cap=setting(row.soft_cap),
        residual_scale=setting(row.residual_scale),
        parallel=bool(setting(row.parallel)),
    )


def _submodule(root: nn.Module, path: str, field: str) -> nn.Module:
    try:
        return root.get_submodule(path)
    except AttributeError:
        children = ", ".join(name for name, _ in root.named_children())
        advice = "Load it with its language-model head. " if field in MODEL_PARTS else ""
        raise ModelError(
            f'{field}: {type(root).__name__} has no "{path}"; it has {children}.\n  {advice}{hint(field)}'
        ) from None
