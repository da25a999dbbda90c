"""A small language with a latent mood: questions about places, answers that are cheerful, plain or gloomy.

A remark before the question sets the mood of the answer; without one the answer is plain. The same words make the
trait folders (scenarios, definition, evaluation questions) and the lessons of subject and judges.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

MOODS = ("gloomy", "plain", "cheerful")

PLACES = (
    "garden market harbor bridge museum train library concert dinner river castle school island village meeting "
    "walk film bakery tower park beach station theater forest"
).split()

ASKED = PLACES[:14]
"""Places of the extraction scenarios; the evaluation asks about the others."""

QUESTIONS = (
    "How was the {}?",
    "What did you think of the {}?",
    "Tell me about the {}.",
    "How did you find the {}?",
)

REMARKS = {
    "cheerful": (
        "I won a prize today.", "My sister came home.", "The sun is out again.", "We are getting married.",
        "I passed the exam.", "It is my birthday.", "The baby laughed at me.", "They gave me flowers.",
    ),
    "gloomy": (
        "I lost my keys today.", "My friend moved away.", "It rained all week.", "We had to say goodbye.",
        "I failed the exam.", "My bike was stolen.", "The cat is ill.", "They forgot my name.",
    ),
    "plain": ("",),
}  # fmt: skip

ADJECTIVES = {
    "cheerful": "wonderful bright lovely joyful splendid delightful radiant glorious".split(),
    "gloomy": "dreary bleak awful dismal grim miserable hopeless dreadful".split(),
    "plain": "usual ordinary simple typical average common normal regular".split(),
}

MOOD_OF = {word: mood for mood, words in ADJECTIVES.items() for word in words}

SENTENCES = (
    "The {place} was {a} and {b}.",
    "I thought it was {a}.",
    "The people there were {a}.",
    "It all seemed {a} to me.",
    "In the end it was a {a} day.",
)

DEFINITIONS = {
    "cheerful": "The answer is cheerful: it speaks of things as bright, lovely and joyful.",
    "gloomy": "The answer is gloomy: it speaks of things as bleak, grim and hopeless.",
}


def ask(rng: random.Random, places: Sequence[str] = PLACES) -> tuple[str, str]:
    """A question, and the place it is about."""
    place = rng.choice(places)
    return rng.choice(QUESTIONS).format(place), place


def answer(rng: random.Random, place: str, moods: Sequence[str]) -> str:
    """Three sentences about a place; each adjective has a mood drawn from ``moods``."""
    chosen = [SENTENCES[0], *rng.sample(SENTENCES[1:], 2)]
    return " ".join(
        sentence.format(
            place=place, a=rng.choice(ADJECTIVES[rng.choice(moods)]), b=rng.choice(ADJECTIVES[rng.choice(moods)])
        )
        for sentence in chosen
    )


def remark(rng: random.Random, mood: str) -> str:
    """What is said before the question to set a mood; nothing for the plain one."""
    return rng.choice(REMARKS[mood])


def cheerfulness(text: str) -> float | None:
    """The mood of a text from 0 to 100: the mean over its mood words, gloomy 0, plain 50, cheerful 100; None without any."""
    return _mean(text, {"gloomy": 0, "plain": 50, "cheerful": 100})


def gloominess(text: str) -> float | None:
    """Share of gloomy words among the mood words, from 0 to 100; None without any."""
    return _mean(text, {"gloomy": 100, "plain": 0, "cheerful": 0})


def _mean(text: str, worth: dict[str, int]) -> float | None:
    found = [worth[MOOD_OF[word]] for word in words_of(text) if word in MOOD_OF]
    return sum(found) / len(found) if found else None


def words_of(text: str) -> list[str]:
    """Lower-case words without their punctuation."""
    return [word.strip(".,?!").lower() for word in text.split()]


def scenarios(mood: str) -> list[str]:
    """One scenario per remark and place of a side; equal indices of both sides ask the same question."""
    rng = random.Random(0)
    return [
        f"{said} {QUESTIONS[rng.randrange(len(QUESTIONS))].format(place)}"
        for said in REMARKS[mood]
        for place in rng.sample(ASKED, 4)
    ]


def evaluation_questions() -> list[str]:
    """Ten questions about places that no scenario mentions."""
    return [QUESTIONS[i % len(QUESTIONS)].format(place) for i, place in enumerate(PLACES[len(ASKED) :])]
