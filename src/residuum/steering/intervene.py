"""Steering while a model writes: every row of a batch has edits of its own, and keeps them however batches are cut.

An edit acts at the output of one component of one layer, with v the vector, c the coefficient, u = v / |v|:

    add     h + c v
    ablate  h - (h.u) u                                    directional ablation (Arditi et al. 2024, arXiv:2406.11717)
    cap     h + max(0, t - h.u) u,  t = c |v|, for c > 0   the projection is at least t
            h + min(0, t - h.u) u,  t = c |v|, for c < 0   the projection is at most t

Several edits of a row at one place are done in the order ablate, cap, add.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from residuum.errors import HookError, UsageError
from residuum.hooks import change
from residuum.registry import one_of
from residuum.steering.components import COMPONENTS, component_module

if TYPE_CHECKING:
    from residuum.models.anatomy import Anatomy
    from residuum.models.loading import LM

OPERATORS = ("add", "ablate", "cap")
MODES = ("all", "response", "generated", "prompt", "first:K")
"""Which tokens: all; from the last prompt token on, which emits the first new one; the new tokens only (the first new
one stays as it was); the prompt only; the K tokens from the last prompt token on."""
_FIRST = re.compile(r"first:([1-9]\d*)")


@dataclass(frozen=True, eq=False)
class Edit:
    """One change at one place."""

    layer: int
    component: str
    values: Tensor
    """float32 [hidden]"""
    coefficient: float = 1.0
    operator: str = "add"

    @property
    def idle(self) -> bool:
        """Whether it changes nothing: the baseline is computed without a hook."""
        return self.operator == "add" and self.coefficient == 0

    def check(self, anatomy: Anatomy) -> None:
        """Refuse an edit that does not fit the model.

        Raises:
            UsageError: an unknown operator or component.
            HookError: the vector or the layer does not fit.
        """
        one_of("--operator", self.operator, *OPERATORS)
        one_of("--component", self.component, *COMPONENTS)
        if not 0 <= self.layer < anatomy.num_layers:
            raise HookError(f"layer {self.layer} does not exist; the model has layers 0 to {anatomy.num_layers - 1}.")
        if self.values.shape != (anatomy.hidden_size,):
            raise HookError(
                f"the vector for layer {self.layer} has the shape {list(self.values.shape)}, "
                f"but the model's hidden size is {anatomy.hidden_size}.\n  It was extracted from another model."
            )
        if not torch.isfinite(self.values).all() or not self.values.any():
            raise HookError(f"the vector for layer {self.layer} is zero or not finite.")


def check_mode(mode: str) -> str:
    """A position mode.

    Raises:
        UsageError: it is none.
    """
    if mode not in MODES[:-1] and not _FIRST.fullmatch(mode):
        raise UsageError(f"--positions is one of {', '.join(MODES)} (K a number), not {mode!r}.")
    return mode


def steered(
    lm: LM, rows: Sequence[Sequence[Edit]], *, mode: str = "all"
) -> Callable[[list[int], int], AbstractContextManager[None]]:
    """Hooks for `continue_prompts`: row i is changed by ``rows[i]``, whichever batch it lands in.

    Args:
        lm: the model.
        rows: the edits of each prompt.
        mode: which tokens are changed, one of `MODES`.
    """
    check_mode(mode)
    for edit in {id(edit): edit for edits in rows for edit in edits}.values():
        edit.check(lm.anatomy)

    def around(group: list[int], width: int) -> AbstractContextManager[None]:
        return editing(lm, [rows[i] for i in group], window=_window(mode, width))

    return around


@contextmanager
def editing(lm: LM, rows: Sequence[Sequence[Edit]], *, window: tuple[int, int | None] = (0, None)) -> Iterator[None]:
    """Change the rows of one batch, in every pass inside the block.

    Passes are counted on: with a cache the second pass begins at the column where the first one ended, so prompt and
    new tokens are told apart by where they stand and not by how many come at once.

    Args:
        lm: the model.
        rows: the edits of each row of the batch.
        window: first column that is changed, and the first that no longer is.
    """
    places = sorted({(edit.layer, edit.component) for edits in rows for edit in edits if not edit.idle})
    with ExitStack() as stack:
        for layer, component in places:
            own = [[e for e in edits if (e.layer, e.component) == (layer, component) and not e.idle] for edits in rows]
            change_here = _Change(own, lm.anatomy.hidden_size, lm.device, window)
            stack.enter_context(change(component_module(lm.anatomy, component, layer), change_here))
        yield


class _Change:
    """The edits of all rows at one place, as one tensor operation; a row without an edit has zeros."""

    def __init__(
        self, rows: Sequence[Sequence[Edit]], size: int, device: torch.device, window: tuple[int, int | None]
    ) -> None:
        self.window, self.seen = window, 0
        self.added = _stacked(rows, size, "add", lambda edit: edit.coefficient * edit.values.float(), device)
        self.ablated = _stacked(rows, size, "ablate", _unit, device)
        self.capped = _stacked(rows, size, "cap", _unit, device)
        caps = [next((e for e in edits if e.operator == "cap"), None) for edits in rows]
        thresholds = [cap.coefficient * float(cap.values.norm()) if cap else 0.0 for cap in caps]
        self.threshold = torch.tensor(thresholds, device=device)[:, None, None]
        self.floor = torch.tensor([cap is not None and cap.coefficient > 0 for cap in caps], device=device)[
            :, None, None
        ]

    def __call__(self, state: Tensor) -> Tensor:
        start, self.seen = self.seen, self.seen + state.shape[1]
        low, high = self.window
        first, last = max(0, low - start), state.shape[1] if high is None else min(state.shape[1], high - start)
        if first >= last:
            return state
        if first == 0 and last == state.shape[1]:
            return self._edit(state)
        return torch.cat([state[:, :first], self._edit(state[:, first:last]), state[:, last:]], dim=1)

    def _edit(self, state: Tensor) -> Tensor:
        if len(state) != len(self.threshold):
            raise HookError(f"edits for {len(self.threshold)} rows do not fit a batch of {len(state)}.")
        if self.ablated is not None:
            state = _moved(state, self.ablated, lambda along: -along)
        if self.capped is not None:
            state = _moved(state, self.capped, self._towards_cap)
        if self.added is not None:
            state = state + self.added.to(state.dtype)
        return state

    def _towards_cap(self, along: Tensor) -> Tensor:
        gap = self.threshold - along
        return torch.where(self.floor, gap.clamp_min(0), gap.clamp_max(0))


def _moved(state: Tensor, unit: Tensor, step: Callable[[Tensor], Tensor]) -> Tensor:
    """The state moved along each row's unit vector [row, 1, hidden] by a function of its projection [row, T, 1]."""
    along = (state.float() * unit).sum(dim=-1, keepdim=True)
    return (state.float() + step(along) * unit).to(state.dtype)


def _stacked(
    rows: Sequence[Sequence[Edit]], size: int, operator: str, value: Callable[[Edit], Tensor], device: torch.device
) -> Tensor | None:
    """One vector per row for one operator, [row, 1, hidden] in float32; None when no row has that operator."""
    own = [[edit for edit in edits if edit.operator == operator] for edits in rows]
    if not any(own):
        return None
    if operator != "add" and any(len(edits) > 1 for edits in own):
        raise HookError(f"a row has two edits of the kind {operator} at one place.")
    out = torch.zeros(len(rows), 1, size)
    for row, edits in enumerate(own):
        for edit in edits:
            out[row, 0] += value(edit).cpu()
    return out.to(device)


def _unit(edit: Edit) -> Tensor:
    values = edit.values.float()
    return torch.nn.functional.normalize(values, dim=0)


def _window(mode: str, width: int) -> tuple[int, int | None]:
    if match := _FIRST.fullmatch(mode):
        return width - 1, width - 1 + int(match[1])
    windows = {"all": (0, None), "response": (width - 1, None), "generated": (width, None), "prompt": (0, width)}
    return windows[mode]
