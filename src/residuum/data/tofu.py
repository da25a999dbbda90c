"""TOFU: questions and answers about fictitious authors (Maini et al. 2024, arXiv:2401.06121).

A split is ``{split}.jsonl`` in a folder, or a configuration of ``locuslab/TOFU`` on the hub.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residuum.data.jsonfiles import (
    Loaded,
    Record,
    RowProblem,
    Source,
    data_hash,
    read_records,
    read_text,
    repeated,
    source_name,
)
from residuum.errors import DataError, MissingExtra, UnknownName

__all__ = [
    "HUB",
    "IDK_FILE",
    "QA",
    "SPLITS",
    "data_hash",
    "fetch_idk",
    "fetch_rows",
    "find_split",
    "load_idk",
    "load_split",
    "parse_qa",
    "read_split",
]

HUB = "tofu"
"""The source that means: from the hub."""

IDK_FILE = "idontknow.txt"
"""One "I don't know" answer a line."""

SPLITS: Mapping[str, int] = {
    "full": 4000,
    "retain90": 3600,
    "retain95": 3800,
    "retain99": 3960,
    "forget01": 40,
    "forget05": 200,
    "forget10": 400,
    "holdout01": 40,
    "holdout05": 200,
    "holdout10": 400,
    "forget01_perturbed": 40,
    "forget05_perturbed": 200,
    "forget10_perturbed": 400,
    "retain_perturbed": 400,
    "real_authors_perturbed": 100,
    "world_facts_perturbed": 117,
}
"""TOFU's splits and their numbers of rows; a folder of one's own may hold others, of any size."""

_WITHOUT_PARAPHRASE = ("real_authors_perturbed", "world_facts_perturbed")


@dataclass(frozen=True)
class QA:
    """One question with its answer, and what a perturbed split adds to it."""

    question: str
    answer: str
    paraphrased_answers: tuple[str, ...] = ()
    perturbed_answers: tuple[str, ...] = ()
    """Wrong answers of the same form."""
    paraphrased_question: str | None = None


def load_split(source: str | Path, split: str) -> list[QA]:
    """The rows of a split; problems are counted in a ``DataWarning``.

    Args:
        source: a folder of ``{split}.jsonl`` files, or ``"tofu"`` for the hub (a folder of that name comes first).
        split: one of ``SPLITS``, or any other file of the folder.

    Raises:
        DataError: the split is not there, cannot be fetched, or has a row that cannot be used.
        UnknownName: neither TOFU nor the folder has such a split.
        MissingExtra: the hub was asked for without the package ``datasets``.
    """
    return read_split(find_split(source, split), split).warn().rows


def read_split(source: Source, split: str | None = None) -> Loaded[QA]:
    """The rows of one file and the problems of some of them; no row is left out, so that splits stay aligned.

    Args:
        source: a file or rows.
        split: decides which fields are required; None requires question and answer only.
    """
    records = read_records(source)
    rows = [parse_qa(record, split) for record in records]
    twins = repeated((r.row, (qa.question, qa.answer)) for r, qa in zip(records, rows, strict=True))
    problems = [RowProblem(row, f"it repeats row {first}") for row, first in twins.items()]
    return Loaded(rows, problems, source_name(source))


def parse_qa(record: Record, split: str | None = None) -> QA:
    """One row of a split; perturbed splits must have wrong answers and, but for real-world facts, paraphrases."""
    perturbed = split is not None and split.endswith("_perturbed")
    paraphrased = perturbed and split not in _WITHOUT_PARAPHRASE
    return QA(
        question=record.text("question"),
        answer=record.text("answer"),
        paraphrased_answers=record.texts("paraphrased_answer")
        if paraphrased
        else record.texts_or_empty("paraphrased_answer"),
        perturbed_answers=record.texts("perturbed_answer") if perturbed else record.texts_or_empty("perturbed_answer"),
        paraphrased_question=record.text_or_none("paraphrased_question"),
    )


def load_idk(source: str | Path) -> list[str]:
    """The "I don't know" answers: of a folder (``idontknow.txt``), of a text file, or of the hub (``"tofu"``)."""
    if _means_hub(source):
        return fetch_idk()
    path = Path(source)
    return _read_idk(path / IDK_FILE if path.is_dir() else path)


def _read_idk(path: Path) -> list[str]:
    lines = [line.strip() for line in read_text(path).splitlines()]
    answers = [line for line in lines if line]
    if not answers:
        raise DataError("holds no answers", path=path)
    return answers


def _means_hub(source: str | Path) -> bool:
    return source == HUB and not Path(source).is_dir()


def find_split(source: str | Path, split: str) -> Source:
    """The file of a split in a folder, or its rows from the hub; raises as `load_split` does."""
    if _means_hub(source):
        return _hub_rows(split)
    folder = Path(source)
    if not folder.is_dir():
        raise DataError(
            "there is no such folder", path=folder, hint=f'Give a folder of .jsonl files, or "{HUB}" for the hub.'
        )
    path = folder / f"{split}.jsonl"
    if not path.is_file():
        there = sorted(p.stem for p in folder.glob("*.jsonl"))
        if split not in SPLITS:
            raise UnknownName("split", split, {*SPLITS, *there})
        raise DataError(
            "there is no such file", path=path, hint=f"The folder has: {', '.join(there) or 'no .jsonl file'}."
        )
    return path


def _hub_rows(split: str) -> Iterable[Mapping[str, Any]]:
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)
    return fetch_rows("locuslab/TOFU", split)


def fetch_rows(dataset: str, config: str | None = None) -> Iterable[Mapping[str, Any]]:
    """The training rows of a hub data set; says so when the package or the network is missing."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtra("datasets", "hub", "reading data from the hub") from None
    what = f"{dataset} {config}" if config else dataset
    rows: Iterable[Mapping[str, Any]] = _fetch(what, lambda: load_dataset(dataset, config, split="train"))
    return rows


def fetch_idk() -> list[str]:
    """The "I don't know" answers of the hub."""
    from huggingface_hub import hf_hub_download

    # Named .jsonl by its owners, but a plain text file: one answer a line.
    repo, name = "open-unlearning/idk", "idk.jsonl"
    return _read_idk(Path(_fetch("the IDK answers", lambda: hf_hub_download(repo, name, repo_type="dataset"))))


def _fetch(what: str, get: Callable[[], Any]) -> Any:
    try:
        return get()
    # The hub libraries raise errors of half a dozen packages; to the user all of them mean the same.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        hint = "Check the connection, or give a folder that holds the files."
        raise DataError(f"cannot fetch {what} from the hub: {reason}", hint=hint) from error
