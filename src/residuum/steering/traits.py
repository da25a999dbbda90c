"""A trait on disk: scenarios that show it and its opposite, its definition, and the questions that test it."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residuum.data.jsonfiles import read_records, read_text
from residuum.errors import DataError
from residuum.registry import one_of
from residuum.steering.experiments import Experiment, dataset_folder
from residuum.store.hashing import content_hash

PLACEHOLDERS = ("question", "answer")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


class SteeringWarning(UserWarning):
    """Something about a steering evaluation that its reader should know."""


@dataclass(frozen=True)
class Scenario:
    """One situation that elicits the trait or its opposite without asking for it."""

    prompt: str
    system_prompt: str | None = None


@dataclass(frozen=True)
class Scenarios:
    """Both sides; equal indices are pairs."""

    positive: tuple[Scenario, ...]
    negative: tuple[Scenario, ...]
    files: tuple[Path, Path]

    @property
    def hash(self) -> str:
        """Content of both sides."""
        return content_hash([[[s.prompt, s.system_prompt] for s in side] for side in (self.positive, self.negative)])


@dataclass(frozen=True)
class Question:
    """One evaluation question."""

    id: str
    text: str
    system_prompt: str | None = None


@dataclass(frozen=True)
class PromptSet:
    """The evaluation questions of a trait and how its answers are judged."""

    path: Path
    questions: tuple[Question, ...]
    eval_prompt: str
    coherence_prompt: str | None = None
    """None: ours."""
    direction: str = "positive"
    """``negative`` for a trait that steering should suppress."""

    @property
    def hash(self) -> str:
        """Content of questions and prompts, whatever the file's name and spelling."""
        return content_hash(
            {
                "questions": [[q.text, q.system_prompt] for q in self.questions],
                "eval_prompt": self.eval_prompt,
                "coherence_prompt": self.coherence_prompt,
            }
        )


def load_scenarios(experiment: Experiment, trait: str) -> Scenarios:
    """The scenarios of a trait: ``datasets/traits/{trait}``, else the experiment's own extraction folder.

    Raises:
        DataError: a side is missing or empty, or a line cannot be used.
    """
    folders = (dataset_folder(experiment.root, trait), experiment.extraction(trait))
    for folder in folders:
        if any((folder / f"positive.{ending}").exists() for ending in ("jsonl", "txt")):
            break
    else:
        folder = folders[0]
    sides = [_read_side(folder, side) for side in ("positive", "negative")]
    return Scenarios(sides[0][0], sides[1][0], (sides[0][1], sides[1][1]))


def load_definition(root: Path, trait: str) -> str:
    """The trait in a few sentences; its name when nobody has written them."""
    path = dataset_folder(root, trait) / "definition.txt"
    if path.exists() and (text := read_text(path).strip()):
        return text
    return f"The trait '{trait.rpartition('/')[2].replace('_', ' ')}'"


def find_prompts(root: Path, trait: str, given: Path | None = None) -> Path:
    """The file with the evaluation questions: the one given, the trait's own, or the place it had in older projects.

    Raises:
        DataError: none of them exists.
    """
    own = dataset_folder(root, trait) / "steering.json"
    older = root / "analysis" / "steering" / "prompts" / f"{trait.rpartition('/')[2]}.json"
    places = [given] if given else [own, older]
    for place in places:
        if place.exists():
            return place
    raise DataError(
        "there is no such file",
        path=places[0],
        hint='It holds the evaluation questions: {"questions": ["..."], "eval_prompt": "... {question} ... {answer} ... 0-100"}.',
    )


def load_prompts(path: Path, *, default_prompt: str | None = None) -> PromptSet:
    """Read and check an evaluation file.

    Args:
        path: JSON with ``questions`` and ``eval_prompt``; also ``coherence_prompt`` and ``direction``.
        default_prompt: used when the file has no ``eval_prompt``; None makes that an error.

    Raises:
        DataError: says what is wrong and where.
    """
    try:
        fields = json.loads(read_text(path))
    except ValueError as error:
        raise DataError(f"is not JSON: {error}", path=path) from None
    if not isinstance(fields, dict):
        raise DataError("must be an object with questions and eval_prompt", path=path)
    questions = _read_questions(fields, path)
    prompt = fields.get("eval_prompt", default_prompt)
    if prompt is None:
        raise DataError(
            "is missing", path=path, field="eval_prompt", hint="Write one, or a definition.txt beside the file."
        )
    _check_template(prompt, path, "eval_prompt", required=PLACEHOLDERS)
    coherence = fields.get("coherence_prompt")
    if coherence is not None:
        _check_template(coherence, path, "coherence_prompt", required=("answer",))
    direction = one_of(f"direction in {path}", fields.get("direction", "positive"), "positive", "negative")
    return PromptSet(path, questions, prompt, coherence, direction)


def warn_of_overlap(scenarios: Scenarios, prompts: PromptSet, *, strict: bool = False) -> list[str]:
    """Questions that the direction was extracted from say nothing about generalization.

    Raises:
        DataError: there are some and ``strict`` is set.
    """
    seen = {_fold(s.prompt) for side in (scenarios.positive, scenarios.negative) for s in side}
    shared = [q.text for q in prompts.questions if _fold(q.text) in seen]
    if shared:
        message = f"{len(shared)} of {len(prompts.questions)} questions are extraction scenarios, first {shared[0]!r}"
        if strict:
            raise DataError(message, path=prompts.path, hint="Ask something else, or leave out --strict-overlap.")
        warnings.warn(f"{prompts.path}: {message}.", SteeringWarning, stacklevel=2)
    return shared


def _read_side(folder: Path, side: str) -> tuple[tuple[Scenario, ...], Path]:
    lines, text = folder / f"{side}.jsonl", folder / f"{side}.txt"
    if lines.exists():
        records = read_records(lines)
        found = tuple(Scenario(r.text("prompt"), r.text_or_none("system_prompt")) for r in records)
        return found, lines
    if not text.exists():
        raise DataError(f"there is neither {lines.name} nor {text.name}", path=folder, hint="One scenario a line.")
    found = tuple(Scenario(line.strip()) for line in read_text(text).splitlines() if line.strip())
    if not found:
        raise DataError("holds no scenarios", path=text)
    return found, text


def _read_questions(fields: dict[str, Any], path: Path) -> tuple[Question, ...]:
    given = fields.get("questions")
    if given is None:
        raise DataError("is missing", path=path, field="questions")
    if not isinstance(given, list):
        raise DataError(f"must be a list, not {type(given).__name__}", path=path, field="questions")
    if not given:
        raise DataError("is an empty list", path=path, field="questions")
    found: list[Question] = []
    for number, entry in enumerate(given):
        where = f"questions[{number}]"
        fields_of = {"question": entry} if isinstance(entry, str) else entry
        if not isinstance(fields_of, dict) or not isinstance(fields_of.get("question"), str):
            raise DataError("must be a string or an object with question", path=path, field=where)
        text, system = fields_of["question"].strip(), fields_of.get("system_prompt")
        if not text:
            raise DataError("is empty", path=path, field=where)
        if system is not None and not isinstance(system, str):
            raise DataError("must be a string", path=path, field=f"{where}.system_prompt")
        found.append(Question(str(fields_of.get("id") or content_hash([text, system])[:8]), text, system))
    return _distinct(found, path)


def _distinct(questions: Sequence[Question], path: Path) -> tuple[Question, ...]:
    """Questions with ids of their own; repeated ones are warned about, because they weigh double."""
    counts: dict[str, int] = {}
    distinct = []
    for question in questions:
        counts[question.id] = seen = counts.get(question.id, 0) + 1
        distinct.append(
            question if seen == 1 else Question(f"{question.id}-{seen}", question.text, question.system_prompt)
        )
    if repeated := sum(counts.values()) - len(counts):
        warnings.warn(f"{path}: {repeated} questions repeat earlier ones.", SteeringWarning, stacklevel=4)
    return tuple(distinct)


def _check_template(template: object, path: Path, field: str, *, required: Sequence[str]) -> None:
    if not isinstance(template, str) or not template.strip():
        raise DataError("must be a text", path=path, field=field)
    there = _PLACEHOLDER.findall(template)
    for name in required:
        if name not in there:
            raise DataError(f"lacks the placeholder {{{name}}}", path=path, field=field)
    for name in there:
        if name not in PLACEHOLDERS:
            raise DataError(
                f"has the unknown placeholder {{{name}}}", path=path, field=field, hint="Known: {question}, {answer}."
            )


def _fold(text: str) -> str:
    return " ".join(text.lower().split())
