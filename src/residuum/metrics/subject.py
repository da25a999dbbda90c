"""One model and the evidence about it, collected when it is first asked for and kept in the run store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from residuum.evidence.collect import VERSION, Reader
from residuum.evidence.fluency import classifier_identity, clean_probability
from residuum.metrics.memorization import wrong_to_right
from residuum.metrics.scores import draws
from residuum.store import Outcome, Task, content_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from residuum.data.spans import Located
    from residuum.evidence import TokenEvidence
    from residuum.evidence.rows import EncodedSplit
    from residuum.metrics.scores import Floats
    from residuum.models.handles import ModelHandle
    from residuum.patching.audit import Audit, UdsResult

CKA_DRAWS = 200
"""Resamples of the examples behind the interval of CKA."""


class Bench:
    """What all models of an evaluation are asked: the same rows, in the same way.

    Args:
        splits: encodes a split by role.
        names: what the splits are called.
        reader: how models read and write.
        context: most tokens that every model can read; None when there is no limit.
        audit: makes the UDS audit of full and retain, when both are there.
        fluency_model: the classifier that tells text from gibberish.
        seed: of all resampling.
    """

    def __init__(
        self,
        splits: Callable[[str], EncodedSplit],
        names: dict[str, str],
        reader: Reader,
        context: int | None,
        audit: Callable[[], Audit],
        fluency_model: str,
        seed: int,
    ) -> None:
        self.split, self.names, self.reader, self.context = splits, names, reader, context
        self.audit, self.fluency_model, self.seed = audit, fluency_model, seed
        self._states: dict[str, list[Tensor]] = {}

    @property
    def contexts(self) -> Sequence[Located]:
        """The contexts and rows of the unlearning depth score."""
        return self.audit().located

    @property
    def contexts_hash(self) -> str:
        """Identity of the contexts."""
        return content_hash([[spot.ids, spot.entity_span, len(spot.prompt_ids)] for spot in self.contexts])

    def states(self, model: ModelHandle) -> list[Tensor]:
        """Hidden states of a model at the rows that predict an entity; those of the latest two models are kept."""
        from residuum.evidence.states import entity_states

        key = content_hash(model.identity)
        found = self._states.pop(key, None)
        if found is None:
            title = f"{model.name} states"
            found = entity_states(model.lm, self.contexts, self.reader.batch_tokens, title=title)
        self._states[key] = found
        for old in list(self._states)[:-2]:
            del self._states[old]
        return found


class Subject:
    """One model at a bench. What it is asked for is named as metrics name it: ``forget.answers``.

    Args:
        model: loaded only when the store lacks something.
        bench: what it is asked.
    """

    def __init__(self, model: ModelHandle, bench: Bench) -> None:
        self.model, self.bench = model, bench
        self._known: dict[str, Any] = {}
        self.depth: UdsResult | None = None
        """The whole UDS result, once it has been asked for."""

    def evidence(self, what: str) -> Any:
        """A piece of evidence, see the methods below for what there is."""
        if what not in self._known:
            role, _, kind = what.partition(".")
            self._known[what] = getattr(self, f"_{kind}")(role)
        return self._known[what]

    def knows(self, what: str) -> bool:
        """Whether a piece of evidence has been asked for already."""
        return what in self._known

    def release(self) -> None:
        """Let go of the weights; what was asked for stays."""
        self.model.release()

    # Of a split, by role

    def _tokens(self, role: str) -> list[TokenEvidence]:
        split = self.bench.split(role)
        return self.bench.reader.tokens(self.model, split, self.bench.names[role])

    def _answers(self, role: str) -> list[TokenEvidence]:
        rows = self.evidence(f"{role}.tokens")
        return [rows[place.answer] for place in self.bench.split(role).places]

    def _paraphrases(self, role: str) -> list[list[TokenEvidence]]:
        rows = self.evidence(f"{role}.tokens")
        return [[rows[i] for i in place.paraphrases] for place in self.bench.split(role).places]

    def _perturbed(self, role: str) -> list[list[TokenEvidence]]:
        rows = self.evidence(f"{role}.tokens")
        return [[rows[i] for i in place.perturbed] for place in self.bench.split(role).places]

    def _wrong_to_right(self, role: str) -> Floats:
        return wrong_to_right(self.evidence(f"{role}.paraphrases"), self.evidence(f"{role}.perturbed"))

    def _answer_texts(self, role: str) -> tuple[str, ...]:
        return self.bench.split(role).answer_texts

    def _truths(self, role: str) -> list[str]:
        return [item.answer.strip() for item in self.bench.split(role).items]

    def _paraphrase_texts(self, role: str) -> list[list[str]]:
        return [[text.strip() for text in item.paraphrased_answers] for item in self.bench.split(role).items]

    def _texts(self, role: str) -> list[str]:
        return self.bench.reader.texts(self.model, self.bench.split(role).prompts, self.bench.context)

    def _jailbreak_texts(self, role: str) -> list[str]:
        return self.bench.reader.texts(self.model, self.bench.split(role).jailbreak_prompts, self.bench.context)

    def _clean_probabilities(self, role: str) -> Floats:
        texts, classifier = self.evidence(f"{role}.texts"), self.bench.fluency_model
        what = {"classifier": classifier_identity(classifier), "texts": content_hash(texts)}
        task = Task("clean_probability", {"version": VERSION, **what})
        return np.array(self.bench.reader.store.run(task, lambda: clean_probability(texts, classifier)).value)

    def _gradient_norms(self, role: str) -> Floats:
        from residuum.evidence.gradients import differentiable, gradient_norms

        split, mode = self.bench.split(role), self.bench.reader.mask_mode
        rows = [split.rows[place.answer] for place in split.places]

        def compute() -> Floats:
            title = f"{self.model.name} gradients of {self.bench.names[role]}"
            return gradient_norms(differentiable(self.model.lm), rows, mask_mode=mode, title=title)

        what = {"rows": content_hash([[row.prompt_length, *row.ids] for row in rows]), "mask_mode": mode}
        return self._unit("gradient_norms", compute, **what)

    # Of the contexts of the unlearning depth score

    def _depths(self, _: str) -> Floats:
        self.depth = self.bench.audit().run(self.model)
        return np.array([np.nan if one.uds is None else one.uds for one in self.depth.examples])

    def _lens(self, _: str) -> Floats:
        from residuum.evidence.states import logit_lens

        full = self.bench.audit().full

        def compute() -> Floats:
            return logit_lens(full.lm, self.states(), self.bench.contexts)

        return self._unit("logit_lens", compute, full=full.identity, contexts=self.bench.contexts_hash)

    def _cka(self, _: str) -> Floats:
        from residuum.evidence.states import cka

        retain, contexts, seed = self.bench.audit().retain, self.bench.contexts, self.bench.seed

        def compute() -> Floats:
            return cka(self.states(), self.bench.states(retain), contexts, draws(len(contexts), CKA_DRAWS, seed))

        what = {"contexts": self.bench.contexts_hash, "seed": seed, "draws": CKA_DRAWS}
        return self._unit("cka", compute, retain=retain.identity, **what)

    def _fisher(self, _: str) -> Floats:
        from residuum.evidence.gradients import differentiable, masked_fisher

        mask, mask_key = self._mask()

        def compute() -> Floats:
            lm, title = differentiable(self.model.lm), f"{self.model.name} Fisher"
            return masked_fisher(lm, self.bench.contexts, mask(), title=title)

        return self._unit("masked_fisher", compute, mask=mask_key)

    def _mask(self) -> tuple[Callable[[], list[NDArray[np.int64]]], str]:
        """The parameters to look at, read or found when needed, and their identity."""
        from residuum.evidence.gradients import FRACTIONS, differentiable, fisher_mask

        audit, store = self.bench.audit(), self.bench.reader.store
        task = Task("fisher_mask", {
            "version": VERSION, "full": audit.full.identity, "retain": audit.retain.identity,
            "contexts": self.bench.contexts_hash, "fractions": list(FRACTIONS),
        })  # fmt: skip

        def compute() -> Outcome:
            found = fisher_mask(differentiable(audit.full.lm), differentiable(audit.retain.lm), self.bench.contexts)
            return Outcome({"lengths": [len(block) for block in found]}, {"indices": np.concatenate(found)})

        def mask() -> list[NDArray[np.int64]]:
            unit = store.run(task, compute)
            cuts = np.cumsum(unit.value["lengths"])[:-1]
            return list(np.split(unit.arrays()["indices"], cuts))

        return mask, task.key

    def states(self) -> list[Tensor]:
        """Hidden states of every block at the rows that predict an entity."""
        return self.bench.states(self.model)

    def _unit(self, kind: str, compute: Callable[[], Floats], **what: Any) -> Floats:
        task = Task(kind, {"version": VERSION, "model": self.model.identity, **what})
        unit = self.bench.reader.store.run(task, lambda: Outcome({"model": self.model.name}, {"values": compute()}))
        values: Floats = unit.arrays()["values"]
        return values
