"""Alternate answers for AltPO: what the full model says when its answers are sampled.

Rows are {question, answer, alternate}, several per question. A sample that is the true answer is no alternate and is
dropped; a model that knows its answers by heart therefore yields few at temperature 1.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from residuum.data.prompts import ChatFormat, PromptFormat
from residuum.errors import DataError
from residuum.generation import generate
from residuum.store.atomic import write_text
from residuum.training.pairs import Rows, load_rows

if TYPE_CHECKING:
    from residuum.models.loading import LM

DEFAULT_FORMAT = ChatFormat()


def sample_alternates(
    lm: LM,
    data: Rows,
    *,
    per_question: int = 5,
    temperature: float = 1.0,
    max_new_tokens: int = 200,
    seed: int = 0,
    form: PromptFormat = DEFAULT_FORMAT,
) -> tuple[list[dict[str, str]], int]:
    """Sample answers and keep those that are not the true one.

    Args:
        lm: the full model.
        data: file or rows of questions and answers.
        per_question: samples per question.
        temperature: of the sampling.
        max_new_tokens: longest answer.
        seed: of the sampling.
        form: the prompt.

    Returns:
        The rows, in the order of the questions, and how many samples were dropped.

    Raises:
        DataError: no sample differs from its answer.
    """
    questions = load_rows(data, "forget")
    prompts = [form.encode_prompt(lm.tokenizer, row.question) for row in questions]
    rounds = [
        generate(lm, prompts, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed * per_question + round_)
        for round_ in range(per_question)
    ]
    rows = [
        {"question": row.question, "answer": row.answer, "alternate": text}
        for row, *said in zip(questions, *rounds, strict=True)
        for text in said
        if text and _words(text) != _words(row.answer)
    ]
    if not rows:
        raise DataError(
            f"all {len(questions) * per_question} samples are the true answers: there is no alternate.",
            hint="Raise the temperature.",
        )
    return rows, len(questions) * per_question - len(rows)


def write_alternates(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write the rows as JSON lines, atomically."""
    return write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _words(text: str) -> list[str]:
    return text.casefold().split()
