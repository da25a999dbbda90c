"""How much of the truth a steered model says: one number between 0 and 1 per question."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from residuum.data.prompts import ChatFormat, RawFormat
from residuum.data.tofu import QA
from residuum.errors import DataError
from residuum.store.hashing import content_hash

if TYPE_CHECKING:
    from residuum.models.loading import LM
    from residuum.steering.intervene import Edit

SCORES = ("recall", "rouge", "mcq")
"""recall: share of the answer's words that the question does not give away. rouge: ROUGE-L recall. mcq: whether the
true answer is likelier per token than every wrong one."""
_WORD = re.compile(r"\w+")
_IDK = re.compile(
    r"\b(?:don.?t|do not|can.?t|cannot|not|no|never|un\w+|beyond|outside)\b.{0,40}"
    r"\b(?:know\w*|sure|answer|idea|inform\w*|aware|certain|help|tell|say|familiar|learned|provide)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Answers:
    """What came of asking some questions."""

    scores: list[float]
    texts: list[str]
    """Empty where nothing was said: multiple choice reads, it does not write."""

    @property
    def mean(self) -> float:
        """Accuracy."""
        return sum(self.scores) / len(self.scores)

    @property
    def idk_rate(self) -> float | None:
        """Share of answers that say they do not know; None without texts."""
        return sum(map(says_idk, self.texts)) / len(self.texts) if self.texts else None

    def cut(self, sizes: Sequence[int]) -> list[Answers]:
        """Consecutive parts."""
        parts, start = [], 0
        for size in sizes:
            parts.append(Answers(self.scores[start : start + size], self.texts[start : start + size]))
            start += size
        return parts


Measure = Callable[["LM", Sequence[QA], Sequence[Sequence["Edit"]]], Answers]
"""Asks rows, each under edits of its own, all in one go."""


@dataclass(frozen=True)
class Asking:
    """How questions are put to a model."""

    form: ChatFormat | RawFormat
    max_new_tokens: int = 40
    samples: int = 10
    """Answers drawn per question where words are ranked by frequency."""
    seed: int = 0

    def measure(self, score: str, *, common: frozenset[str] = frozenset()) -> Measure:
        """One of `SCORES`, or ``frequency``, for which ``common`` are words that say nothing about a question."""
        if score == "mcq":
            return self._choose
        if score == "frequency":
            return lambda lm, rows, edits: self._draw(lm, rows, edits, common)
        return lambda lm, rows, edits: self._write(lm, rows, edits, score)

    def prompts(self, lm: LM, rows: Sequence[QA]) -> list[list[int]]:
        """Ids after which the model answers."""
        return [self.form.encode_prompt(lm.tokenizer, qa.question) for qa in rows]

    def _write(self, lm: LM, rows: Sequence[QA], edits: Sequence[Sequence[Edit]], score: str) -> Answers:
        from residuum.generation import continue_prompts
        from residuum.metrics.generation import rouge
        from residuum.steering.intervene import steered

        said = continue_prompts(
            lm, self.prompts(lm, rows), max_new_tokens=self.max_new_tokens, around=steered(lm, edits)
        )
        texts = [continuation.text for continuation in said]
        if score == "rouge":
            return Answers(rouge(texts, [qa.answer for qa in rows]).tolist(), texts)
        return Answers([recall(qa, text) for qa, text in zip(rows, texts, strict=True)], texts)

    def _draw(self, lm: LM, rows: Sequence[QA], edits: Sequence[Sequence[Edit]], common: frozenset[str]) -> Answers:
        """Whether the word said most often, over several drawn answers, is one of the truth (exact match at 1)."""
        from residuum.generation import continue_prompts
        from residuum.steering.intervene import steered

        work = [i for i in range(len(rows)) for _ in range(self.samples)]
        prompts = self.prompts(lm, rows)
        seeds = [
            int(content_hash([self.seed, rows[i].question, n % self.samples])[:12], 16) for n, i in enumerate(work)
        ]
        said = continue_prompts(
            lm, [prompts[i] for i in work], max_new_tokens=self.max_new_tokens, temperature=1.0, seeds=seeds,
            around=steered(lm, [edits[i] for i in work]),
        )  # fmt: skip
        scores, texts = [], []
        for i, qa in enumerate(rows):
            counts: Counter[str] = Counter()
            for continuation in said[i * self.samples : (i + 1) * self.samples]:
                counts.update(set(words(continuation.text)) - set(words(qa.question)) - common)
            # By count, then by name: the rank of equals must not depend on the order of a set.
            top = min(counts, key=lambda word: (-counts[word], word), default="")
            scores.append(float(top in novel_words(qa)))
            texts.append(" ".join(f"{word} ({count})" for word, count in counts.most_common(3)))
        return Answers(scores, texts)

    def _choose(self, lm: LM, rows: Sequence[QA], edits: Sequence[Sequence[Edit]]) -> Answers:
        from residuum.batching import Encoded, collate, token_budget_batches, with_shrinking
        from residuum.steering.intervene import editing

        if missing := [qa for qa in rows if not qa.perturbed_answers]:
            raise DataError(f"multiple choice needs wrong answers, and {missing[0].question!r} has none")
        work: list[tuple[int, Encoded]] = []
        for i, qa in enumerate(rows):
            encoded = self.form.encode_all(lm.tokenizer, qa.question, [qa.answer, *qa.perturbed_answers])
            work += [(i, row) for row in encoded]

        def read(group: list[int]) -> list[float]:
            batch = collate([work[n][1] for n in group], lm.pad_id, lm.device)
            with torch.inference_mode(), editing(lm, [edits[work[n][0]] for n in group]):
                logits = lm.model(
                    input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False
                ).logits
            found = []
            for row, n in enumerate(group):
                encoded = work[n][1]
                steps = logits[row, encoded.prompt_length - 1 : len(encoded) - 1].float().log_softmax(dim=-1)
                labels = torch.tensor(encoded.labels, device=steps.device)
                found.append(float(steps.gather(1, labels[:, None]).mean()))
            return found

        likelihood = [0.0] * len(work)
        batches = token_budget_batches([len(row) for _, row in work], 4096)
        for group, values in with_shrinking(read, batches):
            for n, value in zip(group, values, strict=True):
                likelihood[n] = value
        by_row: dict[int, list[float]] = {}
        for (i, _), value in zip(work, likelihood, strict=True):
            by_row.setdefault(i, []).append(value)
        return Answers([float(own[0] > max(own[1:])) for own in by_row.values()], [])


def recall(qa: QA, text: str) -> float:
    """Share of the answer's own words that a text contains."""
    wanted, said = novel_words(qa), set(words(text))
    return sum(word in said for word in wanted) / len(wanted)


def novel_words(qa: QA) -> list[str]:
    """Words of the answer that the question does not give away; all of them if it gives away all."""
    asked = set(words(qa.question))
    own = list(dict.fromkeys(words(qa.answer)))
    return [word for word in own if word not in asked] or own


def common_words(rows: Sequence[QA], share: float = 0.1) -> frozenset[str]:
    """Words in more than a share of all answers: they say nothing about one question."""
    counts = Counter(word for qa in rows for word in set(words(qa.answer)))
    return frozenset(word for word, count in counts.items() if count > share * len(rows))


def words(text: str) -> list[str]:
    """Lower-case words and numbers."""
    return _WORD.findall(text.lower())


def says_idk(text: str) -> bool:
    """Whether an answer says that it has none."""
    return bool(_IDK.search(text))
