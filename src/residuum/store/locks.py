"""One process at a time: a lock that the operating system drops when its holder dies, and a mark that says who holds it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from residuum.errors import StoreError
from residuum.store.atomic import storage_error

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Owner:
    """Who started a piece of work, and when."""

    work: str
    """The work in words, for instance ``uds 0123456789abcdef``."""
    pid: int
    """Process id on its host."""
    host: str
    """Name of the machine."""
    since: str
    """Start, as ISO 8601 in UTC."""

    @classmethod
    def me(cls, work: str) -> Owner:
        """This process, now."""
        return cls(work, os.getpid(), platform.node(), datetime.now(UTC).isoformat(timespec="seconds"))

    @classmethod
    def read(cls, mark: Path) -> Owner | None:
        """The owner named by a mark; none when there is no mark or it is not whole (its writer was killed)."""
        try:
            return cls(**json.loads(mark.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class Busy(StoreError):
    """Somebody else holds the work, and the time to wait for it is over.

    Args:
        work: the work in words.
        owner: who holds it, when that is known.
    """

    def __init__(self, work: str, owner: Owner | None) -> None:
        self.owner = owner
        super().__init__(
            f"{work} is being done by {owner or 'another process'}.\n  Wait for it, stop it, or allow a longer timeout."
        )


@contextlib.contextmanager
def claim(place: Path, work: str, *, timeout: float | None = None) -> Iterator[Owner | None]:
    """Hold a piece of work alone: ``place.lock`` is locked and ``place.started`` names the holder meanwhile.

    The holder before may have finished the work: look for its result first. The mark of a holder that was killed
    stays, its lock does not, so the next one takes over at once.

    Args:
        place: path of the two files, without their endings.
        work: the work in words, for messages.
        timeout: seconds to wait for another holder; ``None`` waits as long as that one lives, 0 not at all.

    Yields:
        The owner that was killed at this work, if there was one.

    Raises:
        Busy: another holder was there for the whole time.
        StoreError: the folder cannot be written, or its file system has no locks.
    """
    lock, mark = place.parent / f"{place.name}.lock", place.parent / f"{place.name}.started"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        held = _acquire(lock, mark, work, timeout)
    except OSError as error:
        raise storage_error("lock", lock, error) from error
    try:
        killed = Owner.read(mark)
        _write_mark(mark, work)
        try:
            yield killed
        finally:
            with contextlib.suppress(OSError):
                mark.unlink()
    finally:
        held.release()


def _acquire(lock: Path, mark: Path, work: str, timeout: float | None) -> BaseFileLock:
    from filelock import FileLock, Timeout  # 0.1 s of imports that a reader of the store does not need

    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        log.info("waiting for %s, held by %s", work, Owner.read(mark) or "another process")
        try:
            held.acquire(timeout=-1 if timeout is None else timeout)
        except Timeout:
            raise Busy(work, Owner.read(mark)) from None
    return held


def _write_mark(mark: Path, work: str) -> None:
    """Not atomic on purpose: a torn mark costs one name in a message, a durable one costs each unit an fsync."""
    try:
        mark.write_text(json.dumps(asdict(Owner.me(work))))
    except OSError as error:
        raise storage_error("write", mark, error) from error
