"""From what a judge gave to a score: the expected value of its rating, weighted by probability.

    score = sum(v p(v)) / sum(p(v))   over the ratings v = 0..100, undefined when their mass sum(p(v)) is below 0.25

A reading keeps everything that the score is made from, so that thresholds can be changed later without new calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SCORINGS = ("single", "trie", "letters", "text")
"""single: numbers are one token each, top-20 log-probabilities of the first token. trie: exact probabilities of whole
numbers (local judges). letters: A to K for 0 to 100. text: the number in the reply, without probabilities."""
LETTERS = "ABCDEFGHIJK"
MIN_MASS = 0.25
REFUSAL = "REFUSAL"
_NUMBER = re.compile(r"[0-9]{1,3}")
# The last digit of a longer number, of a fraction or after a minus is not a rating.
_NUMBER_IN_TEXT = re.compile(r"(?<![\w.+-])[0-9]{1,3}(?![\w]|[.,][0-9])")


@dataclass(frozen=True)
class Reading:
    """What a judge gave for one request."""

    scoring: str
    tokens: tuple[tuple[str, float], ...] = ()
    """Most likely first tokens with their log-probabilities (single, letters)."""
    numbers: tuple[tuple[int, float], ...] = ()
    """Numbers with their probabilities (trie)."""
    refusal: float = 0.0
    """Probability that the reply begins like REFUSAL (trie)."""
    text: str = ""
    """The reply (text)."""
    error: str | None = None
    """Why there is nothing."""
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Reading:
        """From what `to_json` made."""
        pairs = {key: tuple((a, b) for a, b in fields[key]) for key in ("tokens", "numbers")}
        return cls(**{**fields, **pairs})


@dataclass(frozen=True)
class Score:
    """A rating from 0 to 100, or why there is none."""

    score: float | None
    mass: float
    """Probability that the reply is a rating at all."""
    refusal_prob: float
    status: str
    """ok, low_mass, refusal or error."""
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain data, without the error when there is none."""
        return {key: value for key, value in asdict(self).items() if key != "error" or value is not None}


def score(reading: Reading, *, min_mass: float = MIN_MASS) -> Score:
    """The score of a reading.

    A refusal (more than 0.1 and more than any rating) and too little mass on ratings give none.
    """
    if reading.error is not None:
        return Score(None, 0.0, 0.0, "error", reading.error)
    if reading.scoring == "text":
        return _score_text(reading.text)
    worth, refusal = _probabilities(reading)
    mass = math.fsum(worth.values())
    if refusal > 0.1 and refusal > max(worth.values(), default=0.0):
        return Score(None, mass, refusal, "refusal")
    if mass < min_mass:
        return Score(None, mass, refusal, "low_mass")
    return Score(math.fsum(value * p for value, p in worth.items()) / mass, mass, refusal, "ok")


def number_probabilities(tokens: Sequence[tuple[str, float]], *, letters: bool = False) -> dict[int, float]:
    """Probability of each rating among first tokens: all spellings of one rating ("85", " 85") add up."""
    found: dict[int, float] = {}
    for token, log_probability in tokens:
        value = _rating(token.strip(), letters)
        if value is not None:
            found[value] = found.get(value, 0.0) + math.exp(log_probability)
    return found


def begins_refusal(token: str) -> bool:
    """Whether a token is the beginning of REFUSAL, which is seldom one token; a single letter is not enough."""
    text = token.strip().upper()
    return len(text) >= 2 and REFUSAL.startswith(text)


def _rating(text: str, letters: bool) -> int | None:
    if letters:
        return 10 * LETTERS.index(text.upper()) if len(text) == 1 and text.upper() in LETTERS else None
    # Not int(): it would also take +5, 1_0 and the digits of other scripts.
    return int(text) if _NUMBER.fullmatch(text) and int(text) <= 100 else None


def _probabilities(reading: Reading) -> tuple[dict[int, float], float]:
    if reading.scoring == "trie":
        return dict(reading.numbers), reading.refusal
    refusal = math.fsum(math.exp(p) for token, p in reading.tokens if begins_refusal(token))
    return number_probabilities(reading.tokens, letters=reading.scoring == "letters"), refusal


def _score_text(text: str) -> Score:
    if REFUSAL in text.upper():
        return Score(None, 0.0, 1.0, "refusal")
    match = _NUMBER_IN_TEXT.search(text)
    if match is None or int(match[0]) > 100:
        return Score(None, 0.0, 0.0, "low_mass")
    return Score(float(match[0]), 1.0, 0.0, "ok")
