"""Old result files under the right rule: ``residuum rtt summarize FOLDER``.

Reads rows of the published pipeline, of its fork and of ours. The published rows name neither condition nor held-out
split; both follow from the files they list: a training that started from an unlearned model is B, one from its base C.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from residuum.errors import DataError
from residuum.rtt.artefacts import accuracies, read_rows, split_id
from residuum.rtt.cautions import cautions
from residuum.rtt.plan import BASE, NAIVE, UNLEARNED
from residuum.rtt.selection import Run, read_accuracy
from residuum.rtt.summary import Evidence, summarize

Row = dict[str, Any]

_CONTROLS = ("BASE", "NAIVE")
"""The method column of our rows of models that were not unlearned."""


def resummarize(
    folder: str | Path,
    *,
    missing: str = "intersect",
    rule: str = "final_epoch",
    include_epoch0: bool = False,
    chance: float | None = None,
) -> list[Row]:
    """One summary row per unlearned model and signature found in a results folder.

    Args:
        folder: holds ``unlearning/`` and ``ft/``.
        missing: see `residuum.rtt.summary.summarize`.
        rule: ``final_epoch`` or ``max_epoch``.
        include_epoch0: see there.
        chance: accuracy of a guess; by default what the rows say, else one of four.

    Raises:
        DataError: there are no rows, or a row lacks what it needs.
    """
    folder = Path(folder)
    models, runs = read_rows(folder / "unlearning"), read_rows(folder / "ft")
    if not models:
        raise DataError(
            "there is no row of an unlearned model here",
            path=folder / "unlearning",
            hint="Give the folder that holds unlearning/ and ft/, for instance evals/pipeline.",
        )
    latest: dict[tuple[Any, ...], Row] = {}
    for row in models:
        if row.get("model_path") is None:
            raise DataError("a row of a model has no model_path", path=folder / "unlearning", field="model_path")
        if row.get("unlearn_type") not in _CONTROLS:
            latest[_names(row)] = row
    bases = {row.get("base_model") for row in models if row.get("base_model")}
    found = []
    for row in latest.values():
        if row["model_path"] in bases and row.get("unlearn_type") != "GIVEN":
            continue
        typed = [_typed(run, row) for run in runs]
        own = [run for run in typed if _is_own(run, row)]
        for name in dict.fromkeys(run.get("rtt_signature") for run in own if run["rtt_condition"] == UNLEARNED):
            group = [run for run in own if run.get("rtt_signature") == name]
            found.append(_summary(row, models, group, missing, rule, include_epoch0, chance))
    if not found:
        raise DataError(
            "no training here started from one of the unlearned models", path=folder / "ft",
            hint="A training belongs to the model that its rtt_start_model_path or base_model names.",
        )  # fmt: skip
    return found


def _summary(
    row: Row,
    models: Sequence[Row],
    group: Sequence[Row],
    missing: str,
    rule: str,
    include_epoch0: bool,
    chance: float | None,
) -> Row:
    runs = {kind: [_run(run) for run in group if run["rtt_condition"] == kind] for kind in (UNLEARNED, BASE, NAIVE)}
    held_out = next((run["eval_split_ids"] for run in group if run.get("eval_split_ids") not in (None, [])), None)
    wanted = _numbers(held_out) if held_out is not None else sorted({run.split for run in runs[UNLEARNED]})
    swept = group[0].get("rtt_signature")
    unlearned = _before(models, row, row["model_path"], swept)
    base = _before(models, row, row.get("base_model"), swept)
    if not base:
        # The published pipeline keeps no row of the base; every C run begins with it.
        base = {run.split: run.accuracies[0] for run in runs[BASE] if run.accuracies.get(0) is not None}  # type: ignore[misc]
    sizes = [int(run["grid_size"]) for run in group if run.get("grid_size")]
    expand = sorted({epoch for run in group for epoch in _numbers(run.get("epochs_lst") or ())})
    guess = chance if chance is not None else next((float(run["chance"]) for run in group if run.get("chance")), 0.25)
    evidence = Evidence(
        eval_split_ids=wanted, base=base, unlearned=unlearned, unlearned_runs=runs[UNLEARNED], base_runs=runs[BASE],
        naive_runs=runs[NAIVE], grid_size=max(sizes) if sizes else _cells(runs.values()), epochs_lst=expand or None,
        chance=guess, asked=_asked(group),
    )  # fmt: skip
    summary = summarize(evidence, missing=missing, rule=rule, include_epoch0=include_epoch0)
    same = [one for one in models if _names(one) == _names(row) and one.get("unlearn_type") not in _CONTROLS]
    row = next((one for one in reversed(same) if one.get("rtt_signature") == swept), row)
    copied = ("dataset", "unlearn_type", "model_path", "lora_rank", "lr", "epochs", "retain_coeff", "steering_coeff")
    return {
        **{name: row.get(name) for name in copied},
        **summary.plain(),
        "model_id": row.get("base_model"),
        "rtt_signature": swept,
        "acc_selection_rule": rule,
        "missing": missing,
        "start_time": row.get("start_time"),
        "label_variant": row.get("label_variant"),
        "retain_acc_unlearn": row.get("retain_acc_mean"),
        "warnings": cautions(summary, items=None),
    }


def _asked(group: Sequence[Row]) -> set[str]:
    """The conditions that our rows say were to be there; B and C where nobody says so."""
    settings = [run["hydra_dict"] for run in group if isinstance(run.get("hydra_dict"), dict)]
    told = {letter for known in settings for letter in known.get("conditions") or ()}
    return told - (set() if any(known.get("naive_model") for known in settings) else {"N"}) or {"B", "C"}


def _names(row: Row) -> tuple[Any, Any]:
    return row.get("model_path"), row.get("dataset")


def _typed(run: Row, model: Row) -> Row:
    """A training's row with condition, start and held-out split filled in where old files leave them out."""
    start = run.get("rtt_start_model_path") or run.get("base_model")
    condition = run.get("rtt_condition")
    if condition is None:
        condition = {model["model_path"]: UNLEARNED, model.get("base_model"): BASE}.get(start)
    held_out = run.get("rtt_eval_split_id")
    if held_out is None and run.get("val_files"):
        held_out = split_id(_paths(run["val_files"])[0], _paths(model.get("val_files")))
    return {**run, "rtt_start_model_path": start, "rtt_condition": condition, "rtt_eval_split_id": held_out}


def _is_own(run: Row, model: Row) -> bool:
    """Whether a training belongs to this unlearned model or is a control of it."""
    held_out = run["rtt_eval_split_id"]
    if run.get("dataset") != model.get("dataset") or held_out is None or held_out == -1:
        return False  # -1: trained on all splits, so nothing was held out
    if run["rtt_condition"] == UNLEARNED:
        return bool(run["rtt_start_model_path"] == model["model_path"])
    if run["rtt_condition"] == BASE:
        base = model.get("base_model")
        return base is None or run["rtt_start_model_path"] == base
    return bool(run["rtt_condition"] == NAIVE)


def _run(row: Row) -> Run:
    for name in ("loss_type", "lr", "epochs"):
        if row.get(name) is None:
            raise DataError(f"a training's row has no {name}", field=name)
    try:
        return Run(
            split=int(row["rtt_eval_split_id"]),
            loss_type=str(row["loss_type"]).removeprefix("LossType."),
            lr=float(row["lr"]),
            epochs=int(row["epochs"]),
            accuracies=accuracies(row.get("forget_accs_local")),
            expand=str(row.get("epochs_expand")).lower() == "true",
            seed=int(row.get("seed") or 0),
            time=str(row.get("time") or ""),
        )
    except (TypeError, ValueError) as error:
        where = {name: row.get(name) for name in ("rtt_eval_split_id", "lr", "epochs", "seed")}
        raise DataError(f"a training's row has something that is no number: {error} ({where})") from None


def _paths(cell: Any) -> list[str]:
    """A list of files from a cell, or one alone."""
    return [str(part) for part in (cell if isinstance(cell, list) else [] if cell is None else [cell])]


def _numbers(cell: Any) -> list[int]:
    """A list of whole numbers from a cell, or one alone."""
    try:
        return [int(part) for part in (cell if isinstance(cell, list | tuple) else [cell])]
    except (TypeError, ValueError):
        raise DataError(f"a list of numbers was expected in a cell, not {cell!r}") from None


def _before(models: Sequence[Row], like: Row, path: Any, sweep: Any) -> dict[int, float]:
    """Accuracy of a model before retraining, by split: all rows that a sweep, or nobody, claims; the newest wins."""
    found: dict[int, float] = {}
    for row in models:
        same = row.get("model_path") == path and row.get("dataset") == like.get("dataset")
        if same and row.get("rtt_signature") in (None, sweep):
            found |= _by_split(row)
    return found


def _by_split(row: Row) -> dict[int, float]:
    """Accuracy of a model by split id, after its last epoch."""
    files, cell = _paths(row.get("val_files")), row.get("forget_accs") or {}
    if not isinstance(cell, dict):
        raise DataError(f"accuracies go by file and epoch, not {str(cell)[:80]}", field="forget_accs")
    found: dict[int, float] = {}
    for path, by_epoch in cell.items():
        index = split_id(str(path), files)
        read = read_accuracy(accuracies(by_epoch), "final_epoch")
        if index is not None and read is not None:
            found[index] = read[0]
    return found


def _cells(groups: Any) -> int:
    """Without a recorded grid: the most cells that any V run has."""
    counts: dict[tuple[int, int], set[tuple[str, float, int]]] = {}
    for number, runs in enumerate(groups):
        for run in runs:
            counts.setdefault((number, run.split), set()).add((run.loss_type, run.lr, run.epochs))
    return max((len(cells) for cells in counts.values()), default=0)
