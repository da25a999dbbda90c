"""Can this judge rate at all, and how does it spell numbers? Asked once, before any GPU time is spent.

Some servers answer politely and leave the log-probabilities out; some judges spell 57 as 5 and 7, and their first token
then says 5 with full confidence. Neither shows later.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from residuum.errors import Unavailable
from residuum.steering.judge.prompts import Request, number_request
from residuum.steering.judge.scoring import LETTERS, Reading, score

TOP = 20
Places = list[list[tuple[str, float]]]
"""For each token of a reply the likeliest ones with their log-probabilities, the chosen one first."""
Ask = Callable[[Request, int], tuple[str, Places]]
"""Takes a request and how many tokens to reply; returns the reply and its tokens."""

_WAYS_OUT = (
    "  Use another model, --judge-scoring letters (A to K, one token everywhere), --judge-scoring text (no "
    "probabilities), or a local judge: --judge hf."
)


def settle_scoring(wanted: str, ask: Ask) -> str:
    """Test a remote judge and decide how its replies are read.

    Args:
        wanted: auto, single, letters or text.
        ask: asks it.

    Raises:
        Unavailable: it gives no log-probabilities, spells numbers with several tokens, or does not follow.
    """
    if wanted == "trie":
        raise Unavailable("trie scoring needs a judge in this process.\n  Use --judge hf, or --judge-scoring letters.")
    if wanted == "text":
        said, _ = ask(number_request(57), 5)
        if score(Reading("text", text=said)).score != 57:
            raise Unavailable(f"asked to say 57, the judge said {said!r}.\n  Use another model.")
        return "text"
    scale = "letters" if wanted == "letters" else "number"
    for number in (57, 100) if scale == "number" else (50, 100):
        _, places = ask(number_request(number, scale=scale), 3)
        _check_tokens(places)
        expected = str(number) if scale == "number" else LETTERS[number // 10]
        first = places[0][0][0].strip().upper()
        if first != expected:
            _reject(expected, first, places)
    return "letters" if wanted == "letters" else "single"


def _check_tokens(places: Places) -> None:
    if not places or not places[0]:
        raise Unavailable(f"the judge gives no log-probabilities.\n{_WAYS_OUT}")
    tokens = places[0]
    if len(tokens) < TOP:
        raise Unavailable(f"the judge gives the {len(tokens)} likeliest tokens only, {TOP} are needed.\n{_WAYS_OUT}")
    if any(not p <= 1e-6 for _, p in tokens) or math.fsum(math.exp(p) for _, p in tokens) > 1.001:
        raise Unavailable(f"the judge's log-probabilities are none: {[p for _, p in tokens[:5]]}.\n{_WAYS_OUT}")


def _reject(expected: str, first: str, places: Places) -> None:
    said = "".join(place[0][0] for place in places if place).strip()
    if first and expected.startswith(first) and said.startswith(expected):
        raise Unavailable(
            f"the judge spells {expected} with several tokens ({', '.join(place[0][0] for place in places)}), so its "
            f"first token is no rating.\n{_WAYS_OUT}"
        )
    raise Unavailable(f"asked to say {expected}, the judge said {said!r}: it does not follow.\n  Use another model.")
