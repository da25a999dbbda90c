"""The judge as the evaluation meets it: cached, recorded, and asked the same thing only once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from residuum.steering.judge import gemini, hf, openai, replay  # noqa: F401  each registers its judges
from residuum.steering.judge.base import JUDGES, Judge, JudgeOptions
from residuum.steering.judge.cache import JudgeCache
from residuum.steering.judge.prompts import Request, build_request
from residuum.steering.judge.replay import Recorder, ReplayJudge
from residuum.steering.judge.scoring import Reading, Score, score

FLUSH = 20
"""Readings that may be lost when the process is killed: writing each by itself would take longer than some judges do."""


def judges() -> list[dict[str, Any]]:
    """The judges as plain data."""
    return [
        {"name": name, "default_model": p.default_model, "key": p.key, "description": p.description}
        for name, p in JUDGES.items()
    ]


class Panel:
    """A judge with a memory.

    Args:
        judge: who rates.
        cache: database of readings; None goes without.
        log: records every reading, cached ones included, for `replay`.
    """

    def __init__(self, judge: Judge, *, cache: Path | None = None, log: Path | None = None) -> None:
        self.judge = judge
        self._cache_path, self._log_path = cache, log
        self._cache: JudgeCache | None = None
        self._recorder: Recorder | None = None

    @classmethod
    def open(cls, name: str, options: JudgeOptions, *, cache: Path | None = None) -> Panel:
        """A judge by name, not tested yet.

        Raises:
            UnknownName: there is no such judge.
            UsageError: its key, model or address is missing.
        """
        judge = JUDGES[name].make(options)
        replayed = isinstance(judge, ReplayJudge)
        return cls(judge, cache=None if replayed else cache, log=None if replayed else options.log)

    def probe(self) -> None:
        """Test the judge; only now is its identity settled, and with it the cache."""
        self.judge.probe()
        if self._cache_path is not None:
            self._cache = JudgeCache(self._cache_path, self.identity)
        if self._log_path is not None:
            self._recorder = Recorder(self._log_path, self.identity)

    @property
    def identity(self) -> dict[str, Any]:
        """What decides its ratings."""
        return self.judge.identity

    @property
    def scale(self) -> str:
        """What it is asked for."""
        return "letters" if self.identity["scoring"] == "letters" else "number"

    def request(self, template: str, question: str, answer: str) -> Request:
        """A question to this judge."""
        return build_request(template, question, answer, scale=self.scale)

    def rate(self, requests: Sequence[Request], *, advance: Callable[[], None] = lambda: None) -> list[Score]:
        """The scores of some requests; those that could not be had say why.

        Args:
            requests: may repeat themselves.
            advance: called for every reading that comes in.

        Raises:
            Unavailable: the judge is out of reach; what came in before is in the cache.
        """
        found: dict[Request, Reading] = {}
        if self._cache is not None:
            known = self._cache.find(requests)
            found = {r: known[self._cache.key(r)] for r in requests if self._cache.key(r) in known}
        missing = [request for request in dict.fromkeys(requests) if request not in found]

        fresh: list[tuple[Request, Reading]] = []

        def keep(index: int, reading: Reading) -> None:
            found[missing[index]] = reading
            fresh.append((missing[index], reading))
            if len(fresh) >= FLUSH:
                self._flush(fresh)
            advance()

        try:
            if missing:
                self.judge.read(missing, keep)
        finally:
            self._flush(fresh)
        if self._recorder is not None:
            self._recorder.add((request, found[request]) for request in requests)
        return [score(found[request]) for request in requests]

    def _flush(self, fresh: list[tuple[Request, Reading]]) -> None:
        if self._cache is not None:
            self._cache.add(fresh)
        fresh.clear()

    def close(self) -> None:
        """Let go of connections and models."""
        self.judge.close()
