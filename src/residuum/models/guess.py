"""A family that has no row in the table: guess where its parts are, then prove it on a few tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from residuum.errors import ModelError

if TYPE_CHECKING:
    from residuum.models.anatomy import Anatomy

MODEL_PARTS = ("blocks", "final_norm", "head")
"""Fields whose paths start at the model; all others start at a block, written ``{}``."""

# What families call these in their configs; the proof shows whether they mean the same by it.
_SETTINGS = {
    "logit_scale": "logit_scale",
    "logit_divisor": "logits_scaling",
    "soft_cap": "final_logit_softcapping",
    "residual_scale": "residual_multiplier",
}
_PARALLEL = ("use_parallel_residual", "parallel_attn")


def guess(model: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """A likely row of the table, from the habits of transformers; nothing in it is proven yet.

    Args:
        model: a causal language model.
        given: the fields that the user knows better.
    """
    config = model.config.get_text_config()
    blocks = given.get("blocks") or _block_list(model, config.num_hidden_layers)
    block = model.get_submodule(blocks)[-1]
    stem = blocks.rpartition(".")[0]
    norms = [name for name, child in model.get_submodule(stem).named_children() if _is_norm(child)]
    attention = _child(block, "attn", "attention")
    mlp = _child(block, "mlp", "ffn", "feed_forward", "moe")
    one_norm = sum(map(_is_norm, block.children())) == 1
    row = {
        "blocks": blocks,
        "final_norm": f"{stem}.{norms[-1]}".lstrip(".") if norms else None,
        "head": _path_of(model, model.get_output_embeddings()),
        "attention": attention,
        "attention_out": _projection(block, attention),
        "mlp": mlp,
        "mlp_out": _projection(block, mlp),
        "mlp_norm": None,
        # With a single norm both sublayers can only read the block's input.
        "parallel": one_norm or any(getattr(config, name, False) for name in _PARALLEL),
    }
    if hasattr(block, "post_feedforward_layernorm"):
        row["post_attention_norm"] = "{}.post_attention_layernorm"
        row["post_mlp_norm"] = "{}.post_feedforward_layernorm"
    for field in MODEL_PARTS:
        if row[field] is None and field not in given:
            raise ModelError(
                f'the {field} of the unknown family "{model.config.model_type}" was not found.\n  {hint(field)}'
            )
    return row | {field: name for field, name in _SETTINGS.items() if getattr(config, name, None) is not None}


def hint(field: str) -> str:
    """How to correct one field, as a sentence."""
    path = "path.from.the.model" if field in MODEL_PARTS else "{}.path.from.the.block"
    return f'Say where it is: anatomy(model, override={{"{field}": "{path}"}}).'


def _block_list(model: nn.Module, length: int) -> str:
    # The outermost list comes first, so that experts inside a block are not taken for the blocks.
    lists: list[str] = [
        path for path, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) == length
    ]
    if not lists:
        raise ModelError(
            f"{type(model).__name__} has no list of {length} decoder blocks (config.num_hidden_layers).\n  {hint('blocks')}"
        )
    return lists[0]


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _path_of(model: nn.Module, wanted: nn.Module | None) -> str | None:
    return next((path for path, module in model.named_modules() if module is wanted), None)


def _child(block: nn.Module, *words: str) -> str | None:
    for name, child in block.named_children():
        if any(word in name for word in words) and not _is_norm(child) and not isinstance(child, nn.Dropout):
            return "{}." + name
    return None


def _projection(block: nn.Module, path: str | None) -> str | None:
    """The last matrix of a sublayer: by custom the one that leads back to the residual stream."""
    if path is None:
        return None
    children = block.get_submodule(path.removeprefix("{}.")).named_children()
    matrices = [name for name, child in children if getattr(getattr(child, "weight", None), "ndim", 0) == 2]
    return f"{path}.{matrices[-1]}" if matrices else None


def observe(model: Any, found: Anatomy) -> dict[str, Tensor]:
    """Outputs of the last block and its parts, the block's ``input`` and the ``logits``, for a handful of tokens."""
    last = found.num_layers - 1
    modules = {"block": found.blocks[last]}
    for part in ("attention", "attention_out", "mlp", "mlp_out"):
        if getattr(found.row, part) is not None:
            modules[part] = getattr(found, part)(last)
    if found.residual_scale is not None and {"attention", "mlp"} <= modules.keys():
        modules["attention_contribution"] = found.attention_contribution(last)
        modules["mlp_contribution"] = found.mlp_contribution(last)
    seen: dict[str, Tensor] = {}

    def record(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if name == "block":
                seen["input"] = (args[0] if args else kwargs["hidden_states"]).clone()
            # A copy, because Falcon adds the attention into the mlp's output in place.
            seen[name] = (output if isinstance(output, Tensor) else output[0]).clone()

        return hook

    handles = [module.register_forward_hook(record(name), with_kwargs=True) for name, module in modules.items()]
    try:
        ids = torch.arange(5, device=next(found.embedding.parameters()).device)[None]
        with torch.no_grad():
            seen["logits"] = model(input_ids=ids, use_cache=False).logits
    except Exception as error:
        raise ModelError(
            f'"{found.family}" cannot be run on five tokens as a causal language model: {error}'
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return seen


def check_head(found: Anatomy, seen: Mapping[str, Tensor]) -> None:
    """The anatomy must turn the last block's output into the model's own logits."""
    try:
        with torch.no_grad():
            proven = "block" in seen and _same(found.logits(seen["block"]), seen["logits"])
    except RuntimeError:  # shapes that do not fit
        proven = False
    if not proven:
        row = found.row
        raise ModelError(
            f'head(final norm(last block)) is not what "{found.family}" computes as logits, '
            f"with blocks {row.blocks}, final norm {row.final_norm}, head {row.head}, logit scale {row.logit_scale}, "
            f"divisor {row.logit_divisor}, soft cap {row.soft_cap}.\n"
            f'  Correct what is wrong, for instance anatomy(model, override={{"final_norm": "path.from.the.model"}}).'
        )


def unproven(found: Anatomy, seen: Mapping[str, Tensor]) -> set[str]:
    """Fields of a guess that the observation does not bear out."""
    doubtful = set()
    for sublayer in ("attention", "mlp"):
        if sublayer not in seen:
            doubtful |= {sublayer, f"{sublayer}_out"}
        elif not _same(seen.get(f"{sublayer}_out"), seen[sublayer]):
            doubtful.add(f"{sublayer}_out")
    if found.residual_scale is None or not {"attention_contribution", "mlp_contribution"} <= seen.keys():
        return doubtful | {"residual_scale"}
    # block output = input + scale * (attention + mlp), however the two sublayers read the stream
    added = seen["attention_contribution"] + seen["mlp_contribution"]
    if not _same(seen["input"] + added * found.residual_scale, seen["block"], ulps=16):
        doubtful.add("residual_scale")
    return doubtful


def _same(ours: Tensor | None, theirs: Tensor, *, ulps: int = 4) -> bool:
    """Equal up to rounding; weights with NaN are somebody else's complaint."""
    if ours is None or ours.shape != theirs.shape:
        return False
    tolerance = ulps * torch.finfo(theirs.dtype).eps * float(theirs.nan_to_num().abs().max())
    return torch.allclose(ours.float(), theirs.float(), rtol=0, atol=tolerance, equal_nan=True)
