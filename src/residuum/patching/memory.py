"""How much memory an engine takes beside the models: estimated before it is taken, and kept within a bound."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from residuum.errors import UsageError

if TYPE_CHECKING:
    from residuum.models.loading import LM

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Footprint:
    """Bytes that a forward pass takes, generously: what an operation holds for a moment counts too."""

    state: int
    """One row of the residual stream."""
    block: int
    """One row on its way through a block."""
    keys: int
    """Keys and values of one row in one block."""
    pair: int
    """A query and a key: their entry in the mask, and in the score matrices where attention builds them."""
    logits: int
    """One row of logits, with room for a copy in float32 and the log-softmax."""

    @classmethod
    def of(cls, lm: LM) -> Footprint:
        """The footprint of a model, from the sizes in its config."""
        config = lm.model.config.get_text_config()
        size, hidden = lm.dtype.itemsize, lm.anatomy.hidden_size
        heads = config.num_attention_heads
        head = getattr(config, "head_dim", None) or hidden // heads
        grouped = getattr(config, "num_key_value_heads", None) or heads
        wide = (getattr(config, "intermediate_size", None) or 4 * hidden) * (
            getattr(config, "num_experts_per_tok", 1) or 1
        )
        return cls(
            state=size * hidden,
            # Norms work in float32; gate, up, their product and one temporary; queries, rotated, and repeated keys.
            block=size * (6 * hidden + 4 * wide + 6 * heads * head) + 8 * hidden,
            keys=size * 2 * grouped * head,
            pair=8 + (heads * (size + 4) if lm.attn == "eager" else 0),
            logits=(size + 8) * config.vocab_size,
        )

    def forward(self, length: int) -> int:
        """One sequence on its way through a block."""
        return length * self.block + length * length * self.pair

    def hook_loop(self, length: int, span: int, layers: int) -> int:
        """One example in the hook loop: a forward with all its logits, and the states that are put in."""
        return self.forward(length) + length * self.logits + 2 * span * layers * self.state

    def staircase(self, length: int, span: int, layers: int, blocks: int) -> int:
        """One example in the staircase, without its logits, which are read in portions.

        Args:
            length: rows up to the last evaluated one.
            span: rows that are run again for each layer.
            layers: how many layers are patched.
            blocks: how many blocks the model has.
        """
        prefix, runs = length * blocks * self.keys, span * layers
        own_pass = prefix + self.forward(length)
        # All runs, in and out; their attention, with the prefix's keys once more and repeated for grouped heads.
        climb = runs * (self.block + 2 * self.state) + (length + runs) * (runs * self.pair + 4 * self.state) + prefix
        return prefix + 4 * runs * self.state + max(own_pass, climb)


def pieces(costs: Sequence[int], max_memory: int | None, share: float = 1.0) -> Iterator[list[int]]:
    """Cut a batch into pieces that together stay within the memory there is, in order.

    Args:
        costs: bytes that each example takes.
        max_memory: bytes there are; None for everything at once.
        share: how much of them a piece may take.

    Raises:
        UsageError: one example alone takes more.
    """
    budget = sum(costs) if max_memory is None else share * max_memory
    if (most := max(costs, default=0)) > budget:
        raise UsageError(
            f"max_memory of {readable(max_memory or 0)} is too little for the longest example of the batch.\n"
            f"  Allow at least {readable(most / share)}."
        )
    piece: list[int] = []
    for i, cost in enumerate(costs):
        if sum(costs[j] for j in piece) + cost > budget:
            yield piece
            piece = []
        piece.append(i)
    if piece:
        yield piece


class Shelf(Generic[Key, Value]):
    """Keeps things until it is full; one that does not fit is a guest and stays until the next visit.

    Whoever goes through all of a data set again and again is served best by things that stay: throwing out the oldest
    would throw out each just before it is needed.

    Args:
        limit: bytes for what stays; None for no limit.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit, self._used = limit, 0
        self._kept: dict[Key, Value] = {}
        self._guests: dict[Key, Value] = {}

    @property
    def used(self) -> int:
        """Bytes of what stays."""
        return self._used

    def find(self, keys: Iterable[Key]) -> dict[Key, Value]:
        """Those of the wanted things that are here."""
        here = self._kept | self._guests
        return {key: here[key] for key in keys if key in here}

    def put(self, key: Key, value: Value, size: int) -> None:
        """Take a thing in."""
        if self._limit is None or self._used + size <= self._limit:
            self._kept[key] = value
            self._used += size
        else:
            self._guests[key] = value

    def dismiss(self) -> None:
        """Let the guests go."""
        self._guests = {}

    def shrink(self) -> None:
        """Drop everything, and keep at most half as much from now on: memory has run out."""
        self._limit = self._used // 2
        self._kept, self._guests, self._used = {}, {}, 0


def readable(size: float) -> str:
    """A size for people, in the largest unit of which there is at least one."""
    for unit in ("bytes", "KB", "MB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GB"
