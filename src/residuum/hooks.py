"""Read and change activations of an unmodified model, for the length of a ``with`` block.

Every hook is removed when its block ends, however it ends, and one that never fired is an error rather than a silent
no-op. Blocks nest; hooks on one module run in the order in which they were entered, so an inner one sees what an outer
one has changed.

A module's activation is the tensor it returns, or the first element of the tuple or list it returns; its input is the
first positional argument, or the keyword ``hidden_states``.

    with capture(source.anatomy.blocks, rows=span) as states:
        source.model(**inputs)
    with replace_rows(target.anatomy.blocks[3], mask, states[3].flatten(0, 1)):
        logits = target.model(**inputs).logits
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from residuum.errors import HookError

Where = Literal["output", "input"]


class Captured:
    """Activations, indexed by position in the list of modules; of a module that ran twice, the latest."""

    def __init__(self, size: int) -> None:
        self._states: list[Tensor | None] = [None] * size

    def __getitem__(self, index: int) -> Tensor:
        state = self._states[index]
        if state is None:
            raise HookError(f"module {index} has not run yet: there is nothing captured to read.")
        return state

    def __iter__(self) -> Iterator[Tensor]:
        return (self[index] for index in range(len(self)))

    def __len__(self) -> int:
        return len(self._states)


@dataclass
class Edited:
    """Tells whether a change took place."""

    fired: int = 0
    """How often the module ran and was changed."""


@contextmanager
def capture(modules: Sequence[nn.Module], *, where: Where = "output", rows: Tensor | None = None) -> Iterator[Captured]:
    """Keep the activations of some modules.

    They stay in the autograd graph when gradients are on.

    Args:
        modules: what to listen to, for instance ``anatomy.blocks``.
        where: the module's output or its input.
        rows: token rows to keep, to save memory: [batch, n] keeps [batch, n, hidden], [batch] keeps [batch, hidden].

    Yields:
        The activations, [batch, T, hidden] each unless ``rows`` are given. They stay readable after the block.
    """
    captured = Captured(len(modules))
    span = (int(rows.min()), int(rows.max())) if rows is not None and rows.numel() else (0, 0)

    def keep(index: int, state: Tensor) -> None:
        if rows is None:
            # A copy, because some blocks go on in place (Falcon adds the attention into the mlp's output).
            captured._states[index] = state.clone()
            return
        if rows.shape[0] != state.shape[0] or span[0] < 0 or span[1] >= state.shape[1]:
            raise HookError(
                f"rows of shape {list(rows.shape)} between {span[0]} and {span[1]} do not fit "
                f"an activation of shape {list(state.shape)}."
            )
        batch = torch.arange(state.shape[0], device=state.device)
        captured._states[index] = state[batch[:, None] if rows.ndim == 2 else batch, rows.to(state.device)]

    with _hooked(modules, keep, where):
        yield captured


@contextmanager
def replace_rows(
    module: nn.Module, rows: Tensor | tuple[Tensor, Tensor], values: Tensor, *, where: Where = "output"
) -> Iterator[Edited]:
    """Put other states in the place of some token rows; later layers see them.

    Args:
        module: whose activation is changed.
        rows: a boolean mask [batch, T] (its rows taken in reading order), or a pair of index tensors (batch row, token
            row), [n] each.
        values: the new states, [n, hidden]; cast to the activation's dtype and device.
        where: the module's output or its input.
    """
    edited = Edited()
    mask = rows if isinstance(rows, Tensor) else None
    if mask is not None and mask.ndim != 2:
        raise HookError(f"a mask of rows has the shape [batch, T], not {list(mask.shape)}.")
    batch, token = rows.nonzero(as_tuple=True) if isinstance(rows, Tensor) else rows
    if values.ndim != 2 or not len(values) == len(batch) == len(token):
        raise HookError(f"{len(batch)} rows are to be replaced, but the values have shape {list(values.shape)}.")
    if any((index < 0).any() for index in (batch, token)):
        raise HookError("rows are counted from the start; one of them is negative.")
    extent = [int(index.max()) + 1 if len(index) else 0 for index in (batch, token)]

    def put(_: int, state: Tensor) -> Tensor:
        size = list(state.shape[:2])
        fits = size == list(mask.shape) if mask is not None else extent[0] <= size[0] and extent[1] <= size[1]
        if not fits or values.shape[1] != state.shape[2]:
            raise HookError(
                f"rows within {extent if mask is None else list(mask.shape)} and values of shape {list(values.shape)} "
                f"do not fit an activation of shape {list(state.shape)}."
            )
        edited.fired += 1
        return state.index_put((batch.to(state.device), token.to(state.device)), values.to(state))

    with _hooked([module], put, where):
        yield edited


@contextmanager
def add_rows(module: nn.Module, deltas: Tensor, *, positions: Tensor | None = None) -> Iterator[Edited]:
    """Add a vector of its own to every row of the batch, at a module's output.

    When a batch is split, pass the slice of ``deltas`` that belongs to the part: a batch of another size is an error,
    never broadcast.

    Args:
        module: whose output is changed.
        deltas: [batch, hidden] for all tokens of a row, or [batch, T, hidden]; cast to the output's dtype and device.
        positions: boolean mask [batch, T] of the tokens that are changed; all without it.
    """
    edited = Edited()

    def add(_: int, state: Tensor) -> Tensor:
        expected = state.shape if deltas.ndim == 3 else (state.shape[0], state.shape[2])
        if deltas.shape != expected or (positions is not None and positions.shape != state.shape[:2]):
            at = "" if positions is None else f" at positions of shape {list(positions.shape)}"
            raise HookError(
                f"deltas of shape {list(deltas.shape)}{at} do not fit an activation of shape {list(state.shape)}."
            )
        added = deltas.to(state) if deltas.ndim == 3 else deltas.to(state)[:, None]
        edited.fired += 1
        if positions is None:
            return state + added
        return torch.where(positions.to(state.device)[..., None], state + added, state)

    with _hooked([module], add, "output"):
        yield edited


@contextmanager
def change(module: nn.Module, function: Callable[[Tensor], Tensor]) -> Iterator[Edited]:
    """Put what a function makes of a module's output into its place.

    Args:
        module: whose output is changed.
        function: takes the output [batch, T, hidden] and returns the new one, of the same shape; it must not work in
            place.
    """
    edited = Edited()

    def put(_: int, state: Tensor) -> Tensor:
        edited.fired += 1
        return function(state)

    with _hooked([module], put, "output"):
        yield edited


@contextmanager
def _hooked(
    modules: Sequence[nn.Module], visit: Callable[[int, Tensor], Tensor | None], where: Where
) -> Iterator[None]:
    """Call ``visit(index, activation)`` whenever a module runs; what it returns, if anything, takes its place."""
    fired = [False] * len(modules)
    handles: list[RemovableHandle] = []

    def visitor(index: int) -> Callable[[Tensor], Tensor | None]:
        def visited(state: Tensor) -> Tensor | None:
            fired[index] = True
            return visit(index, state)

        return visited

    try:
        for index, module in enumerate(modules):
            handles.append(_attach(module, visitor(index), where))
        yield
    finally:
        for handle in handles:
            handle.remove()
    # An exception inside the block has left before this line: it matters more than a hook that did not fire.
    silent = [f"{index} ({type(modules[index]).__name__})" for index, ran in enumerate(fired) if not ran]
    if silent:
        raise HookError(
            f"the hook on module {', '.join(silent)} never fired.\n"
            "  The model was not run inside the block, or it does not call this module."
        )


def _attach(module: nn.Module, visit: Callable[[Tensor], Tensor | None], where: Where) -> RemovableHandle:
    def after(module: nn.Module, _: Any, output: Any) -> Any:
        changed = visit(_state(output[0] if isinstance(output, tuple | list) and output else output, module))
        if changed is None or isinstance(output, Tensor):
            return changed
        return type(output)([changed, *output[1:]])

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        changed = visit(_state(args[0] if args else kwargs.get("hidden_states"), module))
        if changed is None:
            return None
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": changed})

    if where == "output":
        return module.register_forward_hook(after)
    return module.register_forward_pre_hook(before, with_kwargs=True)


def _state(value: Any, module: nn.Module) -> Tensor:
    """The activation, or an error that says what was found instead of one."""
    if not isinstance(value, Tensor) or value.ndim != 3:
        found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise HookError(
            f"{type(module).__name__} was expected to pass on states [batch, T, hidden], but it has {found}."
        )
    return value
