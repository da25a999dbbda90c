"""Result files in the layout of the published pipeline: one row a file, and a reader for old ones.

    {results_dir}/unlearning/{ts}--num{i}.csv    models before retraining: base, naive, A
    {results_dir}/ft/{ts}--num{i}.csv            trainings: B, C, N
    {results_dir}/summary/{ts}.csv               one row per unlearned model
    {results_dir}/logits/{run_id}.npz            scores [item, choice] by split or epoch, named in forget_logits_dict

The run store is the truth; these are views of it. Structured cells are JSON here and Python ``repr`` in old files: the
reader takes both. ``ts`` is UTC.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from residuum.errors import DataError
from residuum.store.atomic import storage_error, write_bytes, write_text

MODEL_FIELDS = (
    "model_path dataset forget_accs forget_accs_calibrated forget_logits_dict retain_accs retain_accs_calibrated"
    " retain_logits_dict retain_accs_5_shot retain_accs_5_shot_calibrated retain_logits_5_shot_dict unlearn_type"
    " unlearn_files wrong_unlearn_files val_files dev_file retain_files val_retain_files retain_dev_file base_model lr"
    " epochs batch_size val_batch_size retain_coeff warmup_steps data_seed eval_every save_name wandb_project_name"
    " samples time time_sf start_time start_time_sf hydra_dict steering_coeff max_samples eval_split_ids"
    " num_total_splits lora_rank eval_val_files forget_accs_by_split forget_acc_mean retain_acc_mean label_variant chance rtt_signature run_id"
).split()
"""Fields of a model before retraining: those of the published code, of its fork, and ours."""

RUN_FIELDS = (
    "dataset forget_accs_local forget_accs_calibrated_local forget_logits_dict retain_accs_local"
    " retain_accs_calibrated_local retain_logits_dict loss_type train_files val_files dev_set base_model lr epochs"
    " batch_size val_batch_size warmup_steps data_seed eval_every save_name project_name samples time time_sf start_time"
    " start_time_sf hydra_dict max_samples rtt_start_model_path rtt_condition rtt_eval_split_id eval_split_ids"
    " num_total_splits rtt_train_split_ids rtt_signature epochs_expand epochs_lst grid_size seed train_accs_local"
    " changed_weights diverged label_variant chance run_id"
).split()
"""Fields of a training: those of the published code, of its fork, and ours."""

SUMMARY_FIELDS = (
    "dataset unlearn_type model_id model_path lora_rank lr epochs retain_coeff steering_coeff forget_acc_baseline"
    " forget_acc_unlearn forget_acc_unlearn_rtt forget_acc_baseline_rtt rtt_signature recovery_rate acc_selection_rule"
    " num_rtt_splits_b num_rtt_splits_c start_time time selection forget_acc_unlearn_rtt_global"
    " forget_acc_baseline_rtt_global gap_closed eval_split_ids missing_split_ids_b missing_split_ids_c best_per_v_b"
    " best_per_v_c num_runs_b num_runs_c grid_size status label_variant retain_acc_baseline retain_acc_unlearn"
    " retain_acc_unlearn_rtt retain_acc_baseline_rtt ci_low ci_high forget_acc_unlearn_rtt_nested"
    " forget_acc_baseline_rtt_nested recovery_rate_nested recovery_above_chance forget_acc_naive"
    " forget_acc_naive_rtt forget_acc_naive_rtt_global forget_acc_naive_rtt_nested best_per_v_n recovery_above_naive"
    " forget_acc_baseline_all chance missing warnings curve weights"
).split()
"""Fields of a summary: those of the fork in its order, then ours. ``ci_low`` and ``ci_high`` are JSON by field, ``curve``
is a list of condition, epochs, accuracy and the ends of its interval, ``weights`` the hash of a model that was given."""

TEXT_FIELDS = frozenset(
    "run_id rtt_signature time start_time model_path model_id dataset loss_type unlearn_type base_model label_variant"
    " rtt_start_model_path rtt_condition save_name acc_selection_rule status selection dev_file dev_set diverged weights".split()
)
"""Never anything but text, even when it looks like a number."""

_STAMP = "%Y-%m-%d-%H-%M-%S"
_NAN = re.compile(r"\bnan\b")
_NUMPY_SCALAR = re.compile(r"\bnp\.float\d*\(([^()]*)\)")


def stamp(when: datetime | None = None) -> str:
    """A time as it stands in file names, in UTC."""
    return (when or datetime.now(UTC)).astimezone(UTC).strftime(_STAMP)


def write_row(folder: Path, row: Mapping[str, Any], fields: Sequence[str]) -> Path:
    """Write one row under a file name that nobody has: ``{ts}--num{i}.csv``; ``ts`` is the row's ``time``."""
    names = (f"{row['time']}--num{number}.csv" for number in count())
    return _write_new(folder, names, csv_text([row], fields))


def write_logits(folder: Path, name: str, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write the scores behind a row, ``{name}.npz``."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **dict(arrays))  # type: ignore[arg-type]
    return write_bytes(folder / f"{name}.npz", buffer.getvalue())


def write_summary(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write the summary file of now; of a second later, when another was written in this one."""
    now = datetime.now(UTC)
    names = (f"{stamp(now + timedelta(seconds=later))}.csv" for later in count())
    return _write_new(folder, names, csv_text(rows, SUMMARY_FIELDS))


def csv_text(rows: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> str:
    """Rows as CSV; lists and dicts as JSON, None as an empty cell."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(fields), lineterminator="\n", extrasaction="raise")
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {name: _cell(row.get(name)) for name in fields} | {k: v for k, v in row.items() if k not in fields}
        )
    return buffer.getvalue()


def known_ids(folder: Path) -> set[str]:
    """The run ids of the rows that are in a folder already."""
    return {str(row["run_id"]) for row in read_rows(folder) if row.get("run_id")}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """All rows of all CSV files in a folder, by file name, with every cell as a Python value.

    Raises:
        DataError: a file is not CSV.
    """
    return [row for path in sorted(folder.glob("*.csv")) for row in read_file(path)]


def read_file(path: Path) -> list[dict[str, Any]]:
    """The rows of one CSV file; see `read_rows`.

    Raises:
        DataError: it is not CSV.
    """
    rows: list[dict[str, Any]] = []
    try:
        with path.open(encoding="utf-8", newline="") as file, _large_cells():
            for line, row in enumerate(csv.DictReader(file, strict=True), start=2):
                if None in row or None in row.values():
                    raise DataError("has more or fewer cells than the header", path=path, line=line)
                rows.append({
                    name: (cell or None) if name in TEXT_FIELDS else read_cell(cell) for name, cell in row.items()
                })  # fmt: skip
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"is not a CSV file: {error}", path=path) from None
    return rows


def read_cell(cell: str) -> Any:
    """A cell as a value: JSON, else a Python literal (nan is None), else the text itself."""
    text = cell.strip()
    if text in ("", "nan", "None"):
        return None
    try:
        return _no_nan(json.loads(text))
    except (ValueError, RecursionError):
        pass
    try:
        return _no_nan(ast.literal_eval(_NAN.sub("None", _NUMPY_SCALAR.sub(r"\1", text))))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell


def accuracies(cell: Any) -> dict[int, float | None]:
    """``{epoch: accuracy}`` of a cell; keys may be text."""
    if not isinstance(cell, Mapping):
        return {}
    try:
        return {int(epoch): None if value is None else float(value) for epoch, value in cell.items()}
    except (TypeError, ValueError):
        raise DataError(f"accuracies go by epoch, such as {{1: 0.5}}, not {str(cell)[:80]}") from None


def split_id(path: str, files: Sequence[str]) -> int | None:
    """The index of a file among the split files of a row: by its last parts, never by a part of its name."""
    wanted = _tail(path)
    for index, file in enumerate(files):
        tail = _tail(file)
        shared = min(len(tail), len(wanted))
        if tail[-shared:] == wanted[-shared:]:
            return index
    return None


def _write_new(folder: Path, names: Iterator[str], text: str) -> Path:
    """Write a whole file under the first of some names that nobody has, whoever else is writing."""
    whole = write_text(folder / f".{os.getpid()}-{os.urandom(4).hex()}.row", text)
    try:
        while True:
            path = folder / next(names)
            with suppress(FileExistsError):
                path.hardlink_to(whole)
                return path
    except OSError as error:
        raise storage_error("write", folder, error) from error
    finally:
        whole.unlink()


@contextmanager
def _large_cells() -> Iterator[None]:
    """Let cells be as large as the logits of old files; the limit is one for the whole process, so it is put back."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _tail(path: str) -> tuple[str, ...]:
    return Path(path.removesuffix(".jsonl")).parts


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | tuple | bool) else value


def _no_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _no_nan(item) for key, item in value.items()}
    return [_no_nan(item) for item in value] if isinstance(value, list | tuple) else value
