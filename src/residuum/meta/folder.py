"""What the folders of both meta-evaluations have in common: names of models, logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from residuum.errors import DataError
from residuum.models.names import resolve, shorten
from residuum.patching.output import run_tag
from residuum.store import write_text


def read_models(text: str, published: Sequence[str]) -> list[str]:
    """A list of models: ``published``, names with commas, or a text file with a name per line (``#`` begins a comment).

    Raises:
        DataError: the file names no model, or is no text.
        UnknownName: a name is neither registered nor a folder.
    """
    path = Path(text)
    if text == "published":
        return list(published)
    if path.suffix != ".gguf" and _is_file(path):
        try:
            lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"is no readable list of models: {error}", path=path, hint="Write one name, hub id or folder per line."
            ) from error
        names = [line for line in lines if line]
        if not names:
            raise DataError("names no model", path=path, hint="Write one name, hub id or folder per line.")
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        resolve(name)
    return names


def named(there: Iterable[str], metrics: Sequence[str] | None, folder: Path) -> list[str]:
    """Those of a folder's metrics that are asked for; all when none are.

    Raises:
        DataError: one that is asked for is not there.
    """
    found = list(there)
    if absent := [name for name in metrics or () if name not in found]:
        raise DataError(f"has no values of {', '.join(absent)}", path=folder, hint=f"It has {', '.join(found)}.")
    return found if metrics is None else [name for name in found if name in metrics]


def labels(models: Sequence[str]) -> list[str]:
    """Short names for tables and files; where two would be alike, the whole path or id."""
    short = [_short(model) for model in models]
    often = Counter(short)
    return [name if often[name] == 1 else model for name, model in zip(short, models, strict=True)]


def write_logs(folder: Path, logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """One file per model: after each attack its values, seconds, notes, or why it failed."""
    for model, records in logs.items():
        write_text(folder / f"{run_tag(model)}.log", "".join(_lines(model, record) for record in records))


def _lines(model: str, record: Mapping[str, Any]) -> str:
    attack = record.get("attack", "none")
    lines = [f"{model}{'' if attack == 'none' else f' after {attack}'}: {record.get('source') or ''}"]
    if record["failed"]:
        lines.append(f"  failed: {record['failed']}")
    if "quantized_weights" in record:
        lines.append(f"  weights: {record['quantized_weights']}")
    lines += [f"  {name:22}{'-' if value is None else f'{value:.6f}'}" for name, value in record["metrics"].items()]
    lines += [f"  {name}: {note}" for name, notes in record.get("notes", {}).items() for note in notes]
    lines += [f"  warning: {warning}" for warning in record.get("warnings", [])]
    if "seconds" in record:
        lines.append(f"  {record['seconds']} s")
    return "\n".join(lines) + "\n"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # many names with commas are longer than a file's name may be
        return False


def _short(model: str) -> str:
    short = shorten(resolve(model))
    return Path(short).name if Path(short).exists() else short.rpartition("/")[2]
