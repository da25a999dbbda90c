"""What a model thinks at chosen tokens: mean activations of many sequences at many modules, in one pass each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from residuum.batching import Encoded, collate, token_budget_batches, with_shrinking
from residuum.data.prompts import ChatFormat, text_ids
from residuum.hooks import capture
from residuum.steering.components import component_module

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from residuum.models.loading import LM
    from residuum.steering.traits import Question


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str, *, chat: bool, system_prompt: str = "") -> list[int]:
    """Ids after which the model answers: through the chat template, or the bare text for a base model."""
    if chat:
        return ChatFormat(system_prompt=system_prompt).encode_prompt(tokenizer, text)
    return text_ids(tokenizer, text, special=True)


def encode_questions(
    tokenizer: PreTrainedTokenizerBase, questions: Sequence[Question], *, chat: bool, system_prompt: str
) -> list[list[int]]:
    """Ids of evaluation questions; a question's own system prompt comes before the experiment's."""
    return [
        encode_prompt(tokenizer, q.text, chat=chat, system_prompt=system_prompt if q.system_prompt is None else q.system_prompt)
        for q in questions
    ]  # fmt: skip


def mean_activations(
    lm: LM,
    sequences: Sequence[Sequence[int]],
    spans: Sequence[range],
    modules: Sequence[nn.Module],
    *,
    max_tokens: int = 8192,
) -> Tensor:
    """Activations averaged over a span of tokens.

    Args:
        lm: the model.
        sequences: token ids.
        spans: the tokens that count, none of them empty.
        modules: whose outputs are read.
        max_tokens: padded tokens per batch.

    Returns:
        float32 on the CPU.  # [sequence, module, hidden]
    """
    out = torch.empty(len(sequences), len(modules), lm.anatomy.hidden_size)

    def run(group: list[int]) -> Tensor:
        batch = collate([Encoded(tuple(sequences[i]), len(sequences[i])) for i in group], lm.pad_id, lm.device)
        width = max(len(spans[i]) for i in group)
        # Short spans repeat their first token with weight zero, so that one gather serves all rows.
        rows = torch.tensor([[*spans[i], *[spans[i][0]] * (width - len(spans[i]))] for i in group])
        weights = torch.tensor([[1 / len(spans[i])] * len(spans[i]) + [0.0] * (width - len(spans[i])) for i in group])
        with torch.inference_mode(), capture(modules, rows=rows) as states:
            lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False, logits_to_keep=1)
        return torch.stack([torch.einsum("bnh,bn->bh", state.float().cpu(), weights) for state in states], dim=1)

    for group, found in with_shrinking(run, token_budget_batches([len(ids) for ids in sequences], max_tokens)):
        out[group] = found
    return out


def residual_norms(lm: LM, prompts: Sequence[Sequence[int]], layers: Sequence[int]) -> dict[int, float]:
    """Mean length of the residual stream at the last prompt token, by layer: the unit of coefficients."""
    spans = [range(len(ids) - 1, len(ids)) for ids in prompts]
    modules = [component_module(lm.anatomy, "residual", layer) for layer in layers]
    norms = mean_activations(lm, prompts, spans, modules).norm(dim=2).mean(dim=0)
    return dict(zip(layers, norms.tolist(), strict=True))
