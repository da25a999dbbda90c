"""Every reading ever paid for, in one SQLite file: the same question to the same judge is asked once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from residuum.errors import StoreError
from residuum.steering.judge.prompts import Request
from residuum.steering.judge.scoring import Reading
from residuum.store.hashing import content_hash


class JudgeCache:
    """Readings by content of judge and request.

    Args:
        path: the database; made at the first reading.
        identity: the judge's: provider, address, model, scoring.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self.path, self.identity = path, dict(identity)

    def key(self, request: Request) -> str:
        """Content of judge and request."""
        return content_hash({"judge": self.identity, "messages": request.messages})

    def find(self, requests: Iterable[Request]) -> dict[str, Reading]:
        """Known readings by key."""
        keys = sorted({self.key(request) for request in requests})
        if not self.path.exists() or not keys:
            return {}
        found: dict[str, Reading] = {}
        with closing(self._open()) as database:
            for start in range(0, len(keys), 500):
                part = keys[start : start + 500]
                query = f"SELECT key, reading FROM reading_1 WHERE key IN ({','.join('?' * len(part))})"
                for key, text in database.execute(query, part):
                    found[key] = Reading.from_json(json.loads(text))
        return found

    def add(self, readings: Iterable[tuple[Request, Reading]]) -> None:
        """Keep readings; failures are not kept."""
        rows = [(self.key(request), json.dumps(r.to_json())) for request, r in readings if r.error is None]
        if rows:
            with closing(self._open()) as database, database:
                database.executemany("INSERT OR REPLACE INTO reading_1 VALUES (?, ?)", rows)

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            database = sqlite3.connect(self.path, timeout=60)
            database.execute("CREATE TABLE IF NOT EXISTS reading_1 (key TEXT PRIMARY KEY, reading TEXT) WITHOUT ROWID")
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"the judge cache {self.path} cannot be used: {error}.\n  Delete it, or go without: --no-judge-cache."
            ) from error
        return database
