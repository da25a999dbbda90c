"""Faithfulness of all metrics over two pools of models, and its folder.

summary.json     per metric AUC, interval, pool statistics, threshold; paired comparisons; what was left out
results.json     one object per model with its raw values
logs/            one file per model
histograms/      P and N of every metric, when matplotlib is installed
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residuum.errors import DataError, PartlyFailed, UsageError
from residuum.meta.bench import Bench, Case, Record, measure_all
from residuum.meta.catalogue import choose, direction
from residuum.meta.faithfulness import Faithfulness, compare, measure_faithfulness
from residuum.meta.folder import labels, named, write_logs
from residuum.models.names import resolve
from residuum.store import write_json

Values = Mapping[str, float | None]


@dataclass(frozen=True)
class Pools:
    """The values of two pools, and what they say about each metric."""

    models: list[Record]
    """One object per model: ``model``, ``pool``, ``metrics`` (raw), ``failed``."""
    metrics: dict[str, Faithfulness]
    left_out: dict[str, str]
    """Metrics that could not be judged, with the reason."""
    comparisons: list[dict[str, Any]]
    settings: dict[str, Any]
    seed: int

    @property
    def thresholds(self) -> dict[str, float | None]:
        """By metric, in knowledge direction."""
        return {name: found.threshold for name, found in self.metrics.items()}

    @property
    def failed(self) -> dict[str, str]:
        """Models without values, with the reason."""
        return {record["model"]: record["failed"] for record in self.models if record["failed"]}

    def values(self, metric: str, pool: str) -> dict[str, float | None]:
        """Raw values of one metric over one pool; models that failed are not there."""
        return _values(self.models, metric, pool)

    def summary(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "pools": {
                pool: sum(record["pool"] == pool and not record["failed"] for record in self.models)
                for pool in ("P", "N")
            },
            "metrics": {
                name: {**found.as_dict(), "higher_means": direction(name)} for name, found in self.metrics.items()
            },
            "left_out": self.left_out,
            "comparisons": self.comparisons,
            "failed": self.failed,
            "seed": self.seed,
            "settings": self.settings,
        }

    def save(self, folder: Path) -> Path:
        """Write the folder; ``summary.json`` comes last, so its presence means the run is whole."""
        from importlib.util import find_spec

        write_json(folder / "results.json", self.models)
        write_logs(folder / "logs", {record["model"]: [record] for record in self.models})
        if find_spec("matplotlib"):
            from residuum.meta.plots import save_histograms

            save_histograms(self, folder / "histograms")
        write_json(folder / "summary.json", self.summary())
        return folder

    @classmethod
    def load(cls, folder: Path, metrics: Sequence[str] | None = None) -> Pools:
        """What a finished folder says, computed anew from its values; of some metrics only, when they are given.

        Raises:
            DataError: it is not such a folder, or has none of these metrics.
        """
        try:
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            models = json.loads((folder / "results.json").read_text(encoding="utf-8"))
            there = [*summary["metrics"], *summary["left_out"]]
            names = named(there, metrics, folder)
            against = next((pair["first"] for pair in summary["comparisons"]), None)
            return judge(models, names, against=against, settings=summary["settings"], seed=summary["seed"])
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"this is not the folder of a finished faithfulness run ({type(error).__name__}: {error})", path=folder,
                hint="Make one with `residuum meta faithfulness`.",
            ) from error  # fmt: skip


def run_faithfulness(
    bench: Bench,
    pool_p: Sequence[str],
    pool_n: Sequence[str],
    *,
    metrics: str | Iterable[str] = "all",
    against: str | None = "uds",
    workers: int = 1,
) -> Pools:
    """Measure two pools of models, resuming model by model, and judge every metric.

    Args:
        bench: how models are asked.
        pool_p: models that know the forget set.
        pool_n: models that do not.
        metrics: see `residuum.meta.catalogue.choose`.
        against: the metric that every other is compared with, pair by pair, if it is among them.
        workers: processes.

    Raises:
        UsageError: the pools overlap, repeat a model or are too small; seen before any model is loaded where names show it.
        PartlyFailed: fewer than two models of a pool could be measured.
    """
    check_pools(pool_p, pool_n)
    chosen = choose(metrics)
    if against is not None:
        choose(against)
    given = [*pool_p, *pool_n]
    cases = [Case(model, chosen) for model in given]
    records = measure_all(bench, cases, workers=workers, title="pools")
    sides = ["P"] * len(pool_p) + ["N"] * len(pool_n)
    models = [
        {**record, "model": label, "pool": side, "metrics": {name: record["metrics"].get(name) for name in chosen}}
        for record, label, side in zip(records, labels(given), sides, strict=True)
    ]
    _check_weights(models)
    return judge(models, chosen, against=against, settings=bench.record(), seed=bench.settings.seed)


def judge(
    models: list[Record], metrics: Sequence[str], *, against: str | None, settings: dict[str, Any], seed: int = 0
) -> Pools:
    """Faithfulness of every metric from the models' values; a metric with too few of them is left out with the reason.

    Raises:
        PartlyFailed: a pool has fewer than two models with values.
    """
    for pool in ("P", "N"):
        alive = [record for record in models if record["pool"] == pool and not record["failed"]]
        if len(alive) < 2:
            reasons = "\n  ".join(f"{r['model']}: {r['failed']}" for r in models if r["failed"])
            raise PartlyFailed(f"pool {pool} has {len(alive)} measured model(s); at least two are needed.\n  {reasons}")
    found: dict[str, Faithfulness] = {}
    left_out: dict[str, str] = {}
    for name in metrics:
        try:
            p, n = (_values(models, name, pool) for pool in ("P", "N"))
            found[name] = measure_faithfulness(name, p, n, direction(name), seed=seed)
        except UsageError as error:
            left_out[name] = str(error)
    comparisons = [
        {"first": against, "second": name, **compare(_side(models, against), _side(models, name), seed=seed)}
        for name in found
        if against in found and against is not None and name != against and _shared(models, against, name)
    ]
    return Pools(models, found, left_out, comparisons, settings, seed)


def check_pools(pool_p: Sequence[str], pool_n: Sequence[str]) -> None:
    """Refuse pools that overlap, repeat a model, or are too small to be pools.

    Raises:
        UsageError: names the models.
    """
    sources = {label: [resolve(model) for model in pool] for label, pool in (("P", pool_p), ("N", pool_n))}
    for label, pool in sources.items():
        if len(pool) < 2:
            raise UsageError(f"pool {label} has {len(pool)} model(s); at least two are needed.")
        if twice := sorted({model for model in pool if pool.count(model) > 1}):
            raise UsageError(f"pool {label} names a model twice: {', '.join(twice[:5])}.")
    if both := sorted(set(sources["P"]) & set(sources["N"])):
        raise UsageError(f"a model cannot both know and not know: {', '.join(both[:5])} stand in both pools.")


def _check_weights(models: Sequence[Record]) -> None:
    """The same weights under two names would be counted twice, or on both sides."""
    seen: dict[str, Record] = {}
    for record in models:
        twin = seen.setdefault(record.get("weights") or record["model"], record)
        if twin is not record:
            raise UsageError(
                f"{twin['model']} (pool {twin['pool']}) and {record['model']} (pool {record['pool']}) have equal weights.\n"
                "  Leave one of them out."
            )


def _values(models: Sequence[Record], metric: str, pool: str) -> dict[str, float | None]:
    return {r["model"]: r["metrics"].get(metric) for r in models if r["pool"] == pool and not r["failed"]}


def _side(models: Sequence[Record], metric: str) -> tuple[Values, Values, str]:
    return _values(models, metric, "P"), _values(models, metric, "N"), direction(metric)


def _shared(models: Sequence[Record], first: str, second: str) -> bool:
    """Whether two metrics have values on two models of each pool."""
    counts = [
        sum(r["metrics"].get(first) is not None and r["metrics"].get(second) is not None for r in models if r["pool"] == pool)
        for pool in ("P", "N")
    ]  # fmt: skip
    return min(counts) >= 2
