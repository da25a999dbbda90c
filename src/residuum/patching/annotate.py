"""Make an annotated forget set from plain questions and answers: where is the fact in the answer, and does full know it?

The entity is the given one, or the longest run of words in the answer that are new: content words the question does not
give away. Answers with two such runs of like length are left for a person to decide. Examples that the full model itself
gets wrong are dropped: a score relative to a model that does not know says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from residuum.data.prompts import raw_prompt, text_ids

if TYPE_CHECKING:
    from residuum.data.jsonfiles import Record
    from residuum.models.loading import LM

ROUGE_RECALL = 0.5
"""The full model knows an answer of which it repeats at least this much (ROUGE-L recall), or the entity itself."""
RIVAL = 0.7
"""A second run of new words at least this long relative to the first makes an answer ambiguous."""

_WORD = re.compile(r"\w(?:[\w'’.&/-]*\w)?")
_COMMON = frozenset(
    "a an and are as at be been being but by can could did do does for from had has have he her hers him his i in into is it "
    "its itself may might more most my no not of on one or our she should so some such than that the their them then there "
    "these they this those through to under up was we were what when where which while who whom whose why will with would you "
    "your also both each often over about after before between during including known name named called author".split()
)


@dataclass(frozen=True)
class Annotation:
    """What became of one row: annotated, for review, or dropped."""

    row: dict[str, Any]
    """The annotated example, or the plain row."""
    outcome: str
    """``kept``, ``review`` or ``dropped``."""
    reason: str = ""
    candidates: tuple[str, ...] = ()
    """Possible entities, best first."""


def new_runs(question: str, answer: str) -> list[str]:
    """Runs of words in the answer that the question does not give away, longest first.

    A run is uninterrupted but for blanks, commas inside names and small words between two new ones; it begins and ends
    with a content word.
    """
    given = {_stem(word) for word in _WORD.findall(question)}
    spans: list[list[int]] = []
    waiting: tuple[int, int] | None = None
    for match in _WORD.finditer(answer):
        word = match.group()
        if _stem(word) in given or word.lower() in _COMMON:
            joined = waiting is None and spans and answer[spans[-1][1] : match.start()] == " "
            waiting = match.span() if joined and _stem(word) not in given else None
            if waiting is None:
                spans.append([-1, -1])  # a word that is given away ends the run
            continue
        gap_start = waiting[1] if waiting else (spans[-1][1] if spans else -1)
        close = spans and spans[-1][0] >= 0 and answer[gap_start : match.start()] in (" ", ", ", "-")
        if close:
            spans[-1][1] = match.end()
        else:
            spans.append([match.start(), match.end()])
        waiting = None
    runs = [answer[start:end] for start, end in spans if start >= 0]
    return sorted(dict.fromkeys(runs), key=lambda run: (-len(run), answer.index(run)))


def annotate(
    records: Sequence[Record],
    full: LM,
    *,
    rouge_recall: float = ROUGE_RECALL,
    advance: Callable[[int], None] = lambda _: None,
) -> list[Annotation]:
    """Annotate rows of question, answer and optional entity, and drop what the full model does not know.

    Args:
        records: the rows.
        full: the model that should know the answers.
        rouge_recall: an answer counts as known from this ROUGE-L recall on, or when it contains the entity.
        advance: told how many rows are done.
    """
    from residuum.generation import generate

    found = [_find_entity(idx, record) for idx, record in enumerate(records)]
    kept = [i for i, annotation in enumerate(found) if annotation.outcome == "kept"]
    advance(len(found) - len(kept))
    prompts = [f"{raw_prompt(found[i].row['question'])} {found[i].row['prefix']}" for i in kept]
    said = generate(full, [text_ids(full.tokenizer, prompt, special=True) for prompt in prompts], max_new_tokens=30)
    for i, text in zip(kept, said, strict=True):
        found[i] = _judge({**found[i].row, "full_output": text}, text, rouge_recall)
        advance(1)
    return found


def _find_entity(idx: int, record: Record) -> Annotation:
    if "idx" in record.fields:  # rows that come back from a review keep their number
        idx = record.integer("idx")
    row: dict[str, Any] = {"idx": idx, "question": record.text("question"), "answer": record.text("answer")}
    given = record.text_or_none("entity")
    if given is not None:
        if given not in row["answer"]:
            return Annotation({**row, "entity": given}, "dropped", "the given entity does not occur in the answer")
        return _cut(row, given)
    runs = new_runs(row["question"], row["answer"])
    if not runs:
        return Annotation(row, "review", "the answer has no word that the question does not give away")
    if len(runs) > 1 and len(runs[1]) >= RIVAL * len(runs[0]):
        return Annotation(row, "review", "several parts of the answer are new", tuple(runs))
    return _cut(row, runs[0], tuple(runs))


def _cut(row: dict[str, Any], entity: str, candidates: tuple[str, ...] = ()) -> Annotation:
    prefix = row["answer"][: row["answer"].index(entity)].rstrip()
    return Annotation({**row, "prefix": prefix, "entity": entity}, "kept", candidates=candidates)


def _judge(row: dict[str, Any], said: str, rouge_recall: float) -> Annotation:
    from rouge_score.rouge_scorer import RougeScorer

    if row["entity"].lower() in said.lower():
        return Annotation(row, "kept", "the full model says the entity")
    reference = row["answer"][len(row["prefix"]) :]
    recall = RougeScorer(["rougeL"], use_stemmer=True).score(reference, said)["rougeL"].recall
    if recall >= rouge_recall:
        return Annotation(row, "kept", f"ROUGE-L recall {recall:.2f}")
    return Annotation(row, "dropped", f"the full model says {said!r} (ROUGE-L recall {recall:.2f})")


def _stem(word: str) -> str:
    """Enough to see that "author's" and "authors" give "author" away."""
    return re.sub(r"['’]?s$", "", word.lower())
