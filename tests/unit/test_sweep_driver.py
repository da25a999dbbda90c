"""The driver against an engine whose workers do as they are told: retries, failures, shards, other drivers."""

from __future__ import annotations

import errno
import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from residuum.errors import InputError, ResiduumError, StoreError
from residuum.store import Store
from residuum.sweep.driver import Driver, Shard
from residuum.sweep.estimate import time_left
from residuum.sweep.folder import SweepFolder, summary
from residuum.sweep.plan import Plan, make_plan
from residuum.sweep.request import read_request
from residuum.sweep.results import table, write_table
from residuum.sweep.tasks import Work
from residuum.sweep.watch import Watch
from residuum.sweep.work import Order, Report, Worker, unpack


class Obedient:
    """Two workers; each order is answered by a function."""

    def __init__(self, answer: Callable[[Order], Report]) -> None:
        self.answer, self.orders, self.seen, self.closed = answer, {}, [], False

    def free(self):
        return [worker for worker in (0, 1) if worker not in self.orders]

    def submit(self, worker, order):
        self.orders[worker] = order
        self.seen.append(order)

    def wait(self, seconds):
        if not self.orders:
            return []
        worker = min(self.orders)
        return [(worker, self.answer(self.orders.pop(worker)))]

    def close(self):
        self.closed = True


def fine(order: Order) -> Report:
    return Report({"columns": {"uds": len(order.name)}, "identity": None}, seconds=1.0, where="here")


def make(**given) -> Plan:
    settings = {"models": ["a/x", "a/y", "a/z"], "do": "rtt", "engine": {"gpus": []}, **given}
    return make_plan(read_request(settings))


@pytest.fixture
def drive(tmp_path):
    def run(answer: Callable[[Order], Report], plan: Plan | None = None, shard: Shard | None = None):
        plan = plan or make()
        folder, engine = SweepFolder(tmp_path / "runs/sweeps/s"), Obedient(answer)
        folder.save(plan)
        driver = Driver(plan, folder, engine, shard=shard or Shard(), watch=Watch())
        driver.run()
        return driver, engine, folder

    return run


def test_everything_is_done_once(drive):
    driver, engine, _ = drive(fine)
    assert set(driver.states.values()) == {"done"}
    assert sorted(order.name for order in engine.seen) == ["rtt/a/x", "rtt/a/y", "rtt/a/z"]
    assert engine.closed
    again, engine, _ = drive(fine)
    assert again.cached == 3
    assert engine.seen == []


def test_a_worker_that_dies_costs_one_try(drive):
    def dies_once(order: Order) -> Report:
        return Report(error="killed by SIGKILL", retry=True) if order.attempt == 1 else fine(order)

    driver, engine, folder = drive(dies_once)
    assert set(driver.states.values()) == {"done"}
    assert len(engine.seen) == 6
    assert "attempt 1 did not end well: killed by SIGKILL" in folder.log(driver.plan.tasks[0]).read_text()


def test_tries_are_bounded_and_the_last_error_is_recorded(drive):
    def never_y(order: Order) -> Report:
        return Report(error="segfault", retry=True, where="gpu7") if order.name.endswith("y") else fine(order)

    driver, engine, folder = drive(never_y)
    assert driver.states == {"rtt/a/x": "done", "rtt/a/y": "failed", "rtt/a/z": "done"}
    assert [order.attempt for order in engine.seen if order.name.endswith("y")] == [1, 2, 3]
    failure = folder.failure(driver.plan.by_name["rtt/a/y"])
    assert (failure.error, failure.attempts, failure.where) == ("segfault", 3, "gpu7")
    assert summary(folder.states(folder.load())) == {
        "done": 2, "running": 0, "interrupted": 0, "failed": 1, "blocked": 0, "waiting": 0,
    }  # fmt: skip


def test_a_mistake_is_not_tried_again(drive):
    driver, engine, _ = drive(lambda order: Report(error="no such model"))
    assert set(driver.states.values()) == {"failed"}
    assert len(engine.seen) == 3


def test_a_failed_task_stays_failed_until_it_is_forgiven(drive):
    drive(lambda order: Report(error="no such model"))
    driver, engine, folder = drive(fine)
    assert engine.seen == []
    assert driver.errors["rtt/a/x"] == "no such model"
    assert folder.forgive() == 3
    driver, engine, _ = drive(fine)
    assert set(driver.states.values()) == {"done"}


def test_one_shard_does_not_forgive_what_others_recorded(drive):
    driver, _, folder = drive(lambda order: Report(error="no such model"))
    mine = Shard(1, 2)
    assert folder.forgive(*(task for task in driver.plan.tasks if not mine.has(task))) == 2
    assert [task.name for task in driver.plan.tasks if folder.failure(task)] == ["rtt/a/y"]


def test_a_sweep_remembers_where_it_was_started(drive, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    _, _, folder = drive(fine)
    monkeypatch.chdir(tmp_path)
    assert folder.start() == tmp_path / "here"
    (tmp_path / "here").rmdir()
    assert folder.start() == tmp_path


def test_what_needs_a_failed_task_is_blocked_however_far_down(drive):
    rows = [
        {"name": "b", "do": "rtt", "model": "a/b", "needs": ["a"]},
        {"name": "c", "do": "rtt", "model": "a/c", "needs": ["b"]},
        {"name": "a", "do": "rtt", "model": "a/a"},
    ]
    plan = make(task=rows, models=["a/x"])
    driver, _, folder = drive(lambda order: Report(error="no") if order.name == "a" else fine(order), plan)
    assert driver.states == {"a": "failed", "b": "blocked", "c": "blocked", "rtt/a/x": "done"}
    assert {s.name: s.state for s in folder.states(plan)} == driver.states


def test_needs_come_first(drive):
    rows = [{"name": "last", "do": "rtt", "model": "a/x", "needs": ["rtt/a/z"], "options": {"seed": 1}}]
    _, engine, _ = drive(fine, make(task=rows))
    names = [order.name for order in engine.seen]
    assert names.index("last") > names.index("rtt/a/z")


def test_two_workers_take_different_models_and_read_the_next_ones_ahead(drive):
    plan = make(do="uds", full_model="a/full", retain_model="a/retain", models=[f"a/m{i}" for i in range(4)])
    _, engine, _ = drive(fine, plan)
    reference, first, second = engine.seen[:3]
    assert reference.work.name == "a/retain"
    assert len({first.work.model, first.ahead, second.work.model, second.ahead}) == 4


def test_the_time_left_is_that_of_the_open_tasks_by_their_kinds():
    usual = {"uds": 2.0, "unlearn": 4.0}
    assert time_left(["uds", "uds", "rtt"], usual, workers=2) == (2 + 2 + 3) / 2
    assert time_left(["uds"], usual, workers=0) == 2
    assert time_left(["uds"], {}, workers=1) is None


def test_a_full_disk_ends_the_sweep_and_keeps_what_is_done(drive, tmp_path):
    def full_at_y(order: Order) -> Report:
        return Report(error="No space left", fatal=True) if order.name.endswith("y") else fine(order)

    with pytest.raises(StoreError, match="Free some space and start again"):
        drive(full_at_y)
    driver, engine, _ = drive(fine)
    assert [order.name for order in engine.seen] == ["rtt/a/y", "rtt/a/z"]
    assert driver.cached == 1


def test_a_task_that_another_driver_holds_is_left_to_it(drive, tmp_path):
    plan = make()
    store = Store(tmp_path / "runs")
    held = plan.by_name["rtt/a/x"].unit
    context = store.hold(held)
    finish = context.__enter__()

    def other_finishes(order: Order) -> Report:
        if order.name == "rtt/a/z":
            finish({"columns": {"uds": 99}, "identity": None, "model": "a/x", "seconds": 1.0})
            context.__exit__(None, None, None)
        return fine(order)

    driver, engine, _ = drive(other_finishes, plan)
    assert set(driver.states.values()) == {"done"}
    assert sorted(order.name for order in engine.seen) == ["rtt/a/y", "rtt/a/z"]
    assert store.get(held).value["columns"]["uds"] == 99


def test_shards_do_everything_once_and_the_last_one_does_what_waits_for_all(drive, tmp_path):
    rows = [{"name": "sum", "do": "rtt", "model": "a/sum", "needs": ["rtt/a/x", "rtt/a/y", "rtt/a/z"]}]
    plan = make(task=rows)
    first, engine_1, _ = drive(fine, plan, Shard(1, 2))
    assert first.states["sum"] == "waiting"
    second, engine_2, _ = drive(fine, plan, Shard(2, 2))
    assert [order.name for order in engine_1.seen] == ["rtt/a/x", "rtt/a/z"]
    assert [order.name for order in engine_2.seen] == ["rtt/a/y", "sum"]
    assert second.states["sum"] == "done"


def test_the_table_has_one_row_per_model_and_names_shared_columns_by_kind(drive, tmp_path):
    plan = make(do="rtt,uds", full_model="a/full", retain_model="a/retain", models=["a/x"])
    summaries = [task.output_path(tmp_path / "runs") for task in plan.tasks if task.output]
    for path in summaries:
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    drive(fine, plan)
    rows = table(plan, Store(tmp_path / "runs"))
    assert rows == [
        {"model": "a/retain", "uds.uds": 12, "rtt.uds": None},
        {"model": "a/x", "uds.uds": 7, "rtt.uds": 7},
    ]
    write_table(rows, tmp_path)
    assert (tmp_path / "table.csv").read_text() == "model,uds.uds,rtt.uds\na/retain,12,\na/x,7,7\n"


def test_a_result_whose_folder_was_deleted_is_made_again(drive, tmp_path):
    plan = make(do="uds", full_model="a/full", retain_model="a/retain", models=["a/x"])
    outputs = {task.name: task.output_path(tmp_path / "runs") for task in plan.tasks}

    def writes(order: Order) -> Report:
        outputs[order.name].parent.mkdir(parents=True, exist_ok=True)
        outputs[order.name].write_text("{}")
        return fine(order)

    drive(writes, plan)
    outputs["uds/a/x"].unlink()
    _, engine, _ = drive(writes, plan)
    assert [order.name for order in engine.seen] == ["uds/a/x"]


def test_a_folder_that_is_no_sweep_says_what_is_near(tmp_path, drive):
    drive(fine)
    with pytest.raises(InputError, match="There are s in"):
        SweepFolder(tmp_path / "runs").load()
    (tmp_path / "runs/sweeps/s/plan.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="newer residuum"):
        SweepFolder(tmp_path / "runs/sweeps/s").load()


def order_for(tmp_path, **changes) -> Order:
    work = Work("x", "default", {"dataset": "nowhere"}, model="nowhere/x")
    return Order(**{"name": "rtt/x", "kind": "rtt", "work": work, "runs": str(tmp_path / "runs"), "log": str(tmp_path / "logs/x.log"), **changes})  # fmt: skip


def test_a_worker_reports_an_error_and_writes_it_down(tmp_path):
    report = Worker("cpu", 1).do(order_for(tmp_path))
    assert report.value is None
    assert not report.retry
    log = (tmp_path / "logs/x.log").read_text()
    assert "--- rtt/x, attempt 1" in log
    assert f"--- failed: {report.error}" in log


def test_a_worker_without_the_shared_folder_sends_its_log_back(tmp_path):
    report = Worker("cpu", 1).do(order_for(tmp_path, storage="auto"))
    assert "--- failed" in report.log
    assert not (tmp_path / "logs").exists()


def test_a_worker_sends_each_file_back_once(tmp_path):
    worker = Worker("cpu", 1)
    worker._bench(order_for(tmp_path), private=True)
    root = Path(worker._private.name)
    (root / "default/uds/x").mkdir(parents=True)
    summary_file = root / "default/uds/x/summary.json"
    summary_file.write_text("{}")

    def sent() -> list[str]:
        return zipfile.ZipFile(io.BytesIO(worker._new_files())).namelist()

    assert sent() == ["default/uds/x/summary.json"]
    assert sent() == []
    summary_file.write_text("{ }")
    os.utime(summary_file, (10**9, 10**9))
    assert sent() == ["default/uds/x/summary.json"]


def test_workers_that_never_start_end_the_sweep(monkeypatch):
    cluster = pytest.importorskip("residuum.sweep.cluster")
    engine = object.__new__(cluster.RayEngine)
    engine._slots = {0: cluster._Slot(actor=None, answer=None)}
    engine._hopeful_until, engine._stillborn = -1.0, None
    monkeypatch.setattr(engine, "_grow", lambda: None)
    monkeypatch.setattr(engine, "_is_there", lambda _: True)
    monkeypatch.setattr(engine, "_get", lambda _: Report(error="No module named 'residuum'", retry=True))
    with pytest.raises(ResiduumError, match="could be started: No module named 'residuum'"):
        engine.free()


def test_a_full_disk_is_told_from_other_errors(monkeypatch, tmp_path):
    from residuum.sweep import work

    full = StoreError("cannot write x")
    full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert work._failure(full).fatal
    assert work._failure(RuntimeError("I/O error: No space left on device (os error 28)")).fatal
    assert work._failure(RuntimeError("CUDA out of memory")) == Report(
        error="RuntimeError: CUDA out of memory", retry=True
    )
    assert work._failure(InputError("no such model")) == Report(error="no such model")


def test_files_that_a_worker_sends_back_stay_in_the_store(tmp_path):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("default/uds/x/summary.json", json.dumps({}))
    unpack(packed.getvalue(), tmp_path)
    assert (tmp_path / "default/uds/x/summary.json").read_text() == "{}"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../outside.json", "{}")
    with pytest.raises(ValueError, match="leads out of the store"):
        unpack(packed.getvalue(), tmp_path / "runs")
