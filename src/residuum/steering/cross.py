"""Does steering one trait move others? The same answers, judged on other traits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from residuum.steering.judge.prompts import default_trait_prompt
from residuum.steering.results import CROSS_KIND
from residuum.steering.summary import status_of, summarize
from residuum.steering.traits import find_prompts, load_definition, load_prompts
from residuum.store import Task, Unit
from residuum.store.hashing import content_hash
from residuum.store.origin import provenance

if TYPE_CHECKING:
    from residuum.steering.bench import Bench


def judge_across(bench: Bench, run: Unit | None, baseline: Unit, traits: Sequence[str]) -> list[dict[str, Any]]:
    """Judge a run and its baseline on other traits; saved, so that a trait is judged once.

    Returns:
        One row of the cross-trait matrix: trait, mean before and after, difference.
    """
    if run is None:
        return []
    rows = []
    for trait in traits:
        template = _template(bench, trait)
        spec = {
            **bench.results.place,
            "run_id": run.task.key[:16], "run": run.task.key, "judged_trait": trait, "prompt": content_hash(template),
        }  # fmt: skip
        task = Task(CROSS_KIND, spec)
        unit = bench.results.store.get(task)
        if unit is None or _status(unit.value) != "ok":  # what the judge failed on is asked again
            unit = bench.results.store.put(task, _judge(bench, run, baseline, template), provenance=provenance())
        bench.results.add(unit)
        rows.append({
            "judged_trait": trait, "baseline": unit.value["baseline"]["trait_mean"],
            "trait_mean": unit.value["result"]["trait_mean"], "delta": unit.value["delta"],
            "status": _status(unit.value),
        })  # fmt: skip
    return rows


def _status(value: Mapping[str, Any]) -> str:
    judged = {status_of(value[part]) for part in ("items", "baseline_items")}
    return "ok" if judged == {"ok"} else "judge_failed"


def _judge(bench: Bench, run: Unit, baseline: Unit, template: str) -> dict[str, Any]:
    judged = []
    for unit in (run, baseline):
        items = unit.value["items"]
        requests = [bench.panel.request(template, i["question"], bench.generation.judged(i["response"])) for i in items]
        scores = bench.panel.rate(requests)
        judged.append([
            {"question_id": i["question_id"], "rollout": i["rollout"], "trait": s.to_json(), "coherence": i["coherence"]}
            for i, s in zip(items, scores, strict=True)
        ])  # fmt: skip
    result, before = (summarize(items) for items in judged)
    known = result["trait_mean"] is not None and before["trait_mean"] is not None
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return {
        "result": result, "baseline": before, "items": judged[0], "baseline_items": judged[1],
        "delta": result["trait_mean"] - before["trait_mean"] if known else None, "timestamp": now, "created": now,
    }  # fmt: skip


def _template(bench: Bench, trait: str) -> str:
    root = bench.results.experiment.root
    path = find_prompts(root, trait)
    return load_prompts(path, default_prompt=default_trait_prompt(load_definition(root, trait))).eval_prompt
