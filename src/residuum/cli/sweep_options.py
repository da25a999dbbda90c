"""The options that say who does the work of a sweep: the same for every command that does any."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any

import typer

from residuum.errors import UsageError

Settings = dict[str, Any]
"""Settings of the engine as far as options give them; None is not given."""

Name = Annotated[str | None, typer.Option(help="serial, process (the default) or ray.")]
Workers = Annotated[int | None, typer.Option(help="Tasks at once; one per GPU, two on a CPU when left out.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads of each worker; 1 when left out.")]
Gpus = Annotated[str | None, typer.Option(help="GPUs of this machine, for instance 0,1; none for the CPU.")]
GpusPerTask = Annotated[float | None, typer.Option(help="Ray: GPUs for each task, for instance 0.5.")]
Address = Annotated[str | None, typer.Option(help="Ray: HOST:PORT of the cluster, or local to start one here.")]
Storage = Annotated[
    str | None, typer.Option(help="Ray: shared (all nodes see the store), driver (results are sent back) or auto.")
]
Retries = Annotated[int | None, typer.Option(help="New tries after a worker died or an unexpected error; 2.")]
MaxDisk = Annotated[
    str | None,
    typer.Option(help="Room for the hub's cache, for instance 200GB; a model to fetch counts as the largest there."),
]
Evict = Annotated[bool | None, typer.Option("--evict", help="Delete least recently used snapshots to keep --max-disk.")]

_OPTIONS = {
    "engine": Name, "workers": Workers, "threads": Threads, "gpus": Gpus, "gpus_per_task": GpusPerTask,
    "address": Address, "storage": Storage, "retries": Retries, "max_disk": MaxDisk, "evict": Evict,
}  # fmt: skip


def with_engine_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with these options, which gets them in one mapping, ``engine``."""

    @wraps(command)
    def called(**given: Any) -> None:
        options = {name: given.pop(name) for name in _OPTIONS}
        options["name"] = options.pop("engine")
        options["gpus"] = None if options["gpus"] is None else _gpus(options["gpus"])
        options["evict"] = options["evict"] or None
        command(engine=options, **given)

    own = signature(command, eval_str=True)
    added = [Parameter(n, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for n, kind in _OPTIONS.items()]
    kept = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own.parameters.values() if p.name != "engine"]
    called.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in [*kept, *added]}
    return called


def _gpus(text: str) -> list[int]:
    if text != "none" and not re.fullmatch(r"\d+(,\d+)*", text):
        raise UsageError(f"--gpus is a list of GPU numbers such as 0,1, or none, not {text!r}.")
    return [] if text == "none" else [int(number) for number in text.split(",")]
