"""What an evaluation is asked with, and what it gives back."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.data.prompts import ChatFormat, PromptFormat, RawFormat
from residuum.errors import UsageError
from residuum.evidence.collect import NEW_TOKENS
from residuum.evidence.fluency import CLASSIFIER
from residuum.evidence.forcing import MASK_MODES, MaskMode
from residuum.registry import one_of

if TYPE_CHECKING:
    from residuum.metrics.scores import Score
    from residuum.metrics.subject import Subject
    from residuum.patching.audit import UdsResult


class EvaluationWarning(UserWarning):
    """Something a reader of the numbers should know."""


class Evaluation(dict[str, "Score"]):
    """The scores of one model by metric, and what they rest on."""

    def __init__(self, scores: dict[str, Score], subject: Subject, record: dict[str, Any]) -> None:
        super().__init__(scores)
        self.subject = subject
        self.record = record
        """Model, references, settings, flags and what was left out; ready for JSON."""

    @property
    def name(self) -> str:
        """The model."""
        return self.subject.model.name

    @property
    def depth(self) -> UdsResult | None:
        """The whole UDS result, when it was asked for."""
        return self.subject.depth

    def save(self, folder: str | Path) -> Path:
        """Write ``{category}/{model}/summary.json`` and ``results.json`` below ``folder``, one for each category."""
        from residuum.metrics.output import save_evaluation

        return save_evaluation(self, Path(folder))


@dataclass(frozen=True)
class Settings:
    """How models are asked; recorded with every number."""

    form: PromptFormat = field(default_factory=ChatFormat)
    mask_mode: MaskMode = "length"
    batch_tokens: int = 4096
    seed: int = 42
    compat: str | None = None
    fluency_model: str = CLASSIFIER

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"the seed must be 0 or more, not {self.seed}.")
        if self.batch_tokens < 1:
            raise UsageError(f"a batch must hold at least one token, not {self.batch_tokens}.")

    @classmethod
    def of(
        cls,
        *,
        format: str = "chat",
        system_prompt: str = ChatFormat.system_prompt,
        date: str | None = ChatFormat.date,
        mask_mode: str = "length",
        compat: str | None = None,
        **further: Any,
    ) -> Settings:
        """Settings from the words a user gives; ``further`` are fields as they are.

        Raises:
            UsageError: a word is none of those there are.
        """
        chat = one_of("format", format, "chat", "raw") == "chat"
        return cls(
            form=ChatFormat(system_prompt, date) if chat else RawFormat(),
            mask_mode=one_of("mask_mode", mask_mode, *MASK_MODES),
            compat=None if compat is None else one_of("compat", compat, "published"),
            **further,
        )

    def record(self) -> dict[str, Any]:
        """Ready for JSON; without what does not change numbers."""
        chat = isinstance(self.form, ChatFormat)
        return {
            "format": "chat" if chat else "raw", **asdict(self.form), "mask_mode": self.mask_mode,
            "max_new_tokens": NEW_TOKENS, "seed": self.seed, "compat": self.compat, "fluency_model": self.fluency_model,
        }  # fmt: skip
