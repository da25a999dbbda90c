"""A language model in this process that says what it would reply: next-token probabilities after a chat.

Prompts are read in one left-padded batch; continuations go on from the cached prompts, one token at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from residuum.batching import collate_left
from residuum.data.prompts import ChatFormat, text_ids
from residuum.errors import InputError

if TYPE_CHECKING:
    from residuum.models.loading import LM


@dataclass
class Front:
    """Where some continuations of prompts stand."""

    log_probs: Tensor  # [row, vocab], of the next token
    cache: Any
    mask: Tensor  # [row, position]


class LocalModel:
    """Reads chats and continues them.

    Args:
        lm: the model; nobody else's hooks may be on it.
    """

    def __init__(self, lm: LM) -> None:
        self.lm = lm

    def encode(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """A chat as ids after which the model replies: by its template, or as plain text without one.

        A template that knows no system role gets the system message in front of the user's.
        """
        system = "\n".join(m["content"] for m in messages if m["role"] == "system")
        user = "\n".join(m["content"] for m in messages if m["role"] != "system")
        tokenizer = self.lm.tokenizer
        if not tokenizer.chat_template:
            return text_ids(tokenizer, f"{system}\n\n{user}\n".lstrip(), special=True)
        try:
            return ChatFormat(system_prompt=system).encode_prompt(tokenizer, user)
        except InputError:
            if not system:
                raise
            return ChatFormat(system_prompt="").encode_prompt(tokenizer, f"{system}\n\n{user}")

    def start(self, prompts: Sequence[Sequence[int]]) -> Front:
        """Read prompts."""
        batch = collate_left(prompts, self.lm.pad_id, self.lm.device)
        return self._forward(batch.input_ids, batch.attention_mask, None)

    def extend(self, front: Front, parents: Sequence[int], tokens: Sequence[int]) -> Front:
        """Continue some rows of a front by one token each; a row may be continued in several ways.

        The front is used up: its cache becomes that of the new one.
        """
        rows = torch.tensor(parents, device=self.lm.device)
        front.cache.batch_select_indices(rows)
        ones = torch.ones(len(parents), 1, dtype=front.mask.dtype, device=self.lm.device)
        mask = torch.cat([front.mask[rows], ones], dim=1)
        return self._forward(torch.tensor(tokens, device=self.lm.device)[:, None], mask, front.cache)

    def _forward(self, ids: Tensor, mask: Tensor, cache: Any) -> Front:
        positions = (mask.cumsum(dim=1) - 1).clamp_min(0)[:, -ids.shape[1] :]
        with torch.inference_mode():
            out = self.lm.model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True,
                logits_to_keep=1,
            )  # fmt: skip
        return Front(out.logits[:, -1].float().log_softmax(dim=-1), out.past_key_values, mask)
