"""What a worker keeps between tasks: the full model with stage 1 of UDS, the evaluators, and the next checkpoint's bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from residuum.errors import InputError
from residuum.models.handles import ModelHandle
from residuum.store import Store, content_hash
from residuum.sweep.checks import NOT_UDS
from residuum.sweep.hubcache import using
from residuum.sweep.tasks import Work

if TYPE_CHECKING:
    from residuum.metrics.evaluator import Evaluator
    from residuum.patching.audit import Audit

T = TypeVar("T")


class Resident(ModelHandle):
    """A model that stays in memory when others let go of theirs."""

    def release(self) -> None:
        """Stay."""


class Bench:
    """The lasting things of one worker.

    Args:
        runs: root of the run store.
        device: where its models live.
    """

    def __init__(self, runs: str | Path, device: str) -> None:
        self.runs, self.device = Path(runs), device
        self._kept: dict[str, Any] = {}
        self._reader: threading.Thread | None = None

    def loading(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """How models are loaded for a task."""
        return {"dtype": options.get("dtype", "auto"), "device": self.device, "attn": options.get("attn")}

    def full(self, work: Work, loading: Mapping[str, Any]) -> Resident:
        """The model that knows, read once for all tasks."""
        place = str(work.full_model)
        return self._keep(("full", place, loading), lambda: Resident(place, **loading))

    def audit(self, work: Work, loading: Mapping[str, Any]) -> Audit:
        """UDS with these references and options; its stage 1 is done by the first task that asks."""
        from residuum.models.handles import check_alike
        from residuum.patching.uds import Audit, load_uds_data, uds_config

        def make() -> Audit:
            options = {k: v for k, v in work.options.items() if k not in NOT_UDS}
            full, retain = self.full(work, loading), ModelHandle(str(work.retain_model), **loading)
            check_alike(full, retain)
            return Audit(full, retain, load_uds_data(work.data), uds_config(**options), Store(self.runs))

        return self._keep(("uds", *self._asked(work), work.data, loading), make)

    def evaluator(self, work: Work, loading: Mapping[str, Any]) -> Evaluator:
        """The metrics with these references and options; references are asked once."""
        from residuum.metrics.evaluate import Evaluator, Settings
        from residuum.metrics.splits import Splits

        def make() -> Evaluator:
            given = dict(work.options)
            chosen = given.pop("metrics", "all")
            splits = Splits(
                work.data_dir, **{k: given.pop(k) for k in ("forget", "members", "nonmembers") if k in given}
            )
            settings = Settings.of(**{k: v for k, v in given.items() if k not in ("dtype", "attn")})
            made = Evaluator(
                splits, chosen, retain=work.retain_model, full=work.full_model, settings=settings, options=dict(loading), runs=self.runs,
            )  # fmt: skip
            made.references["full_model"] = self.full(work, loading)  # one copy of it, whoever asks
            return made

        return self._keep(("evaluate", *self._asked(work), work.data_dir, loading), make)

    def read_ahead(self, place: str | None, make_room: Callable[[str], None] = lambda _: None) -> None:
        """Fetch, read and hash a checkpoint in the background, so that loading it finds everything in memory.

        Raises:
            InputError: there is no room for it.
        """

        def read(mark: ExitStack) -> None:
            from residuum.models.weights import find

            with mark, suppress(InputError, OSError):  # its own task will say so
                find(str(place)).fingerprint()

        if place is not None and (self._reader is None or not self._reader.is_alive()):
            with ExitStack() as mark:  # from before there is room until it is read: nobody else gets that room
                mark.enter_context(using(place))
                make_room(place)
                self._reader = threading.Thread(target=read, args=[mark.pop_all()], daemon=True)
                self._reader.start()

    def clear(self) -> None:
        """Forget everything: after an error nothing is known about it."""
        self._kept.clear()

    @staticmethod
    def _asked(work: Work) -> tuple[Any, ...]:
        return work.full_model, work.retain_model, dict(work.options)

    def _keep(self, key: Any, make: Callable[[], T]) -> T:
        name = content_hash(key)
        if name not in self._kept:
            self._kept[name] = make()
        kept: T = self._kept[name]
        return kept
