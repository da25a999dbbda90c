"""Unlearning Depth Score: two-stage activation patching, retain into full and unlearned into full.

Stage 1 finds the layers that hold the knowledge (patching retain's states there loses it), stage 2 measures how much of
it the unlearned model lacks in those layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from residuum.data.examples import Example, load_examples
from residuum.errors import DataError, UsageError
from residuum.folders import runs_folder
from residuum.models.handles import ModelHandle, check_alike
from residuum.patching.audit import Audit, UdsConfig, UdsResult
from residuum.patching.depth import TAU, DepthRules
from residuum.patching.engine import PatchConfig
from residuum.patching.selfcheck import ENGINES
from residuum.registry import one_of
from residuum.store import Store

if TYPE_CHECKING:
    from residuum.models.loading import LM

    Model = str | Path | LM
    Data = str | Path | Sequence[Any] | None

__all__ = ["Audit", "UdsConfig", "UdsResult", "load_uds_data", "uds", "uds_config"]


def uds(
    *,
    full: Model,
    retain: Model,
    unlearned: Model | Sequence[Model],
    data: Data = None,
    mode: str = "layer",
    scope: str = "span",
    metric: str = "logprob",
    reference: str = "gt",
    delta_threshold: float = TAU,
    layers: Sequence[int] | Literal["needed"] | None = None,
    engine: str = "auto",
    last_layer: str | None = None,
    mid: str | None = None,
    score_dtype: str | None = None,
    s1_cache: bool = True,
    em_threshold: float = 1.0,
    em_type: str = "token",
    em_scope: str = "entity",
    entity_source: str = "gt",
    reference_scope: str = "continuation",
    join: str = "ids",
    compat: str | None = None,
    batch_tokens: int = 4096,
    max_memory: int | None = None,
    seed: int = 42,
    dtype: str = "auto",
    device: str | int = "auto",
    attn: str | None = None,
    generations: bool = False,
    runs: str | Path | None = None,
    on_result: Callable[[UdsResult], None] | None = None,
) -> UdsResult | list[UdsResult]:
    """How much of the forgotten knowledge is gone, layer by layer.

    Args:
        full: the model that knows.
        retain: the model that never saw the forget set.
        unlearned: the model to audit, or a list of them; ``"full"`` and ``"retain"`` mean the two above.
        data: annotated examples (path or rows); None for the published set.
        mode: layer, mlp, attn or mid.
        scope: span or boundary.
        metric: logprob or em.
        reference: gt or full.
        delta_threshold: tau.
        layers: which layers to patch; None for all, "needed" for stage 2 only where stage 1 found something.
        engine: auto, staircase or naive.
        last_layer: raw (default) or post_norm, the published double norm.
        mid: residual (default) or mlp_input, the published reading of mode mid.
        score_dtype: float32 (default) or logits, the published numerics.
        s1_cache: share stage 1 between runs through the run store.
        em_threshold: with metric em, a layer keeps the knowledge at or above this.
        em_type: token or exact.
        em_scope: entity or full.
        entity_source: gt or full.
        reference_scope: continuation or full_answer.
        join: ids (as published) or retokenize: tokenize prompt and reference as one text.
        compat: "published" sets last_layer, mid and score_dtype as the published code has them.
        batch_tokens: padded tokens per batch.
        max_memory: bytes to take beside the models.
        seed: of the bootstrap.
        dtype: auto, float32, bfloat16 or float16.
        device: auto, cpu, cuda:N or a GPU number.
        attn: sdpa, eager or flash_attention_2.
        generations: also let all three models continue each prompt, for the log.
        runs: root of the run store.
        on_result: called with each result as soon as it is there.

    Returns:
        One result, or a list if ``unlearned`` is one.

    Raises:
        InputError: options, data or checkpoints that cannot be used, before any weights are read where possible.
    """
    config = uds_config(
        mode=mode, scope=scope, metric=metric, reference=reference, delta_threshold=delta_threshold, layers=layers,
        engine=engine, last_layer=last_layer, mid=mid, score_dtype=score_dtype, s1_cache=s1_cache,
        em_threshold=em_threshold, em_type=em_type, em_scope=em_scope, entity_source=entity_source,
        reference_scope=reference_scope, join=join, compat=compat, batch_tokens=batch_tokens, max_memory=max_memory,
        seed=seed,
    )  # fmt: skip
    examples = load_uds_data(data)
    many = isinstance(unlearned, Sequence) and not isinstance(unlearned, str)
    given: list[Model] = [*unlearned] if isinstance(unlearned, Sequence) and many else [unlearned]  # type: ignore[list-item]
    if not given:
        raise UsageError("there is no unlearned model to audit.")
    options = {"dtype": dtype, "device": device, "attn": attn}
    target, control = ModelHandle(full, **options), ModelHandle(retain, **options)
    audited = [target if m == "full" else control if m == "retain" else ModelHandle(m, **options) for m in given]
    for other in [control, *audited]:
        check_alike(target, other)
    audit = Audit(target, control, examples, config, Store(runs or runs_folder()))
    results = []
    for model in audited:
        results.append(audit.run(model, generations=generations))
        if on_result is not None:
            on_result(results[-1])
    return results if many else results[0]


def uds_config(
    *,
    mode: str = "layer",
    scope: str = "span",
    metric: str = "logprob",
    reference: str = "gt",
    delta_threshold: float = TAU,
    layers: Sequence[int] | Literal["needed"] | None = None,
    engine: str = "auto",
    last_layer: str | None = None,
    mid: str | None = None,
    score_dtype: str | None = None,
    s1_cache: bool = True,
    em_threshold: float = 1.0,
    em_type: str = "token",
    em_scope: str = "entity",
    entity_source: str = "gt",
    reference_scope: str = "continuation",
    join: str = "ids",
    compat: str | None = None,
    batch_tokens: int = 4096,
    max_memory: int | None = None,
    seed: int = 42,
) -> UdsConfig:
    """The checked settings that the options of `uds` mean, for those who keep an `Audit` of their own.

    Raises:
        UsageError: an option has a value that it cannot have.
    """
    published = compat is not None and one_of("compat", compat, "published") == "published"
    plain = mode == "layer" and metric == "logprob"  # upstream's other paths hook the raw last layer
    return UdsConfig(
        patch=PatchConfig(
            mode=one_of("mode", mode, "layer", "mlp", "attn", "mid"),
            scope=one_of("scope", scope, "span", "boundary"),
            layers=_layer_numbers(layers),
            last_layer=one_of("last_layer", last_layer or ("post_norm" if published and plain else "raw"), "raw", "post_norm"),
            mid=one_of("mid", mid or ("mlp_input" if published else "residual"), "residual", "mlp_input"),
            score_dtype=one_of("score_dtype", score_dtype or ("logits" if published else "float32"), "float32", "logits"),
        ),
        rules=DepthRules(
            metric=one_of("metric", metric, "logprob", "em"),
            delta_threshold=_not_negative("delta_threshold", delta_threshold),
            em_threshold=_not_negative("em_threshold", em_threshold),
            em_type=one_of("em_type", em_type, "token", "exact"),
        ),
        reference=one_of("reference", reference, "gt", "full"),
        reference_scope=one_of("reference_scope", reference_scope, "continuation", "full_answer"),
        entity_source=one_of("entity_source", entity_source, "gt", "full"),
        em_scope=one_of("em_scope", em_scope, "entity", "full"),
        join=one_of("join", join, "ids", "retokenize"),
        needed_only=layers == "needed",
        engine=one_of("engine", engine, *ENGINES),
        seed=int(_not_negative("seed", seed)),
        batch_tokens=batch_tokens,
        max_memory=None if max_memory is None else int(_not_negative("max_memory", max_memory)),
        s1_cache=s1_cache,
    )  # fmt: skip


def load_uds_data(data: Data) -> list[Example]:
    """The annotated examples of a file or of given rows; by default the published set from the hub."""
    if data is None:
        from residuum.data.fetch import ANNOTATED
        from residuum.data.tofu import fetch_rows

        data = list(fetch_rows(ANNOTATED))
    if not isinstance(data, str | Path) and all(isinstance(row, Example) for row in data):
        examples = list(data)
    else:
        examples = load_examples(data)
    if not examples:
        raise DataError("holds no examples", path=data if isinstance(data, str | Path) else None)
    return examples


def _not_negative(option: str, value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"{option} must be a number of at least 0, not {value}.")
    return value


def _layer_numbers(layers: Sequence[int] | str | None) -> tuple[int, ...] | None:
    if layers is None or layers == "needed":
        return None
    if isinstance(layers, str) or not all(isinstance(layer, int) for layer in layers):
        raise UsageError(f'layers are numbers, None for all, or "needed", not {layers!r}.')
    return tuple(sorted({int(layer) for layer in layers}))
