"""Which metrics are judged: the 22 of the published table, or any other that says how much a model knows."""

from __future__ import annotations

from collections.abc import Iterable

from residuum.errors import UsageError

TABLE = (
    "em", "es", "prob", "paraprob", "truth_ratio", "rouge", "para_rouge", "jailbreak_rouge",
    "mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp", "s_mia_loss", "s_mia_zlib", "s_mia_min_k", "s_mia_min_kpp",
    "cka", "logit_lens", "fisher_masked_0.0001", "fisher_masked_0.001", "fisher_masked_0.01", "uds",
)  # fmt: skip
"""What ``all`` means: thirteen output metrics with UDS, four retain-relative attacks, five of representations."""


def choose(metrics: str | Iterable[str] = "all") -> tuple[str, ...]:
    """The metrics that some names mean, see `residuum.metrics.registry.select`; ``all`` is `TABLE`.

    A retain-relative attack brings its raw attack along: that one decides which models count as unlearned.

    Raises:
        UnknownName: with the nearest names.
        UsageError: a metric does not say how much a model knows.
    """
    from residuum.metrics.registry import select

    words = metrics.split(",") if isinstance(metrics, str) else list(metrics)
    words = [word for given in words for word in (TABLE if given.strip() == "all" else [given])]
    chosen: dict[str, None] = {}
    for metric in select(words):
        attack = metric.higher_means == "two-sided" and metric.name.startswith("mia_")
        if not attack and metric.higher_means not in ("more knowledge", "less knowledge"):
            raise UsageError(
                f"{metric.name} does not say how much a model knows (higher means {metric.higher_means}).\n"
                "  Leave it out; `residuum ls metrics` shows the direction of each."
            )
        chosen |= {threshold_metric(metric.name): None, metric.name: None}
    return tuple(chosen)


def threshold_metric(metric: str) -> str:
    """The metric whose threshold decides for this one: a retain-relative attack has none of its own (spec 3.3)."""
    return metric.removeprefix("s_") if metric.startswith("s_mia_") else metric


def direction(metric: str) -> str:
    """``higher_means`` of a registered metric."""
    from residuum.metrics.registry import all_metrics

    return all_metrics()[metric].higher_means
