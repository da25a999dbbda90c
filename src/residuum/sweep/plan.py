"""From a request to a list of frozen tasks: references once, a model made before it is audited, nothing loaded yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from residuum.data.tofu import HUB
from residuum.errors import UnknownName, UsageError
from residuum.models.names import FULL
from residuum.registry import one_of
from residuum.store import Store
from residuum.sweep import grids
from residuum.sweep.kinds import KINDS, Kind
from residuum.sweep.request import Request
from residuum.sweep.sources import Source, absolute, check_names, data_identity, expand, look_up
from residuum.sweep.tasks import SweepTask, Work, file_name

VERSION = 1
"""Part of every task's identity: raised when a kind of task reports differently."""
_TASK_KEYS = ("name", "do", "model", "needs", "options")


@dataclass(frozen=True)
class Plan:
    """All tasks of a sweep, in the order in which they are best done."""

    request: Request
    tasks: tuple[SweepTask, ...]

    @cached_property
    def by_name(self) -> dict[str, SweepTask]:
        """The tasks by name."""
        return {task.name: task for task in self.tasks}

    @cached_property
    def models(self) -> list[str]:
        """Names of the models, in the order of the table."""
        return list(dict.fromkeys(task.work.name for task in self.tasks))


def is_done(task: SweepTask, store: Store) -> bool:
    """Whether the task is finished and what it made is still there."""
    if not store.has(task.unit):
        return False
    path = task.output_path(store.root)
    if path is None or not KINDS[task.kind].makes:
        return path is None or path.exists()
    # A folder can be used again for another model: the manifest must be the one of this task.
    unit = store.get(task.unit)
    try:
        manifest = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return unit is not None and unit.value["identity"] == manifest.get("identity")


def make_plan(request: Request) -> Plan:
    """The tasks that a request means.

    Raises:
        InputError: a kind, option, pattern or dependency that makes no sense; nothing has been started then.
    """
    return Plan(request, tuple(_Planner(request).tasks()))


class _Planner:
    """Collects the tasks of one request."""

    def __init__(self, request: Request) -> None:
        self.request = request
        check_request(request)
        self.device = "cuda" if _on_gpu(request) else "cpu"
        for key, place in {"data": request.data, "data_dir": request.data_dir}.items():
            if place is not None and not (Path(place).exists() or (key, place) == ("data_dir", HUB)):
                raise UsageError(f"{key} is not there: {place}.")
        annotated = request.data
        if annotated is None and request.data_dir and (Path(request.data_dir) / "forget10_annotated.json").is_file():
            annotated = str(Path(request.data_dir) / "forget10_annotated.json")
        self.shared: dict[str, Any] = {"data": absolute(annotated), "data_dir": absolute(self._splits())}
        self.identities: dict[str, Any] = {key: data_identity(place) for key, place in self.shared.items()}
        needed = {use for name in self._kinds() for use in KINDS[name].uses}
        for role in sorted(needed & {"full_model", "retain_model"}):
            (source,) = look_up([getattr(request, role)])
            self.shared[role], self.identities[role] = source.place, source.identity
            self.identities[f"{role}.name"] = source.name

    def _splits(self) -> str | None:
        """The folder of splits; models of the registry were made from those of the hub."""
        own = "members" in self.request.options.get("evaluate", {})
        published = self.request.full_model in (FULL, "full")
        return HUB if self.request.data_dir is None and published and not own else self.request.data_dir

    def tasks(self) -> list[SweepTask]:
        made = self._made()
        found = list(made.values())
        given = [*self._made_sources(made), *self._given_sources()]
        # One place may be given in two ways, or be what the plan itself makes.
        first: dict[str, Source] = {}
        for source in given:
            first.setdefault(source.place, source)
        models = list(first.values())
        check_names([*models, *([self._reference()] if "retain_model" in self.shared else [])])
        for name in self._kinds():
            if KINDS[name].reference and (models or self.request.task):
                found.insert(0, self._audit(name, self._reference(), None))
        known = {task.name for task in found}
        for group, source in enumerate(models):
            tasks = [self._audit(name, source, group, made.get(source.name)) for name in self.request.do]
            found += [task for task in tasks if task.name not in known]
        found += [self._single(row, models, made) for row in self.request.task]
        if not found:
            raise UsageError("there is nothing to do: give --models and --do, or a plan with [[unlearn]] or [[task]].")
        check_graph(found)
        order = {model.name: place for place, model in enumerate(models)}
        # A model is trained, then audited, then the next one: results come early, and weights are read once.
        return sorted(for_shards(found), key=lambda task: order.get(task.work.name, -1))

    def _kinds(self) -> list[str]:
        singles = [str(row.get("do")) for row in self.request.task if row.get("do") in KINDS]
        return list(dict.fromkeys([*self.request.do, *singles]))

    def _reference(self) -> Source:
        return Source(
            self.identities["retain_model.name"], self.shared["retain_model"], self.identities["retain_model"]
        )

    def _given_sources(self) -> list[Source]:
        own = {"full": self.request.full_model, "retain": self.request.retain_model}
        return look_up([own.get(model, model) for model in expand(self.request.models)])

    def _made(self) -> dict[str, SweepTask]:
        members = [member for row in self.request.unlearn for member in grids.members(row, self.request)]
        if twice := [m.name for i, m in enumerate(members) if m.name in {other.name for other in members[:i]}]:
            raise UsageError(
                f"two models of the plan are called {twice[0]}.\n  Make them in two sweeps, or give one another out."
            )
        places = list(dict.fromkeys(member.start for member in members))
        starts = dict(zip(places, look_up(places), strict=True))
        tasks = {}
        for group, member in enumerate(members):
            start = starts[member.start]
            work = Work(member.name, self.request.set, member.options, model=start.place, out=member.out)
            spec = self._spec(KINDS["unlearn"], work, model=start.identity)
            output = f"{member.out}/manifest.json"
            tasks[member.name] = SweepTask(f"unlearn/{member.name}", "unlearn", spec, work, output=output, group=group)
        return tasks

    @staticmethod
    def _made_sources(made: Mapping[str, SweepTask]) -> list[Source]:
        return [Source(name, str(task.work.out), {"made": task.key}) for name, task in made.items()]

    def _audit(
        self, kind: str, source: Source, group: int | None, maker: SweepTask | None = None, **changes: Any
    ) -> SweepTask:
        """A task about one model; one with a name of its own has result folders of its own."""
        entry = KINDS[kind]
        folder = f"{self.request.set}-{file_name(changes['name'])}" if "name" in changes else self.request.set
        given = {**self.request.options.get(kind, {}), **changes.pop("options", {})}
        for key in (*entry.files, *entry.checkpoints):
            if not isinstance(given.get(key) or "", str):
                raise UsageError(f"{kind}.{key} is a name or a path, not {given[key]!r}.")
        if "data_dir" in entry.uses and self.shared["data_dir"] is None and "members" not in given:
            raise UsageError(
                f"{kind} has no data.\n  Give --data-dir: a folder of splits with TOFU's names, or {HUB} for the hub."
            )
        options = {k: absolute(v) if k in (*entry.files, *entry.checkpoints) else v for k, v in given.items()}
        if entry.root is not None:
            options[entry.root] = absolute(str(given.get(entry.root, ".")))
        reference = entry.reference and source.place != self.shared.get("retain_model")
        needs = [*([maker.name] if maker else []), *([self._name(kind, self._reference())] if reference else [])]
        work = Work(source.name, folder, options, model=source.place, **self._uses(entry))
        return SweepTask(
            name=changes.get("name", self._name(kind, source)), kind=kind, group=group, work=work,
            spec=self._spec(entry, work, model=source.identity, **{use: self.identities[use] for use in entry.uses}),
            needs=tuple(dict.fromkeys([*needs, *changes.get("needs", ())])), output=_view(entry, work),
        )  # fmt: skip

    def _single(self, row: Mapping[str, Any], models: Sequence[Source], made: Mapping[str, SweepTask]) -> SweepTask:
        """A task of a [[task]] table."""
        for key in row:
            one_of("a key of [[task]]", key, *_TASK_KEYS)
        if not isinstance(row.get("name"), str) or not isinstance(row.get("do"), str):
            raise UsageError(
                f'a [[task]] has a name and says what to do, as in {{name = ..., do = "rtt"}}; not {dict(row)}.'
            )
        kind, needs = KINDS[row["do"]], row.get("needs", [])
        if not isinstance(row.get("options", {}), Mapping):
            raise UsageError(f"options of task {row['name']} is a table of settings, not {row['options']!r}.")
        if not isinstance(needs, list | tuple) or not all(isinstance(need, str) for need in needs):
            raise UsageError(f"needs of task {row['name']} is a list of task names, not {needs!r}.")
        _check(f"task {row['name']}", kind.check, {**self.request.options.get(row["do"], {}), **row.get("options", {})})
        changes = {"name": row["name"], "options": row.get("options", {}), "needs": needs}
        if kind.makes:
            raise UsageError(f"models are made by [[{row['do']}]] tables, not by a [[task]].")
        if not isinstance(row.get("model"), str):
            raise UsageError(f"task {row['name']} says nothing about its model.")
        known = {source.name: (source, group) for group, source in enumerate(models)}
        source, group = known.get(row["model"]) or (look_up([row["model"]])[0], None)
        return self._audit(row["do"], source, group, made.get(source.name), **changes)

    def _spec(self, kind: Kind, work: Work, **identities: Any) -> dict[str, Any]:
        """What decides a result: everything by content, and the names of its folders."""
        options = work.options
        named = [key for key in (*kind.files, *kind.checkpoints) if isinstance(options.get(key), str)]
        inputs = {
            key: look_up([options[key]])[0].identity if key in kind.checkpoints else data_identity(options[key])
            for key in named
        }
        kept = {key: value for key, value in options.items() if key not in inputs and key != kind.root}
        return {
            "version": VERSION, "name": work.name, "set": work.set, "device": self.device, "options": kept,
            "inputs": {**inputs, **kind.inputs(options)}, **identities,
        }  # fmt: skip

    def _uses(self, kind: Kind) -> dict[str, Any]:
        return {use: self.shared[use] for use in kind.uses}

    @staticmethod
    def _name(kind: str, source: Source) -> str:
        return f"{kind}/{source.name}"


def check_graph(tasks: Sequence[SweepTask]) -> None:
    """Every name once, every need there, no circle.

    Raises:
        UsageError: two tasks of one name, or a circle; names it.
        UnknownName: a need that is no task.
    """
    names = [task.name for task in tasks]
    logs: dict[str, str] = {}
    for name in names:
        if other := logs.get(file_name(name)):
            both = f" and {name}" if name != other else ""
            raise UsageError(f"two tasks are called {other}{both}.\n  Give one of them another name.")
        logs[file_name(name)] = name
    known = set(names)
    for task in tasks:
        for need in task.needs:
            if need not in known:
                raise UnknownName("task", need, names, hint=f"{task.name} needs it.")
    try:
        TopologicalSorter({task.name: task.needs for task in tasks}).prepare()
    except CycleError as error:
        raise UsageError(
            f"tasks wait for each other: {' needs '.join(error.args[1])}.\n  Take one of these needs out."
        ) from None


def for_shards(tasks: Sequence[SweepTask]) -> list[SweepTask]:
    """The same tasks; one that waits for several models belongs to every shard, so that the last to end does it."""
    by_name = {task.name: task for task in tasks}
    groups: dict[str, set[int]] = {}
    for name in TopologicalSorter({task.name: task.needs for task in tasks}).static_order():
        own = by_name[name].group
        groups[name] = ({own} if own is not None else set()).union(*(groups[need] for need in by_name[name].needs))
    return [replace(task, group=None) if len(groups[task.name]) > 1 else task for task in tasks]


def check_request(request: Request) -> None:
    """Refuse settings that do not exist or cannot be, whatever models and data they are for.

    Raises:
        InputError: names what is wrong.
    """
    for name in request.do:
        if KINDS[name].makes:
            raise UsageError(f"models are made by [[{name}]] tables in a plan file, not by do.")
    for name in {*request.do, *request.options}:
        _check(f"[{name}]", KINDS[name].check, request.options.get(name, {}))
    for table in request.unlearn:
        _check("[[unlearn]]", grids.check, table)


def _check(where: str, check: Callable[[Mapping[str, Any]], None], options: Mapping[str, Any]) -> None:
    try:
        check(options)
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"a setting of {where} has a value of the wrong type: {error}.") from error


def _view(kind: Kind, work: Work) -> str | None:
    from residuum.patching.output import run_tag

    return None if kind.view is None else f"{kind.view.format(set=work.set, model=run_tag(work.name))}/summary.json"


def _on_gpu(request: Request) -> bool:
    engine = request.engine
    if engine.name == "ray":
        return engine.gpus_per_task > 0
    if engine.gpus is not None:
        return bool(engine.gpus)
    import torch

    return torch.cuda.is_available()
