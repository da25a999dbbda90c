"""Run stores made without models, through the same functions that real runs are written with."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from residuum.data.examples import Example
from residuum.data.spans import Located
from residuum.patching.audit import UdsConfig, UdsResult
from residuum.patching.depth import DepthRules, depth_profile, mean_depth, measure_depth
from residuum.patching.output import example_record, run_tag, summary
from residuum.store import Store, Task, content_hash, provenance, write_json, write_text

HOSTILE = "<script>alert(1)</script>{{7*7}}</td>&amp;\"'"
"""What a model or a user may write: markup, a template, an entity, quotes."""
METHODS = ("npo", "rmu", "simnpo", "idknll")
METRICS = {
    "em": "more knowledge", "es": "more knowledge", "prob": "more knowledge", "rouge": "more knowledge", "mia_loss": "two-sided",
    "uds": "less knowledge", "mem": "less knowledge", "privacy": "less knowledge", "utility_rel": "more utility",
    "overall": "less knowledge",
}  # fmt: skip


def model(name: str, **more: Any) -> dict[str, Any]:
    """Name, source and identity of a model that nobody has."""
    weights = content_hash({"weights": name})
    return {"name": name, "source": f"models/{name}", "weights": weights, "dtype": "float32", "device": "cpu", "quantize": None, "attn": "default", **more}  # fmt: skip


def identity(found: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in ("name", "source")}


def depth_result(
    name: str,
    *,
    examples: int = 6,
    layers: int = 4,
    share: float = 0.6,
    seed: int = 0,
    text: str = "",
    generations: bool = True,
) -> UdsResult:
    """A UDS result of made-up scores: layer by layer more knowledge, of which the model lacks about ``share``."""
    config, spots, depths = UdsConfig(rules=DepthRules()), [], []
    worth_rng, own_rng = random.Random(1), random.Random(f"{name} {seed}")  # stage 1 is the same for all models
    for idx in range(examples):
        example = Example(
            idx, f"Who is author {idx}? {text}", f"The author is Name {idx}.", "The author is", f"Name {idx}"
        )
        spots.append(
            Located(
                example,
                f"Question: {example.question}\nAnswer: The author is",
                f" Name {idx}.",
                f"Name {idx}",
                (1, 2),
                (3, 4),
                (0, 1),
            )
        )
        worth = [worth_rng.uniform(0, 1.5) * layer / layers for layer in range(layers)]
        lost = [value * min(max(own_rng.gauss(share, 0.25), 0.0), 1.3) for value in worth]
        depths.append(measure_depth(idx, list(range(layers)), -0.1, [-0.1 - w for w in worth], [-0.1 - v for v in lost], config.rules))  # fmt: skip
    mean, n, ends = mean_depth(depths, seed=config.seed)
    models = {"full": model("full"), "retain": model("retain90"), "unlearned": model(name)}
    said = {role: [f"{role} says {i} {text}" for i in range(examples)] for role in models} if generations else {}
    return UdsResult(
        uds=mean, n=n, ci95=ends, examples=depths, skipped=[], located=spots, config=config, models=models,
        provenance=provenance(seed=42, data=content_hash("data"), weights={role: m["weights"] for role, m in models.items()}),
        generations=said,
    )  # fmt: skip


def save_depth(result: UdsResult, folder: Path) -> Path:
    """The files of `residuum.patching.output.save_run` that a report reads; without pictures, which take seconds."""
    records = [example_record(result, i) for i in range(len(result.examples))]
    write_text(
        folder / "results_detailed.jsonl", "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    )
    write_json(folder / "profile.json", depth_profile(result.examples, seed=result.config.seed))
    write_json(folder / "summary.json", summary(result))
    return folder


def put_evaluation(store: Store, name: str, values: dict[str, float | None], **about: Any) -> None:
    """The unit of an evaluation."""
    models = {"model": model(name), "retain": model("retain90"), "full": model("full")}
    settings, data = {"format": "chat", "seed": 42, "compat": None}, {"forget10_perturbed": content_hash("data")}
    metrics = {
        key: {
            "value": value, "ci95": None if value is None else [value - 0.05, value + 0.05], "n": 40, "n_undefined": 0,
            "higher_means": METRICS[key], "ideal": 0.5 if METRICS[key] == "two-sided" else None, "notes": [],
        }
        for key, value in values.items()
    }  # fmt: skip
    record = {
        "model": name,
        "models": models,
        "settings": settings,
        "data": data,
        "flags": [],
        "left_out": {},
        "utility_parts": [],
        **about,
    }
    spec = {
        "version": 1,
        "models": {role: identity(m) for role, m in models.items()},
        "settings": settings,
        "data": data,
        "metrics": list(metrics),
    }
    store.put(Task("evaluation", spec), {**record, "metrics": metrics}, provenance=provenance(seed=42, data=data))


def put_attack(
    store: Store, name: str, attack: str, metrics: dict[str, float], evaluated: dict[str, Any] | None = None
) -> None:
    """Values after an attack, or before any; ``evaluated`` is the copy that the attack made."""
    found = model(name)
    spec = {"version": 1, "model": identity(found), "attack": attack, "metrics": list(metrics)}
    value = {
        "model": name,
        "source": found["source"],
        "weights": found["weights"],
        "attack": attack,
        "metrics": metrics,
        "failed": None,
        "diverged": False,
        "evaluated": evaluated or (found if attack == "none" else model(f"{name}-{attack}")),
    }
    store.put(Task("meta_values", spec), value, provenance=provenance(seed=42))


def write_meta(root: Path, names: Sequence[str]) -> None:
    """Both folders of a meta-evaluation, from made-up values."""
    from residuum.meta.attacked import Rules, weigh
    from residuum.meta.pools import judge
    from residuum.meta.table import Table

    rng = random.Random(3)
    directions = {"uds": "less knowledge", "em": "more knowledge"}

    def values(knows: float) -> dict[str, float]:
        return {
            "uds": min(max(1 - knows + rng.gauss(0, 0.05), 0.0), 1.0),
            "em": min(max(knows + rng.gauss(0, 0.1), 0.0), 1.0),
        }

    pools = [
        {"model": f"{pool}{i}", "pool": pool, "weights": content_hash(f"{pool}{i}"), "failed": None, "metrics": values(0.8 if pool == "P" else 0.2)}
        for pool in ("P", "N") for i in range(6)
    ]  # fmt: skip
    judged = judge(pools, ["uds", "em"], against="uds", settings={"data": "made up"}, seed=0)
    write_json(root / "faithfulness" / "results.json", pools)
    write_json(root / "faithfulness" / "summary.json", judged.summary())
    attacked = [
        {
            "model": name, "role": "retain" if name == "retain90" else "unlearned", "utility_rel": 0.95, "before": values(0.3), "failed": {},
            "after": {"quantization": values(0.32), "relearning": values(0.5)}, "diverged": False,
        }
        for name in ("retain90", *names)
    ]  # fmt: skip
    rules = Rules(thresholds=judged.thresholds, directions=directions)
    found = weigh(attacked, ["uds", "em"], rules, {"relearning": {"lr": 2e-5}})
    found.save(root / "meta_eval")
    Table(judged, found).save(root / "meta_eval")


def write_rtt(root: Path, names: Sequence[str], *, status: str = "complete") -> None:
    """Summary and run files of an RTT sweep, and the last training of each model."""
    from residuum.rtt import artefacts

    best = {
        str(v): {"acc": 0.6 + v / 10, "epochs": 2, "lr": 1e-6, "loss_type": "QUESTION", "num_runs": 1} for v in (0, 1)
    }
    rows, store = [], Store(root)
    for name in names:
        numbers = {
            "forget_acc_baseline": 0.95,
            "forget_acc_unlearn": 0.4,
            "forget_acc_unlearn_rtt": 0.65,
            "forget_acc_baseline_rtt": 0.9,
            "forget_acc_naive_rtt": 0.45,
        }
        rows.append({
            **numbers, "dataset": "made-up", "unlearn_type": "GIVEN", "model_path": f"models/{name}", "weights": model(name)["weights"], "rtt_signature": "s1", "recovery_rate": 0.65 / 0.9,
            "gap_closed": 0.5, "recovery_above_chance": 0.4 / 0.65, "recovery_above_naive": 0.2 / 0.45, "recovery_rate_nested": 0.6, "status": status,
            "chance": 0.25, "grid_size": 2, "num_runs_b": 4, "num_runs_c": 4, "time": artefacts.stamp(), "best_per_v_b": best, "best_per_v_c": best,
            "ci_low": {key: value - 0.1 for key, value in numbers.items()}, "ci_high": {key: value + 0.1 for key, value in numbers.items()},
            "warnings": [f"only {len(best)} splits"],
            "curve": [[letter, epoch, 0.4 + epoch / 7, 0.3 + epoch / 7, 0.5 + epoch / 7] for letter in ("B", "C", "N") for epoch in (0, 1, 2)],
        })  # fmt: skip
        store.put(
            Task("rtt-epoch", {"model": identity(model(name)), "epoch": 2}), {"accuracy": 0.65},
            provenance=provenance(seed=7, data=content_hash("facts"), weights=content_hash(name), model=f"models/{name}", rtt_signature="s1"),
        )  # fmt: skip
    artefacts.write_summary(root / "evals" / "pipeline" / "summary", rows)
    (root / "evals" / "pipeline" / "ft").mkdir(exist_ok=True)


def put_steering(store: Store, *, text: str = "") -> None:
    """A baseline, a grid of steered runs and a random control of one trait."""
    context = {
        "model": {"name": "subject", "weights": content_hash("subject")},
        "questions": ["q0", "q1"],
        "judge": {"provider": "hf"},
    }
    spec = {"experiment": "demo", "trait": "moods/glad", "context": context}

    def value(trait: float, coherence: float, what: str) -> dict[str, Any]:
        items = [
            {"question_id": f"q{i}", "question": f"How are you {i}? {text}", "response": f"{what} {i} {text}", "trait": {"score": trait}, "coherence": {"score": coherence}}
            for i in range(2)
        ]  # fmt: skip
        result = {"trait_mean": trait, "coherence_mean": coherence, "n": 2, "ci95": [trait - 5, trait + 5]}
        return {
            "result": result,
            "status": "ok",
            "items": items,
            "timestamp": "2026-01-01T00:00:00",
            "created": "2026-01-01T00:00:00",
        }

    store.put(Task("steer", {**spec, "run": None}), value(20.0, 90.0, "plain"))
    for layer in (2, 4):
        for coefficient in (5.0, 10.0):
            run = {"layers": [layer], "coefficients": [coefficient], "operator": "add", "methods": ["probe"]}
            store.put(
                Task("steer", {**spec, "run": run}),
                value(20.0 + layer * coefficient, 90.0 - coefficient, f"steered L{layer}"),
            )
    control = {"layers": [4], "coefficients": [10.0], "operator": "add", "methods": ["random"]}
    store.put(Task("steer", {**spec, "run": control}), {**value(22.0, 80.0, "random"), "control_of": "x"})


def write_probe(root: Path, name: str, *, text: str = "") -> None:
    """The file of a steering probe."""
    write_json(root / "probes" / run_tag(name) / "model_diff.json", {
        "probe": "model_diff", "weights": model(name)["weights"], "description": "add what is missing", "models": {"full": "full", "unlearned": name, "retain": "retain90"}, "score": "recall",
        "config": {"seed": 0}, "n": 20, "accuracy": {"original": 0.9, "unlearned": 0.2, "steered": 0.7, "retain_model": 0.2, "retain_model_steered": 0.25},
        "retain_accuracy": {"before": 0.9, "after": 0.9, "kept": True}, "chosen": {"layer": 2, "coefficient": 1.0}, "recovery": 0.714,
        "recovery_ci95": [0.5, 0.9], "random": {"n": 20, "p95": 0.1, "recoveries": []}, "retain_recovery": 0.07, "beyond_random": 0.614, "beyond_retain": 0.644,
        "beyond_guessing": 0.45, "beyond_guessing_ci95": [0.2, 0.6], "finding": "knowledge is left",
        "layers": [{"layer": layer, "forget": 0.5, "linear_probe": 0.8} for layer in range(4)],
        "texts": [{"question": f"Who? {text}", "truth": "Name", "before": f"no {text}", "after": f"Name {text}"}],
    })  # fmt: skip


def scores(uds: float, *, utility: float = 0.95, rouge: float = 0.4) -> dict[str, float | None]:
    """A full set of metrics around a depth."""
    return {
        "em": 0.5, "es": 0.25, "prob": 1 - uds, "rouge": rouge, "mia_loss": 0.6, "uds": uds, "mem": 0.45, "privacy": 0.0625, "utility_rel": utility,
        "overall": 0.4,
    }  # fmt: skip


def make_store(root: Path, *, text: str = "", parts: bool = True) -> Path:
    """A store with four unlearned models and retain, and, with ``parts``, something for every section."""
    store = Store(root)
    names = [
        f"{method}_lr{lr}_{rest}"
        for method, lr, rest in zip(
            METHODS,
            ("1e5", "1e4", "2e5", "1e5"),
            ("b01_a5_ep5", "l2_s10_ep5", "b35_a1_d1_g0125_ep5", "a2_ep5"),
            strict=True,
        )
    ]
    for i, name in enumerate(["retain90", *names]):
        result = depth_result(name, share=1.0 if i == 0 else 0.2 * i, text=text)
        save_depth(result, root / f"uds_{name}")
        put_evaluation(store, name, scores(result.uds, rouge=0.38 if i else 0.4))
    if parts:
        for name in ("retain90", names[0]):
            put_attack(store, name, "none", {"em": 0.5, "uds": 0.8})
            put_attack(store, name, "quantization", {"em": 0.52, "uds": 0.79})
            put_attack(store, name, "relearning", {"em": 0.55 if name == "retain90" else 0.9, "uds": 0.7})
        write_meta(root, names)
        write_rtt(root, names[:2])
        put_steering(store, text=text)
        write_probe(root, names[0], text=text)
    return root
