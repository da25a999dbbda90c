"""Results as JSON lines, as other tools write and read them: a header, a baseline, then one line per run.

{"type": "header", "trait": ..., "direction": ..., "steering_model": ..., "eval": {...}, ...}
{"type": "baseline", "result": {...}, "eval": {...}, "timestamp": ..., "context_id": ...}
{"result": {...}, "config": {"vectors": [{"layer": 16, "component": "residual", "method": "probe", "weight": 50.0, ...}]}, ...}
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from residuum.errors import DataError
from residuum.steering.experiments import split_source
from residuum.steering.legacy import OldRun
from residuum.steering.results import Results, baseline_entry, run_entry
from residuum.steering.settings import context_id
from residuum.steering.traits import SteeringWarning
from residuum.store import Unit, write_text
from residuum.store.hashing import content_hash


def write_jsonl(results: Results, out: Path) -> Path:
    """Write the runs of a trait's latest context; a file of this kind has room for one.

    Raises:
        DataError: there are no runs.
    """
    runs = [unit for unit in results.units() if unit.task.spec["run"] and not unit.value.get("control_of")]
    if not runs:
        raise DataError(
            "there are no runs of this trait", path=results.path, hint="Make some: residuum steer evaluate."
        )
    latest = context_id(max(runs, key=lambda unit: str(unit.value["timestamp"])).task.spec["context"])
    chosen = [unit for unit in runs if context_id(unit.task.spec["context"]) == latest]
    chosen.sort(key=lambda unit: (unit.value["created"], unit.task.key))
    if others := len(runs) - len(chosen):
        warnings.warn(f"{others} runs of other contexts are not in {out.name}.", SteeringWarning, stacklevel=2)
    lines = [_header(results, chosen)]
    for unit in results.units():
        if unit.task.spec["run"] is None and context_id(unit.task.spec["context"]) == latest:
            entry = baseline_entry(unit)
            about = {key: entry.pop(key) for key in ("timestamp", "context_id")}
            lines.append({"type": "baseline", "result": entry, "eval": _eval(unit), **about})
    lines += [_run(unit) for unit in chosen]
    return write_text(out, "".join(json.dumps(line) + "\n" for line in lines))


def _header(results: Results, runs: Sequence[Unit]) -> dict[str, Any]:
    first, context = runs[0], runs[0].task.spec["context"]
    experiment, trait = results.experiment.name, results.trait
    if source := first.value.get("vector_source"):
        experiment, trait = split_source(source)
    negative = all(min(unit.task.spec["run"]["coefficients"]) < 0 for unit in runs)
    return {
        "type": "header", "trait": results.trait, "direction": "negative" if negative else "positive",
        "steering_model": context["model"]["name"], "steering_experiment": results.experiment.name,
        "vector_source": {"model": None, "experiment": experiment, "trait": trait}, "eval": _eval(first),
        "prompts_file": first.value["prompts_file"], "n_questions": len(context["questions"]),
    }  # fmt: skip


def _run(unit: Unit) -> dict[str, Any]:
    entry, config = run_entry(unit), dict(unit.task.spec["run"])
    columns = zip(config.pop("layers"), config.pop("methods"), config.pop("coefficients"), strict=True)
    component = config.pop("component")
    config.pop("vectors")
    vectors = [
        {"layer": layer, "component": component, "position": None, "method": method, "weight": weight}
        for layer, method, weight in columns
    ]
    return {
        "result": entry["result"], "config": {"vectors": vectors, **config}, "eval": _eval(unit),
        "timestamp": entry["timestamp"], "run_id": entry["run_id"], "context_id": entry["context_id"],
    }  # fmt: skip


def _eval(unit: Unit) -> dict[str, Any]:
    judge = unit.task.spec["context"]["judge"]
    method = "text_parse" if judge["scoring"] == "text" else "logprob"
    return {"model": judge["model"], "method": method, "trait_judge": judge["trait_prompt"]}


@dataclass
class Lines:
    """What a file of JSON lines holds."""

    baseline: dict[str, Any] | None = None
    """The last one."""
    runs: list[OldRun] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Lines that could not be used, and why."""


def read_jsonl(path: Path, folder: Path) -> Lines:
    """Read what another tool, or `write_jsonl`, has written.

    Args:
        path: the file.
        folder: of the trait; the folders between name the context of runs that do not name theirs.
    """
    found = Lines()
    context = "/".join(path.parent.relative_to(folder).parts) or None
    for name, line in _read_lines(path):
        try:
            row = json.loads(line)
            if row.get("type") == "baseline":
                found.baseline = {
                    **row["result"], "context_id": _context(row, context), "timestamp": str(row.get("timestamp") or ""),
                }  # fmt: skip
            elif row.get("type") != "header":
                found.runs.append(OldRun(path, _entry(row, context), guessed_component=False))
        except (ValueError, LookupError, TypeError, AttributeError):
            found.skipped.append((name, "it is no run, or torn"))
    return found


def _read_lines(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), start=1):
        if line.strip():
            yield f"{path.name}:{number}", line


def _entry(row: Mapping[str, Any], context: str | None) -> dict[str, Any]:
    """A line as an entry of results.json."""
    config = dict(row["config"])
    if (vectors := config.pop("vectors", None)) is None:
        columns = zip(config["layers"], config["methods"], config["coefficients"], strict=True)
        place = {"component": config.get("component", "residual")}
        vectors = [{**place, "layer": layer, "method": method, "weight": weight} for layer, method, weight in columns]
    (component,) = {vector.get("component", "residual") for vector in vectors}
    config |= {
        "layers": [int(vector["layer"]) for vector in vectors],
        "methods": [str(vector["method"]) for vector in vectors],
        "coefficients": [float(vector["weight"]) for vector in vectors],
        "component": component,
        "incremental": bool(config.get("incremental")),
    }
    timestamp = str(row.get("timestamp") or "")
    return {
        "config": config, "result": dict(row["result"]), "timestamp": timestamp, "created": timestamp,
        "run_id": str(row.get("run_id") or f"old-{content_hash([config, context])[:12]}"),
        "context_id": _context(row, context),
        "status": "judge_failed" if row["result"]["trait_mean"] is None else "ok",
    }  # fmt: skip


def _context(row: Mapping[str, Any], folders: str | None) -> str | None:
    return str(row.get("context_id") or folders or "") or None
