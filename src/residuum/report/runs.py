"""UDS run folders: ``summary.json``, ``profile.json`` and the examples, as `residuum.patching.output` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from residuum.report.shapes import ENDS, MAYBE, MODEL, NUMBER, ORIGIN, misfit
from residuum.report.shelf import Shelf

SUMMARIES = ("summary.json", "*/summary.json", "*/uds/*/summary.json")
_SPEED = ("engine", "batch_tokens", "max_memory", "s1_cache")
"""Settings that decide how long a run takes, not what comes out."""
_PLAIN = {"mode": "layer", "patch_scope": "span", "metric": "logprob", "reference": "gt", "delta_threshold": 0.05}

_SETTINGS = {"seed?": int, "patch?": {"layers?": [int]}}
_SUMMARY = {
    "avg_uds": MAYBE, "n_scored": int, "total_examples": int, "delta_threshold": NUMBER, "metric": str, "ci95?": ENDS,
    "over_erased_share?": NUMBER, "models": ({str: MODEL, "unlearned": MODEL}, {str: MODEL, "model": MODEL}),
    "settings": _SETTINGS, "uds_settings?": _SETTINGS, "provenance?": ORIGIN,
}  # fmt: skip
_EXAMPLE = {
    "idx": int, "question": str, "prefix": str, "entity_text": str, "reference_text": str, "uds": MAYBE,
    "ft_layers": list, "erased_layers": list, "full_score": MAYBE,
}  # fmt: skip
_PROFILE = {
    "layer": int,
    "ft_share": MAYBE,
    **{f"{stage}_{part}": MAYBE for stage in ("s1", "s2") for part in ("delta", "low", "high")},
}

Floats = NDArray[np.float64]


def identity(model: Mapping[str, Any]) -> str:
    """What tells models apart: their weights, and whether they are rounded."""
    return f"{model.get('weights') or model.get('source') or model.get('name')}{':' + model['quantize'] if model.get('quantize') else ''}"


@dataclass(frozen=True)
class DepthRun:
    """One finished UDS run."""

    folder: Path
    summary: Mapping[str, Any] = field(repr=False)
    source: str
    shelf: Shelf = field(repr=False)

    @property
    def model(self) -> Mapping[str, Any]:
        """Name, source and identity of the audited model."""
        return unlearned_of(self.summary)

    @property
    def key(self) -> str:
        """Of the audited model."""
        return identity(self.model)

    @property
    def name(self) -> str:
        """Of the audited model."""
        return str(self.model["name"])

    @property
    def uds(self) -> float | None:
        """The model's UDS."""
        value = self.summary["avg_uds"]
        return None if value is None or not self.summary["n_scored"] else float(value)

    @property
    def ci95(self) -> tuple[float, float] | None:
        """Of UDS."""
        ends = self.summary.get("ci95")
        return (ends[0], ends[1]) if ends else None

    @property
    def settings(self) -> dict[str, Any]:
        """What decided the numbers."""
        own = self.summary.get("uds_settings") or self.summary["settings"]
        return {name: value for name, value in own.items() if name not in _SPEED}

    @property
    def seed(self) -> int:
        """Of the bootstrap."""
        return int(self.settings.get("seed") or 0)

    @property
    def tau(self) -> float:
        """The threshold of the run."""
        return float(self.summary["delta_threshold"])

    @property
    def has_deltas(self) -> bool:
        """Whether it compared log-probabilities."""
        return bool(self.summary["metric"] == "logprob")

    @property
    def variant(self) -> str:
        """In what the run differs from a plain one; empty for a plain one."""
        own = [
            f"{key.removeprefix('patch_')} {self.summary.get(key)}"
            for key, plain in _PLAIN.items()
            if self.summary.get(key, plain) != plain
        ]
        if (self.settings.get("patch") or {}).get("last_layer") == "post_norm":
            own.append("as published")
        return ", ".join(own)

    @property
    def examples(self) -> list[dict[str, Any]]:
        """Per example: texts, score, layers and deltas; empty, and a problem, when they cannot be used."""
        return self._read[0]

    @property
    def tables(self) -> tuple[Floats, Floats]:
        """S1 and S2 as [example, layer]: deltas, or with metric em the EM; NaN where not computed."""
        return self._read[1], self._read[2]

    @property
    def layers(self) -> list[int]:
        """The layers that the lists of examples are over."""
        return self._chosen or list(range(self.tables[0].shape[1]))

    @property
    def _chosen(self) -> list[int]:
        return (self.settings.get("patch") or {}).get("layers") or []

    @cached_property
    def profile(self) -> list[dict[str, Any]]:
        """Mean deltas per layer with intervals; from the examples where no file has them."""
        path = self.folder / "profile.json"
        stored = self.shelf.json(path, [_PROFILE]) if path.is_file() else None
        if stored is not None:
            found: list[dict[str, Any]] = stored
            return found
        from residuum.patching.depth import ExampleDepth, depth_profile

        if not self.has_deltas or not self.examples:
            return []
        depths = [
            ExampleDepth(
                e["idx"], e["uds"], e["ft_layers"], e["erased_layers"], e["full_score"], self.layers, [], [], e["s1_deltas"],
                e["s2_deltas"],
            )
            for e in self.examples
        ]  # fmt: skip
        return list(depth_profile(depths, seed=self.seed))

    @cached_property
    def _read(self) -> tuple[list[dict[str, Any]], Floats, Floats]:
        """The examples, and their lists over layers as tables."""
        try:
            found = self._lines()
            if bad := misfit(found, [_EXAMPLE], "examples"):
                raise ValueError(bad)
            what = "deltas" if self.has_deltas else "scores"
            if bad := misfit(found, [{f"{stage}_{what}": [MAYBE] for stage in ("s1", "s2")}], "examples"):
                raise ValueError(bad)
            if not found:
                raise ValueError("there are none")
            first, second = (
                np.array([e[f"{stage}_{what}"] for e in found], dtype=np.float64) for stage in ("s1", "s2")
            )
            if first.shape != second.shape or (self._chosen and first.shape[1] != len(self._chosen)):
                raise ValueError("their lists are over different layers")
        except (OSError, ValueError, TypeError) as error:
            why = "torn" if isinstance(error, json.JSONDecodeError) else str(error)
            self.shelf.partial(self.shelf.place(self.folder), f"its examples cannot be read: {why}")
            return [], np.zeros((0, 0)), np.zeros((0, 0))
        return found, first, second

    def _lines(self) -> list[dict[str, Any]]:
        lines = self.folder / "results_detailed.jsonl"
        if not lines.is_file():
            whole: list[dict[str, Any]] = json.loads((self.folder / "results.json").read_text(encoding="utf-8"))
            return whole
        with lines.open(encoding="utf-8") as file:
            return [_slim(line) for line in file]


def unlearned_of(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """The audited model of a summary; an evaluation's own folder calls it ``model``."""
    models: Mapping[str, Any] = summary["models"]
    found: Mapping[str, Any] = models["unlearned"] if "unlearned" in models else models["model"]
    return found


def read_depth_runs(shelf: Shelf) -> list[DepthRun]:
    """All UDS runs; of several with the same model, data and settings the latest."""
    latest: dict[str, tuple[tuple[bool, str], Path, Mapping[str, Any]]] = {}
    for path in shelf.glob(*SUMMARIES):
        summary = shelf.json(path, dict)
        # Other parts have summaries too; beside examples it is ours.
        if summary is None or not ("avg_uds" in summary or (path.parent / "results_detailed.jsonl").is_file()):
            continue
        if bad := misfit(summary, _SUMMARY):
            shelf.broken(path, f"is not the summary of a UDS run: {bad}")
            continue
        settings = {k: v for k, v in (summary.get("uds_settings") or summary["settings"]).items() if k not in _SPEED}
        origin = summary.get("provenance") or {}
        key = json.dumps(
            [identity(unlearned_of(summary)), settings, origin.get("data"), _references(summary)], sort_keys=True
        )
        # An evaluation leaves a copy of the same numbers without the lines that are quick to read.
        stamp = ((path.parent / "results_detailed.jsonl").is_file(), str(origin.get("time") or ""))
        if key not in latest or stamp >= latest[key][0]:
            latest[key] = (stamp, path.parent, summary)
    _note_unfinished(shelf)
    runs = []
    for _, folder, summary in sorted(
        latest.values(), key=lambda found: (str(unlearned_of(found[2])["name"]), found[0])
    ):
        name = str(unlearned_of(summary)["name"])
        settings = {"uds": summary.get("uds_settings") or summary["settings"], "models": summary["models"]}
        source = shelf.cite("uds", name, shelf.place(folder), provenance=summary.get("provenance"), settings=settings)
        runs.append(DepthRun(folder, summary, source, shelf))
    return runs


def _references(summary: Mapping[str, Any]) -> list[str]:
    return [identity(summary["models"][role]) for role in ("full", "retain") if role in summary["models"]]


def _note_unfinished(shelf: Shelf) -> None:
    for folder in shelf.glob("*_tf_*"):
        if folder.is_dir() and not (folder / "summary.json").is_file():
            shelf.partial(
                shelf.place(folder), "a UDS run that was begun and not finished; the same command with --resume goes on"
            )


def _slim(line: str) -> dict[str, Any]:
    """One example without what repeats its deltas: objects per layer, and scores. They are three quarters of the text."""
    start = line.find(', "layer_records": ')
    middle = line.find(', "s1_deltas": ', start)
    if line.startswith("null", middle + len(', "s1_deltas": ')):  # metric em has scores only
        middle = line.find(', "s1_scores": ', start)
    end = line.find(', "s1_details": ', middle)
    whole = min(start, middle, end) >= 0
    found: dict[str, Any] = json.loads(line[:start] + line[middle:end] + "}" if whole else line)
    return found
