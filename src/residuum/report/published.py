"""A table of results in the published form: one object per model, with axes and their parts.

Where the published table has one minus a metric, the metric itself is shown, so that one's own models stand in the same
columns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from residuum.errors import DataError
from residuum.report.blocks import Value
from residuum.report.model import Model, read_name
from residuum.report.shelf import Shelf

_NAMES = {"s_loss": "s_mia_loss", "s_zlib": "s_mia_zlib", "s_mink": "s_mia_min_k", "s_minkpp": "s_mia_min_kpp"}
_INVERTED = {
    "one_minus_es": "es",
    "one_minus_em": "em",
    "one_minus_paraprob": "paraprob",
    "one_minus_truth": "truth_ratio",
}
_ABOUT = ("model", "epoch", "method", "alpha", "lr")


def read_published(path: Path, shelf: Shelf) -> list[Model]:
    """The models of a published table.

    Raises:
        DataError: the file is not such a table; names row and field.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from error
    except ValueError as error:
        raise DataError(f"is not JSON: {error}", path=path) from error
    rows = content.get("models") if isinstance(content, dict) else content
    if not isinstance(rows, list) or not rows:
        raise DataError(
            "holds no table", path=path, hint='Expected {"models": [{"model": ..., "uds": ..., "mem": ...}, ...]}.'
        )
    source = shelf.cite("published table", f"{len(rows)} models", path.name, settings={"rows": len(rows)})
    models = [_model(row, number, path, source) for number, row in enumerate(rows, start=1)]
    if len({model.name for model in models}) < len(models):
        raise DataError("names a model twice", path=path, field="model")
    return models


def _model(row: Any, number: int, path: Path, source: str) -> Model:
    if not isinstance(row, dict) or not isinstance(row.get("model"), str):
        raise DataError("names no model", path=path, line=number, field="model")
    name, method = row["model"], str(row.get("method") or "")
    role = method if method in ("full", "retain") else "unlearned"
    epoch = str(row.get("epoch") or "").removeprefix("ep")
    found = {"lr": row.get("lr"), "alpha": row.get("alpha"), "epoch": float(epoch) if epoch.isdigit() else None}
    hyper = read_name(name)[1] | {key: float(value) for key, value in found.items() if isinstance(value, int | float)}
    scores: dict[str, Value] = {}
    for key, value in row.items():
        if key in _ABOUT or isinstance(value, str | bool):
            continue
        if value is not None and not isinstance(value, int | float):
            raise DataError(f"is {type(value).__name__}, not a number", path=path, line=number, field=key)
        if key in _INVERTED:
            scores[_INVERTED[key]] = Value(None if value is None else 1.0 - value, source=source)
        else:
            scores[str(_NAMES.get(key, key))] = Value(None if value is None else float(value), source=source)
    return Model(
        f"published:{name}", name, role, "" if role != "unlearned" else method, hyper, scores=scores,
        sources=[("published", source)],
    )  # fmt: skip
