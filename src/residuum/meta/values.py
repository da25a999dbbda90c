"""Before and after numbers from a table, so that a metric can be meta-evaluated without any model.

    model,metric,attack,before,after,utility_rel,higher_means
    npo,em,quantization,0.41,0.43,0.95,
    npo,em,relearning,0.41,0.62,0.95,
    retain,em,relearning,0.40,0.47,,

Values are raw. ``utility_rel`` and ``higher_means`` may be left out; the latter is for metrics that residuum does not know.
An empty ``after`` is a value that could not be had.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from residuum.errors import DataError
from residuum.meta.attacked import ATTACKS, Attacked, Model, Rules, weigh
from residuum.meta.folder import named
from residuum.metrics.registry import all_metrics

COLUMNS = ("model", "metric", "attack", "before", "after")
DIRECTIONS = ("more knowledge", "less knowledge")


def robustness_from_values(
    path: Path, rules: Rules, *, retain: str = "retain", metrics: Sequence[str] | None = None
) -> Attacked:
    """Q, R and their mean from a CSV file.

    Args:
        path: the table, see above.
        rules: directions are taken from the table; attacks too, of those that are asked for.
        retain: what the retain model is called there.
        metrics: only these; all that are there when left out.

    Raises:
        DataError: with file, line and field.
    """
    models: dict[str, Model] = {}
    directions: dict[str, str] = {}
    attacks: set[str] = set()
    rows = _rows(path)
    for line, row in rows:
        name, metric, attack = row["model"], row["metric"], row["attack"]
        if attack not in ATTACKS:
            raise DataError(f"{attack!r} is none of {', '.join(ATTACKS)}", path=path, line=line, field="attack")
        if not name:
            raise DataError("the model has no name", path=path, line=line, field="model")
        own = _direction(row, path, line)
        if directions.setdefault(metric, own) != own:
            raise DataError(f"{metric} has two directions", path=path, line=line, field="higher_means")
        model = models.setdefault(name, {
            "model": name, "role": "retain" if name == retain else "unlearned", "utility_rel": None, "before": {},
            "after": {}, "failed": {}, "diverged": False,
        })  # fmt: skip
        after = model["after"].setdefault(attack, {})
        if metric in after:
            raise DataError(f"{name} has {metric} after {attack} twice", path=path, line=line)
        after[metric] = _number(row, "after", path, line)
        before = _number(row, "before", path, line)
        if model["before"].setdefault(metric, before) != before:
            raise DataError(
                f"{name} has another {metric} before {attack} than elsewhere", path=path, line=line, field="before",
                hint="Both attacks start from the same model under the same settings.",
            )  # fmt: skip
        utility = _number(row, "utility_rel", path, line)
        if None not in (utility, model["utility_rel"]) and utility != model["utility_rel"]:
            raise DataError(f"{name} has another utility elsewhere", path=path, line=line, field="utility_rel")
        model["utility_rel"] = model["utility_rel"] if utility is None else utility
        attacks.add(attack)
    if not attacks & set(rules.attacks):
        raise DataError(f"has no values after {' or '.join(rules.attacks)}", path=path)
    chosen = named(directions, metrics, path)
    attacks &= set(rules.attacks)
    if "relearning" in attacks and retain not in models:
        raise DataError(
            f"there is no model called {retain!r}, against which relearning is judged", path=path,
            hint="Add its rows, or say with --retain-model what it is called.",
        )  # fmt: skip
    if not any(model["role"] == "unlearned" for model in models.values()):
        raise DataError("there is no unlearned model", path=path)
    full = Rules(
        tuple(attack for attack in ATTACKS if attack in attacks), rules.form, rules.thresholds, rules.utility_floor,
        rules.common_subset, directions, rules.seed,
    )  # fmt: skip
    return weigh(list(models.values()), chosen, full, {"values": str(path), "retain_model": retain})


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            absent = [column for column in COLUMNS if column not in (reader.fieldnames or [])]
            if absent:
                raise DataError(
                    f"the column {absent[0]} is missing", path=path, line=1, hint=f"Needed: {','.join(COLUMNS)}."
                )
            rows = [
                (reader.line_num, {key: (value or "").strip() for key, value in row.items() if key}) for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot be read: {error}", path=path) from error
    if not rows:
        raise DataError("has no rows", path=path)
    return rows


def _direction(row: dict[str, str], path: Path, line: int) -> str:
    known, said = all_metrics(), row.get("higher_means", "")
    if row["metric"] in known:
        own = known[row["metric"]].higher_means
        if said and said != own and own in DIRECTIONS:
            raise DataError(f"{row['metric']} means {own}, not {said!r}", path=path, line=line, field="higher_means")
        if own not in DIRECTIONS and not row["metric"].startswith("mia_"):
            raise DataError(
                f"{row['metric']} does not say how much a model knows (higher means {own})", path=path, line=line, field="metric"
            )  # fmt: skip
        return own
    if said not in DIRECTIONS:
        raise DataError(
            f"{row['metric']!r} is no metric of residuum", path=path, line=line, field="metric",
            hint=f"Add a column higher_means: {' or '.join(DIRECTIONS)}.",
        )  # fmt: skip
    return said


def _number(row: dict[str, str], column: str, path: Path, line: int) -> float | None:
    text = row.get(column, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{text!r} is not a number", path=path, line=line, field=column)
    return value
