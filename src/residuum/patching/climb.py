"""The runs of a group of examples, one for each patched layer, on their common way up through the target's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from residuum.data.spans import Located
from residuum.hooks import replace_rows
from residuum.patching.engine import PatchConfig, TokenScores, row_table, site, where, written
from residuum.patching.replay import Calls, Replay

if TYPE_CHECKING:
    from residuum.models.loading import LM


@dataclass(frozen=True, eq=False)
class Own:
    """What the target's own pass over an example leaves behind."""

    keys: Tensor  # [block, head, row before the span, head size]
    values: Tensor
    states: Tensor | None  # [layer, row of the span, hidden]: what runs begin with, where not all of it is patched
    scores: TokenScores

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return sum(part.nbytes for part in (self.keys, self.values, self.states) if part is not None)


@dataclass(frozen=True, eq=False)
class Task:
    """One example with everything its runs need."""

    example: Located
    source: Tensor  # [layer, patched row, hidden]
    own: Own
    layers: list[int]
    """One run for each."""
    result: TokenScores
    """To be filled in."""


def span_of(example: Located, config: PatchConfig) -> range:
    """The rows that a patch changes and that matter: from the first patched to the last evaluated one."""
    return range(example.patched_rows(config.scope).start, example.rows.stop)


def evaluated_rows(example: Located, config: PatchConfig) -> slice:
    """Which rows of the span are evaluated."""
    first = span_of(example, config).start
    return slice(example.rows.start - first, example.rows.stop - first)


def climb(target: LM, config: PatchConfig, calls: Calls, group: Sequence[Task], *, first_block: int) -> Tensor:
    """All runs of a group, from their layers up through the last block.

    Args:
        target: the model that is patched.
        config: what is patched.
        calls: how the target calls its blocks.
        group: examples with spans of about one length.
        first_block: the first block that the examples have keys and values of.

    Returns:
        [example, run, row of the span, hidden]; an example with fewer runs or rows than another has padding behind them,
        which the others never see.
    """
    parts, device = target.anatomy, target.device
    layers = config.layers_of(parts.num_layers)
    most = max(len(task.layers) for task in group)
    source = _padded([task.source.to(device, target.dtype) for task in group])  # [example, layer, patched row, .]
    begin = _begin(config, group, source)  # [example, layer, row, .]
    replay = Replay(
        parts.blocks,
        calls,
        rows=row_table([span_of(task.example, config) for task in group]).to(device),
        runs=most,
        prefixes=[(task.own.keys, task.own.values) for task in group],
        first_block=first_block,
    )
    runs = source.new_zeros(len(group), most, *begin.shape[2:])
    within = config.mode != "layer"
    for block in range(layers[0], parts.num_layers):
        joining = [(i, task.layers.index(block)) for i, task in enumerate(group) if block in task.layers]
        examples, slots = torch.tensor(joining, dtype=torch.long, device=device).view(-1, 2).T
        place = layers.index(block) if joining else 0
        # What is patched within a block joins below it, as yet unpatched; a patched block output joins above.
        if within:
            runs[examples, slots] = begin[examples, place]
        there = max(sum(layer < block + within for layer in task.layers) for task in group)
        if there:
            hidden = runs[:, :there].flatten(1, 2)
            with _patch(target, config, block, (examples, slots), source[examples, place], begin[examples, place]):
                runs[:, :there] = replay(block, hidden).view_as(runs[:, :there])
        if not within:
            runs[examples, slots] = begin[examples, place]
    return runs


def _begin(config: PatchConfig, group: Sequence[Task], source: Tensor) -> Tensor:
    """The states with which each run sets out: [example, layer, row, hidden]."""
    own = [task.own.states for task in group if task.own.states is not None]
    if not own:
        return source
    begin = _padded(own)
    if config.mode == "layer":
        begin[:, :, : source.shape[2]] = source
    return begin


def _padded(states: Sequence[Tensor]) -> Tensor:
    """[layer, row, hidden] of each example as [example, layer, row, hidden]."""
    return pad_sequence([own.transpose(0, 1) for own in states], batch_first=True).transpose(1, 2)


def _patch(
    target: LM, config: PatchConfig, block: int, joining: tuple[Tensor, Tensor], source: Tensor, begin: Tensor
) -> AbstractContextManager[object]:
    """The hook that patches, within a block, the runs that join there; none for whole block outputs.

    Args:
        target: the model that is patched.
        config: what is patched.
        block: in which block.
        joining: example and place of each run that joins.
        source: their new states, [run, patched row, hidden].
        begin: the states with which they set out, [run, row, hidden].
    """
    if config.mode == "layer":
        return nullcontext()
    (examples, slots), patched = joining, source.shape[1]
    token = slots[:, None] * begin.shape[1] + torch.arange(patched, device=slots.device)  # [run, patched row]
    values = written(target.anatomy, config, source, begin[:, :patched])
    rows = examples.repeat_interleave(patched), token.flatten()
    return replace_rows(site(target.anatomy, config, block), rows, values.flatten(0, 1), where=where(config))
