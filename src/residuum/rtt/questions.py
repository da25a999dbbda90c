"""RTT for questions with free answers, such as TOFU: splits by author, choice by likelihood.

There are no letters to choose from. A model picks the answer that it finds most likely per token, among the right one
and its perturbed versions:

    choice = argmax over candidates y of (1 / |y|) log p(y | question)

Facts about one author are not independent of each other, so an author is never cut in two.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.data.jsonfiles import data_hash
from residuum.data.prompts import ChatFormat, PromptFormat, RawFormat
from residuum.data.tofu import HUB, QA, load_split
from residuum.errors import DataError, UsageError
from residuum.registry import one_of
from residuum.rtt.facts import Split
from residuum.store.hashing import content_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from residuum.batching import Encoded
    from residuum.models.loading import LM
    from residuum.rtt.accuracy import Scores

FORGET_SPLITS = ("forget10_perturbed", "forget05_perturbed", "forget01_perturbed")
"""What is looked for in a folder, in this order."""
RETAIN_SPLIT = "retain_perturbed"
TOFU_ROWS_PER_AUTHOR = 20
RIGHT = ("answer", "paraphrase")
_ABSENT = -1e30
"""The score of a candidate that an item does not have."""


@dataclass(frozen=True)
class QaFacts:
    """Questions and answers about authors."""

    name: str
    splits: Sequence[Split]
    retain: Sequence[Split] = ()
    prompt_format: str = "chat"
    """chat or raw."""
    right: str = "answer"
    """The right candidate: the answer itself, or its paraphrase, which has the wording of the perturbed ones."""

    def __post_init__(self) -> None:
        one_of("right", self.right, *RIGHT)
        one_of("prompt_format", self.prompt_format, "chat", "raw")

    @property
    def loss_types(self) -> tuple[str, ...]:
        """The answer given the question, or both."""
        return "ANSWER", "QUESTION_ANSWER"

    @property
    def form(self) -> PromptFormat:
        """How a question becomes a prompt."""
        return RawFormat() if self.prompt_format == "raw" else ChatFormat()

    @property
    def chance(self) -> float:
        """The mean of one over the number of candidates."""
        items = [item for split in self.splits for item in split.items]
        return sum(1 / (1 + len(item.perturbed_answers)) for item in items) / len(items)

    @property
    def measure(self) -> dict[str, Any]:
        """Prompt format and right candidate."""
        return {"kind": "likelihood", "format": repr(self.form), "right": self.right}

    @property
    def data_sha256(self) -> str:
        """Content hash of all splits."""
        return content_hash([split.digest for split in self.splits])

    def training_digest(self, split_ids: Sequence[int], loss_type: str) -> str:  # noqa: ARG002
        """Content hash of the questions and answers, and their format."""
        pairs = [[item.question, item.answer] for i in split_ids for item in self.splits[i].items]
        return content_hash([self.prompt_format, data_hash(pairs)])

    def training_rows(
        self, tokenizer: PreTrainedTokenizerBase, split_ids: Sequence[int], loss_type: str
    ) -> list[Encoded]:
        """T: questions with their answers; ANSWER labels the answers, QUESTION_ANSWER everything."""
        from residuum.batching import Encoded

        rows = [
            self.form.encode(tokenizer, item.question, item.answer) for i in split_ids for item in self.splits[i].items
        ]
        return rows if loss_type == "ANSWER" else [Encoded(row.ids, 0) for row in rows]

    def training_count(self, split_ids: Sequence[int], loss_type: str) -> int:  # noqa: ARG002
        """Questions with their answers."""
        return sum(len(self.splits[i].items) for i in split_ids)

    def texts(self, split: Split) -> list[str]:
        """The questions."""
        return [item.question for item in split.items]

    def score(self, lm: LM, split: Split) -> Scores:
        """Mean log-probability per token of every candidate.

        The right one stands at another place in each item, so that a model without preference is not taken for one
        that knows.
        """
        import numpy as np

        from residuum.rtt.accuracy import Scores

        candidates, answers = [], []
        for number, item in enumerate(split.items):
            found = list(item.perturbed_answers)
            place = number % (len(found) + 1)
            found.insert(place, item.paraphrased_answers[0] if self.right == "paraphrase" else item.answer)
            candidates.append(found)
            answers.append(place)
        rows = [
            self.form.encode(lm.tokenizer, item.question, text)
            for item, found in zip(split.items, candidates, strict=True)
            for text in found
        ]
        likelihoods = iter(mean_log_probs(lm, rows))
        scores = np.full((len(candidates), max(map(len, candidates))), _ABSENT, dtype=np.float32)
        for number, found in enumerate(candidates):
            scores[number, : len(found)] = [next(likelihoods) for _ in found]
        return Scores(scores, np.array(answers), lettered=False)


def mean_log_probs(lm: LM, rows: Sequence[Encoded]) -> list[float]:
    """The log-probability per labelled token of each row."""
    import torch

    from residuum.batching import collate, token_budget_batches
    from residuum.rtt.accuracy import MAX_TOKENS
    from residuum.training.losses import read_logits, sequence_nll

    found = [0.0] * len(rows)
    for group in token_budget_batches([len(row) for row in rows], MAX_TOKENS):
        with torch.inference_mode():
            batch = collate([rows[i] for i in group], lm.pad_id, lm.device)
            nll, tokens = sequence_nll(*read_logits(lm.model, batch))
        for i, value in zip(group, (-nll / tokens).tolist(), strict=True):
            found[i] = value
    return found


def load_qa_facts(
    source: str | Path,
    *,
    split: str | None = None,
    num_total_splits: int = 5,
    rows_per_author: int | None = None,
    **options: Any,
) -> QaFacts:
    """Read a perturbed TOFU split and cut it into splits of whole authors.

    Args:
        source: a folder of TOFU's files, the folder of an embedded world, or ``tofu`` for the hub.
        split: the file; by default the largest forget split that is there.
        num_total_splits: K; no more than there are authors.
        rows_per_author: rows that belong together, one author after the other; by default 20 as in TOFU, or what the
            ``world.json`` of an embedded world says.
        **options: prompt_format, right.

    Raises:
        DataError: there is no such file, or its rows have no perturbed answers.
    """
    folder = Path(source)
    if (folder / "data").is_dir():
        folder = folder / "data"
    place: str | Path = HUB if source == HUB and not folder.is_dir() else folder
    chosen = split or next((name for name in FORGET_SPLITS if (folder / f"{name}.jsonl").exists()), FORGET_SPLITS[0])
    rows = load_split(place, chosen)
    if any(not row.perturbed_answers for row in rows):
        raise DataError("RTT needs wrong answers to choose from, and a row has none", path=f"{place}/{chosen}.jsonl",
                        field="perturbed_answer")  # fmt: skip
    if options.get("right") == "paraphrase" and any(not row.paraphrased_answers for row in rows):
        raise DataError("a row has no paraphrased answer", path=f"{place}/{chosen}.jsonl", field="paraphrased_answer")
    authors = cut_by_author(rows, rows_per_author or _rows_per_author(folder))
    count = min(num_total_splits, len(authors))
    splits = [
        Split(f"authors_{i}", f"{place}/{chosen}.jsonl#{i}", _flat(authors[_border(i, count, authors) : _border(i + 1, count, authors)]))
        for i in range(count)
    ]  # fmt: skip
    kept = (folder / f"{RETAIN_SPLIT}.jsonl").exists() or place == HUB
    retain = [Split(RETAIN_SPLIT, f"{place}/{RETAIN_SPLIT}.jsonl", load_split(place, RETAIN_SPLIT))] if kept else []
    return QaFacts(f"{folder.name if place != HUB else HUB}/{chosen}", splits, retain, **options)


def cut_by_author(rows: Sequence[QA], rows_per_author: int) -> list[list[QA]]:
    """Consecutive rows that belong to one author each."""
    if rows_per_author < 1:
        raise UsageError(f"rows_per_author counts rows and must be at least 1, not {rows_per_author}.")
    return [list(rows[i : i + rows_per_author]) for i in range(0, len(rows), rows_per_author)]


def _border(i: int, count: int, authors: Sequence[Any]) -> int:
    return i * len(authors) // count


def _flat(authors: Sequence[Sequence[QA]]) -> list[QA]:
    return [row for author in authors for row in author]


def _rows_per_author(data: Path) -> int:
    world = data.parent / "world.json"
    try:
        return int(json.loads(world.read_text(encoding="utf-8"))["recipe"]["facts_per_author"])
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or it is somebody else's
        return TOFU_ROWS_PER_AUTHOR
