"""The same questions for one model after another.

The plan is checked before any weights are read: names, references, data, vocabularies. Evidence is then collected model
by model, retain and full first, so that only those weights are in memory that are needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.data.prompts import ChatFormat
from residuum.data.tofu import data_hash
from residuum.errors import InputError, ModelError
from residuum.evidence.collect import VERSION, Reader
from residuum.evidence.rows import EncodedSplit, encode_split
from residuum.folders import runs_folder
from residuum.metrics.evaluation import Evaluation, EvaluationWarning, Settings
from residuum.metrics.plan import check_data, make_plan
from residuum.metrics.registry import Who, evidence_needs, metric_words, select
from residuum.metrics.scoring import Scorer
from residuum.metrics.splits import Splits
from residuum.metrics.subject import Bench, Subject
from residuum.models.handles import ModelHandle, check_alike
from residuum.patching.audit import Audit, UdsConfig
from residuum.patching.engine import PatchConfig
from residuum.store import Store, Task, provenance

if TYPE_CHECKING:
    from residuum.metrics.scores import Score
    from residuum.models.loading import LM

    Model = str | Path | LM


class Evaluator:
    """The same questions for one model after another; references are asked once.

    Args:
        splits: the data.
        metrics: as in `evaluate`.
        retain: the model that never saw the forget set.
        full: the model that knows.
        settings: how models are asked.
        options: how models are loaded.
        runs: root of the run store.
    """

    def __init__(
        self,
        splits: Splits,
        metrics: str | Iterable[str] = "all",
        *,
        retain: Model | None = None,
        full: Model | None = None,
        settings: Settings | None = None,
        options: dict[str, Any] | None = None,
        runs: str | Path | None = None,
    ) -> None:
        self.splits, self.settings, self.options = splits, settings or Settings(), options or {}
        self.store = Store(runs or runs_folder())
        self.references: dict[Who, ModelHandle] = {
            who: ModelHandle(given, **self.options)  # type: ignore[misc]
            for who, given in (("retain_model", retain), ("full_model", full))
            if given is not None
        }
        words = metric_words(metrics)
        self.strict = words != ["all"]
        self.plan = make_plan(select(words), self.references.keys(), strict=self.strict)
        if self.plan.message:
            warnings.warn(self.plan.message, EvaluationWarning, stacklevel=3)
        check_data(splits, self.plan.metrics)
        self._benches: dict[Any, tuple[Bench, dict[Who, Subject]]] = {}
        self._missing: dict[str, str] = {}

    def run(self, model: Model, **options: Any) -> Evaluation:
        """Evaluate one model; what the store has is not computed again.

        Args:
            model: name, folder or loaded model.
            options: how this model alone is loaded, over the options of all: ``quantize="nf4"`` leaves the references be.
        """
        handle = self._handle(model, options)
        bench, references = self._bench(handle)
        subject = Subject(handle, bench)
        subjects: dict[Who, Subject] = {**references, "model": subject}
        self._collect(subjects)
        scorer = Scorer(subjects, bench, self._missing)
        left_out = dict(self.plan.left_out)
        scores: dict[str, Score] = {}
        for metric in self.plan.metrics:
            lacking = [n.what for n in evidence_needs(metric) if n.what in self._missing and not n.optional]
            if not lacking:
                scores[metric.name] = scorer.score(metric.name)
            elif self.strict:
                raise ModelError(self._missing[lacking[0]])
            else:
                left_out[metric.name] = self._missing[lacking[0]]
        record = self._record(handle, left_out, scorer)
        self._keep(handle, scores, record)
        return Evaluation(scores, subject, record)

    def _handle(self, model: Model, options: dict[str, Any]) -> ModelHandle:
        """The model's handle; the very one of a reference when it is the same model, so that it is loaded once."""
        handle = ModelHandle(model, **{**self.options, **options})
        twins = [other for other in self.references.values() if other.identity == handle.identity]
        return twins[0] if twins and twins[0].name == handle.name else handle

    def _bench(self, handle: ModelHandle) -> tuple[Bench, dict[Who, Subject]]:
        """What is asked, made for the smallest context of all models; shared by models of one kind."""
        models = [handle, *self.references.values()]
        for other in self.references.values():
            _check_vocabulary(handle, other)
        tokenizer = handle.tokenizer()
        if isinstance(self.settings.form, ChatFormat) and not tokenizer.chat_template:
            raise InputError(
                f"the tokenizer of {handle.name} has no chat template.\n"
                '  Use the raw format: --format raw (in Python format="raw"), which asks "Question: ...\\nAnswer:".'
            )
        limits = [limit for model in models if (limit := model.context) is not None]
        context = min(limits) if limits else None
        key = (context, tokenizer.chat_template, len(tokenizer))
        if key not in self._benches:
            self._benches[key] = self._new_bench(tokenizer, context)
        return self._benches[key]

    def _new_bench(self, tokenizer: Any, context: int | None) -> tuple[Bench, dict[Who, Subject]]:
        encoded: dict[str, EncodedSplit] = {}

        def split(role: str) -> EncodedSplit:
            if role not in encoded:
                encoded[role] = encode_split(tokenizer, self.splits.rows(role), self.settings.form, context)
                self._say_too_long(encoded[role], self.splits.names[role], context)
            return encoded[role]

        reader = Reader(self.store, self.settings.mask_mode, self.settings.batch_tokens)
        bench = Bench(
            split,
            self.splits.names,
            reader,
            context,
            lambda: self._audit,
            self.settings.fluency_model,
            self.settings.seed,
        )
        return bench, {who: Subject(handle, bench) for who, handle in self.references.items()}

    @cached_property
    def _audit(self) -> Audit:
        published = self.settings.compat == "published"
        patch = PatchConfig(
            last_layer="post_norm" if published else "raw", score_dtype="logits" if published else "float32"
        )
        config = UdsConfig(patch=patch, seed=self.settings.seed, batch_tokens=self.settings.batch_tokens)
        full, retain = self.references["full_model"], self.references["retain_model"]
        check_alike(full, retain)
        return Audit(full, retain, self.splits.examples(), config, self.store)

    def _say_too_long(self, split: EncodedSplit, name: str, context: int | None) -> None:
        absent = split.total - len(split.kept)
        if absent == split.total:
            raise InputError(f"all {absent} rows of {name} are longer than the context of {context} tokens.")
        if absent:
            warnings.warn(
                f"{absent} of {split.total} rows of {name} are longer than the context of {context} tokens.\n"
                "  They are left out and counted as undefined.",
                EvaluationWarning,
                stacklevel=2,
            )

    def _collect(self, subjects: dict[Who, Subject]) -> None:
        """Ask the models for all evidence, one model after the other."""
        order: tuple[Who, ...] = ("retain_model", "full_model", "model")
        if "entities" in self.plan.roles:
            check_alike(self.references["full_model"], subjects["model"].model)
        for who in order:
            wanted = sorted({need.what for need in self.plan.needs(who)} - self._missing.keys())
            for what in wanted:
                try:
                    subjects[who].evidence(what)
                except ModelError as error:
                    # Only the classifier may be absent; all models then go without, so that like is compared with like.
                    if not what.endswith(".clean_probabilities"):
                        raise
                    self._missing[what] = str(error)
                    warnings.warn(f"{error}\n  Utility goes without fluency.", EvaluationWarning, stacklevel=4)
            if wanted:
                subjects[who].release()

    def _record(self, handle: ModelHandle, left_out: dict[str, str], scorer: Scorer) -> dict[str, Any]:
        models = {"model": handle, **{who.removesuffix("_model"): m for who, m in self.references.items()}}
        hashes = {
            self.splits.names[role]: self._audit.data_hash
            if role == "entities"
            else data_hash([asdict(row) for row in self.splits.rows(role)])
            for role in self.plan.roles
        }
        return {
            "model": handle.name,
            "models": {role: {"name": m.name, "source": m.source, **m.identity} for role, m in models.items()},
            "settings": self.settings.record(),
            "data": hashes,
            "flags": _flags(models),
            "left_out": left_out,
            "utility_parts": scorer.utility_parts(),
        }

    def _keep(self, handle: ModelHandle, scores: dict[str, Score], record: dict[str, Any]) -> None:
        """File the numbers as a unit of the store, for tables and reports."""
        identities = {
            role: {k: v for k, v in m.items() if k not in ("name", "source")} for role, m in record["models"].items()
        }
        spec = {
            "version": VERSION,
            "models": identities,
            "settings": record["settings"],
            "data": record["data"],
            "metrics": list(scores),
        }
        value = {**record, "metrics": {name: score.record() for name, score in scores.items()}}
        origin = provenance(
            seed=self.settings.seed, dtype=handle.identity["dtype"], data=record["data"],
            weights={role: m["weights"] for role, m in identities.items()},
        )  # fmt: skip
        self.store.put(Task("evaluation", spec), value, provenance=origin)


def _check_vocabulary(model: ModelHandle, reference: ModelHandle) -> None:
    ours, theirs = model.tokenizer().get_vocab(), reference.tokenizer().get_vocab()
    if ours != theirs:
        raise ModelError(
            f"the vocabularies of {model.name} ({len(ours)} tokens) and of its reference {reference.name} "
            f"({len(theirs)} tokens) differ.\n"
            "  Both must read the same ids: compare with a retain and full model of the same tokenizer."
        )


def _flags(models: dict[str, ModelHandle]) -> list[str]:
    """What looks wrong about the choice of models."""
    names = list(models)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    flags = [
        f"{a} and {b} have equal weights ({models[a].name}, {models[b].name}): this compares a model with itself"
        for a, b in pairs
        if models[a].identity == models[b].identity
    ]
    for flag in flags:
        warnings.warn(flag, EvaluationWarning, stacklevel=4)
    return flags
