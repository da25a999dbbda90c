"""Which layers: ``16``, ``5-20``, ``0-20:5``, ``30%-60%``, ``5,10,15``, ``all``, and mixtures of them."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from residuum.errors import UsageError

_PART = re.compile(r"(\d+%?)(?:-(\d+%?)(?::(\d+))?)?")


@dataclass(frozen=True)
class Selection:
    """The layers that will be steered, and what was left out on the way."""

    layers: list[int]
    notes: list[str]


def select_layers(text: str, count: int, available: Collection[int]) -> Selection:
    """The layers that an option means, among those that have a vector.

    A layer named by its number must exist; ranges, percentages and ``all`` take what there is and say what there
    is not.

    Args:
        text: the option.
        count: decoder blocks of the model.
        available: layers with a vector.

    Raises:
        UsageError: names the part that cannot be read, the layer outside the model or without a vector, or says that
            nothing is left.
    """
    wanted: dict[int, bool] = {}  # layer -> whether it was named by number
    notes: list[str] = []
    for part in (piece.strip() for piece in text.split(",")):
        explicit, layers = _read(part, text, count)
        if explicit and layers[0] in wanted:
            notes.append(f"layer {layers[0]} is given twice and counts once")
        for layer in layers:
            wanted[layer] = wanted.get(layer, False) or explicit
    outside = [layer for layer in wanted if layer >= count]
    if named := [layer for layer in outside if wanted[layer]]:
        raise UsageError(f"--layers {text}: layer {named[0]} does not exist; the model has layers 0 to {count - 1}.")
    if outside:
        notes.append(f"layers {_list(outside)} do not exist in a model of {count} and are left out")
    missing = [layer for layer in wanted if layer < count and layer not in available]
    there = f"there are vectors for layers {_list(available)}" if available else "there is no vector at all"
    if named := [layer for layer in missing if wanted[layer]]:
        raise UsageError(f"--layers {text}: layer {named[0]} has no vector; {there}.")
    if missing:
        notes.append(f"layers {_list(missing)} have no vector and are left out")
    found = sorted(layer for layer in wanted if layer < count and layer in available)
    if not found:
        raise UsageError(f"--layers {text}: no layer is left; {there}.")
    return Selection(found, notes)


def _read(part: str, text: str, count: int) -> tuple[bool, list[int]]:
    if part == "all":
        return False, list(range(count))
    match = _PART.fullmatch(part)
    if match is None:
        what = f"{part!r} is no layer" if part else "there is an empty part"
        raise UsageError(f"--layers {text}: {what}.\n  Examples: 16, 5-20, 0-20:5, 30%-60%, 5,10,15, all.")
    first, last, step = match.groups()
    low = _layer(first, text, count)
    if last is None:
        return True, [low]
    high = _layer(last, text, count)
    if high < low:
        raise UsageError(f"--layers {text}: the range {part} runs backwards.")
    if step == "0":
        raise UsageError(f"--layers {text}: the step of {part} is 0.")
    return False, list(range(low, high + 1, int(step or 1)))


def _layer(number: str, text: str, count: int) -> int:
    if not number.endswith("%"):
        return int(number)
    share = int(number[:-1])
    if share > 100:
        raise UsageError(f"--layers {text}: {number} is more than the whole model.")
    return min(count - 1, share * count // 100)


def _list(layers: Collection[int]) -> str:
    """Numbers with runs folded: 0-3, 7."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
