"""Teacher forcing: every row is read once, and answers to one question read that question once.

A perturbed split has seven answers to a question, and in a chat the question is longer than an answer: reading it once,
and letting every answer continue from its keys and values, halves the work without changing the numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from residuum.batching import Encoded, cached_rows, collate, labelled_rows, token_budget_batches, with_shrinking
from residuum.errors import ResiduumError
from residuum.evidence.tokens import TokenEvidence, split_answers
from residuum.progress import progress

if TYPE_CHECKING:
    from residuum.models.loading import LM

MaskMode = Literal["length", "pad_id"]
MASK_MODES: tuple[MaskMode, ...] = ("length", "pad_id")
"""``length`` sees every real token. ``pad_id`` hides every token that equals the pad token, as open-unlearning does:
where pad is the end-of-turn token, also those that close the turns of a chat."""

_CHUNK = 1 << 26
"""Vocabulary scores held at once: 256 MB in float32."""


def teacher_force(
    lm: LM,
    encoded: Sequence[Encoded],
    max_tokens: int = 4096,
    *,
    mask_mode: MaskMode = "length",
    title: str | None = None,
) -> list[TokenEvidence]:
    """Read ``encoded`` once and note what the model thinks of every labelled token.

    Args:
        lm: the model.
        encoded: rows whose labels are the tokens after their prompt.
        max_tokens: padded tokens per batch; a batch that does not fit into memory is halved.
        mask_mode: one of ``MASK_MODES``.
        title: of the progress bar; none without it.

    Returns:
        The evidence of each row, in the order given.
    """
    found: dict[int, TokenEvidence] = {}
    alone, questions = _by_question(encoded)

    def read_alone(group: list[int]) -> list[TokenEvidence]:
        return _read(lm, [encoded[i] for i in group], mask_mode)

    def read_answers(group: list[int]) -> list[TokenEvidence]:
        return _read_answers(lm, [encoded[i] for i in group], mask_mode)

    plans: list[tuple[Callable[[list[int]], list[TokenEvidence]], list[list[int]]]] = [
        (read_answers, _answer_batches(encoded, questions, max_tokens)),
        (read_alone, [[alone[i] for i in group] for group in token_budget_batches([len(encoded[i]) for i in alone], max_tokens)]),
    ]  # fmt: skip
    with progress(title, len(encoded)) as bar:
        for read, batches in plans:
            for group, evidence in with_shrinking(read, batches):
                found |= dict(zip(group, evidence, strict=True))
                bar.advance(len(group))
    return [found[i] for i in range(len(encoded))]


def last_states(lm: LM, input_ids: Tensor, mask_mode: MaskMode = "length") -> Tensor:
    """States after the final norm of rows padded on the right, [row, position, hidden], ready for ``anatomy.head``."""
    states: Tensor = lm.model.base_model(
        input_ids=input_ids, attention_mask=mask(lm, input_ids, mask_mode), use_cache=False
    ).last_hidden_state
    return states


def mask(lm: LM, input_ids: Tensor, mask_mode: MaskMode) -> Tensor | None:
    """The attention mask of rows padded on the right: none by length, because a causal model never looks there."""
    return None if mask_mode == "length" else (input_ids != lm.pad_id).long()


def _by_question(encoded: Sequence[Encoded]) -> tuple[list[int], list[list[int]]]:
    """Rows that share their prompt with nobody, and the groups of those that do."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, row in enumerate(encoded):
        if row.prompt_length and row.labels:
            groups[row.ids[: row.prompt_length]].append(i)
    shared = [group for group in groups.values() if len(group) > 1]
    taken = {i for group in shared for i in group}
    return [i for i in range(len(encoded)) if i not in taken], shared


def _answer_batches(encoded: Sequence[Encoded], questions: Sequence[list[int]], max_tokens: int) -> list[list[int]]:
    """Batches of answers whose prompts are equally long, so that only answers are padded, and on the right."""
    by_length: dict[int, list[list[int]]] = defaultdict(list)
    for group in questions:
        by_length[encoded[group[0]].prompt_length].append(group)
    batches: list[list[int]] = []
    for _, groups in sorted(by_length.items(), reverse=True):
        # Answers to one question are of like length and stay together.
        groups.sort(key=lambda group: -max(len(encoded[i]) for i in group))
        rows = [i for group in groups for i in group]
        width = max(len(encoded[i]) for i in rows)
        size = max(1, max_tokens // width)
        batches += [rows[i : i + size] for i in range(0, len(rows), size)]
    return batches


def _read(lm: LM, rows: Sequence[Encoded], mask_mode: MaskMode) -> list[TokenEvidence]:
    """Rows one beside the other, each with its own prompt."""
    batch = collate(rows, lm.pad_id, lm.device)
    sequence, row, label = labelled_rows(batch)
    with torch.inference_mode():
        hidden = last_states(lm, batch.input_ids, mask_mode)[sequence, row]
    return _weigh(lm, hidden, label, torch.bincount(sequence, minlength=len(rows)).tolist())


def _read_answers(lm: LM, rows: Sequence[Encoded], mask_mode: MaskMode) -> list[TokenEvidence]:
    """Answers that continue equally long prompts, many of them the same: each prompt is read once.

    The last state of a prompt predicts the first token of its answers, the state of each answer token the next one.
    """
    prompts = list(dict.fromkeys(row.ids[: row.prompt_length] for row in rows))
    place = {prompt: i for i, prompt in enumerate(prompts)}
    owner = torch.tensor([place[row.ids[: row.prompt_length]] for row in rows], device=lm.device)
    question = torch.tensor(prompts, device=lm.device)
    answers = collate([Encoded(row.labels, 0) for row in rows], lm.pad_id, lm.device)
    lengths = torch.tensor([len(row.labels) for row in rows], device=lm.device)
    labelled = torch.arange(answers.input_ids.shape[1], device=lm.device) < lengths[:, None]
    with torch.inference_mode():
        read = lm.model.base_model(input_ids=question, attention_mask=mask(lm, question, mask_mode), use_cache=True)
        states = read.last_hidden_state[:, -1:][owner]
        spoken = answers.input_ids[:, :-1]
        if spoken.shape[1]:
            read.past_key_values.batch_select_indices(owner)
            whole = torch.cat([question[owner], spoken], dim=1)
            further = lm.model.base_model(
                input_ids=spoken, attention_mask=mask(lm, whole, mask_mode), past_key_values=read.past_key_values
            ).last_hidden_state
            states = torch.cat([states, further], dim=1)
    return _weigh(lm, states[labelled], answers.input_ids[labelled], lengths.tolist())


def _weigh(lm: LM, hidden: Tensor, label: Tensor, lengths: Sequence[int]) -> list[TokenEvidence]:
    """From the states that predict labels to evidence; the head runs only on these, and it is wide.

    Args:
        lm: the model.
        hidden: states after the final norm.  # [token, hidden]
        label: what each should predict.  # [token]
        lengths: how many of them belong to each row.
    """
    size = max(1, _CHUNK // lm.model.config.get_text_config().vocab_size)
    with torch.inference_mode():
        parts = [
            _statistics(scores, own)
            for states, labels in zip(torch.split(hidden, size), torch.split(label, size), strict=True)
            for scores, own in cached_rows(lm.anatomy.head(states), labels)
        ]
    found = {name: torch.cat([part[name] for part in parts]).numpy(force=True) for name in parts[0]}
    if broken := int(np.isnan(found["mean"]).sum()):
        raise ResiduumError(
            f"{lm.name} gives no numbers for {broken} of {len(label)} answer tokens (NaN in {str(lm.dtype).removeprefix('torch.')}).\n"
            "  Its states overflow: use --dtype bfloat16 or float32."
        )
    return split_answers(found, lengths, lm.tokenizer.eos_token_id)


def _statistics(logits: Tensor, label: Tensor) -> dict[str, Tensor]:
    """What the vocabulary looks like from some rows; in float32, whatever the model computes in."""
    log_probs = torch.log_softmax(logits.float(), dim=1)
    # A token that a model rules out has log-probability minus infinity, which times probability 0 would be no number.
    log_probs = log_probs.clamp_(min=-1e4)
    probs = log_probs.exp()
    mean = (probs * log_probs).sum(dim=1)
    # Centred, not E[x^2] - E[x]^2: the difference of two large numbers would drown a small variance.
    variance = (log_probs - mean[:, None]).square_().mul_(probs).sum(dim=1)
    return {
        "labels": label.int(),
        "predictions": log_probs.argmax(dim=1).int(),
        "log_probs": log_probs.gather(1, label[:, None])[:, 0],
        "mean": mean,
        "variance": variance,
    }
