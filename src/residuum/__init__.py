"""residuum: what is left in a model after unlearning, where it sits, and how easily it comes back.

    import residuum
    lm = residuum.load("simnpo_lr2e5_b35_a1_d1_g0125_ep5")

Names are imported when they are first used, so that ``import residuum`` stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from residuum.metrics.evaluate import evaluate as evaluate
    from residuum.models.loading import LM as LM
    from residuum.models.loading import load as load
    from residuum.patching.audit import UdsResult as UdsResult
    from residuum.patching.uds import uds as uds
    from residuum.report.build import build_report as build_report
    from residuum.rtt.protocol import run_rtt as run_rtt
    from residuum.steering.api import steer as steer
    from residuum.training.unlearn import unlearn as unlearn
    from residuum.worlds.build import build_world as build_world

__version__ = "0.1.0"

_HOMES = {
    "LM": "residuum.models.loading",
    "load": "residuum.models.loading",
    "build_report": "residuum.report.build",
    "build_world": "residuum.worlds.build",
    "UdsResult": "residuum.patching.audit",
    "evaluate": "residuum.metrics.evaluate",
    "run_rtt": "residuum.rtt.protocol",
    "steer": "residuum.steering.api",
    "uds": "residuum.patching.uds",
    "unlearn": "residuum.training.unlearn",
}

__all__ = ["LM", "UdsResult", "build_report", "build_world", "evaluate", "load", "run_rtt", "steer", "uds", "unlearn"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'residuum' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
