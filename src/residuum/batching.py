"""Padding, length-sorted batches, and the one place where labels are shifted.

The logits of row ``t`` predict the token at ``t + 1``. Nobody but ``labelled_rows`` does this arithmetic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from residuum.data.prompts import Encoded
from residuum.errors import ResiduumError, UsageError

__all__ = [
    "IGNORE",
    "Batch",
    "Encoded",
    "cached_rows",
    "collate",
    "collate_left",
    "is_out_of_memory",
    "labelled_rows",
    "token_budget_batches",
    "with_shrinking",
]

IGNORE = -100
"""The label of a position that is not scored."""

_CACHED_ROWS = 32

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Sequences padded to one length."""

    input_ids: Tensor  # [row, position]
    attention_mask: Tensor  # [row, position], 1 on real tokens
    labels: Tensor  # [row, position], the ids themselves (not shifted); IGNORE on prompt and padding
    rows: tuple[int, ...]
    """Where each sequence stands in the data set."""

    def __len__(self) -> int:
        return len(self.rows)


def collate(
    encoded: Sequence[Encoded], pad_id: int, device: torch.device | str = "cpu", *, rows: Sequence[int] | None = None
) -> Batch:
    """Pad on the right; only the answers are labelled.

    The mask follows the lengths: a pad token that is also the end-of-sequence token stays visible inside a sequence.

    Args:
        encoded: prompts with their answers.
        pad_id: fills the room behind short sequences.
        device: where the tensors go.
        rows: where the sequences stand in the data set; 0, 1, ... if not given.
    """
    width = max((len(e) for e in encoded), default=0)
    gaps = [width - len(e) for e in encoded]
    ids = [[*e.ids, *[pad_id] * gap] for e, gap in zip(encoded, gaps, strict=True)]
    mask = [[1] * len(e) + [0] * gap for e, gap in zip(encoded, gaps, strict=True)]
    labels = [[IGNORE] * e.prompt_length + [*e.labels] + [IGNORE] * gap for e, gap in zip(encoded, gaps, strict=True)]
    return _batch(ids, mask, labels, device, rows)


def collate_left(
    prompts: Sequence[Sequence[int]],
    pad_id: int,
    device: torch.device | str = "cpu",
    *,
    rows: Sequence[int] | None = None,
) -> Batch:
    """Pad on the left, so that generation goes on from the last column; nothing is labelled."""
    width = max((len(p) for p in prompts), default=0)
    gaps = [width - len(p) for p in prompts]
    ids = [[*[pad_id] * gap, *p] for p, gap in zip(prompts, gaps, strict=True)]
    mask = [[0] * gap + [1] * len(p) for p, gap in zip(prompts, gaps, strict=True)]
    return _batch(ids, mask, [[IGNORE] * width for _ in prompts], device, rows)


def labelled_rows(batch: Batch | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which logits predict a label: ``logits[sequence, row]`` should give ``label``.

    A label in the very first position has no logits before it and is left out.

    Args:
        batch: a batch, or only its labels.  # [row, position]

    Returns:
        sequence, row and label, in reading order.  # three of [labelled token]
    """
    labels = batch.labels if isinstance(batch, Batch) else batch
    sequence, row = torch.nonzero(labels[:, 1:] != IGNORE, as_tuple=True)
    return sequence, row, labels[sequence, row + 1]


def cached_rows(logits: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """A wide ``[row, vocabulary]`` tensor and its labels, few rows at a time.

    What is made of so few rows stays in the processor's cache: on a CPU half the time of doing all at once.
    """
    return zip(torch.split(logits, _CACHED_ROWS), torch.split(labels, _CACHED_ROWS), strict=True)


def token_budget_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Group sequences of like length so that rows times longest stays within ``max_tokens``.

    The longest come first: a batch that does not fit into memory shows at once, and the time left is overestimated
    rather than underestimated. A sequence longer than the budget gets a batch of its own.

    Returns:
        Indices into ``lengths``, each once.
    """
    if max_tokens < 1:
        raise UsageError(f"a batch must hold at least one token, not {max_tokens}")
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        # The first row of a batch is its longest, so it alone decides how many fit.
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def with_shrinking(run: Callable[[list[int]], T], batches: Iterable[Sequence[int]]) -> Iterator[tuple[list[int], T]]:
    """Run a function over batches; one that does not fit into memory is halved until it does.

    Later batches are cut into as many pieces from the start: they were made for the same budget.

    Args:
        run: takes the indices of a batch; must keep nothing of a call that fails.
        batches: lists of indices, such as those of ``token_budget_batches``.

    Yields:
        The indices of each piece and what ``run`` made of them.

    Raises:
        ResiduumError: a single row does not fit.
    """
    pieces = 1
    for batch in batches:
        waiting = deque((part, pieces) for part in _cut(list(batch), pieces))
        while waiting:
            part, share = waiting.popleft()
            try:
                result = run(part)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if len(part) == 1:
                    raise ResiduumError(
                        f"out of memory on a single row (row {part[0]}).\n"
                        "  Use a smaller dtype, a shorter maximal length or a device with more memory."
                    ) from error
            else:
                yield part, result
                continue
            # Only out here is the error gone, and with it the tensors that its traceback holds.
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            pieces = max(pieces, 2 * share)
            waiting.extendleft((half, 2 * share) for half in reversed(_cut(part, 2)))


def _batch(
    ids: list[list[int]],
    mask: list[list[int]],
    labels: list[list[int]],
    device: torch.device | str,
    rows: Sequence[int] | None,
) -> Batch:
    def tensor(values: list[list[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return Batch(tensor(ids), tensor(mask), tensor(labels), tuple(range(len(ids)) if rows is None else rows))


def _cut(items: list[int], pieces: int) -> list[list[int]]:
    size = max(1, -(-len(items) // pieces))
    return [items[i : i + size] for i in range(0, len(items), size)]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is all used, on whatever device."""
    # torch.OutOfMemoryError is a RuntimeError that says so; its CPU allocator and other back ends only say so.
    signs = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in signs)
