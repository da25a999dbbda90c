"""Make ``results.json`` again from what is finished: units of the run store, and files of other tools."""

from __future__ import annotations

import json
import shutil
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from residuum.errors import DataError, ResiduumError, UsageError
from residuum.steering.jsonl import read_jsonl
from residuum.steering.legacy import OldRun, Unreadable, old_files, read_old, read_old_baseline
from residuum.steering.results import Results, is_view, jsonl_files
from residuum.steering.traits import SteeringWarning
from residuum.store.atomic import write_json


@dataclass
class Rebuilt:
    """What a rebuild found and did."""

    view: dict[str, Any]
    found: int = 0
    """Files looked at."""
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Files that could not be used, and why."""
    superseded: list[str] = field(default_factory=list)
    """Older files of a configuration that a later one has too."""
    recovered: list[str] = field(default_factory=list)
    """Runs that results.json lacks."""
    lost: list[str] = field(default_factory=list)
    """Runs of results.json that nothing backs."""
    written: Path | None = None

    @property
    def usable(self) -> int:
        """Files that made it."""
        return self.found - len(self.skipped) - len(self.superseded)


def rebuild(results: Results, *, apply: bool = False, overwrite: bool = False, allow_loss: bool = False) -> Rebuilt:
    """Compare results.json with what the finished work says, and write it if asked to.

    Args:
        results: the trait.
        apply: write ``results_rebuilt.json``.
        overwrite: with ``apply``, write ``results.json`` itself; the old one is kept as ``results.json.bak``.
        allow_loss: overwrite although the old file has runs that nothing backs.

    Raises:
        UsageError: overwrite without apply, or it would lose runs.
        DataError: there is no such trait.
        ResiduumError: there are files, but none can be used.
    """
    if overwrite and not apply:
        raise UsageError("--overwrite needs --apply.\n  Without --apply nothing is written.")
    if not results.path.parent.is_dir() and not results.units():
        raise DataError("there are no results of this trait", path=results.path.parent)
    # A run that is finished meanwhile must not be written over.
    with results.alone() if overwrite else nullcontext():
        return _rebuild(results, apply=apply, overwrite=overwrite, allow_loss=allow_loss)


def _rebuild(results: Results, *, apply: bool, overwrite: bool, allow_loss: bool) -> Rebuilt:
    folder = results.path.parent
    before = _read_view(results.path)
    with warnings.catch_warnings(record=True) as damaged:
        warnings.simplefilter("always")
        view = results.rebuild()
    made = Rebuilt(view)
    made.skipped += [(str(w.message).split(" ", 1)[0], "damaged") for w in damaged]
    made.found = len(view["runs"]) + len(view["controls"]) + len(view["baselines"]) + len(damaged)
    _add_old(made, folder, before)
    _find_baseline(made, folder, before)
    known = {_name(run) for run in view["runs"]}
    existing = {_name(run) for run in before.get("runs", [])}
    made.recovered = sorted(known - existing)
    made.lost = sorted(existing - known)
    if made.found and not made.usable:
        raise ResiduumError(
            f"none of the {made.found} files of {results.trait} can be used; first {made.skipped[0][0]}: {made.skipped[0][1]}."
        )
    if apply:
        made.written = _write(results, made, overwrite=overwrite, allow_loss=allow_loss, existing=len(existing))
    return made


def _add_old(made: Rebuilt, folder: Path, before: dict[str, Any]) -> None:
    """Response files and JSON lines: one run per configuration, the latest wins."""
    found = _read_responses(made, folder, before) + _read_lines(made, folder)
    guessed = sum(old.guessed_component for old in found)
    latest: dict[str, OldRun] = {}
    for old in found:
        key = _name(old.entry)
        if key in latest:
            first, old = sorted((latest[key], old), key=lambda run: run.entry["timestamp"])
            made.superseded.append(first.path.name)
        latest[key] = old
    if guessed:
        warnings.warn(
            f"{guessed} files do not say their component; residual is assumed.", SteeringWarning, stacklevel=3
        )
    if latest:
        known = {_name(run) for run in made.view["runs"]}
        made.view["runs"] += [old.entry for key, old in latest.items() if key not in known]
        made.view["runs"].sort(key=lambda run: (run["created"], run["run_id"]))


def _read_responses(made: Rebuilt, folder: Path, before: dict[str, Any]) -> list[OldRun]:
    found = []
    for path in old_files(folder):
        made.found += 1
        try:
            found.append(read_old(path, folder / "responses", before.get("runs", [])))
        except Unreadable as reason:
            made.skipped.append((path.name, str(reason)))
    return found


def _read_lines(made: Rebuilt, folder: Path) -> list[OldRun]:
    found: list[OldRun] = []
    for path in jsonl_files(folder):
        lines = read_jsonl(path, folder)
        made.found += len(lines.runs) + len(lines.skipped)
        made.skipped += lines.skipped
        found += lines.runs
        if lines.baseline is not None:
            if context := lines.baseline["context_id"]:
                made.view["baselines"].setdefault(context, lines.baseline)
            made.view["baseline"] = made.view["baseline"] or lines.baseline
    return found


def _find_baseline(made: Rebuilt, folder: Path, before: dict[str, Any]) -> None:
    """That of the units, else what is written beside the responses or in the old view."""
    made.view["baseline"] = made.view["baseline"] or read_old_baseline(folder) or before.get("baseline")
    if made.view["prompts_file"] is None:
        made.view["prompts_file"] = before.get("prompts_file")
    if made.view["baseline"] is None and made.view["runs"]:
        warnings.warn("no baseline was found; it is null.", SteeringWarning, stacklevel=3)


def _write(results: Results, made: Rebuilt, *, overwrite: bool, allow_loss: bool, existing: int) -> Path:
    if not overwrite:
        return write_json(results.path.with_name("results_rebuilt.json"), made.view)
    if made.lost and not allow_loss:
        raise UsageError(
            f"results.json has {existing} runs, the rebuilt one would have {len(made.view['runs'])} "
            f"(nothing backs {', '.join(made.lost[:3])}).\n  Overwrite it all the same with --allow-loss."
        )
    if results.path.exists():
        shutil.copy2(results.path, results.path.with_name("results.json.bak"))
    return write_json(results.path, made.view)


def _read_view(path: Path) -> dict[str, Any]:
    try:
        view = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return view if is_view(view) else {}


def _name(run: dict[str, Any]) -> str:
    """A run by id, or by configuration where older tools gave none."""
    if run.get("run_id") and not str(run["run_id"]).startswith("old-"):
        return str(run["run_id"])
    config = run.get("config", {})
    layers = "_".join(map(str, config.get("layers", [])))
    coefficients = "_".join(f"{float(c):g}" for c in config.get("coefficients", []))  # 2 and 2.0 are one
    methods = "_".join(config.get("methods", []))
    inc = " inc" if config.get("incremental") else ""
    context = f" {run['context_id']}" if run.get("context_id") else ""
    return f"L{layers} {methods} c{coefficients}{inc} {config.get('component', 'residual')}{context}"
