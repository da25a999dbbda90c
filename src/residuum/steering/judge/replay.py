"""Readings of an earlier run instead of a judge: the same numbers again, without a call.

The first line of the file says which judge gave them, the others hold one reading each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from residuum.errors import DataError, UsageError
from residuum.steering.judge.base import JUDGES, JudgeOptions, Provider
from residuum.steering.judge.prompts import Request
from residuum.steering.judge.scoring import Reading
from residuum.store.atomic import storage_error
from residuum.store.hashing import content_hash


def request_key(request: Request) -> str:
    """Content of a request."""
    return content_hash(request.messages)


class ReplayJudge:
    """Looks readings up; what was never asked has none.

    Args:
        options: ``log`` is the recording.
    """

    def __init__(self, options: JudgeOptions) -> None:
        if options.log is None:
            raise UsageError("the replay judge needs --judge-log: a file that an earlier run has recorded.")
        self.path = options.log
        self.recorded, self.readings = _read(self.path)
        self.calls = 0

    @property
    def identity(self) -> dict[str, Any]:
        """That of the judge who gave the readings: a replayed run is the same run."""
        return dict(self.recorded)

    def probe(self) -> None:
        """The file was read when the judge was made."""

    def read(self, requests: Sequence[Request], done: Callable[[int, Reading], None]) -> None:
        """Look the requests up."""
        for index, request in enumerate(requests):
            self.calls += 1
            missing = Reading("none", error=f"{self.path} has no reading of this request")
            done(index, self.readings.get(request_key(request), missing))

    def usage(self) -> dict[str, int]:
        """Requests looked up."""
        return {"calls": self.calls}

    def close(self) -> None:
        """Nothing is open."""


class Recorder:
    """Writes readings that `ReplayJudge` reads, each as it comes.

    Args:
        path: the file; a recording of the same judge is continued.
        identity: the judge's.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path = path
        self.known: set[str] = set()
        if path.exists():
            recorded, readings = _read(path)
            self.known = set(readings)
            _drop_torn_line(path)
            if recorded != dict(identity):
                raise UsageError(f"{path} records another judge: {recorded}.\n  Choose another --judge-log.")
        else:
            self._append({"judge": dict(identity)})

    def add(self, readings: Iterable[tuple[Request, Reading]]) -> None:
        """Record readings; failures and what is recorded already are left out."""
        for request, reading in readings:
            key = request_key(request)
            if reading.error is None and key not in self.known:
                self.known.add(key)
                self._append({"key": key, "reading": reading.to_json()})

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            raise storage_error("write", self.path, error) from error


def _drop_torn_line(path: Path) -> None:
    """Whatever is appended to half a line would be lost with it."""
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Reading]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path=path) from None
    except UnicodeDecodeError:
        raise DataError("is no recording of a judge", path=path) from None
    identity: dict[str, Any] | None = None
    readings: dict[str, Reading] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            if "judge" in entry:
                identity = dict(entry["judge"])
            else:
                readings[entry["key"]] = Reading.from_json(entry["reading"])
        except (ValueError, LookupError, TypeError):
            if number == len(lines):
                break  # its writer was killed
            raise DataError("is no recorded reading", path=path, line=number) from None
    if identity is None:
        raise DataError("does not say which judge it records", path=path)
    return identity, readings


JUDGES.register("replay")(Provider(ReplayJudge, "readings that an earlier run recorded with --judge-log"))
