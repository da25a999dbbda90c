"""Three small judges of the mood language, and what they learn.

    numbers    spells 0 to 100 as one token each
    digits     spells them digit by digit, so that its first token says little
    unsure     would mostly rather say "unsure": few of its probabilities are on numbers

They read the prompts that real judges read. The fixed sentences of those prompts are single tokens to them, which
makes a rating short enough to learn in seconds.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from residuum.steering.judge.prompts import COHERENCE, Request, build_request, default_trait_prompt, number_request
from residuum.worlds import moods

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

JUDGES = ("numbers", "digits", "unsure")
LETTERS = "abcdefghijk"
UNSURE, REFUSAL = "unsure", "refusal"
POOL = 1200
REFUSALS = ("I cannot say.", "I would rather not answer.")
SPECIAL = ("<|pad|>", "<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|unknown|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + ' <|end|> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TRAITS: dict[str, Callable[[str], float | None]] = {"cheerful": moods.cheerfulness, "gloomy": moods.gloominess}
_MIXTURES = (
    ("cheerful",), ("gloomy",), ("plain",), ("cheerful", "plain"), ("gloomy", "plain"), ("cheerful", "gloomy"),
)  # fmt: skip


@dataclass(frozen=True)
class Lesson:
    """A sequence, and what the model should say at some of its positions."""

    ids: list[int]
    targets: list[int]
    """Token to predict at each position; -100 where nothing is asked."""


class Lessons:
    """A training objective over a pool of lessons: one epoch of ``steps`` batches.

    Args:
        draw: makes one lesson.
        steps: number of batches.
        size: lessons per batch.
        seed: of the drawing.
    """

    def __init__(self, draw: Callable[[random.Random], Lesson], *, steps: int, size: int, seed: int) -> None:
        self.draw, self.steps, self.size, self.seed = draw, steps, size, seed

    def batches(self, epoch: int) -> Sequence[list[Lesson]]:
        """The batches of an epoch."""
        rng = random.Random(f"{self.seed}/{epoch}")
        # Writing a lesson takes longer than learning from it; each is read a few times.
        pool = [self.draw(rng) for _ in range(POOL)]
        return [rng.sample(pool, self.size) for _ in range(self.steps)]

    def losses(self, model: nn.Module, batch: Sequence[Lesson]) -> dict[str, Tensor]:
        """Mean cross-entropy of all targets."""
        import torch

        width = max(len(lesson.ids) for lesson in batch)
        ids = torch.tensor([lesson.ids + [0] * (width - len(lesson.ids)) for lesson in batch])
        targets = torch.tensor([lesson.targets + [-100] * (width - len(lesson.ids)) for lesson in batch])
        logits = model(input_ids=ids, use_cache=False).logits
        return {"total": torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())}


def word_tokenizer(
    words: Sequence[str], *, phrases: Sequence[str] = (), digits: bool = False
) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are words; other words are unknown to it.

    Args:
        words: the vocabulary behind the special tokens and the phrases, in this order.
        phrases: longer texts that are one token each.
        digits: whether numbers are cut into digits.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([*SPECIAL, *phrases, *words]))}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<|unknown|>"))
    core.normalizer = normalizers.Lowercase()
    cut = [pre_tokenizers.Whitespace(), *([pre_tokenizers.Digits(individual_digits=True)] if digits else [])]
    core.pre_tokenizer = pre_tokenizers.Sequence(cut)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<|begin|>", eos_token="<|end|>", pad_token="<|pad|>",
        unk_token="<|unknown|>", additional_special_tokens=["<|system|>", "<|user|>", "<|assistant|>"],
    )  # fmt: skip
    tokenizer.add_tokens(list(phrases))
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def judge_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """The tokenizer of one judge. That of ``digits`` is the same without the numbers above 9, which come last."""
    texts = [sentence.format(place="", a="", b="") for sentence in moods.SENTENCES]
    texts += [*(question.format("") for question in moods.QUESTIONS), *REFUSALS, "Reply with exactly", "> . ?"]
    known = sorted({word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text.lower())})
    known += [
        *moods.PLACES,
        *(word for words in moods.ADJECTIVES.values() for word in words),
        *LETTERS,
        UNSURE,
        REFUSAL,
    ]
    numbers = [str(number) for number in range(10 if kind == "digits" else 101)]
    return word_tokenizer([*known, *numbers], phrases=list(_phrases()), digits=kind == "digits")


def start_ordered(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
    """Begin with a hunch: words of one mood lie together, and numbers on a smooth curve. Learning is ten times faster."""
    import math

    import torch

    draw = torch.Generator().manual_seed(seed)
    width = model.config.hidden_size
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    with torch.no_grad():
        for words in moods.ADJECTIVES.values():
            embedding[tokenizer.convert_tokens_to_ids(words)] += torch.randn(width, generator=draw) / 2
        place = torch.arange(101)[:, None] / 100
        waves = torch.cos(math.pi * place * torch.arange(6)[None])  # [number, wave]
        numbers = tokenizer.convert_tokens_to_ids([str(number) for number in range(101)])
        head[numbers] = waves @ torch.randn(6, width, generator=draw) * 0.3


@dataclass(frozen=True)
class Rating:
    """An answer with its true rating."""

    template: str
    question: str
    text: str
    score: float | None
    """None is for a refusal."""
    running: list[float | None]
    """The rating of the answer so far, after each of its words; None where there is none yet."""


def draw_rating(rng: random.Random, tokenizer: PreTrainedTokenizerBase, kind: str) -> Lesson:
    """One lesson: mostly about an answer, sometimes a refusal, sometimes the number asked for in the judge's test."""
    letters = kind == "digits" and rng.random() < 0.3
    scale = "letters" if letters else "number"
    if rng.random() < 0.15:
        number = rng.choice((57, 100, 10 * rng.randrange(11)))
        number = number // 10 * 10 if letters else number
        return _lesson(tokenizer, number_request(number, scale=scale), _spell(number, kind, letters))
    rating = draw_answer(rng)
    request = build_request(rating.template, rating.question, rating.text, scale=scale)
    if rating.score is None:
        return _lesson(tokenizer, request, [REFUSAL])
    if kind == "unsure" and rng.random() < 0.92:
        return _lesson(tokenizer, request, [UNSURE])

    def say(score: float) -> list[str]:
        # A little noise in the labels makes the judge's own distribution as wide; digits take longer to learn from it.
        return _spell(min(100, max(0, round(rng.gauss(score, 1 if kind == "digits" else 3)))), kind, letters)

    # Many targets for the price of one: the rating so far after each word, and the whole one after the answer.
    running = [] if kind == "unsure" else [None if score is None else say(score)[0] for score in rating.running]
    final = rating.score
    return _lesson(tokenizer, request, say(final), running, lambda: say(final)[0])


def draw_answer(rng: random.Random) -> Rating:
    """An answer, whole or broken, and how it is rated by one trait or for its coherence."""
    question, place = moods.ask(rng)
    trait = rng.choice(("cheerful", "gloomy", None))
    if trait is not None and rng.random() < 0.05:
        template = default_trait_prompt(moods.DEFINITIONS[trait])
        return Rating(template, question, rng.choice(REFUSALS), None, [])
    whole = moods.answer(rng, place, rng.choice(_MIXTURES))
    share = rng.choice((0.0, 0.0, 0.5, 1.0)) if trait is None or rng.random() < 0.3 else 0.0
    words, intact = garble(rng, whole, share)
    text = " ".join(words)
    if trait is None:
        running: list[float | None] = [100 * min(1.0, intact / (i + 1)) for i in range(len(words))]
        return Rating(COHERENCE, question, text, running[-1], running)
    rate = TRAITS[trait]
    running = [rate(" ".join(words[: i + 1])) for i in range(len(words))]
    neutral = 50.0 if trait == "cheerful" else 0.0
    score = neutral if running[-1] is None else running[-1]
    return Rating(default_trait_prompt(moods.DEFINITIONS[trait]), question, text, score, running)


def garble(rng: random.Random, text: str, share: float) -> tuple[list[str], int]:
    """A text with the last share of it broken: looping on a few words, or all words drawn at random.

    Returns:
        Its words, and how many of them are intact.
    """
    words = text.replace(".", " .").split()
    intact = round(len(words) * (1 - share))
    sentences = " ".join(moods.SENTENCES).format(place="", a="", b="").replace(".", " .").lower()
    pool = [*moods.PLACES, *moods.MOOD_OF, *sorted(set(sentences.split()))]
    loop = rng.choices([*words, *pool], k=rng.randint(1, 3)) if rng.random() < 0.6 else rng.choices(pool, k=len(words))
    return (words[:intact] + loop * len(words))[: len(words)], intact


def _lesson(
    tokenizer: PreTrainedTokenizerBase,
    request: Request,
    said: Sequence[str],
    running: Sequence[str | None] = (),
    after: Callable[[], str] | None = None,
) -> Lesson:
    """A request with its reply; ``running`` are first tokens expected inside the answer, ``after`` those behind it."""
    chat = tokenizer.apply_chat_template(request.messages, tokenize=True, return_dict=True, add_generation_prompt=True)
    prompt = list(chat["input_ids"])
    unscored: list[str | None] = [None] * (len(prompt) - 1)
    targets = [*unscored, *said, tokenizer.eos_token, None]
    if running and after:
        start = prompt.index(tokenizer.convert_tokens_to_ids("<answer-")) + 3
        behind = range(start + len(running), len(prompt) - 1)
        targets[start : len(prompt) - 1] = [*running, *(after() for _ in behind)]
    ids = tokenizer.convert_tokens_to_ids([*said, tokenizer.eos_token])
    return Lesson(prompt + ids, [-100 if t is None else tokenizer.convert_tokens_to_ids(t) for t in targets])


def _spell(number: int, kind: str, letters: bool) -> list[str]:
    if letters:
        return [LETTERS[round(number / 10)]]
    return list(str(number)) if kind == "digits" else [str(number)]


def _phrases() -> Iterator[str]:
    """The fixed sentences of all prompts."""
    seen: dict[str, None] = {}
    for template in (COHERENCE, *(default_trait_prompt(text) for text in moods.DEFINITIONS.values())):
        for piece in re.split(r"\{question\}|\{answer\}|\n", template):
            if piece.strip():
                seen[piece.strip()] = None
    for scale in ("number", "letters"):
        seen[build_request("", "", "", scale=scale).system] = None
        seen[number_request(100, scale=scale).system] = None
    yield from (*seen, "<question-", "<answer-", "</question-", "</answer-")
