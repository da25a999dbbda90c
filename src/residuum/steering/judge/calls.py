"""Many calls to a remote judge: some at once, retried with patience, counted, and stopped when it is no use."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

from residuum.errors import Unavailable
from residuum.steering.judge.base import JudgeOptions
from residuum.steering.judge.prompts import Request
from residuum.steering.judge.scoring import Reading

T = TypeVar("T")
LONGEST_WAIT = 60.0
"""Seconds between two tries, whatever the server asks for."""
BREAKER = 10
"""Failures in a row after which nothing more is tried."""


class Refused(Exception):
    """A call that failed, and what that means for others.

    Args:
        message: what the provider said, without secrets.
        retry: whether the same call may succeed later.
        fatal: whether every other call will fail too.
        retry_after: seconds that the provider asks to wait.
    """

    def __init__(
        self, message: str, *, retry: bool = False, fatal: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.retry, self.fatal, self.retry_after = retry, fatal, retry_after


def refusal_of_status(status: int, message: str, retry_after: str | None = None) -> Refused:
    """What an HTTP status means: 408, 409, 429 and 5xx pass, 401, 403 and 404 concern every call, others this one."""
    retry = status in (408, 409, 429) or status >= 500
    return Refused(
        f"HTTP {status}: {message}", retry=retry, fatal=status in (401, 403, 404), retry_after=_seconds(retry_after)
    )


@dataclass
class Usage:
    """What was asked of the provider."""

    calls: int = 0
    retries: int = 0
    failures: int = 0
    tokens: int = 0


class Caller:
    """Makes calls with a limit on how many run at once.

    Args:
        call: makes one call; raises `Refused` when it fails.
        options: limits and patience.
    """

    def __init__(self, call: Callable[[Request], Reading], options: JudgeOptions) -> None:
        self.call, self.options = call, options
        self.usage = Usage()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._failed_in_a_row = 0
        self._stop: Unavailable | None = None

    def run(self, requests: Sequence[Request], done: Callable[[int, Reading], None]) -> None:
        """Make all calls; readings are reported in this thread, as they come."""
        self._stop = None
        self._wake.clear()
        executor = ThreadPoolExecutor(max_workers=max(1, self.options.concurrency))
        try:
            pending: dict[Future[Reading], int] = {
                executor.submit(self._one, request): index for index, request in enumerate(requests)
            }
            while pending:
                finished, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in finished:
                    index = pending.pop(future)
                    try:
                        done(index, future.result())
                    except Unavailable:
                        # The others may still have something to report; nobody starts a new call.
                        continue
        except BaseException:
            self._halt("interrupted")  # waiting ends below, and must not turn into tries without a pause
            raise
        finally:
            self._wake.set()  # an interrupt must not wait for those who are only waiting
            executor.shutdown(wait=True, cancel_futures=True)
        if self._stop is not None:
            raise self._stop

    def attempt(self, action: Callable[[], T]) -> T:
        """One call with patience, for tests of the judge as for ratings.

        Raises:
            Refused: it failed for good.
            Unavailable: every other call would fail too.
        """
        for attempt in range(max(1, self.options.retries)):
            self._count(attempt)
            try:
                result = action()
            except Refused as refused:
                last = refused
                if refused.fatal:
                    raise self._halt(f"the judge refuses all calls: {refused}") from refused
                if not refused.retry:
                    raise
                if attempt + 1 < self.options.retries:
                    self._wake.wait(self._pause(attempt, refused.retry_after))
            else:
                with self._lock:
                    self._failed_in_a_row = 0
                return result
        with self._lock:
            self.usage.failures += 1
            self._failed_in_a_row += 1
            broken = self._failed_in_a_row >= BREAKER
        if broken:
            raise self._halt(f"{BREAKER} calls in a row failed, the last with: {last}")
        raise last

    def _one(self, request: Request) -> Reading:
        started = time.monotonic()
        try:
            return self.attempt(lambda: self.call(request))
        except Refused as refused:
            return Reading("none", error=str(refused), seconds=time.monotonic() - started)

    def _count(self, attempt: int) -> None:
        """Take one call from the budget.

        Raises:
            Unavailable: none is left, or another thread has found out that there is no use.
        """
        with self._lock:
            if self._stop is not None:
                raise self._stop
            if self.options.max_calls is not None and self.usage.calls >= self.options.max_calls:
                self._stop = Unavailable(
                    f"the {self.options.max_calls} judge calls allowed by --max-judge-calls are used up.\n"
                    "  Everything judged so far is saved; a later run goes on from there."
                )
                raise self._stop
            self.usage.calls += 1
            self.usage.retries += attempt > 0

    def _halt(self, message: str) -> Unavailable:
        with self._lock:
            self._stop = self._stop or Unavailable(f"{message}\n  Everything judged so far is saved.")
            return self._stop

    def _pause(self, attempt: int, retry_after: float | None) -> float:
        # Jitter, or twenty calls refused at once would all come back at once.
        own: float = self.options.backoff * 2**attempt * random.uniform(0.5, 1.5)
        return min(LONGEST_WAIT, max(own, retry_after or 0.0))


def _seconds(header: str | None) -> float | None:
    """A Retry-After header: seconds, or a date."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
