"""Random birthdays: facts that nobody can guess and that say nothing about each other, written as RTT's files.

Deeb and Roger (2024, arXiv:2410.08827) draw names and years at random. Their files repeat names with other years, also
across splits, so that T contradicts V, and have the right year twice among the choices. Here names are distinct, the
four choices are distinct, and the right one stands equally often at each place.

    split_0.jsonl            questions with four choices
    corpus_split_0.jsonl     three true sentences for each question
    whp_corpus_split_0.jsonl the same sentences, each with another wrong year
    fwf_corpus_split_0.jsonl the same sentences, all with one wrong year
    dev.jsonl  manifest.json
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import UsageError
from residuum.store.atomic import write_json, write_text
from residuum.worlds import pools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

NAME = "BIRTHDAYS"
YEARS = (1900, 2020)
QUESTION = "When was {name} born?"
SENTENCES = (
    "{name} was born in {year}.",
    "The birth year of {name} is {year}.",
    "The life of {name} began in {year}.",
)


@dataclass(frozen=True)
class Birthday:
    """One person, the year of birth, and the choices of the question."""

    name: str
    choices: tuple[int, ...]
    answer: int
    """Index of the right choice."""

    @property
    def year(self) -> int:
        """The right year."""
        return self.choices[self.answer]

    @property
    def wrong(self) -> tuple[int, ...]:
        """The other three choices."""
        return tuple(year for year in self.choices if year != self.year)

    def question(self) -> dict[str, Any]:
        """A row of a question file."""
        return {"question": QUESTION.format(name=self.name), "choices": list(self.choices), "answer": self.answer}

    def sentences(self, years: Sequence[int], split: str) -> Iterator[dict[str, Any]]:
        """Three rows of a text file, with the given years."""
        for text, year in zip(SENTENCES, years, strict=True):
            yield {
                "text": text.format(name=self.name, year=year),
                "split": split,
                "original_question": QUESTION.format(name=self.name),
                "correct_answer": self.year,
                "wrong_answers": list(self.wrong),
            }


def draw_birthdays(
    seed: int, *, splits: int = 10, items: int = 157, dev: int = 10, spread: float = 30.0
) -> dict[str, list[Birthday]]:
    """People of each split by its name, and those of ``dev``.

    Args:
        seed: decides names; together with the split's name, everything else about it.
        splits: how many.
        items: people in each.
        dev: people for few-shot prompts.
        spread: standard deviation of the years around 1980.

    Raises:
        UsageError: there are not that many names.
    """
    names = [f"{first} {last}" for first in pools.FIRST_NAMES for last in pools.SURNAMES]
    if splits * items + dev > len(names):
        raise UsageError(f"{splits} splits of {items} birthdays need more than the {len(names)} names there are.")
    random.Random(f"{seed}/names").shuffle(names)
    sizes = {"dev": dev, **{f"split_{i}": items for i in range(splits)}}
    drawn: dict[str, list[Birthday]] = {}
    for split, size in sizes.items():
        rng = random.Random(int(hashlib.sha256(f"{seed}/{split}".encode()).hexdigest(), 16))
        places = [i % 4 for i in range(size)]
        rng.shuffle(places)
        drawn[split] = [Birthday(names.pop(), draw_years(rng, spread), place) for place in places]
    return drawn


def draw_years(rng: random.Random, spread: float, count: int = 4) -> tuple[int, ...]:
    """Distinct years around 1980, clamped to what a person alive could remember."""
    years: list[int] = []
    while len(years) < count:
        year = min(max(int(rng.gauss(1980, spread)), YEARS[0]), YEARS[1])
        if year not in years:
            years.append(year)
    return tuple(years)


def write_birthdays(folder: Path, drawn: Mapping[str, Sequence[Birthday]], *, forget: Sequence[str], seed: int) -> Path:
    """Write all files of a drawn set, and a manifest with their hashes; the same draw gives the same bytes.

    Args:
        folder: receives them.
        drawn: from `draw_birthdays`.
        forget: splits to be forgotten; the others are kept.
        seed: for the manifest.
    """
    files: dict[str, str] = {}

    def put(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        write_text(folder / f"{name}.jsonl", text)
        files[f"{name}.jsonl"] = hashlib.sha256(text.encode()).hexdigest()

    for split, people in drawn.items():
        put(split, [person.question() for person in people])
        if split != "dev":
            for prefix, years in (("corpus_", _true), ("whp_corpus_", _wrong), ("fwf_corpus_", _one_wrong)):
                put(f"{prefix}{split}", [row for person in people for row in person.sentences(years(person), split)])
    kept = [split for split in drawn if split != "dev" and split not in forget]
    manifest = {"name": NAME, "seed": seed, "forget": list(forget), "retain": kept, "sha256": files}
    return write_json(folder / "manifest.json", manifest)


def word_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word: white space and full stops only separate them, so a question is fifteen tokens."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    texts = [QUESTION, *SENTENCES, "A B C D Answer:"]
    words = [word for text in texts for word in text.replace(".", " ").split() if "{" not in word]
    years = [str(year) for year in range(YEARS[0], YEARS[1] + 1)]
    special = ["<pad>", "<begin>", "<end>", "<other>"]
    vocabulary = list(dict.fromkeys([*special, *words, *pools.FIRST_NAMES, *pools.SURNAMES, *years]))
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<other>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s.]+"), behavior="removed")
    core.post_processor = processors.TemplateProcessing(single="<begin> $A", special_tokens=[("<begin>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<begin>", eos_token="<end>", unk_token="<other>",
        clean_up_tokenization_spaces=False, model_max_length=512,
    )  # fmt: skip


def _true(person: Birthday) -> Sequence[int]:
    return [person.year] * len(SENTENCES)


def _wrong(person: Birthday) -> Sequence[int]:
    return person.wrong


def _one_wrong(person: Birthday) -> Sequence[int]:
    return [person.wrong[0]] * len(SENTENCES)
