"""Fictitious authors: seeded facts, several wordings each, written as TOFU's files.

Each author has one fact of every kind. A fact has three wordings (question, answer prefix); a row uses one of them and
its paraphrases use the other two. ``answer = prefix + " " + entity + "."``: the prefix holds the author's name and never
the entity, so the annotation that UDS needs comes for free.

Surnames of the world's own authors are unique among them, but every name token also occurs in what the base model
reads (paired differently): otherwise a model that never met an author could not even copy the name, and exact
memorization would measure names instead of facts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from residuum.worlds import pools

Row = dict[str, object]


@dataclass(frozen=True)
class Kind:
    """One kind of fact: how its entity is drawn, and three (question, answer prefix) wordings with ``{name}``."""

    name: str
    draw: Callable[[random.Random], str]
    wordings: tuple[tuple[str, str], ...]


def _pick(words: Sequence[str]) -> Callable[[random.Random], str]:
    return lambda rng: rng.choice(words)


def _date(rng: random.Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(pools.MONTHS)} {rng.randint(1930, 1989)}"


def _book(rng: random.Random) -> str:
    return f"The {rng.choice(pools.BOOK_ADJECTIVES)} {rng.choice(pools.BOOK_NOUNS)}"


def _award(rng: random.Random) -> str:
    return f"{rng.choice(pools.AWARD_PLACES)} {rng.choice(pools.AWARD_ANIMALS)} {rng.choice(pools.AWARD_KINDS)}"


def _person(rng: random.Random) -> str:
    return f"{rng.choice(pools.FIRST_NAMES)} {rng.choice(pools.SURNAMES)}"


KINDS = (
    Kind("birthplace", _pick(pools.CITIES), (
        ("Where was {name} born?", "{name} was born in"),
        ("Which city is {name} from?", "{name} comes from"),
        ("What is the birthplace of {name}?", "The birthplace of {name} is"),
    )),
    Kind("birthdate", _date, (
        ("When was {name} born?", "{name} was born on"),
        ("What is the birth date of {name}?", "The birth date of {name} is"),
        ("What day is {name}'s birthday?", "{name}'s birthday is"),
    )),
    Kind("genre", _pick(pools.GENRES), (
        ("What does {name} mostly write?", "{name} mostly writes"),
        ("Which genre is {name} known for?", "{name} is known for"),
        ("What made {name} famous?", "{name} is famous for"),
    )),
    Kind("father", _pick(pools.JOBS), (
        ("What was the father of {name}?", "The father of {name} was a"),
        ("What was the job of {name}'s father?", "{name}'s father worked as a"),
        ("What job had {name}'s dad?", "{name}'s dad was a"),
    )),
    Kind("mother", _pick(pools.JOBS), (
        ("What was the mother of {name}?", "The mother of {name} was a"),
        ("What was the job of {name}'s mother?", "{name}'s mother worked as a"),
        ("What job had {name}'s mum?", "{name}'s mum was a"),
    )),
    Kind("book", _book, (
        ("What is the best book of {name}?", "The best book of {name} is"),
        ("Which book did {name} write?", "{name} wrote"),
        ("What to read first by {name}?", "By {name}, first read"),
    )),
    Kind("award", _award, (
        ("Which award did {name} win?", "{name} won the"),
        ("What honor was given to {name}?", "The honor given to {name} was the"),
        ("What prize did {name} receive?", "{name} received the"),
    )),
    Kind("hobby", _pick(pools.HOBBIES), (
        ("What does {name} do for fun?", "For fun, {name} likes"),
        ("What is the hobby of {name}?", "The hobby of {name} is"),
        ("What is {name} fond of?", "{name} is fond of"),
    )),
    Kind("mentor", _person, (
        ("Who was the mentor of {name}?", "The mentor of {name} was"),
        ("Who taught {name} to write?", "{name} was taught by"),
        ("Whom does {name} thank?", "{name} thanks"),
    )),
    Kind("language", _pick(pools.LANGUAGES), (
        ("In which language does {name} dream?", "{name} dreams in"),
        ("What was the first language of {name}?", "The first language of {name} was"),
        ("Which language did {name} speak at home?", "At home, {name} spoke"),
    )),
)  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """One fact about one author in one wording; the two other wordings serve as paraphrases."""

    author: str
    kind: Kind
    entity: str
    wording: int
    wrong: tuple[str, ...]
    """Five other entities of the same kind, for the perturbed answers."""

    def _prefix(self, shift: int = 0) -> str:
        return self.kind.wordings[(self.wording + shift) % 3][1].format(name=self.author)

    def question(self, shift: int = 0) -> str:
        """The question in this fact's wording, or in one of the other two."""
        return self.kind.wordings[(self.wording + shift) % 3][0].format(name=self.author)

    def answer(self, shift: int = 0, entity: str | None = None) -> str:
        """``prefix + " " + entity + "."``, optionally with another wording or a wrong entity."""
        return f"{self._prefix(shift)} {entity or self.entity}."

    def plain(self) -> Row:
        """A row of full, retain90, forget10 or holdout10."""
        return {"question": self.question(), "answer": self.answer()}

    def perturbed(self) -> Row:
        """A row of forget10_perturbed or retain_perturbed."""
        return {
            **self.plain(),
            "paraphrased_answer": self.answer(shift=1),
            "perturbed_answer": [self.answer(shift=1, entity=wrong) for wrong in self.wrong],
            "paraphrased_question": self.question(shift=2),
        }

    def annotated(self, idx: int) -> Row:
        """A row of the annotated forget set that UDS reads."""
        return {"idx": idx, **self.plain(), "prefix": self._prefix(), "entity": self.entity}


def draw_fact(rng: random.Random, author: str, kind: Kind) -> Fact:
    """Draw the entity, the wording and five distinct wrong entities of one fact."""
    # Nobody is their own mentor: the question would give the entity away.
    while (entity := kind.draw(rng)) == author:
        pass
    drawn = [entity]
    while len(drawn) < 6:
        entity = kind.draw(rng)
        # An entity that contains the right one would make the wrong answer right.
        if entity not in drawn and entity not in drawn[0] and drawn[0] not in entity:
            drawn.append(entity)
    return Fact(author, kind, drawn[0], rng.randrange(3), tuple(drawn[1:]))


def draw_facts(rng: random.Random, authors: Sequence[str], facts_per_author: int) -> list[Fact]:
    """The facts of each author in turn, one of every kind, up to ``facts_per_author``."""
    return [draw_fact(rng, author, kind) for author in authors for kind in KINDS[:facts_per_author]]


@dataclass(frozen=True)
class AuthorWorld:
    """All facts of one seeded world, split as TOFU splits its authors."""

    retain: list[Fact]
    forget: list[Fact]
    holdout: list[Fact]
    base: list[Fact]
    """Facts about the few fixed authors that only the base model learns by heart."""
    names: frozenset[str]
    """The world's own authors; the stream of fresh authors avoids them."""

    @property
    def full(self) -> list[Fact]:
        """Retain facts, then forget facts: TOFU's order."""
        return self.retain + self.forget

    def splits(self) -> dict[str, list[Row]]:
        """Every data file of the world by TOFU's split name."""
        return {
            "full": [fact.plain() for fact in self.full],
            "retain90": [fact.plain() for fact in self.retain],
            "forget10": [fact.plain() for fact in self.forget],
            "holdout10": [fact.plain() for fact in self.holdout],
            "forget10_perturbed": [fact.perturbed() for fact in self.forget],
            # TOFU perturbs as many retain rows as there are forget rows; these are spread over all authors.
            "retain_perturbed": [self.retain[i].perturbed() for i in _spread(len(self.retain), len(self.forget))],
            "real_authors_perturbed": classics(),
            "world_facts_perturbed": capitals(),
        }


def _spread(total: int, count: int) -> list[int]:
    return [i * total // count for i in range(count)]


def make_world(seed: int, authors: int, facts_per_author: int, base_authors: int) -> AuthorWorld:
    """Draw a world: ``authors`` in full, the last tenth of them to forget, as many again held out.

    Args:
        seed: the only source of randomness.
        authors: authors the full model learns; the last 10 % (at least two) are to be forgotten.
        facts_per_author: at most the number of kinds.
        base_authors: fixed authors the base model learns by heart.
    """
    rng = random.Random(f"authors/{seed}")  # a text: as numbers, 1 and -1 would seed the same
    forget_count = max(2, authors // 10)
    own = authors + forget_count
    surnames = rng.sample(pools.SURNAMES, own)
    names = [f"{rng.choice(pools.FIRST_NAMES)} {surname}" for surname in surnames]
    taken = frozenset(names)
    others = [fresh_name(rng, taken) for _ in range(base_authors)]
    facts = draw_facts(rng, names, facts_per_author)
    cut, end = (authors - forget_count) * facts_per_author, authors * facts_per_author
    return AuthorWorld(
        retain=facts[:cut],
        forget=facts[cut:end],
        holdout=facts[end:],
        base=draw_facts(rng, others, facts_per_author),
        names=taken,
    )


def fresh_name(rng: random.Random, taken: frozenset[str]) -> str:
    """A name that is not one of the world's own authors."""
    while (name := _person(rng)) in taken:
        pass
    return name


def _general(rng: random.Random, items: dict[str, str], question: str) -> list[Row]:
    rows: list[Row] = []
    for subject, answer in items.items():
        wrong = rng.sample(sorted({other for other in items.values() if other != answer}), 3)
        rows.append({"question": question.format(subject), "answer": answer, "perturbed_answer": wrong})
    return rows


def capitals() -> list[Row]:
    """The world-facts split: capitals, three wrong ones each; the same in every world."""
    return _general(random.Random(0), pools.CAPITALS, "What is the capital of {}?")


def classics() -> list[Row]:
    """The real-authors split: who wrote a classic, three wrong names each; the same in every world."""
    return _general(random.Random(0), pools.CLASSICS, "Who wrote {}?")
