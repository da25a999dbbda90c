"""``residuum sweep run | status | retry``: any part over hundreds of models, here or on a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from residuum.cli.app import app, group, print_table
from residuum.cli.sweep_options import Settings, with_engine_options
from residuum.errors import InputError, PartlyFailed, UsageError

if TYPE_CHECKING:
    from residuum.sweep.driver import Shard
    from residuum.sweep.plan import Plan
    from residuum.sweep.request import Request

sweep_app = group("Any part of residuum over many models: resumable, on one machine, several GPUs or a Ray cluster.")
app.add_typer(sweep_app, name="sweep")

SHOWN = 8
"""Columns of the table that a terminal has room for."""

Runs = Annotated[Path | None, typer.Option(help="Root of the run store; RESIDUUM_RUNS or runs/ when left out.")]
Folder = Annotated[Path, typer.Argument(help="Folder of the sweep: {runs}/sweeps/{name}.")]
ShardOption = Annotated[
    str | None, typer.Option("--shard", help="i/n: only part i of n, for array jobs that share the store.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@sweep_app.command("run")
@with_engine_options
def run_command(
    engine: Settings,
    plan: Annotated[Path | None, typer.Argument(help="A plan file, TOML; options win over it.")] = None,
    models: Annotated[
        list[str] | None, typer.Option(help="Name, hub id, folder or pattern such as 'simnpo_*_ep5'; a,b or repeated.")
    ] = None,
    do: Annotated[str | None, typer.Option(help="What to do for each: uds, evaluate, meta, rtt, steer.")] = None,
    set_name: Annotated[str | None, typer.Option("--set", help="Result folders go to {runs}/{set}.")] = None,
    name: Annotated[str | None, typer.Option(help="Folder of the sweep below {runs}/sweeps.")] = None,
    full_model: Annotated[str | None, typer.Option(help="The model that knows.")] = None,
    retain_model: Annotated[str | None, typer.Option(help="The model that never saw the forget set.")] = None,
    data: Annotated[str | None, typer.Option(help="Annotated forget set, for uds.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of splits with TOFU's names, or tofu.")] = None,
    shard: ShardOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print tasks, what is done, and the cost; do nothing.")
    ] = False,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Audit hundreds of models: what is finished is skipped, one failed model never ends the rest.

    Examples: `residuum sweep run PLAN.toml --workers 2`,
    `residuum sweep run --models 'simnpo_*_ep5' --do uds,evaluate --data-dir tofu --set ep5 --gpus 0,1`
    """
    from residuum.folders import runs_folder
    from residuum.sweep.plan import make_plan
    from residuum.sweep.request import read_request, with_engine

    given = _read_plan_file(plan) if plan is not None else {}
    options = {
        "models": models and ",".join(models), "do": do, "set": set_name, "name": name, "full_model": full_model,
        "retain_model": retain_model, "data": data, "data_dir": data_dir,
    }  # fmt: skip
    request = read_request(given | {key: value for key, value in options.items() if value is not None})
    request = with_engine(request, engine)
    part, root = _shard(shard), runs or runs_folder()
    with _naming(plan):
        made = make_plan(request)
    if dry_run:
        _show_plan(made, root, as_json)
    else:
        _run(made, root, part, as_json)


@sweep_app.command("retry")
@with_engine_options
def retry_command(
    engine: Settings,
    folder: Folder,
    shard: ShardOption = None,
    as_json: AsJson = False,
) -> None:
    """Try again what failed, and go on with what is not done.

    Examples: `residuum sweep retry runs/sweeps/grid`, `residuum sweep retry runs/sweeps/grid --engine serial`
    """
    from residuum.sweep.folder import SweepFolder
    from residuum.sweep.plan import make_plan
    from residuum.sweep.request import with_engine

    place = SweepFolder(folder.absolute())
    request: Request = place.load().request
    request = with_engine(request, engine)
    part = _shard(shard)
    with chdir(place.start()):
        # Planned anew: a model that was missing may be there by now.
        made = make_plan(request)
        place.forgive(*(task for task in made.tasks if not part.has(task)))
        _run(made, place.runs, part, as_json, folder=place.path.name)


@sweep_app.command("status")
def status_command(
    folder: Folder,
    everything: Annotated[bool, typer.Option("--all", help="Also list tasks that are done or waiting.")] = False,
    as_json: AsJson = False,
) -> None:
    """How far is a sweep that somebody else is running? Reads files only.

    Examples: `residuum sweep status runs/sweeps/grid`, `residuum sweep status runs/sweeps/grid --json`
    """
    from residuum.store import Store
    from residuum.sweep.estimate import time_left, usual_seconds
    from residuum.sweep.folder import SweepFolder, summary
    from residuum.sweep.watch import clock

    place = SweepFolder(folder)
    plan = place.load()
    states = place.states(plan)
    if as_json:
        print_table("", [asdict(state) for state in states], as_json=True)
        return
    counts = summary(states)
    kinds = [plan.by_name[state.name].kind for state in states if state.state not in ("done", "failed", "blocked")]
    left = time_left(kinds, usual_seconds(plan, Store(place.runs)), workers=counts["running"])
    words = [f"{number} {word}" for word, number in counts.items() if number or word == "done"]
    typer.echo(", ".join([*words, *([f"{'?' if left is None else clock(left)} left"] if kinds else [])]))
    shown = [state for state in states if everything or state.state not in ("done", "waiting")]
    if shown:
        print_table(place.path.name, [{**asdict(s), "note": s.note.split("\n")[0], "log": s.log or "-"} for s in shown])


def _read_plan_file(path: Path) -> dict[str, Any]:
    """The settings of a file, fit to be merged with others."""
    from residuum.sweep.plan import check_request
    from residuum.sweep.request import read_plan_file, read_request

    given = read_plan_file(path)
    with _naming(path):
        check_request(read_request(given))
    return given


@contextmanager
def _naming(path: Path | None) -> Iterator[None]:
    """What is wrong with a plan is said with the name of its file."""
    try:
        yield
    except InputError as error:
        raise (error if path is None else InputError(f"{path}: {error}")) from None


def _run(plan: Plan, runs: Path, shard: Shard, as_json: bool, folder: str | None = None) -> None:
    from residuum.sweep.run import run_plan

    outcome = run_plan(plan, runs, shard=shard, folder=folder)
    if as_json:
        typer.echo(json.dumps(outcome.rows, indent=1, ensure_ascii=False))
    elif outcome.rows:
        columns = list(outcome.rows[0])[: SHOWN + 1]
        print_table(outcome.folder.name, [{key: row[key] for key in columns} for row in outcome.rows])
        more = len(outcome.rows[0]) - len(columns)
        typer.echo(f"{f'{more} more columns in ' if more > 0 else ''}{outcome.folder / 'table.csv'}")
    left = [name for name, state in outcome.states.items() if state in ("waiting", "elsewhere")]
    if left:
        typer.echo(f"{len(left)} tasks wait for other shards; the last one to end does them.", err=True)
    if outcome.errors:
        lines = [f"{name}: {error.split(chr(10))[0]}" for name, error in outcome.errors.items()]
        shown = [*lines[:10], *([f"and {len(lines) - 10} more"] if len(lines) > 10 else [])]
        raise PartlyFailed(
            f"{len(lines)} of {len(outcome.states)} tasks failed, everything else is done.\n  "
            + "\n  ".join(shown)
            + f"\n  Logs are in {outcome.folder / 'logs'}; `residuum sweep retry {outcome.folder}` tries them again."
        )


def _show_plan(plan: Plan, runs: Path, as_json: bool) -> None:
    from residuum.store import Store
    from residuum.sweep.estimate import estimate

    cost = estimate(plan, Store(runs))
    rows = [
        {"name": task.name, "key": task.key[:16], "state": "cached" if done else "to do", "seconds": seconds,
         "needs": list(task.needs) if as_json else ", ".join(task.needs) or "-"}
        for task, done, seconds in cost.tasks
    ]  # fmt: skip
    print_table("plan", rows, as_json=as_json)
    left = sum(not done for _, done, _ in cost.tasks)
    time = (
        "unknown: nothing of the kind was done before"
        if cost.seconds is None
        else f"about {cost.seconds:.0f} s by one worker"
    )
    disk = f"{cost.disk / 1e9:.2f} GB for new checkpoints" + (
        f", and {cost.downloads} models to fetch from the hub, whose sizes are not known here" if cost.downloads else ""
    )
    typer.echo(f"{len(rows)} tasks, {len(rows) - left} cached, {left} to do; time {time}; disk {disk}", err=as_json)


def _shard(text: str | None) -> Shard:
    from residuum.sweep.driver import Shard

    if text is None:
        return Shard()
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"--shard is i/n with i from 1 to n, for instance 1/8, not {text!r}.")
    return Shard(int(found[1]), int(found[2]))
