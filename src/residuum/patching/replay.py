"""Run single decoder blocks again, on a few rows of a sequence, with the model's own code.

One pass over whole sequences is recorded: how the model called each block, and each block's keys and values. Later
the block modules themselves are called on a few rows, with a cache that supplies the keys and values of all rows
before them. Rotary positions, grouped heads, windows and soft caps thereby stay the model's own business.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

KeysValues = tuple[Tensor, Tensor]


class Recorder(DynamicCache):  # type: ignore[misc]  # transformers is not typed
    """A cache that only listens: keys and values by block, [example, head, position, head size]."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[int, KeysValues] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeysValues:
        """Called by every attention module."""
        self.heard[layer_idx] = key_states, value_states
        return key_states, value_states


class Prefix(DynamicCache):  # type: ignore[misc]  # transformers is not typed
    """A cache that holds the rows before those which are run again, and forgets the latter at once."""

    def __init__(self, keys: Tensor, values: Tensor, first_block: int) -> None:
        super().__init__()
        self._keys, self._values, self._first = keys, values, first_block

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> KeysValues:
        """Called by every attention module."""
        block = layer_idx - self._first
        return torch.cat([self._keys[block], key_states], -2), torch.cat([self._values[block], value_states], -2)


@dataclass(frozen=True, eq=False)
class Calls:
    """How a model called its blocks."""

    length: int
    """Positions in the pass."""
    arguments: list[dict[str, Any]]
    """By block: every argument but the hidden states."""
    recorder: Recorder


@contextmanager
def recorded_calls(blocks: Sequence[nn.Module]) -> Iterator[list[dict[str, Any]]]:
    """Note every argument but the hidden states with which the blocks are called, by name."""
    calls: list[dict[str, Any]] = [{} for _ in blocks]

    def note(index: int) -> Callable[..., None]:
        signature = inspect.signature(blocks[index].forward)
        hidden = next(iter(signature.parameters))

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            bound = signature.bind(*args, **kwargs)
            named = dict(bound.arguments)
            for parameter in signature.parameters.values():
                if parameter.kind is parameter.VAR_KEYWORD:
                    named |= named.pop(parameter.name, {})
            calls[index] = {name: value for name, value in named.items() if name != hidden}

        return hook

    handles = [block.register_forward_pre_hook(note(i), with_kwargs=True) for i, block in enumerate(blocks)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


class _Enough(Exception):
    """Ends a forward pass that has gone far enough."""


def run_until(model: nn.Module, module: nn.Module, **inputs: Any) -> None:
    """Run a model up to the end of one of its modules: what comes later, above all the head, is not needed."""

    def stop(*_: Any) -> None:
        raise _Enough

    handle = module.register_forward_hook(stop)
    try:
        model(**inputs)
    except _Enough:
        pass
    finally:
        handle.remove()


class Replay:
    """The blocks of a model, callable on the last rows of a group of examples, in several runs at once.

    The runs of an example lie behind one another in one sequence, ``[run 0, row 0..n-1, run 1, row 0..n-1, ...]``; a
    mask keeps them apart. So all runs share one copy of the prefix, and blocks get few long sequences, not many short.

    Args:
        blocks: the decoder blocks.
        calls: recorded from the same model, over at least as many positions.
        rows: positions of the rows, [example, row]; an example with fewer repeats its last.
        runs: most runs there will be.
        prefixes: keys and values of each example before its first row, two of [block, head, position, head size].
        first_block: the block to which the first of these belong.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        calls: Calls,
        *,
        rows: Tensor,
        runs: int,
        prefixes: Sequence[KeysValues],
        first_block: int,
    ) -> None:
        self._blocks, self._calls, self._rows, self._runs = blocks, calls, rows, runs
        keys, values = (_padded([prefix[part] for prefix in prefixes]) for part in (0, 1))
        self._prefix, self._reach = Prefix(keys, values, first_block), keys.shape[-2]
        self._positions = rows.repeat(1, runs)  # [example, run * row]
        # Blocks share most of their arguments: each is cut once. Keyed by identity, which the calls keep alive.
        self._done: dict[int, Tensor] = {}

    def __call__(self, block: int, hidden: Tensor) -> Tensor:
        """Output of one block.

        Args:
            block: which.
            hidden: its input, [example, run * row, hidden], of as many runs as there are now.
        """
        arguments = {name: self._cut(name, value, hidden) for name, value in self._calls.arguments[block].items()}
        output = self._blocks[block](hidden, **arguments)
        return output if isinstance(output, Tensor) else output[0]

    def _cut(self, name: str, value: Any, hidden: Tensor) -> Any:
        """An argument of the recorded call as it must be for these rows."""
        width = hidden.shape[1]
        if value is self._calls.recorder:
            return self._prefix
        if name == "attention_mask":
            return self._once(value, self._mask)[:, :, :width, : self._reach + width]
        if isinstance(value, tuple | list):
            return type(value)(self._cut("", item, hidden) for item in value)
        if isinstance(value, Tensor) and value.ndim in (2, 3) and value.shape[1] == self._calls.length:
            return self._once(value, lambda whole: whole[0, self._positions])[:, :width]
        return value

    def _once(self, value: Any, cut: Callable[[Any], Tensor]) -> Tensor:
        if id(value) not in self._done:
            self._done[id(value)] = cut(value)
        return self._done[id(value)]

    def _mask(self, whole: Tensor | None) -> Tensor:
        """Who sees whom: a row sees what it saw in the whole sequence, within its own run: [example, ., row, key]."""
        rows, device = self._rows, self._rows.device  # [example, row]
        count, width, size = *rows.shape, self._calls.length
        if whole is None:  # sdpa goes without a mask where it would be plainly causal
            whole = torch.ones(1, 1, size, size, dtype=torch.bool, device=device).tril()
        blocked = False if whole.dtype == torch.bool else torch.finfo(whole.dtype).min
        seen = whole[0].transpose(0, 1)[rows].transpose(1, 2)  # [example, ., row, position]
        padding = torch.arange(self._reach, device=device) >= rows[:, :1]  # [example, position]
        mask = whole.new_full((count, seen.shape[1], self._runs, width, self._reach + self._runs * width), blocked)
        mask[..., : self._reach] = seen[..., : self._reach].masked_fill(padding[:, None, None], blocked)[:, :, None]
        among = seen.gather(3, rows[:, None, None].expand(-1, seen.shape[1], width, -1))  # [example, ., row, row]
        # A row that repeats another stands behind it and must stay unseen.
        among = among.masked_fill(torch.ones(width, width, dtype=torch.bool, device=device).triu(1), blocked)
        for run in range(self._runs):
            mask[:, :, run, :, self._reach + run * width :][..., :width] = among
        return mask.flatten(2, 3)


def _padded(parts: Sequence[Tensor]) -> Tensor:
    """[block, head, position, head size] of each example as [block, example, head, position, head size]."""
    return pad_sequence([part.permute(2, 0, 1, 3) for part in parts]).permute(2, 1, 3, 0, 4)
