"""What every judge can do, and the list of judges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from residuum.registry import Registry
from residuum.steering.judge.prompts import Request
from residuum.steering.judge.scoring import Reading


@dataclass(frozen=True)
class JudgeOptions:
    """What the user may say about a judge."""

    model: str | None = None
    """Name at the provider, or a checkpoint; each provider has its own default."""
    base_url: str | None = None
    """Address of a compatible server."""
    scoring: str = "auto"
    """One of `SCORINGS`; auto is single, or trie for a local judge that spells numbers with several tokens."""
    concurrency: int = 20
    """Calls at once."""
    max_calls: int | None = None
    """Calls in total; the evaluation stops when they are used up."""
    timeout: float = 60.0
    """Seconds for one call."""
    retries: int = 5
    """Tries of one call."""
    backoff: float = 0.5
    """Seconds before the second try; doubled for each further one."""
    log: Path | None = None
    """Recorded readings: written by real judges, read by ``replay``."""
    device: str | int = "auto"
    """Of a local judge."""

    def __post_init__(self) -> None:
        if self.log is not None:
            object.__setattr__(self, "log", Path(self.log))  # files with settings have texts


class Judge(Protocol):
    """Rates requests. Made from `JudgeOptions`; making one must not cost anything."""

    @property
    def identity(self) -> dict[str, Any]:
        """What decides its ratings: provider, model, address, scoring. Never a key."""

    def probe(self) -> None:
        """Make sure that it can rate, before anything expensive begins; may settle the scoring.

        Raises:
            Unavailable: it cannot; says what to do.
        """

    def read(self, requests: Sequence[Request], done: Callable[[int, Reading], None]) -> None:
        """Rate requests, and report each by its index as soon as it is there.

        Raises:
            Unavailable: the judge is out of reach, or the calls are used up; what was reported before counts.
        """

    def usage(self) -> dict[str, int]:
        """Calls made, tries repeated, tokens used."""

    def close(self) -> None:
        """Let go of connections and models."""


@dataclass(frozen=True)
class Provider:
    """A kind of judge."""

    make: Callable[[JudgeOptions], Judge]
    description: str
    default_model: str | None = None
    key: str | None = None
    """Environment variable with the API key."""


JUDGES: Registry[Provider] = Registry("judge")
