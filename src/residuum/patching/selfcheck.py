"""Which engine to use: the staircase, if it is seen to agree with the hook loop on this architecture.

The staircase calls the blocks of a model by themselves, which not every family stands. So before its first use one
short example is scored by both engines, at the first, the middle and the last layer. The outcome is remembered in the
user's cache, for this architecture and these library versions.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

import residuum
from residuum.data.spans import Located
from residuum.errors import InputError, StoreError, UnknownName
from residuum.folders import user_cache
from residuum.patching.engine import Engine, Layers, PatchConfig, TokenScores
from residuum.patching.naive import Naive
from residuum.patching.staircase import Staircase
from residuum.store import content_hash, write_json

if TYPE_CHECKING:
    from residuum.models.loading import LM

ENGINES = ("auto", "staircase", "naive")
TOLERANCES = {torch.float32: (1e-4, 1e-4), torch.float16: (0.05, 0.01), torch.bfloat16: (0.25, 0.05)}
"""Absolute and relative difference of log-probabilities that rounding explains, by the target's dtype."""


class EngineWarning(UserWarning):
    """The fast engine does not suit a model."""


def make_engine(name: str, target: LM, config: PatchConfig | None = None, max_memory: int | None = None) -> Engine:
    """An engine by name.

    Args:
        name: ``staircase``, ``naive``, or ``auto``: the staircase if it agrees with the hook loop on this target.
        target: the model that is patched.
        config: what is patched and how it is scored.
        max_memory: bytes to take beside the models; None for no bound.
    """
    config = config or PatchConfig()
    if name == "naive":
        return Naive(target, config, max_memory=max_memory)
    if name == "staircase":
        return Staircase(target, config, max_memory=max_memory)
    if name == "auto":
        return Auto(target, config, max_memory=max_memory)
    raise UnknownName("engine", name, ENGINES, hint=f"Known: {', '.join(ENGINES)}.")


class Auto:
    """The staircase or the hook loop, decided on the first batch."""

    def __init__(self, target: LM, config: PatchConfig, *, max_memory: int | None = None) -> None:
        self.target, self.config = target, config
        self._max_memory = max_memory
        self._chosen: Engine | None = None

    @property
    def name(self) -> str:
        """The engine in use; ``auto`` before there is one."""
        return "auto" if self._chosen is None else self._chosen.name

    def unpatched(self, batch: Sequence[Located]) -> list[TokenScores]:
        """The target as it is, one result per example: [token]."""
        return self._choose(batch).unpatched(batch)

    def patched(self, source: LM, batch: Sequence[Located], layers: Layers = None) -> list[TokenScores]:
        """The target with the source's states in one layer at a time, one result per example: [layer, token]."""
        return self._choose(batch).patched(source, batch, layers)

    def _choose(self, batch: Sequence[Located]) -> Engine:
        if self._chosen is None:
            # Nothing before the patched rows would leave the kept keys and values untested.
            shortest = min(batch, key=lambda example: (example.start == 0, len(example.ids)))
            suits = staircase_suits(self.target, self.config, shortest)
            self._chosen = make_engine("staircase" if suits else "naive", self.target, self.config, self._max_memory)
        return self._chosen


def staircase_suits(target: LM, config: PatchConfig, example: Located) -> bool:
    """Whether the staircase agrees with the hook loop; from memory, or tried out now on one example.

    A warning names the family if it does not.
    """
    memory = _memory(target, config)
    problem = _recall(memory)
    if problem is None:
        problem = disagreement(target, config, example)
        with suppress(StoreError):  # a cache that cannot be written costs the check again, not the run
            write_json(memory, {"family": target.anatomy.family, "problem": problem})
    if problem:
        warnings.warn(
            f'the fast engine does not suit the family "{target.anatomy.family}" ({problem}): the hook loop is used, '
            "which gives the same scores about ten times slower.",
            EngineWarning,
            stacklevel=4,
        )
    return not problem


def disagreement(target: LM, config: PatchConfig, example: Located) -> str:
    """How the staircase differs from the hook loop on one example; empty when it does not.

    The target itself is the source, on another text of the same length: the example's tokens in reverse.
    """
    layers = config.layers_of(target.anatomy.num_layers)
    config = replace(
        config, layers=tuple(sorted({layers[0], layers[len(layers) // 2], layers[-1]})), score_dtype="float32"
    )
    other = replace(example, prompt_ids=example.prompt_ids[::-1], reference_ids=example.reference_ids[::-1])
    plain, fast = Naive(target, config), Staircase(target, config)
    expected = [*plain.unpatched([example]), *plain.inject(plain.source_states(target, [other]), [example])]
    try:
        found = [*fast.unpatched([example]), *fast.inject(fast.source_states(target, [other]), [example])]
    except (InputError, MemoryError, torch.OutOfMemoryError):  # not the family's fault
        raise
    except Exception as error:  # whatever a block raises that is called in a way it was not made for
        return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"
    absolute, relative = TOLERANCES.get(target.dtype, TOLERANCES[torch.bfloat16])
    pairs = [(a.log_probs, b.log_probs) for a, b in zip(expected, found, strict=True)]
    if all(torch.allclose(b, a, rtol=relative, atol=absolute, equal_nan=True) for a, b in pairs):
        return ""
    return f"log-probabilities differ by up to {max(float((b - a).abs().max()) for a, b in pairs):.2g}"


def _memory(target: LM, config: PatchConfig) -> Path:
    """The file that remembers the outcome for this architecture."""
    architecture: dict[str, Any] = json.loads(target.model.config.to_json_string(use_diff=False))
    architecture.pop("_name_or_path", None)
    key = {
        "architecture": json.dumps(architecture, sort_keys=True),
        "attn": target.attn,
        "dtype": str(target.dtype),
        "device": target.device.type,
        "quantize": target.quantize,
        "patch": [config.mode, config.mid, config.scope],
        "versions": [residuum.__version__, torch.__version__, transformers.__version__],
    }
    return user_cache() / "engines" / f"{content_hash(key)[:16]}.json"


def _recall(memory: Path) -> str | None:
    """The remembered problem, empty for none; None when nothing (readable) is remembered."""
    try:
        problem = json.loads(memory.read_text())["problem"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return problem if isinstance(problem, str) else None
