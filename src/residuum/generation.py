"""Greedy and sampled texts in left-padded, length-sorted batches; equal to one-by-one in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from residuum.batching import collate_left, token_budget_batches, with_shrinking

if TYPE_CHECKING:
    from residuum.models.loading import LM

Around = Callable[[list[int], int], AbstractContextManager[Any]]
"""Opened around each batch: takes which prompts are in it and how many columns their padded prompts have."""


@dataclass(frozen=True)
class Continuation:
    """What a model added to a prompt."""

    ids: tuple[int, ...]
    """The new tokens, without the one that closes the text."""
    text: str
    """The same without special tokens and surrounding blanks."""
    finished: bool
    """Whether the model ended it; if not, it was cut at the most tokens allowed."""


def generate(
    lm: LM,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 200,
    temperature: float | None = None,
    seed: int = 0,
    max_tokens: int = 16384,
    mask_mode: str = "length",
) -> list[str]:
    """Continue each prompt until the model ends it; see `continue_prompts`.

    Returns:
        The new text of each prompt, without special tokens and surrounding blanks.
    """
    seeds = [seed * 1_000_003 + i for i in range(len(prompts))]
    found = continue_prompts(
        lm, prompts, max_new_tokens=max_new_tokens, temperature=temperature, seeds=seeds, max_tokens=max_tokens,
        mask_mode=mask_mode,
    )  # fmt: skip
    return [continuation.text for continuation in found]


def continue_prompts(
    lm: LM,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperature: float | None = None,
    seeds: Sequence[int] | None = None,
    max_tokens: int = 16384,
    around: Around | None = None,
    mask_mode: str = "length",
) -> list[Continuation]:
    """Continue each prompt until the model ends it; a batch that does not fit into memory is halved.

    Args:
        lm: the model.
        prompts: token ids, special tokens included.
        max_new_tokens: most tokens to add.
        temperature: None is greedy; a number samples with it.
        seeds: of the sampling, one per prompt: a text does not depend on what else is in its batch.
        max_tokens: padded tokens per batch, new ones included.
        around: opened around each batch, for hooks that must know which rows they see.
        mask_mode: ``length``, or ``pad_id`` to hide every token that equals the pad token, inside a prompt too.
    """
    found: dict[int, Continuation] = {}
    end = lm.tokenizer.eos_token_id

    def run(group: list[int]) -> list[list[int]]:
        batch = collate_left([prompts[i] for i in group], lm.pad_id, lm.device)
        width = batch.input_ids.shape[1]
        mask = batch.attention_mask if mask_mode == "length" else (batch.input_ids != lm.pad_id).long()
        noise = [] if temperature is None else [_Gumbel(temperature, [seeds[i] if seeds else i for i in group])]
        with torch.inference_mode(), around(group, width) if around else nullcontext():
            out = lm.model.generate(
                input_ids=batch.input_ids,
                attention_mask=mask,
                max_new_tokens=max_new_tokens,
                pad_token_id=lm.pad_id,
                eos_token_id=end,
                do_sample=False,
                temperature=None,
                top_k=None,
                top_p=None,
                logits_processor=noise,
            )
        new: list[list[int]] = out[:, width:].tolist()
        return new

    lengths = [len(prompt) + max_new_tokens for prompt in prompts]
    for group, rows in with_shrinking(run, token_budget_batches(lengths, max_tokens)):
        for i, row in zip(group, rows, strict=True):
            ids = row[: row.index(end)] if end in row else row
            text = lm.tokenizer.decode(ids, skip_special_tokens=True).strip()
            found[i] = Continuation(tuple(ids), text, end in row)
    return [found[i] for i in range(len(prompts))]


class _Gumbel:
    """Sampling as an argmax: logits / T plus Gumbel noise has its maximum at token t with probability softmax(logits / T)_t.

    Each row draws from a generator of its own, so a row's text is the same in any batch.
    """

    def __init__(self, temperature: float, seeds: Sequence[int]) -> None:
        self.temperature = temperature
        self.generators = [torch.Generator().manual_seed(seed) for seed in seeds]

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        uniform = torch.stack([torch.rand(scores.shape[1], generator=generator) for generator in self.generators])
        # Zero would be log(0) twice over; the smallest positive number keeps it finite.
        noise = -torch.log(-torch.log(uniform.clamp_min(torch.finfo(torch.float32).tiny)))
        return scores.float() / self.temperature + noise.to(scores.device)
