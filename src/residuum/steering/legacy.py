"""Responses that older tools left behind: a list of judged answers per file, the configuration in the file's name.

responses/L16_probe_c50p0_2025-12-04_05-55-16.467598.json                    one layer
responses/L12_14_mean_diff_mean_diff_c-1p5_2e+01_inc_2025-12-04_05-55-16.json  several layers, incremental
responses/residual/probe/L16_c50.0_2025-12-04_05-55-16.json                  component and method as folders
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residuum.steering.components import COMPONENTS
from residuum.steering.results import rounded
from residuum.steering.summary import status_of, summarize
from residuum.store.hashing import content_hash

_METHODS = sorted(
    ("mean_diff", "random_baseline", "pca_diff", "probe", "gradient", "rfm", "ica", "lda", "caa"), key=len, reverse=True
)
_ONE_METHOD = "|".join(_METHODS)
_NUMBER = r"-?\d+(?:[p.]\d+)?(?:e[+-]?\d+)?"
_NAME = re.compile(
    rf"L(?P<layers>\d+(?:_\d+)*)(?:_(?P<methods>(?:{_ONE_METHOD})(?:_(?:{_ONE_METHOD}))*))?"
    rf"_c(?P<coefficients>{_NUMBER}(?:_{_NUMBER})*)(?P<incremental>_inc)?"
    r"_(?P<day>\d{4}-\d\d-\d\d)_(?P<time>\d\d-\d\d-\d\d(?:\.\d+)?)\.json"
)


class Unreadable(Exception):
    """A response file that cannot be used, and why."""


@dataclass(frozen=True)
class OldRun:
    """One response file as an entry of results.json."""

    path: Path
    entry: dict[str, Any]
    guessed_component: bool


def old_files(folder: Path) -> list[Path]:
    """Response files of a trait, at any depth; baselines are not among them."""
    return sorted(path for path in (folder / "responses").rglob("*.json") if path.name != "baseline.json")


def read_old(path: Path, responses: Path, known: list[dict[str, Any]]) -> OldRun:
    """Read one response file.

    Args:
        path: the file.
        responses: the folder ``responses`` it is in.
        known: runs of an earlier results.json; one of the same time says which component it was.

    Raises:
        Unreadable: the name or the content makes no sense.
    """
    config, timestamp = _parse_name(path, responses)
    guessed = config["component"] is None
    if guessed:
        twin = next((run for run in known if run.get("timestamp") == timestamp), None)
        guessed = twin is None
        config["component"] = "residual" if twin is None else twin.get("config", {}).get("component", "residual")
    items = _read_items(path)
    entry = {
        "config": config,
        "result": rounded(summarize(items)),
        "timestamp": timestamp,
        "run_id": f"old-{content_hash(config)[:12]}",
        "created": timestamp,
        "status": status_of(items),
        "responses_file": path.name,
    }
    return OldRun(path, entry, guessed)


def read_old_baseline(folder: Path) -> dict[str, Any] | None:
    """The baseline that some tools kept beside the responses."""
    path = folder / "responses" / "baseline.json"
    try:
        items = _read_items(path)
    except (Unreadable, FileNotFoundError):
        return None
    return dict(rounded(summarize(items)))


def _parse_name(path: Path, responses: Path) -> tuple[dict[str, Any], str]:
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise Unreadable("the name is not L{layers}_{methods}_c{coefficients}_{time}.json")
    layers = [int(layer) for layer in match["layers"].split("_")]
    coefficients = [float(number.replace("p", ".")) for number in match["coefficients"].split("_")]
    folders = path.relative_to(responses).parts[:-1]
    component = folders[0] if folders and folders[0] in COMPONENTS else None
    if match["methods"]:
        methods = re.findall(_ONE_METHOD, match["methods"])
    elif len(folders) == 2 and component:
        methods = [folders[1]] * len(layers)
    else:
        raise Unreadable("neither the name nor a folder says the method")
    if not len(layers) == len(methods) == len(coefficients):
        raise Unreadable(
            f"{len(layers)} layers, {len(methods)} methods and {len(coefficients)} coefficients do not match"
        )
    config = {
        "layers": layers, "methods": methods, "coefficients": coefficients, "component": component,
        "incremental": bool(match["incremental"]),
    }  # fmt: skip
    return config, f"{match['day']}T{match['time'].replace('-', ':')}"


def _read_items(path: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads(path.read_bytes())
    except ValueError:
        raise Unreadable("it is not JSON") from None
    if not isinstance(rows, list):
        raise Unreadable("it is not a list of answers")
    items = []
    for row in rows:
        question = row.get("question", row.get("prompt")) if isinstance(row, dict) else None
        if not isinstance(question, str) or not isinstance(row.get("response"), str):
            raise Unreadable("an answer lacks its question or response")
        scores = {kind: row.get(f"{kind}_score") for kind in ("trait", "coherence")}
        if any(score is not None and not isinstance(score, int | float) for score in scores.values()):
            raise Unreadable("a score is not a number")
        items.append({
            "question_id": content_hash([question, None])[:8],
            **{kind: {"score": None if score is None else float(score)} for kind, score in scores.items()},
        })  # fmt: skip
    return items
