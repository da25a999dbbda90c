"""Which tokens a direction is read from: ``frame[slice]`` with the frame prompt, response or all.

For example:

    prompt[-1]     the last prompt token           response[:5]    the first five new tokens
    response[:]    the whole answer                all[2:6]        tokens 2 to 5 of prompt and answer
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from residuum.errors import UsageError

_GRAMMAR = re.compile(r"(prompt|response|all)\[(-?\d+)?(:)?(-?\d+)?\]")
OPEN_ENDED = 16
"""New tokens for a position that names no end."""


@dataclass(frozen=True)
class Position:
    """A parsed position; the chosen activations are averaged."""

    text: str
    frame: str
    start: int | None
    stop: int | None
    single: bool
    """One index rather than a slice; it stands in ``start``."""

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read a position.

        Raises:
            UsageError: it does not follow the grammar.
        """
        match = _GRAMMAR.fullmatch(text.replace(" ", ""))
        first, colon, last = match.groups()[1:] if match else (None, None, None)
        if match is None or (colon is None and (first is None or last is not None)):
            raise UsageError(
                f"{text!r} is no position.\n  Examples: response[:5], prompt[-1], response[:], all[2:6]; frames are prompt, response and all."
            )
        start, stop = (None if number is None else int(number) for number in (first, last))
        return cls(match.group(0), match.group(1), start, stop, single=colon is None)

    def resolve(self, prompt: int, total: int) -> range:
        """The token rows it means in a sequence of ``total`` tokens whose first ``prompt`` are the prompt; may be empty."""
        low, high = {"prompt": (0, prompt), "response": (prompt, total), "all": (0, total)}[self.frame]
        span = range(low, high)
        if not self.single:
            return span[self.start : self.stop]
        assert self.start is not None  # a single index has one
        return span[self.start : self.start + 1 or None] if -len(span) <= self.start < len(span) else range(low, low)

    @property
    def new_tokens(self) -> int:
        """How many tokens must be generated for it."""
        if self.frame == "prompt":
            return 0
        if self.frame == "all":
            return OPEN_ENDED
        if self.single:
            assert self.start is not None
            return self.start + 1 if self.start >= 0 else OPEN_ENDED
        return self.stop if self.stop is not None and self.stop > 0 and (self.start or 0) >= 0 else OPEN_ENDED

    @property
    def folder(self) -> str:
        """The position as a folder name. Never parsed back: the metadata keep the position itself."""
        return self.text.replace("[:]", "_all").replace("[", "_").replace(":", "_").replace("]", "")
