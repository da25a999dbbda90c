"""One task, done: what every worker does, in whatever process or machine it lives."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import io
import logging
import os
import platform
import tempfile
import time
import traceback
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from residuum.errors import InputError, ResiduumError
from residuum.store import canonical
from residuum.sweep.hubcache import make_room, using
from residuum.sweep.tasks import Work

if TYPE_CHECKING:
    from residuum.sweep.bench import Bench

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}
_VIEWS = {"claims", "sweeps", "index.sqlite", "index.sqlite-journal", "manifest.json"}
"""What a private store has that its owner has too."""


@dataclass(frozen=True)
class Order:
    """A task, as it is sent to a worker."""

    name: str
    kind: str
    work: Work
    runs: str
    """Root of the run store."""
    log: str
    attempt: int = 1
    ahead: str | None = None
    """The model that this worker will probably get next."""
    max_disk: int | None = None
    evict: bool = False
    storage: str = "shared"
    """shared, driver, or auto: shared where the log's folder can be seen."""


@dataclass(frozen=True)
class Report:
    """What came of it."""

    value: dict[str, Any] | None = None
    """Columns and identity; None when it failed."""
    error: str | None = None
    retry: bool = False
    """Whether another try may end better."""
    fatal: bool = False
    """Whether every other task would fail alike: the disk is full."""
    seconds: float = 0.0
    where: str = ""
    log: str | None = None
    """What the log says, from a worker that cannot write it."""
    files: bytes | None = None
    """New files of the worker's own store, zipped."""


class Worker:
    """Does one task after the other, and keeps between them what they share.

    Args:
        device: where its models live.
        threads: CPU threads.
    """

    def __init__(self, device: str, threads: int) -> None:
        self.device, self.threads = device, threads
        self._benches: dict[str, Bench] = {}
        self._private: tempfile.TemporaryDirectory[str] | None = None
        self._sent: dict[str, int] = {}

    def do(self, order: Order) -> Report:
        """Do a task; whatever goes wrong is in the report and in the log."""
        private = order.storage == "driver" or (order.storage == "auto" and not Path(order.log).parent.is_dir())
        began = time.monotonic()
        log = io.StringIO() if private else None
        try:
            with contextlib.ExitStack() as stack:
                file = log or stack.enter_context(open_log(Path(order.log)))
                report = self._do(order, file, private=private)
        except OSError as error:  # the log cannot be written
            report = _failure(error)
        seconds = round(time.monotonic() - began, 3)
        parts = {"seconds": seconds, "where": here(), "log": log.getvalue() if log else None}
        return Report(**{**vars(report), **parts, "files": self._new_files() if private else None})

    def _do(self, order: Order, log: TextIO, *, private: bool) -> Report:
        from residuum.sweep.kinds import KINDS

        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        print(f"--- {order.name}, attempt {order.attempt}, {here()}, {self.device}, {stamp}", file=log, flush=True)
        bench = self._bench(order, private)
        try:
            work, kind = order.work, KINDS[order.kind]
            used = kind.models(work)
            with _talking_to(log), _threads(self.threads), using(*used):
                if private and kind.makes:
                    raise InputError(
                        f"{platform.node()} does not see the folder of the run store, so others would not see the model"
                        " it makes.\n  Give --runs and out on storage that all nodes share."
                    )
                self._make_room(order, *used)
                with contextlib.suppress(InputError):  # no room to read ahead is no reason to fail
                    bench.read_ahead(order.ahead, partial(self._make_room, order))
                found = kind.run(work, bench)
                canonical(found.columns)  # what cannot be filed fails here, with its log
        except Exception as error:
            bench.clear()
            if not isinstance(error, ResiduumError):
                traceback.print_exc(file=log)
            print(f"--- failed: {error}", file=log, flush=True)
            return _failure(error)
        print("--- finished", file=log, flush=True)
        return Report({"columns": found.columns, "identity": found.identity})

    def _bench(self, order: Order, private: bool) -> Bench:
        from residuum.sweep.bench import Bench

        if private and self._private is None:
            self._private = tempfile.TemporaryDirectory(prefix="residuum-")
        root = self._private.name if private and self._private else order.runs
        if root not in self._benches:
            self._benches[root] = Bench(root, self.device)
        return self._benches[root]

    @staticmethod
    def _make_room(order: Order, *places: str | None) -> None:
        if order.max_disk is not None:
            make_room(*places, limit=order.max_disk, evict=order.evict)

    def _new_files(self) -> bytes | None:
        """What the private store got since the last report."""
        if self._private is None:
            return None
        root, packed = Path(self._private.name), io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(path for path in root.rglob("*") if path.is_file()):
                name = path.relative_to(root).as_posix()
                if name.split("/")[0] in _VIEWS or path.name.endswith((".tmp", ".broken")):
                    continue
                if self._sent.get(name) != (written := path.stat().st_mtime_ns):  # views may be written again
                    archive.write(path, name)
                    self._sent[name] = written
        return packed.getvalue()


def unpack(files: bytes, root: Path) -> None:
    """Put the files that a worker sent back into the store; a unit's arrays come before its JSON."""
    from residuum.store import write_bytes

    with zipfile.ZipFile(io.BytesIO(files)) as archive:
        for name in sorted(archive.namelist(), key=lambda name: name.endswith(".json")):
            target = root / name
            if root.resolve() not in target.resolve().parents:
                raise ValueError(f"{name} leads out of the store")
            if not (name.startswith("units/") and target.exists()):
                write_bytes(target, archive.read(name))


def open_log(path: Path) -> TextIO:
    """A log to append to: attempts follow each other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a", encoding="utf-8", buffering=1)


def here() -> str:
    """This process, in words."""
    return f"process {os.getpid()} on {platform.node()}"


def _failure(error: BaseException) -> Report:
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.errno in _NO_ROOM):
        cause = cause.__cause__ or cause.__context__
    # Libraries written in Rust say it in words.
    full = cause is not None or "No space left on device" in str(error)
    text = str(error) if isinstance(error, ResiduumError) else f"{type(error).__name__}: {error}"
    return Report(error=text, retry=not isinstance(error, ResiduumError) and not full, fatal=full)


@contextlib.contextmanager
def _talking_to(log: TextIO) -> Iterator[None]:
    """Everything that is said goes to the log: prints, warnings, logging, and the stack at a crash."""
    handler = logging.StreamHandler(log)
    root = logging.getLogger("residuum")
    root.addHandler(handler)
    was_on = faulthandler.is_enabled()
    with contextlib.suppress(OSError, ValueError, io.UnsupportedOperation):
        faulthandler.enable(log)
    try:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            yield
    finally:
        faulthandler.disable()
        if was_on:
            faulthandler.enable()
        root.removeHandler(handler)


@contextlib.contextmanager
def _threads(number: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
