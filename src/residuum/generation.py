"""Greedy and sampled texts in left-padded, length-sorted batches; equal to one-by-one in float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from residuum.batching import collate_left, token_budget_batches

if TYPE_CHECKING:
    from residuum.models.loading import LM


def generate(
    lm: LM,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 200,
    temperature: float | None = None,
    seed: int = 0,
    max_tokens: int = 16384,
) -> list[str]:
    """Continue each prompt until the model ends it.

    Args:
        lm: the model.
        prompts: token ids, special tokens included.
        max_new_tokens: most tokens to add.
        temperature: None is greedy; a number samples with it.
        seed: of the sampling; each batch draws from its own state, so texts depend on batch composition.
        max_tokens: padded tokens per batch, new ones included.

    Returns:
        The new text of each prompt, without special tokens and surrounding blanks.
    """
    texts: dict[int, str] = {}
    lengths = [len(prompt) + max_new_tokens for prompt in prompts]
    sampling = {"do_sample": False} if temperature is None else {"do_sample": True, "temperature": temperature}
    for group in token_budget_batches(lengths, max_tokens):
        batch = collate_left([prompts[i] for i in group], lm.pad_id, lm.device)
        torch.manual_seed(seed)
        with torch.inference_mode():
            out = lm.model.generate(
                input_ids=batch.input_ids,
                attention_mask=batch.attention_mask,
                max_new_tokens=max_new_tokens,
                pad_token_id=lm.pad_id,
                eos_token_id=lm.tokenizer.eos_token_id,
                top_k=None,
                top_p=None,
                **({"temperature": None} | sampling),
            )
        for i, row in zip(group, out[:, batch.input_ids.shape[1] :].tolist(), strict=True):
            end = row.index(lm.tokenizer.eos_token_id) if lm.tokenizer.eos_token_id in row else len(row)
            texts[i] = lm.tokenizer.decode(row[:end], skip_special_tokens=True).strip()
    return [texts[i] for i in range(len(prompts))]
