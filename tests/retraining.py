"""Helpers for tests of RTT: sweeps over a small birthdays world whose models know nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from residuum.rtt.protocol import RttResult, run_rtt
from residuum.worlds.people import Birthdays

FT: dict[str, Any] = {"lrs": [1e-3, 1e-2], "epochs_lst": [1, 2], "loss_types": ["LETTER_ANSWER"], "optimizer": "adamw"}
UNLEARN: dict[str, Any] = {
    "types": ["RIA"], "epochs": 1, "lr": 1e-3, "optimizer": "adamw", "loss_types": ["NUMBER", "LETTER_ANSWER"],
}  # fmt: skip


def settings(world: Birthdays, **more: Any) -> dict[str, Any]:
    return {
        "dataset": str(world.data), "model": str(world.model("base")), "naive_model": str(world.model("naive")), "ft": FT,
        "unlearn": UNLEARN, "baseline_min_forget_acc": 0.0, **more,
    }  # fmt: skip


def sweep(world: Birthdays, place: Path, **more: Any) -> RttResult:
    return run_rtt(runs=place / "runs", **settings(world, results_dir=place / "evals", **more))


def units(place: Path, kind: str = "rtt-epoch") -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in place.glob(f"runs/units/{kind}/*/*.json")}


def numbers(result: RttResult) -> list[Any]:
    """Everything that a sweep reports, without when it was found."""
    return [[f.summary.plain(), f.intervals, f.retain, f.curve] for f in result.findings]
