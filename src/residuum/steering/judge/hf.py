"""A judge in this process: any causal language model, read exactly."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from residuum.errors import Unavailable, UsageError
from residuum.steering.judge.base import JUDGES, JudgeOptions, Provider
from residuum.steering.judge.probing import TOP, settle_scoring
from residuum.steering.judge.prompts import Request
from residuum.steering.judge.scoring import SCORINGS, Reading

if TYPE_CHECKING:
    from residuum.models.handles import ModelHandle
    from residuum.models.loading import LM
    from residuum.steering.judge.local import LocalModel
    from residuum.steering.judge.spelling import Spelling

MAX_TOKENS = 16384
"""Padded prompt tokens per batch."""
TRIE_ROWS = 8
"""Prompts that go down the tree of spellings together; each may fan out to a hundred rows."""


class HFJudge:
    """A local model. The tokenizer, not the user, knows how it spells numbers.

    Args:
        options: the checkpoint and the scoring.
        lm: the model, if it is loaded already.
    """

    def __init__(self, options: JudgeOptions, *, lm: LM | None = None) -> None:
        if lm is None and not options.model:
            raise UsageError("a local judge needs --judge-model: a checkpoint folder, hub id or GGUF file.")
        self.options, self._lm = options, lm
        self.scoring = options.scoring
        self.calls = 0

    @cached_property
    def handle(self) -> ModelHandle:
        """The checkpoint, before its weights are read."""
        from residuum.models.handles import ModelHandle

        assert self._lm is not None or self.options.model is not None  # checked at the start
        return ModelHandle(self._lm or self.options.model or "", device=self.options.device)

    @property
    def identity(self) -> dict[str, Any]:
        """The weights by content, and the scoring."""
        return {
            "provider": "hf",
            "model": self.handle.name,
            "weights": self.handle.weights_hash,
            "scoring": self.scoring,
        }

    def probe(self) -> None:
        """Ask the tokenizer how numbers are spelled; nothing has to be said."""
        if self.scoring == "auto":
            self.scoring = "single" if self.spelling.single else "trie"
        elif self.scoring == "single" and not self.spelling.single:
            raise Unavailable(
                f"the judge {self.handle.name} spells numbers with several tokens, so its first token is no rating.\n"
                "  Use --judge-scoring trie (the default for it) or letters."
            )
        elif self.scoring == "text":
            raise Unavailable("a local judge has probabilities.\n  Use --judge-scoring auto.")
        elif self.scoring == "letters":
            self.scoring = settle_scoring("letters", self._ask)

    def read(self, requests: Sequence[Request], done: Callable[[int, Reading], None]) -> None:
        """Rate requests in length-sorted batches."""
        from residuum.batching import token_budget_batches, with_shrinking

        prompts = [self.model.encode(request.messages) for request in requests]
        batches = token_budget_batches([len(ids) for ids in prompts], MAX_TOKENS)
        if self.scoring == "trie":
            batches = [group[i : i + TRIE_ROWS] for group in batches for i in range(0, len(group), TRIE_ROWS)]

        def run(group: list[int]) -> list[Reading]:
            started = time.monotonic()
            readings = self._read_batch([prompts[i] for i in group])
            seconds = (time.monotonic() - started) / len(group)
            return [Reading(**{**vars(reading), "seconds": seconds}) for reading in readings]

        for group, readings in with_shrinking(run, batches):
            self.calls += len(group)
            for index, reading in zip(group, readings, strict=True):
                done(index, reading)

    def usage(self) -> dict[str, int]:
        """Requests rated."""
        return {"calls": self.calls}

    def close(self) -> None:
        """Let go of the weights."""
        if "handle" in self.__dict__:
            self.handle.release()
        self.__dict__.pop("model", None)

    @cached_property
    def model(self) -> LocalModel:
        """The loaded model."""
        from residuum.steering.judge.local import LocalModel

        return LocalModel(self.handle.lm)

    @cached_property
    def spelling(self) -> Spelling:
        """How its tokenizer spells numbers."""
        from residuum.steering.judge.spelling import Spelling

        return Spelling(self.handle.tokenizer())

    def _read_batch(self, prompts: Sequence[Sequence[int]]) -> list[Reading]:
        if self.scoring == "trie":
            from residuum.steering.judge.spelling import number_probabilities

            return [
                Reading("trie", numbers=tuple(sorted(numbers.items())), refusal=refusal)
                for numbers, refusal in number_probabilities(self.model, self.spelling, prompts)
            ]
        likeliest = self.model.start(prompts).log_probs.topk(min(TOP, len(self.spelling.texts)))
        return [
            Reading(self.scoring, tokens=tuple((self.spelling.texts[i], p) for i, p in zip(ids, ps, strict=True)))
            for ids, ps in zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)
        ]

    def _ask(self, request: Request, _: int) -> tuple[str, list[list[tuple[str, float]]]]:
        reading = self._read_batch([self.model.encode(request.messages)])[0]
        return "", [list(reading.tokens)]


JUDGES.register("hf")(Provider(HFJudge, f"a local model, read exactly ({', '.join(SCORINGS[:3])})"))
