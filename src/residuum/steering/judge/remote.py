"""What judges behind an address have in common."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from residuum.errors import Unavailable
from residuum.steering.judge.base import JudgeOptions
from residuum.steering.judge.calls import Caller, Refused
from residuum.steering.judge.probing import Places, settle_scoring
from residuum.steering.judge.prompts import Request
from residuum.steering.judge.scoring import Reading
from residuum.store.origin import hide_secrets

SEED = 42


class RemoteJudge(ABC):
    """Asks for one token with its top-20 log-probabilities at temperature 0, or for a few tokens of text.

    Args:
        provider: its name among the judges.
        model: its name at the provider.
        base_url: address; None is the provider's own.
        options: scoring and limits.
    """

    def __init__(self, provider: str, model: str, base_url: str | None, options: JudgeOptions) -> None:
        self.provider, self.model, self.base_url, self.options = provider, model, base_url, options
        self.scoring = options.scoring
        self.caller = Caller(self._read_one, options)

    @abstractmethod
    def ask(self, request: Request, count: int) -> tuple[str, Places]:
        """One call: the reply of ``count`` tokens, and for each the likeliest with their log-probabilities.

        Raises:
            Refused: it failed.
        """

    @property
    def identity(self) -> dict[str, Any]:
        """Provider, model, address and scoring."""
        address = hide_secrets(self.base_url) if self.base_url else None
        return {"provider": self.provider, "model": self.model, "base_url": address, "scoring": self.scoring}

    def probe(self) -> None:
        """Test calls; settles the scoring."""
        try:
            self.scoring = settle_scoring(
                self.scoring, lambda request, count: self.caller.attempt(lambda: self.ask(request, count))
            )
        except Refused as refused:
            raise Unavailable(
                f"the judge {self.model} cannot be used: {refused}\n"
                "  If it grants no log-probabilities: --judge-scoring text, or another model."
            ) from None

    def read(self, requests: Sequence[Request], done: Callable[[int, Reading], None]) -> None:
        """Rate requests, several at once."""
        self.caller.run(requests, done)

    def usage(self) -> dict[str, int]:
        """Calls, retries, failures and tokens."""
        return dict(vars(self.caller.usage))

    def close(self) -> None:
        """Close the connections, if there are any."""
        if "client" in self.__dict__:
            self.__dict__["client"].close()

    def _read_one(self, request: Request) -> Reading:
        started = time.monotonic()
        text, places = self.ask(request, 5 if self.scoring == "text" else 1)
        seconds = time.monotonic() - started
        if self.scoring == "text":
            return Reading("text", text=text, seconds=seconds)
        if not places or not places[0]:
            raise Refused("the reply has no log-probabilities", retry=True)
        return Reading(self.scoring, tokens=tuple(places[0]), seconds=seconds)


def chosen_first(likeliest: list[tuple[str, float]], chosen: str | None) -> list[tuple[str, float]]:
    """The chosen token first: at temperature 0 it is the likeliest, but ties may be listed in any order."""
    return sorted(likeliest, key=lambda pair: pair[0] != chosen)
