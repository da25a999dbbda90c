"""Verdicts of made-up models, and the command line."""

from __future__ import annotations

from residuum.meta.attacked import Attacked, Rules, weigh
from residuum.meta.pools import Pools, judge


def model(name, before, quantized, relearned, *, utility=1.0, role="unlearned", diverged=False):
    return {
        "model": name, "role": role, "utility_rel": utility, "before": before,
        "after": {"quantization": quantized, "relearning": None if diverged else relearned},
        "failed": {"relearning": "the loss is nan"} if diverged else {}, "diverged": diverged,
    }  # fmt: skip


DIRECTIONS = {"em": "more knowledge", "uds": "less knowledge"}
RETAIN = model("retain", {"em": 0.2, "uds": 1.0}, {"em": 0.2, "uds": 1.0}, {"em": 0.3, "uds": 0.8}, role="retain")
MODELS = [
    RETAIN,
    model("a", {"em": 0.3, "uds": 0.8}, {"em": 0.4, "uds": 0.7}, {"em": 0.5, "uds": 0.4}),
    model("b", {"em": 0.9, "uds": 0.7}, {"em": 0.9, "uds": 0.7}, {"em": 1.0, "uds": 0.5}),
    model("c", {"em": 0.2, "uds": 0.9}, {"em": 0.2, "uds": 0.9}, {"em": 0.3, "uds": 0.8}, utility=0.5),
]
THRESHOLDS = {"em": 0.6, "uds": 0.5}


def verdict(models=MODELS, metrics=("em", "uds"), **rules) -> Attacked:
    return weigh(
        models, list(metrics), Rules(**{"thresholds": THRESHOLDS, "directions": DIRECTIONS, **rules}), {"data": "here"}
    )


def pools(p=(0.9, 0.8), n=(0.1, 0.2), **further) -> Pools:
    models = [
        {"model": f"{pool}{i}", "pool": pool, "failed": None, "metrics": {"em": value, **further}}
        for pool, values in (("P", p), ("N", n))
        for i, value in enumerate(values)
    ]
    return judge(models, ["em", *further], against="em", settings={"data": "here"})
