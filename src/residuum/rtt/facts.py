"""Facts in splits: what is unlearned, retrained on and asked for. Multiple-choice files of a folder.

A folder holds ``split_0.jsonl`` and so on (or MMLU's categories), sentences beside them under the prefixes of
`residuum.data.mcq`, and ``dev.jsonl`` for few-shot prompts. Which files are to be forgotten and which are kept is known
for the published folders, said by ``manifest.json`` in ours, and given otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from residuum.data.jsonfiles import data_hash
from residuum.data.mcq import LETTERS, MCQ, load_corpus, load_mcq, load_splits
from residuum.errors import DataError, UsageError
from residuum.store.hashing import content_hash

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from residuum.batching import Encoded
    from residuum.models.loading import LM
    from residuum.rtt.accuracy import Scores

MMLU_FORGET = ("mmlu_STEM", "mmlu_business", "mmlu_chemistry", "mmlu_culture", "mmlu_geography")
MMLU_RETAIN = ("mmlu_health", "mmlu_history", "mmlu_law", "mmlu_philosophy", "mmlu_social sciences")

PUBLISHED: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "random_bd": ("RANDOM_BD", tuple(f"split_{i}" for i in range(5)), tuple(f"split_{i}" for i in range(5, 10))),
    "dates-years-trimmed": ("YEARS", tuple(f"split_{i}" for i in range(5)), ()),
    "mmlu_cats_random_trimmed": ("MMLU", MMLU_FORGET, MMLU_RETAIN),
    "wmdp-deduped": ("WMDP", tuple(f"split_{i}" for i in range(5)), ()),
}
"""The published folders: name of the dataset (it seeds the draw of V), files to forget, files to keep."""

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Split:
    """One file of facts."""

    name: str
    path: str
    """As result rows name it."""
    items: Sequence[Any] = field(repr=False)

    @cached_property
    def digest(self) -> str:
        """Content hash of the items."""
        return data_hash(self.items)


class Facts(Protocol):
    """What the protocol needs to know about a set of facts."""

    @property
    def name(self) -> str:
        """Of the dataset; it seeds the draw of V."""

    @property
    def splits(self) -> Sequence[Split]:
        """What is to be forgotten; the index is the split id."""

    @property
    def retain(self) -> Sequence[Split]:
        """What must be kept; may be empty."""

    @property
    def loss_types(self) -> tuple[str, ...]:
        """What retraining on these facts may use; the first is the default."""

    @property
    def chance(self) -> float:
        """Accuracy of a guess."""

    @property
    def measure(self) -> dict[str, Any]:
        """Everything that decides an accuracy beside model and items, as JSON."""

    @property
    def data_sha256(self) -> str:
        """Content hash of all splits."""

    def training_digest(self, split_ids: Sequence[int], loss_type: str) -> str:
        """Content hash of what retraining on these splits reads."""

    def training_rows(
        self, tokenizer: PreTrainedTokenizerBase, split_ids: Sequence[int], loss_type: str
    ) -> list[Encoded]:
        """What retraining on these splits reads."""

    def training_count(self, split_ids: Sequence[int], loss_type: str) -> int:
        """How many rows retraining on these splits has."""

    def texts(self, split: Split) -> list[str]:
        """The questions, to look for overlaps between splits."""

    def score(self, lm: LM, split: Split) -> Scores:
        """How the model scores the choices of every item."""


@dataclass(frozen=True)
class McqFacts:
    """Multiple-choice questions of a folder."""

    name: str
    folder: Path
    splits: Sequence[Split]
    retain: Sequence[Split] = ()
    dev: Sequence[MCQ] = ()
    label_variant: str = "continuation"
    """Which token stands for a letter: continuation, nospace or sum."""
    k_shot: int = 0
    """Solved questions of the dev file before every prompt."""
    max_seq_len: int = 512
    compat: str | None = None

    @property
    def loss_types(self) -> tuple[str, ...]:
        """All six; QUESTION_LETTER_ANSWER is the default."""
        from residuum.rtt.losses import LOSS_TYPES

        return "QUESTION_LETTER_ANSWER", *(kind for kind in LOSS_TYPES if kind != "QUESTION_LETTER_ANSWER")

    @property
    def chance(self) -> float:
        """One of four."""
        return 1 / len(LETTERS)

    @property
    def shots(self) -> Sequence[MCQ]:
        """The solved questions before every prompt."""
        if self.k_shot > len(self.dev):
            raise UsageError(f"k_shot is {self.k_shot}, but {self.folder / 'dev.jsonl'} has {len(self.dev)} questions.")
        return self.dev[: self.k_shot]

    @property
    def measure(self) -> dict[str, Any]:
        """Letter tokens, shots and cut of an accuracy."""
        return {
            "kind": "letters",
            "label_variant": self.label_variant,
            "shots": data_hash(self.shots),
            "max_seq_len": self.max_seq_len,
        }

    @property
    def data_sha256(self) -> str:
        """Content hash of the questions of all splits."""
        return content_hash([split.digest for split in self.splits])

    def statements(self, prefix: str, split: Split) -> list[str]:
        """The sentences of a split, ``corpus_``, ``whp_corpus_`` or ``fwf_corpus_``.

        Raises:
            DataError: there is no such file.
        """
        path = Path(split.path).with_name(f"{prefix}{split.name}.jsonl")
        return [statement.text for statement in load_corpus(path)]

    def training_digest(self, split_ids: Sequence[int], loss_type: str) -> str:
        """Content hash of questions or sentences."""
        return content_hash([data_hash(self._taught(self.splits[i], loss_type)) for i in split_ids])

    def training_rows(
        self, tokenizer: PreTrainedTokenizerBase, split_ids: Sequence[int], loss_type: str
    ) -> list[Encoded]:
        """T: questions with their choices, or sentences for CORPUS and NUMBER."""
        from residuum.rtt.losses import encode_question, encode_text

        cut = self.max_seq_len
        return [
            encode_text(tokenizer, item, loss_type, max_length=cut, compat=self.compat)
            if isinstance(item, str)
            else encode_question(tokenizer, item, loss_type, max_length=cut)
            for i in split_ids
            for item in self._taught(self.splits[i], loss_type)
        ]

    def training_count(self, split_ids: Sequence[int], loss_type: str) -> int:
        """Questions, or sentences for CORPUS and NUMBER."""
        return sum(len(self._taught(self.splits[i], loss_type)) for i in split_ids)

    def texts(self, split: Split) -> list[str]:
        """The questions."""
        return [item.question for item in split.items]

    def score(self, lm: LM, split: Split) -> Scores:
        """Logits of the four letters."""
        from residuum.rtt.accuracy import score_letters

        return score_letters(lm, split.items, variant=self.label_variant, shots=self.shots, max_length=self.max_seq_len)

    def _taught(self, split: Split, loss_type: str) -> Sequence[MCQ] | Sequence[str]:
        from residuum.rtt.losses import TEXT_TYPES

        return self.statements("corpus_", split) if loss_type in TEXT_TYPES else split.items


def load_mcq_facts(
    folder: str | Path,
    *,
    name: str | None = None,
    forget_files: Sequence[str] | None = None,
    val_retain_files: Sequence[str] | None = None,
    **options: Any,
) -> McqFacts:
    """Read the multiple-choice files of a folder.

    Args:
        folder: of JSON lines.
        name: of the dataset; it seeds the draw of V. By default the published name, else that of the folder.
        forget_files: names of the splits to forget, in order; by default what the layout says, else all.
        val_retain_files: names of files in the folder, or paths, that must be kept.
        **options: label_variant, k_shot, max_seq_len, compat.

    Raises:
        DataError: a file is missing, empty or wrong; names file and line.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError("there is no such folder", path=folder, hint="Give birthdays, or a folder of split_*.jsonl.")
    known_name, forget, retain = _layout(folder)
    forget = tuple(forget_files) if forget_files is not None else forget
    retain = tuple(val_retain_files) if val_retain_files is not None else retain
    splits = [_read(folder, part) for part in forget]
    if not splits:
        everything = {part: items for part, items in load_splits(folder).items() if part not in retain}
        splits = [Split(part, str(folder / f"{part}.jsonl"), items) for part, items in everything.items()]
    dev = folder / "dev.jsonl"
    return McqFacts(
        name=name or known_name,
        folder=folder,
        splits=splits,
        retain=[_read(folder, part) for part in retain],
        dev=load_mcq(dev) if dev.exists() else (),
        **options,
    )


def _layout(folder: Path) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    if (folder / MANIFEST).exists():
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            return str(manifest["name"]), tuple(manifest["forget"]), tuple(manifest["retain"])
        except (ValueError, KeyError, TypeError):
            pass  # somebody else's manifest
    name, forget, retain = PUBLISHED.get(folder.name, (folder.name, (), ()))

    def there(parts: Sequence[str]) -> tuple[str, ...]:
        return tuple(part for part in parts if (folder / f"{part}.jsonl").exists())

    return name, there(forget), there(retain)  # of a published folder, a user may have only a part


def _read(folder: Path, part: str) -> Split:
    path = Path(part) if part.endswith(".jsonl") else folder / f"{part}.jsonl"
    return Split(path.stem, str(path), load_mcq(path))
