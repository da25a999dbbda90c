"""Which data a metric reads: the splits by role, read once, and errors that say which metrics go without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from residuum.data.examples import Example, load_examples
from residuum.data.jsonfiles import Record, Source, read_records
from residuum.data.tofu import HUB, QA, find_split, parse_qa, read_split
from residuum.errors import DataError, UnknownName, UsageError

if TYPE_CHECKING:
    from residuum.metrics.registry import Need

Data = str | Path | Mapping[str, Sequence[Any]]
"""A folder of splits, ``"tofu"`` for the hub, or rows by split."""

_FIELDS = {
    "paraphrases": ("paraphrased_answer",),
    "paraphrase_texts": ("paraphrased_answer",),
    "perturbed": ("perturbed_answer",),
    "wrong_to_right": ("paraphrased_answer", "perturbed_answer"),
}


class Splits:
    """The data of an evaluation, by role: forget, holdout, retain, real_authors, world_facts and entities.

    Args:
        data: where the splits are; None when only ``members`` and ``nonmembers`` are asked for.
        forget: the forget split; decides the names of its perturbed, held-out and annotated companions.
        members: a file or rows to take for the forget set, for membership attacks on data of one's own.
        nonmembers: likewise for the held-out set.
    """

    def __init__(
        self,
        data: Data | None,
        *,
        forget: str = "forget10",
        members: Source | None = None,
        nonmembers: Source | None = None,
    ) -> None:
        if (members is None) != (nonmembers is None):
            raise UsageError("members and nonmembers go together: give both, or neither.")
        if data is None and members is None:
            raise UsageError('there is no data: give a folder of splits, "tofu", or members and nonmembers.')
        self._data = data
        share = forget.removeprefix("forget")
        self.names = {
            "forget": f"{forget}_perturbed",
            "holdout": f"holdout{share}",
            "retain": "retain_perturbed",
            "real_authors": "real_authors_perturbed",
            "world_facts": "world_facts_perturbed",
            "entities": f"{forget}_annotated",
        }
        self._own: dict[str, Source] = {}
        if members is not None and nonmembers is not None:
            self._own = {"forget": members, "holdout": nonmembers}
            self.names |= _labels(self._own, {name for role, name in self.names.items() if role not in self._own})
        self._rows: dict[str, list[QA]] = {}

    def rows(self, role: str) -> list[QA]:
        """The rows of a split.

        Raises:
            DataError: the file is missing, or has a row that cannot be used.
        """
        if role not in self._rows:
            if role in self._own:
                self._rows[role] = [_member(record) for record in read_records(self._own[role])]
            else:
                self._rows[role] = read_split(self._source(role)).warn().rows
            if not self._rows[role]:
                raise DataError(f"{self.names[role]} holds no rows")
        return self._rows[role]

    def examples(self) -> list[Example]:
        """The annotated forget set.

        Raises:
            DataError: it is missing, or has a row that cannot be used.
        """
        given = self._given(self.names["entities"])
        if given is not None:
            return list(given) if all(isinstance(row, Example) for row in given) else load_examples(given)
        if self._data == HUB and not Path(HUB).is_dir():
            from residuum.data.fetch import ANNOTATED
            from residuum.data.tofu import fetch_rows

            return load_examples(fetch_rows(ANNOTATED))
        return load_examples(Path(str(self._data)) / f"{self.names['entities']}.json")

    def check(self, role: str) -> None:
        """See that a split is there and can be read.

        Raises:
            InputError: it cannot.
        """
        if role == "entities":
            self.examples()
        else:
            self.rows(role)

    def check_field(self, role: str, field: str) -> None:
        """See that every row of a split has ``paraphrased_answer`` or ``perturbed_answer``.

        Raises:
            DataError: with file and line of the first that has not.
        """
        for i, row in enumerate(self.rows(role)):
            if not {"paraphrased_answer": row.paraphrased_answers, "perturbed_answer": row.perturbed_answers}[field]:
                self._lacking(role, i, field)

    def _lacking(self, role: str, row: int, field: str) -> NoReturn:
        if role in self._own:
            raise DataError(f"{self.names[role]} is read for its answers alone", field=field)
        read_records(self._source(role))[row].fail("is missing", field=field)

    def _source(self, role: str) -> Source:
        name = self.names[role]
        given = self._given(name)
        if given is not None:
            return [_fields(row) for row in given]
        if self._data is None:
            raise DataError(f"{name} is not given: there is only the data for membership attacks")
        if isinstance(self._data, Mapping):
            there = ", ".join(self._data) or "nothing"
            raise DataError(f"{name} is not among the given rows", hint=f"There are: {there}.")
        try:
            return find_split(self._data, name)
        except UnknownName:
            raise DataError("there is no such file", path=Path(self._data) / f"{name}.jsonl") from None

    def _given(self, name: str) -> Sequence[Any] | None:
        return self._data.get(name) if isinstance(self._data, Mapping) else None


def fields_of(need: Need) -> tuple[str, ...]:
    """What a piece of evidence asks of every row beyond question and answer."""
    return _FIELDS.get(need.what.partition(".")[2], ())


def _member(record: Record) -> QA:
    """A row for membership attacks: question and answer, or a text that stands alone."""
    if "text" in record.fields and "answer" not in record.fields:
        return QA(question="", answer=record.text("text"))
    row = parse_qa(record)
    return QA(question=row.question, answer=row.answer)


def _fields(row: Any) -> Mapping[str, Any]:
    if not isinstance(row, QA):
        return dict(row)
    fields = {
        "question": row.question,
        "answer": row.answer,
        "paraphrased_answer": list(row.paraphrased_answers) or None,
        "perturbed_answer": list(row.perturbed_answers) or None,
        "paraphrased_question": row.paraphrased_question,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _labels(own: Mapping[str, Source], taken: set[str]) -> dict[str, str]:
    """What the files of one's own are called: by their names, with their part where two splits would be called alike."""
    parts = {"forget": "members", "holdout": "nonmembers"}
    names = {role: Path(given).stem if isinstance(given, str | Path) else parts[role] for role, given in own.items()}
    if len({*names.values()} - taken) == len(names):
        return names
    return {role: f"{name} ({parts[role]})" for role, name in names.items()}
