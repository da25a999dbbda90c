"""What is asked of a sweep: frozen, typed, read from a TOML file, options of the command line, or both.

    do = ["uds", "evaluate"]
    models = ["simnpo_*_ep5", "models/*"]
    set = "ep5"
    [uds]
    mode = "mlp"
    [[unlearn]]                       # a list is a grid: this makes six models
    method = ["npo", "graddiff"]
    lr = [1e-5, 2e-5, 5e-5]
    [engine]
    name = "process"
    workers = 2

A key that does not exist is an error.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from residuum.errors import DataError, UsageError, nearest
from residuum.models.names import FULL, RETAIN
from residuum.registry import one_of
from residuum.store import content_hash

ENGINES = ("serial", "process", "ray")
STORAGES = ("auto", "shared", "driver")
_ONLY_FOR_RAY, _NOT_FOR_RAY = {"address", "storage", "gpus_per_task"}, {"gpus"}


@dataclass(frozen=True)
class EngineConfig:
    """Who does the work."""

    name: str = "process"
    """serial, process or ray."""
    workers: int | None = None
    """Tasks at once; by default one per GPU, two on a CPU, and all that fit into a Ray cluster."""
    threads: int = 1
    """CPU threads of each worker. Numbers may depend on it in the last digits, so it is never guessed."""
    gpus: tuple[int, ...] | None = None
    """GPUs of this machine, one worker each; empty for the CPU. By default all there are."""
    gpus_per_task: float = 0.0
    """Ray: share of a GPU that each worker holds, for instance 0.5."""
    address: str | None = None
    """Ray: the cluster to work on; ``local`` starts one on this machine."""
    storage: str = "auto"
    """Ray: shared (all nodes see the run store), driver (results are sent back), auto finds out node by node."""
    retries: int = 2
    """How often a task is tried again after its worker died or an unexpected error."""
    max_disk: int | None = None
    """Bytes that the hub's cache may take on a machine."""
    evict: bool = False
    """Whether the least recently used snapshots may be deleted to keep ``max_disk``."""

    def __post_init__(self) -> None:
        one_of("engine", self.name, *ENGINES)
        one_of("storage", self.storage, *STORAGES)
        for name, least in (("workers", 1), ("threads", 1), ("retries", 0), ("gpus_per_task", 0), ("max_disk", 0)):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise UsageError(f"{name} must be at least {least}, not {value}.")
        if self.gpus_per_task > 1 and self.gpus_per_task % 1:
            raise UsageError(
                f"gpus_per_task is a share of one GPU or a whole number of them, not {self.gpus_per_task}."
            )
        if self.evict and self.max_disk is None:
            raise UsageError("evict keeps the hub's cache below max_disk.\n  Give --max-disk too, for instance 200GB.")


@dataclass(frozen=True)
class Request:
    """A sweep as a user asks for it."""

    do: tuple[str, ...] = ()
    """Kinds of tasks to do for every model: uds, evaluate, meta, rtt, steer."""
    models: tuple[str, ...] = ()
    """Names, hub ids, folders, and patterns over registry names or folders."""
    set: str = "default"
    """Result folders go to ``{runs}/{set}/``."""
    name: str | None = None
    """Folder of the sweep below ``{runs}/sweeps``; by default made from the request."""
    full_model: str = FULL
    """The model that knows."""
    retain_model: str = RETAIN
    """The model that never saw the forget set."""
    data: str | None = None
    """Annotated forget set for uds; by default ``forget10_annotated.json`` of ``data_dir``, else the published one."""
    data_dir: str | None = None
    """Folder of splits with TOFU's names, or tofu for the hub."""
    unlearn: tuple[Mapping[str, Any], ...] = ()
    """Models to make: method, its options and those of training; ``out``, ``forget``, ``retain``. Lists are grids."""
    task: tuple[Mapping[str, Any], ...] = ()
    """Single tasks: ``name``, ``do``, ``model``, ``needs``, ``options``."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings by kind of task."""
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        if Path(self.set).name != self.set or self.set in ("", ".", "..", "units", "claims", "sweeps"):
            raise UsageError(f"set is the name of a folder below the runs root, not {self.set!r}.")
        if self.name is not None and (Path(self.name).name != self.name or self.name in ("", ".", "..")):
            raise UsageError(f"name is the name of a folder below {{runs}}/sweeps, not {self.name!r}.")

    @property
    def folder_name(self) -> str:
        """The given name, or one that the same request always gets."""
        what = {key: value for key, value in self.record().items() if key not in ("name", "engine")}
        kinds = [*(["unlearn"] if self.unlearn else []), *self.do]
        return self.name or "-".join([*kinds, content_hash(what)[:8]])

    def record(self) -> dict[str, Any]:
        """Ready for JSON; `read_request` takes it back."""
        known = asdict(self)
        return {**{key: value for key, value in known.items() if key != "options"}, **known["options"]}


def read_request(given: Mapping[str, Any]) -> Request:
    """A request from nested settings, as a TOML file or a record gives them.

    Raises:
        UsageError: a key does not exist, or a value has the wrong type; names the nearest key.
    """
    from residuum.sweep.kinds import KINDS

    tables = [name for name, kind in KINDS.items() if not kind.makes]
    own = [f.name for f in fields(Request) if f.name != "options"]
    _known(given, [*own, *tables], "plan")
    values: dict[str, Any] = {key: given[key] for key in own if given.get(key) is not None}
    for key in ("do", "models"):
        if key in values:
            values[key] = tuple(dict.fromkeys(_texts(key, values[key])))
    for key in ("set", "name", "full_model", "retain_model", "data", "data_dir"):
        if not isinstance(values.get(key, ""), str):
            raise UsageError(f"{key} is a text, not {values[key]!r}.")
    for key in ("unlearn", "task"):
        values[key] = tuple(_table(f"[[{key}]]", row) for row in _rows(key, values.get(key, ())))
    values["options"] = {key: _table(f"[{key}]", given[key]) for key in tables if key in given}
    values["engine"] = _engine(_table("[engine]", values.get("engine", {})))
    return Request(**values)


def read_plan_file(path: str | Path) -> dict[str, Any]:
    """The settings of a PLAN.toml.

    Raises:
        DataError: it is missing or not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise DataError("there is no such plan", path=path) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"is not TOML: {error}", path=path) from None


def with_engine(request: Request, changes: Mapping[str, Any]) -> Request:
    """The same work for another engine; None means unchanged, but for what only the engine before could use."""
    given = {key: value for key, value in changes.items() if value is not None}
    before = asdict(request.engine)
    if given.get("name", request.engine.name) != request.engine.name:
        lost = _NOT_FOR_RAY if given["name"] == "ray" else _ONLY_FOR_RAY
        before = {key: value for key, value in before.items() if key not in lost}
    return replace(request, engine=_engine({**before, **given})) if given else request


def _engine(given: Mapping[str, Any]) -> EngineConfig:
    _known(given, [f.name for f in fields(EngineConfig)], "engine")
    values = dict(given)
    if values.get("gpus") is not None:
        gpus = values["gpus"] if isinstance(values["gpus"], list | tuple) else [values["gpus"]]
        if not all(isinstance(gpu, int) and not isinstance(gpu, bool) for gpu in gpus):
            raise UsageError(f"engine.gpus are numbers of GPUs, not {values['gpus']!r}.")
        values["gpus"] = tuple(dict.fromkeys(gpus))
    for key in ("name", "address", "storage"):
        if not isinstance(values.get(key) or "", str):
            raise UsageError(f"engine.{key} is a text, not {values[key]!r}.")
    if not isinstance(values.get("evict", False), bool):
        raise UsageError(f"engine.evict is true or false, not {values['evict']!r}.")
    if isinstance(values.get("max_disk"), str):
        values["max_disk"] = parse_size(values["max_disk"])
    for key in ("workers", "threads", "retries", "gpus_per_task", "max_disk"):
        value = values.get(key)
        whole = key != "gpus_per_task"
        if value is not None and (isinstance(value, bool) or not isinstance(value, int if whole else int | float)):
            raise UsageError(f"engine.{key} is a number, not {value!r}.")
    return EngineConfig(**values)


def parse_size(text: str) -> int:
    """``500MB`` or ``2TB`` as a number of bytes."""
    clean = text.strip().upper()
    for unit, size in {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}.items():
        if clean.endswith(unit):
            try:
                return int(float(clean.removesuffix(unit)) * size)
            except (ValueError, OverflowError):
                break
    raise UsageError(f"a size is written like 500MB or 200GB, not {text!r}.")


def _known(given: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    for key in given:
        if key not in names:
            near = nearest(key, names)
            hint = f" Did you mean {near[0]}?" if near else f"\n  Known: {', '.join(names)}."
            raise UsageError(f"the {where} has no key {key}.{hint}")


def _texts(key: str, value: Any) -> list[str]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise UsageError(f"{key} is a list of names, not {value!r}.")
    return [item.strip() for item in items if item.strip()]


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} is a table of settings, not {value!r}.")
    return dict(value)


def _rows(key: str, value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping) or not isinstance(value, list | tuple):
        raise UsageError(f"write [[{key}]] with two brackets: there may be several.")
    return value
