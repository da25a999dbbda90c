"""Random-weight models of every family in the table, small enough to run in milliseconds.

Sliding windows, soft caps, logit scales and residual scales are set to values that show in the numbers, so that a part
which forgets one of them fails.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

_GEMMA = {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0}
_VISION = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 16, "patch_size": 8, "vision_use_head": False,
}  # fmt: skip

_SPECIAL: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 5.0},
    "gemma3_text": _GEMMA,
    "gemma3": {},
    "phi3": {"sliding_window": 6},
    "phi": {},
    "gpt_neox": {},
    "gpt2": {},
    "olmo2": {},
    "falcon": {},
    "stablelm": {},
    "granite": {
        "logits_scaling": 4.0, "residual_multiplier": 0.5, "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
    },
    "cohere": {"logit_scale": 0.25},
}  # fmt: skip

FAMILIES = tuple(_SPECIAL)


def miniature(
    family: str, *, layers: int = 4, hidden: int = 32, vocab: int = 64, seed: int = 0, **overrides: Any
) -> PreTrainedModel:
    """A float32 model in eval mode; ``overrides`` go into its config."""
    settings = {**_common(family, layers, hidden, vocab), **_SPECIAL.get(family, {}), **overrides}
    if family == "gemma3":
        text = {**_common("gemma3_text", layers, hidden, vocab), **_GEMMA, **overrides}
        settings = {
            "text_config": text,
            "vision_config": _VISION,
            "mm_tokens_per_image": 4,
            "image_token_index": vocab - 1,
        }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings), dtype=torch.float32)
        with torch.no_grad():
            for parameter in model.parameters():
                # Norm weights that are not all one, biases that are not all zero, sublayers as loud as the residual.
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model.eval()


def _common(family: str, layers: int, hidden: int, vocab: int) -> dict[str, Any]:
    common: dict[str, Any] = {
        "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 2 * hidden, "vocab_size": vocab,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    if family.startswith("gemma3"):
        common["layer_types"] = [("sliding_attention", "full_attention")[layer % 2] for layer in range(layers)]
    return common
