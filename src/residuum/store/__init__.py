"""The run store: finished units of work, written atomically, known by content, resumed for free."""

from __future__ import annotations

from residuum.store.atomic import write_bytes, write_json, write_text
from residuum.store.hashing import canonical, content_hash, file_hash
from residuum.store.locks import Busy, Owner, claim
from residuum.store.origin import provenance
from residuum.store.runs import Outcome, Store
from residuum.store.units import FORMAT, Task, Unit
from residuum.store.views import table

__all__ = [
    "FORMAT",
    "Busy",
    "Outcome",
    "Owner",
    "Store",
    "Task",
    "Unit",
    "canonical",
    "claim",
    "content_hash",
    "file_hash",
    "provenance",
    "table",
    "write_bytes",
    "write_json",
    "write_text",
]
