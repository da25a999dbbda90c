"""The folders of an evaluation: ``{category}/{model}/summary.json`` and ``results.json``, views of what the store holds.

summary.json   each metric by name, then details (interval, n, direction, notes), settings, models, flags
results.json   one object per row of each split, with its values and what the model said
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.data.jsonfiles import DataWarning
from residuum.metrics.registry import METRICS
from residuum.patching.output import example_record, run_tag, summary
from residuum.store import write_json

if TYPE_CHECKING:
    from residuum.metrics.evaluation import Evaluation
    from residuum.metrics.scores import Score


def save_evaluation(evaluation: Evaluation, folder: Path) -> Path:
    """Write the files of every category that was computed; ``summary.json`` comes last.

    What an earlier run of the same model, asked in the same way, found for other metrics stays.
    """
    categories = dict.fromkeys(METRICS[name].category for name in evaluation)
    for category in categories:
        target = folder / category / run_tag(evaluation.name)
        scores = {name: score for name, score in evaluation.items() if METRICS[name].category == category}
        found = category_summary(evaluation, scores)
        if category == "uds" and evaluation.depth is not None:
            depth = evaluation.depth
            results = [example_record(depth, i) for i in range(len(depth.examples))]
            own = summary(depth)
            found = {**own, **found, "uds_settings": own["settings"]}
        else:
            results = example_rows(evaluation, scores)
            found, results = _with_earlier(target, found, results)
        write_json(target / "results.json", results)
        write_json(target / "summary.json", found)
    return folder


def category_summary(evaluation: Evaluation, scores: Mapping[str, Score]) -> dict[str, Any]:
    """The numbers of one category, and everything that decided them."""
    values = {name: score.value for name, score in scores.items()}
    details = {name: score.record() for name, score in scores.items()}
    return {**values, "details": details, **evaluation.record}


def example_rows(evaluation: Evaluation, scores: Mapping[str, Score]) -> list[dict[str, Any]]:
    """One object per row of the splits that these metrics read; rows without a value of their own are left out."""
    bench, subject = evaluation.subject.bench, evaluation.subject
    tables: dict[str, list[dict[str, Any]]] = {}
    for name, score in scores.items():
        start = 0
        for role in dict.fromkeys(need.role for need in METRICS[name].needs) if score.values else ():
            if role == "entities":
                ids = [spot.idx for spot in bench.contexts]
                table = tables.setdefault(role, [{"split": bench.names[role], "idx": idx} for idx in ids])
            else:
                split = bench.split(role)
                if role not in tables:
                    tables[role] = [{"split": bench.names[role], "idx": i} for i in range(split.total)]
                    for place, item in zip(split.kept, split.items, strict=True):
                        tables[role][place] |= {"question": item.question, "answer": item.answer}
                table = tables[role]
            for row, value in zip(table, score.values[start : start + len(table)], strict=True):
                row[name] = value
            start += len(table)
    for role, table in tables.items():
        for kind, key in (("texts", "generated"), ("jailbreak_texts", "jailbreak_generated")):
            used = any(need.what == f"{role}.{kind}" for name in scores for need in METRICS[name].needs)
            if used:
                for place, text in zip(bench.split(role).kept, subject.evidence(f"{role}.{kind}"), strict=True):
                    table[place][key] = text
    return [row for table in tables.values() for row in table]


def _with_earlier(
    folder: Path, found: dict[str, Any], results: list[dict[str, Any]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Summary and rows, joined with those of an earlier run about other metrics where the two can stand together."""
    try:
        earlier = json.loads((folder / "summary.json").read_bytes())
        rows = json.loads((folder / "results.json").read_bytes())
        same = all(earlier["models"].get(role, model) == model for role, model in found["models"].items())
        same &= earlier["settings"] == found["settings"]
        same &= all(earlier["data"].get(split, data) == data for split, data in found["data"].items())
        other = {name: detail for name, detail in earlier["details"].items() if name not in found["details"]}
    except (OSError, ValueError, LookupError, AttributeError):
        return found, results  # there is none, or a damaged one: the store has the numbers
    if not same:
        warnings.warn(
            f"{folder} held results of other weights, data or settings under this name; they are replaced.\n"
            "  Keep both with another --set. The store has all numbers.",
            DataWarning,
            stacklevel=4,
        )
        return found, results
    table = {(row["split"], row["idx"]): row for row in rows}
    joined = [{**table.pop((row["split"], row["idx"]), {}), **row} for row in results]
    values = {name: earlier[name] for name in other}
    kept = {"details": {**other, **found["details"]}, "models": {**earlier["models"], **found["models"]}}
    if "utility" in other:  # this run does not know what it was made of
        kept["utility_parts"] = earlier.get("utility_parts")
    return {**values, **found, **kept, "data": {**earlier["data"], **found["data"]}}, [*joined, *table.values()]
