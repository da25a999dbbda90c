"""Judge saved answers again, with another judge or scoring; the steered model is not needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from residuum.errors import DataError, UsageError
from residuum.progress import progress
from residuum.steering.judge.panel import Panel
from residuum.steering.results import Results
from residuum.steering.settings import Generation, context_id
from residuum.steering.summary import status_of, summarize
from residuum.steering.traits import PromptSet
from residuum.store import Task, Unit
from residuum.store.hashing import content_hash
from residuum.store.origin import provenance


def rescore(results: Results, panel: Panel, prompts: PromptSet, coherence_prompt: str) -> list[dict[str, Any]]:
    """Judge every run and baseline of a trait; what this judge has judged before is read.

    New runs stand beside the old ones in a context of their own: scores of different judges are never mixed.

    Returns:
        One row per run: what it was and what it is now.

    Raises:
        UsageError: the prompts are not those that the answers were made for.
        DataError: there is nothing to judge.
    """
    check_answers(results, prompts)
    panel.probe()
    units = [unit for unit in results.units() if not _by(unit, panel)]
    if not units:
        raise DataError("there are no runs to judge again", path=results.path.parent)
    tasks = {unit.task.key: _task(unit, panel, prompts, coherence_prompt) for unit in units}
    names = {old[:16]: task.key[:16] for old, task in tasks.items()}
    # The same answers may have been judged by several others; they are judged here once.
    todo = list({tasks[u.task.key].key: u for u in units if not _finished(results, tasks[u.task.key])}.values())
    for unit, items in zip(todo, _judge(todo, panel, prompts, coherence_prompt), strict=True):
        task = tasks[unit.task.key]
        value = _value(unit, items, names)
        made = results.store.put(task, value, provenance=provenance(judge=panel.identity, data=prompts.hash))
        results.add(made, prompts=prompts)
    rows = []
    for unit in units:
        found = results.store.get(tasks[unit.task.key])
        if found is not None:
            rows.append(_row(unit, found))
    return rows


def check_answers(results: Results, prompts: PromptSet) -> None:
    """Make sure that there are answers to these questions, before a judge is asked for.

    Raises:
        UsageError: the prompts are not those that the answers were made for.
        DataError: there are no answers.
    """
    units = results.units()
    if not units:
        raise DataError("there are no runs to judge again", path=results.path.parent)
    if any(unit.task.spec["context"]["prompts"] != prompts.hash for unit in units):
        raise UsageError(f"{prompts.path} is not the file that the answers were made for.")


def _judge(
    units: Sequence[Unit], panel: Panel, prompts: PromptSet, coherence_prompt: str
) -> list[list[dict[str, Any]]]:
    templates = {"trait": prompts.eval_prompt, "coherence": coherence_prompt}
    answers = [(i, item, _how(unit)) for i, unit in enumerate(units) for item in unit.value["items"]]
    requests = [
        panel.request(template, item["question"], how.judged(item["response"]))
        for _, item, how in answers
        for template in templates.values()
    ]
    with progress("judging", len(set(requests))) as bar:
        scores = iter(panel.rate(requests, advance=bar.advance))
    found: list[list[dict[str, Any]]] = [[] for _ in units]
    for i, item, _ in answers:
        found[i].append({**item, **{kind: next(scores).to_json() for kind in templates}})
    return found


def _how(unit: Unit) -> Generation:
    fields = unit.task.spec["context"]["generation"]
    return Generation(**{**fields, "seed": fields["seed"] or 0})


def _task(unit: Unit, panel: Panel, prompts: PromptSet, coherence_prompt: str) -> Task:
    spec = unit.task.spec
    judge = {
        **panel.identity,
        "trait_prompt": content_hash(prompts.eval_prompt),
        "coherence_prompt": content_hash(coherence_prompt),
    }
    return Task(unit.task.kind, {**spec, "context": {**spec["context"], "judge": judge}})


def _by(unit: Unit, panel: Panel) -> bool:
    judge = unit.task.spec["context"]["judge"]
    return all(judge.get(key) == value for key, value in panel.identity.items())


def _finished(results: Results, task: Task) -> bool:
    unit = results.store.get(task)
    return unit is not None and unit.value["status"] == "ok"


def _value(unit: Unit, items: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    control_of = unit.value.get("control_of")
    return {
        **unit.value,
        "result": summarize(items),
        "status": status_of(items),
        "items": list(items),
        "search": None,  # the other judge chose these coefficients, not this one
        "control_of": None if control_of is None else names.get(control_of, control_of),
        "rescored_from": unit.task.key[:16],
        "timestamp": now,
        "created": now,
    }


def _row(old: Unit, new: Unit) -> dict[str, Any]:
    run = old.task.spec["run"]
    return {
        "layers": None if run is None else run["layers"],
        "coefficients": None if run is None else run["coefficients"],
        "trait_before": old.value["result"]["trait_mean"],
        "trait": new.value["result"]["trait_mean"],
        "coherence_before": old.value["result"].get("coherence_mean"),
        "coherence": new.value["result"].get("coherence_mean"),
        "n": new.value["result"]["n"],
        "status": new.value["status"],
        "context_id": context_id(new.task.spec["context"]),
    }
