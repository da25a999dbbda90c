"""Attack every unlearned model and retain: quantize, relearn, and ask the same questions before and after."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from residuum.errors import MissingExtra, UsageError
from residuum.meta.attacked import ATTACKS, Attacked, Model, Rules, weigh
from residuum.meta.bench import Bench, Case, Record, measure_all
from residuum.meta.catalogue import choose, direction
from residuum.meta.folder import labels
from residuum.meta.robustness import UTILITY_FLOOR, Form
from residuum.metrics.aggregate import relative_utility
from residuum.models.names import resolve
from residuum.registry import one_of

Logs = dict[str, list[Record]]


def run_robustness(
    bench: Bench,
    models: Sequence[str],
    *,
    attacks: Sequence[str] = ATTACKS,
    metrics: str | Iterable[str] = "all",
    thresholds: Mapping[str, float | None] | None = None,
    utility_floor: float = UTILITY_FLOOR,
    form: Form = "symmetric",
    common_subset: bool = False,
    fluency: bool = True,
    workers: int = 1,
) -> tuple[Attacked, Logs]:
    """Measure every model before and after each attack, resuming model by model, and judge every metric.

    Args:
        bench: how models are asked, the same before and after; for UDS the full model and stage 1 are never attacked.
        models: the unlearned models; retain is always attacked beside them and never averaged.
        attacks: quantization (NF4), relearning.
        metrics: see `residuum.meta.catalogue.choose`.
        thresholds: of the faithfulness pools, in knowledge direction.
        utility_floor: least utility relative to the full model.
        form: symmetric or one-directional.
        common_subset: judge all metrics on the same models.
        fluency: False leaves the gibberish classifier, which comes from the hub, out of utility.
        workers: processes.

    Returns:
        The verdict, and what was measured of each model, for the logs.

    Raises:
        MissingExtra: bitsandbytes is not installed; seen before any model is loaded.
        UsageError: no model, or one given twice.
    """
    chosen, wanted = choose(metrics), check_attacks(attacks)
    unlearned = [model for model in models if resolve(model) != resolve(bench.retain)]
    if not unlearned:
        raise UsageError("there is no unlearned model to attack.\n  Name some with --models.")
    if len({resolve(model) for model in unlearned}) < len(unlearned):
        raise UsageError("a model is named twice among --models.")
    utility = "utility_rel" if fluency else "model_utility"
    given = [bench.retain, *unlearned]
    cases = [
        Case(model, (*chosen, utility) if attack == "none" else chosen, attack)
        for model in given
        for attack in ("none", *wanted)
    ]
    whole = [] if fluency else [Case(bench.full, (utility,))]
    records = measure_all(bench, [*whole, *cases], workers=workers, title="attacks")
    ceiling = None if fluency else records.pop(0)["metrics"].get(utility)
    found, logs = [], {}
    for place, label in enumerate(labels(given)):
        own = records[place * (1 + len(wanted)) :][: 1 + len(wanted)]
        own_utility = own[0]["metrics"].get(utility)
        found.append({
            **_model(own, wanted), "model": label, "role": "unlearned" if place else "retain",
            "utility_rel": own_utility if fluency else relative_utility(own_utility, ceiling),
        })  # fmt: skip
        logs[label] = own
    rules = Rules(
        wanted,
        form,
        thresholds,
        utility_floor,
        common_subset,
        {name: direction(name) for name in chosen},
        bench.settings.seed,
    )
    settings = {**bench.record(), "relearning": vars(bench.relearning), "quantization": "nf4", "utility": utility}
    return weigh(found, chosen, rules, settings), logs


def check_attacks(attacks: Sequence[str]) -> tuple[str, ...]:
    """The attacks by name, once each.

    Raises:
        UsageError: there is no such attack.
        MissingExtra: bitsandbytes is not installed.
    """
    chosen = tuple(dict.fromkeys(one_of("attack", attack.strip(), *ATTACKS) for attack in attacks))
    if "quantization" in chosen and find_spec("bitsandbytes") is None:
        raise MissingExtra("bitsandbytes", "quant", "the quantization attack")
    return chosen


def _model(records: Sequence[Record], attacks: Sequence[str]) -> Model:
    """The records of one model, the first before any attack, as one object."""
    before, after = records[0], dict(zip(attacks, records[1:], strict=True))
    made: dict[str, Any] = {
        "source": before.get("source"),
        "before": dict(before["metrics"]),
        "after": {attack: dict(record["metrics"]) or None for attack, record in after.items()},
        "failed": {record["attack"]: record["failed"] for record in records if record["failed"]},
        "diverged": any(record["diverged"] for record in records),
    }
    if "quantization" in after and "quantized_weights" in after["quantization"]:
        made["quantized_weights"] = after["quantization"]["quantized_weights"]
    return made
