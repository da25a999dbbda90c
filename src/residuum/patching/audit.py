"""One audit: full, retain and the examples, asked about one unlearned model after another.

Every batch of patched scores is a unit of the run store, so an interrupted run goes on where it stopped, and a second
unlearned model finds stage 1 done.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from residuum.batching import token_budget_batches, with_shrinking
from residuum.data.examples import Example
from residuum.data.jsonfiles import data_hash
from residuum.data.prompts import text_ids
from residuum.data.spans import Located, Skip, locate, prompt_of
from residuum.errors import DataError, ModelError
from residuum.models.handles import ModelHandle
from residuum.patching.depth import DepthRules, ExampleDepth, mean_depth, measure_depth
from residuum.patching.engine import Engine, PatchConfig, TokenScores
from residuum.patching.selfcheck import make_engine
from residuum.progress import progress
from residuum.store import Store, Task, content_hash, provenance
from residuum.store.origin import versions
from residuum.uncertainty import Interval

if TYPE_CHECKING:
    from residuum.models.loading import LM

SCORES_VERSION = 1
"""Part of every unit's identity: raised when the engines' numbers change."""


@dataclass(frozen=True)
class UdsConfig:
    """Everything but models and data that decides a UDS."""

    patch: PatchConfig = field(default_factory=PatchConfig)
    rules: DepthRules = field(default_factory=DepthRules)
    reference: Literal["gt", "full"] = "gt"
    reference_scope: Literal["continuation", "full_answer"] = "continuation"
    entity_source: Literal["gt", "full"] = "gt"
    em_scope: Literal["entity", "full"] = "entity"
    join: Literal["ids", "retokenize"] = "ids"
    """Prompt and reference are joined as ids (as published), or tokenized as one text."""
    needed_only: bool = False
    """Stage 2 only in the layers that enter the score."""
    engine: str = "auto"
    seed: int = 42
    batch_tokens: int = 4096
    max_memory: int | None = None
    s1_cache: bool = True


@dataclass(frozen=True)
class UdsResult:
    """The depth of one unlearned model. Higher means more erased: 1 like retain, 0 intact."""

    uds: float
    """Mean over the examples that have a depth."""
    n: int
    """How many those are."""
    ci95: Interval | None
    """Bootstrap interval over examples."""
    examples: list[ExampleDepth]
    skipped: list[Skip]
    """Rows that could not be evaluated, with the reason."""
    located: list[Located] = field(repr=False)
    """The evaluated contexts, in the order of ``examples``."""
    config: UdsConfig
    models: dict[str, dict[str, Any]]
    """Name, source and identity of full, retain and unlearned."""
    provenance: dict[str, Any] = field(repr=False)
    engine: str = "auto"
    """The engine that computed what was not in the store yet."""
    generations: dict[str, list[str]] = field(default_factory=dict, repr=False)
    """Greedy continuations of full, retain and unlearned for the log, when asked for."""
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The unlearned model."""
        return str(self.models["unlearned"]["name"])

    def save(self, folder: str | Path) -> Path:
        """Write results.json, summary.json, run.log and the rest into ``folder`` (spec 1.13)."""
        from residuum.patching.output import save_run

        return save_run(self, Path(folder))


class Audit:
    """Full, retain and the examples; asked about one unlearned model after another.

    Args:
        full: the patched model.
        retain: the source of stage 1.
        examples: what to evaluate.
        config: how.
        store: keeps every finished batch.
    """

    def __init__(
        self, full: ModelHandle, retain: ModelHandle, examples: Sequence[Example], config: UdsConfig, store: Store
    ) -> None:
        self.full, self.retain, self.config, self.store = full, retain, config, store
        self.data_hash = data_hash([asdict(example) for example in examples])
        self._engine: Engine | None = None
        self._first: list[dict[str, Any]] | None = None
        self._layers = config.patch.layers_of(full.config().get_text_config().num_hidden_layers)
        spots = [self._locate(example) for example in self._with_references(examples)]
        self.located = [spot for spot in spots if isinstance(spot, Located)]
        self.skipped = [spot for spot in spots if isinstance(spot, Skip)]
        if not self.located:
            first = self.skipped[0]
            raise DataError(
                f"all {len(self.skipped)} rows are skipped; the first, idx {first.idx}, because of {first.reason} "
                f'(entity "{first.entity_text}").',
                hint="`residuum data check FILE` lists the rows and the reasons.",
            )
        lengths = [len(spot.ids) for spot in self.located]
        self.batches = token_budget_batches(lengths, config.batch_tokens)

    def run(self, unlearned: ModelHandle, *, generations: bool = False) -> UdsResult:
        """Audit one model; what the store has is not computed again."""
        started = time.monotonic()
        first = self._first = self._first or self._stage("s1", self.retain)
        self.retain.release()
        needed = self._needed(first) if self.config.needed_only else None
        second = self._stage("s2", unlearned, needed)
        retain_em = self._retain_em() if self.config.rules.metric == "em" else [None] * len(self.located)
        examples = [
            measure_depth(
                spot.idx, self._layers, self._pick(one, "full"), self._pick(one, "patched"), self._pick(two, "patched"),
                self.config.rules, retain_em=own,
            )
            for spot, one, two, own in zip(self.located, first, second, retain_em, strict=True)
        ]  # fmt: skip
        texts = self._generations(unlearned) if generations else {}
        if unlearned not in (self.full, self.retain):
            unlearned.release()
        mean, n, interval = mean_depth(examples, seed=self.config.seed)
        models = {"full": self.full, "retain": self.retain, "unlearned": unlearned}
        return UdsResult(
            uds=mean, n=n, ci95=interval, examples=examples, skipped=self.skipped, located=self.located,
            config=self.config,
            models={role: {"name": m.name, "source": m.source, **m.identity} for role, m in models.items()},
            provenance=provenance(
                seed=self.config.seed, dtype=self.full.identity["dtype"], data=self.data_hash,
                weights={role: m.weights_hash for role, m in models.items()}, uds=asdict(self.config),
            ),
            engine=self._engine.name if self._engine else "none: all scores were in the store",
            generations=texts,
            seconds=time.monotonic() - started,
        )  # fmt: skip

    @property
    def engine(self) -> Engine:
        """The patching engine over the loaded full model."""
        if self._engine is None:
            self._engine = make_engine(self.config.engine, self.full.lm, self.config.patch, self.config.max_memory)
        return self._engine

    def _stage(self, stage: str, source: ModelHandle, needed: list[list[int]] | None = None) -> list[dict[str, Any]]:
        """Patched scores of every example for one source, batch by batch, each batch a unit of the store."""
        found: dict[int, dict[str, Any]] = {}
        # Stage 1 is stage 2 with another name for the source: full and retain find their batches finished.
        with progress(f"{stage} {source.name}", len(self.located)) as bar:
            for batch in self.batches:
                layers = None if needed is None else [needed[i] for i in batch]
                records = self._unit(source, batch, layers, keep=stage == "s2" or self.config.s1_cache)
                found |= dict(zip(batch, records, strict=True))
                bar.advance(len(batch))
        return [found[i] for i in range(len(self.located))]

    def _unit(
        self, source: ModelHandle, batch: list[int], layers: list[list[int]] | None, *, keep: bool
    ) -> list[dict[str, Any]]:
        members = [self.located[i] for i in batch]

        def compute() -> list[dict[str, Any]]:
            return _score(self.engine, source.lm, members, layers)

        if not keep:
            return compute()
        task = Task("uds_scores", {
            "version": SCORES_VERSION, "target": self.full.identity, "source": source.identity,
            "contexts": content_hash([[spot.idx, spot.ids, spot.entity_span, len(spot.prompt_ids)] for spot in members]),
            "patch": asdict(self.config.patch), "layers": layers, "engine": self.config.engine,
            "libraries": {name: versions()[name] for name in ("torch", "transformers")},
        })  # fmt: skip
        made = self.store.run(task, compute, provenance=self._origin(source))
        records: list[dict[str, Any]] = made.value
        return records

    def _origin(self, source: ModelHandle) -> dict[str, Any]:
        return provenance(
            seed=self.config.seed, dtype=self.full.identity["dtype"], data=self.data_hash,
            weights={"full": self.full.weights_hash, source.name: source.weights_hash},
        )  # fmt: skip

    def _pick(self, record: dict[str, Any], which: str) -> Any:
        kind = "em" if self.config.rules.metric == "em" else "score"
        return record[f"{which}_{kind}"]

    def _needed(self, first: Sequence[dict[str, Any]]) -> list[list[int]]:
        """The layers of each example that stage 1 found to matter."""
        blank: list[float | None] = [None] * len(self._layers)
        tau = self.config.rules.delta_threshold
        found = []
        for spot, record in zip(self.located, first, strict=True):
            scores = self._pick(record, "patched")
            if self.config.rules.metric == "em":
                example = measure_depth(spot.idx, self._layers, 1.0, scores, blank, self.config.rules)
                found.append(example.ft_layers)
            else:
                full = self._pick(record, "full")
                found.append([layer for layer, score in zip(self._layers, scores, strict=True) if full - score > tau])
        return found

    def _locate(self, example: Example) -> Located | Skip:
        c = self.config
        spot = locate(
            self.full.tokenizer(), example, reference=c.reference, reference_scope=c.reference_scope,
            entity_source=c.entity_source, em_scope=c.em_scope, join=c.join,
        )  # fmt: skip
        if isinstance(spot, Located) and self.full.context is not None and len(spot.ids) > self.full.context:
            return Skip(
                example, "longer_than_context", spot.entity_text, c.entity_source, c.reference, spot.reference_text
            )
        return spot

    def _with_references(self, examples: Sequence[Example]) -> list[Example]:
        """With reference full: let the full model answer where the data do not say what it answers."""
        if self.config.reference == "gt":
            return list(examples)
        missing = [place for place, example in enumerate(examples) if example.full_output is None]
        said = dict(zip(missing, self._continue(self.full, [examples[i] for i in missing]), strict=True))
        return [replace(e, full_output=said[i]) if i in said else e for i, e in enumerate(examples)]

    def _continue(self, model: ModelHandle, examples: Sequence[Example]) -> list[str]:
        """Greedy continuations of the UDS prompts, 30 new tokens, kept in the store."""
        from residuum.generation import generate

        if not examples:
            return []
        tokenizer = self.full.tokenizer()
        prompts = [prompt_of(example, self.config.reference_scope) for example in examples]
        task = Task("uds_continuations", {"model": model.identity, "prompts": content_hash(prompts)})
        made = self.store.run(
            task,
            lambda: generate(model.lm, [text_ids(tokenizer, p, special=True) for p in prompts], max_new_tokens=30),
            provenance=self._origin(model),
        )
        texts: list[str] = made.value
        return texts

    def _generations(self, unlearned: ModelHandle) -> dict[str, list[str]]:
        examples = [spot.example for spot in self.located]
        roles = {"full": self.full, "retain": self.retain, "unlearned": unlearned}
        return {role: self._continue(model, examples) for role, model in roles.items()}

    def _retain_em(self) -> list[float]:
        """EM of the retain model itself on the evaluated tokens: what it knew all along."""
        from residuum.data.prompts import Encoded
        from residuum.evidence import teacher_force

        def compute() -> list[float]:
            rows = [Encoded(spot.ids, len(spot.prompt_ids)) for spot in self.located]
            evidence = teacher_force(self.retain.lm, rows, self.config.batch_tokens)
            spans = [slice(*spot.entity_span) for spot in self.located]
            return [
                float((found.predictions[span] == found.labels[span]).mean())
                for found, span in zip(evidence, spans, strict=True)
            ]

        contexts = content_hash([[spot.idx, spot.ids, spot.entity_span] for spot in self.located])
        made = self.store.run(Task("uds_own_em", {"model": self.retain.identity, "contexts": contexts}), compute)
        values: list[float] = made.value
        return values


def _score(
    engine: Engine, source: LM, batch: Sequence[Located], layers: list[list[int]] | None
) -> list[dict[str, Any]]:
    """Scores and EM of one batch, unpatched and patched; a batch that does not fit into memory is halved."""

    def run(picked: list[int]) -> list[tuple[TokenScores, TokenScores]]:
        members = [batch[i] for i in picked]
        wanted = None if layers is None else [layers[i] for i in picked]
        return list(zip(engine.unpatched(members), engine.patched(source, members, wanted), strict=True))

    found: dict[int, tuple[TokenScores, TokenScores]] = {}
    for picked, pairs in with_shrinking(run, [list(range(len(batch)))]):
        found |= dict(zip(picked, pairs, strict=True))
    asked = [None if layers is None else set(layers[i]) for i in range(len(batch))]
    every = engine.config.layers_of(engine.target.anatomy.num_layers)
    return [
        _record(*found[i], [wanted is None or layer in wanted for layer in every], source.name)
        for i, wanted in enumerate(asked)
    ]


def _record(own: TokenScores, patched: TokenScores, asked: Sequence[bool], source: str) -> dict[str, Any]:
    """Means over the entity's tokens; a layer that was not asked for is None.

    Raises:
        ModelError: a score is not a number, as in a half-precision model that overflows.
    """
    scores, ems = patched.log_probs.mean(dim=1).tolist(), patched.hits.double().mean(dim=1).tolist()
    full = own.log_probs.mean().item()
    if math.isnan(full) or any(math.isnan(score) for score, wanted in zip(scores, asked, strict=True) if wanted):
        raise ModelError(f"the scores of {source} patched into the full model are not numbers.\n  Try --dtype float32.")
    return {
        "full_score": full,
        "full_em": own.hits.double().mean().item(),
        "patched_score": [score if wanted else None for score, wanted in zip(scores, asked, strict=True)],
        "patched_em": [em if wanted else None for em, wanted in zip(ems, asked, strict=True)],
    }
