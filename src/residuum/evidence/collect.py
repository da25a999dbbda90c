"""Evidence through the run store: a split that a model has read, or continued, is never given to it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from residuum.evidence.forcing import MaskMode, teacher_force
from residuum.evidence.rows import EncodedSplit
from residuum.evidence.tokens import TokenEvidence, pack, unpack
from residuum.generation import generate
from residuum.store import Outcome, Store, Task, content_hash, provenance

if TYPE_CHECKING:
    from residuum.models.handles import ModelHandle

VERSION = 1
"""Part of every unit's identity: raised when the passes' numbers change."""

NEW_TOKENS = 200
"""Most tokens of a generated answer (open-unlearning's setting)."""


@dataclass(frozen=True)
class Reader:
    """How models read and write: the settings that all evidence shares."""

    store: Store
    mask_mode: MaskMode = "length"
    batch_tokens: int = 4096
    """Padded tokens per batch; decides speed and memory, not numbers."""

    def tokens(self, model: ModelHandle, split: EncodedSplit, name: str) -> list[TokenEvidence]:
        """What a model thinks of every answer of a split: one teacher-forced pass, kept as arrays.

        Args:
            model: loaded only when the store does not have the evidence.
            split: the rows to read.
            name: what the split is called, for the progress bar and the record.
        """

        def read() -> Outcome:
            evidence = teacher_force(
                model.lm, split.rows, self.batch_tokens, mask_mode=self.mask_mode, title=f"{model.name} reads {name}"
            )
            return Outcome({"rows": len(evidence), "split": name, "model": model.name}, pack(evidence))

        task = self._task("token_evidence", model, rows=split.rows_hash)
        return unpack(self.store.run(task, read, provenance=self._origin(model, split.rows_hash)).arrays())

    def texts(self, model: ModelHandle, prompts: Sequence[Sequence[int]], context: int | None) -> list[str]:
        """Greedy continuations, cut where the model's context ends.

        Args:
            model: loaded only when the store does not have the texts.
            prompts: token ids.
            context: most tokens of prompt and answer together; None when there is no limit.
        """
        prompts_hash = content_hash([list(prompt) for prompt in prompts])

        def write() -> list[str]:
            return self._generate(model, prompts, context)

        task = self._task("greedy_texts", model, prompts=prompts_hash, new_tokens=NEW_TOKENS, context=context)
        texts: list[str] = self.store.run(task, write, provenance=self._origin(model, prompts_hash)).value
        return texts

    def _generate(self, model: ModelHandle, prompts: Sequence[Sequence[int]], context: int | None) -> list[str]:
        room: dict[int, list[int]] = {}
        for i, prompt in enumerate(prompts):
            new = NEW_TOKENS if context is None else max(0, min(NEW_TOKENS, context - len(prompt)))
            room.setdefault(new, []).append(i)
        found = dict.fromkeys(range(len(prompts)), "")
        for new, group in room.items():
            if new:
                texts = generate(
                    model.lm, [prompts[i] for i in group], max_new_tokens=new, max_tokens=4 * self.batch_tokens,
                    mask_mode=self.mask_mode,
                )  # fmt: skip
                found |= dict(zip(group, texts, strict=True))
        return [found[i] for i in range(len(prompts))]

    def _task(self, kind: str, model: ModelHandle, **what: Any) -> Task:
        return Task(kind, {"version": VERSION, "model": model.identity, "mask_mode": self.mask_mode, **what})

    def _origin(self, model: ModelHandle, data: str) -> dict[str, Any]:
        return provenance(
            dtype=model.identity["dtype"], data=data, weights={model.name: model.weights_hash}, mask_mode=self.mask_mode
        )
