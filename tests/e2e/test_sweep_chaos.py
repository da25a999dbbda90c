"""Sweeps under fire: workers and drivers killed with SIGKILL, two drivers at once, the whole grid. Slow."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from contextlib import suppress

import psutil
import pytest

from residuum.sweep.folder import SweepFolder
from sweeping import Sweep, unit_files

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def serial(tiny_world, tmp_path_factory) -> dict[int, str]:
    """The tables of the serial engine, for four models and for all 24."""
    tables = {}
    for models in (4, 24):
        sweep = Sweep(tiny_world, tmp_path_factory.mktemp(f"serial{models}"), models=models)
        assert sweep.run("--engine", "serial") == 0
        tables[models] = sweep.table
    return tables


def workers(driver: subprocess.Popen[str]) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(driver.pid).children():
        with suppress(psutil.Error):  # it may end while it is asked
            if any("spawn_main" in word for word in child.cmdline()):
                found.append(child)
    return found


def all_end(processes: list[psutil.Process], seconds: float = 5) -> bool:
    """Whether processes are gone soon; one that nobody has buried yet is gone too."""
    deadline = time.monotonic() + seconds
    while any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def finished(sweep: Sweep) -> set[str]:
    return {path.stem for path in sweep.runs.glob("units/sweep_*/*/*.json")}


def wait_for(condition, driver: subprocess.Popen[str], seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert driver.poll() is None, f"the driver ended: {driver.stderr.read() if driver.stderr else ''}"
        assert time.monotonic() < deadline, "nothing happened for too long"
        time.sleep(0.02)


def test_24_models_are_made_and_audited_alike_by_two_worker_processes(serial, tiny_world, tmp_path):
    sweep = Sweep(tiny_world, tmp_path, models=24)
    assert sweep.run("--engine", "process", "--workers", 2) == 0
    assert sweep.table == serial[24]
    assert len(sweep.table.splitlines()) == 1 + 1 + 24


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_workers_and_a_killed_driver_lose_nothing_and_repeat_nothing(serial, tiny_world, tmp_path, seed):
    chance = random.Random(seed)
    sweep = Sweep(tiny_world, tmp_path, models=4)
    driver = sweep.start("--engine", "process", "--workers", 2, "--retries", 20)
    for done in (1, 3):
        wait_for(lambda done=done: len(finished(sweep)) >= done and workers(driver), driver)
        time.sleep(chance.uniform(0, 0.5))
        chance.choice(workers(driver)).kill()
    wait_for(lambda: len(finished(sweep)) >= 5, driver)
    orphans = workers(driver)
    driver.kill()
    driver.wait()
    before = unit_files(sweep.runs)
    ended = {task.name for task in SweepFolder(sweep.folder).load().tasks if task.key in before}
    assert 5 <= len(ended) <= 9
    assert all_end(orphans), "a worker outlived its driver"

    assert sweep.start("--engine", "process", "--workers", 2, "--retries", 20).wait(timeout=170) == 0
    assert sweep.table == serial[4]
    after = unit_files(sweep.runs)
    assert {key: after[key] for key in before} == before, "a finished unit was written again"
    plan = SweepFolder(sweep.folder).load()
    for name in ended:
        log = SweepFolder(sweep.folder).log(plan.by_name[name]).read_text()
        assert log.count("--- finished") == 1, f"{name} was done twice"
    assert any("its worker was killed by SIGKILL" in log for log in sweep.logs), "no kill hit a task"
    assert not [path for path in sweep.runs.rglob("*") if path.suffix in {".tmp", ".broken"}]
    assert {state.state for state in SweepFolder(sweep.folder).states(plan)} == {"done"}


def test_two_drivers_on_one_store_share_the_work(serial, tiny_world, tmp_path):
    sweep = Sweep(tiny_world, tmp_path, models=4)
    drivers = [sweep.start("--engine", "serial") for _ in range(2)]
    assert [driver.wait(timeout=170) for driver in drivers] == [0, 0]
    assert sweep.table == serial[4]
    assert all(log.count("--- finished") == 1 for log in sweep.logs)
    shares = {pid: sum(f"process {pid} on" in log for log in sweep.logs) for pid in (d.pid for d in drivers)}
    assert sum(shares.values()) == len(sweep.logs) == 9
    assert min(shares.values()) > 0, "one driver did everything"


def test_two_shards_share_nothing_but_the_store(serial, tiny_world, tmp_path):
    sweep = Sweep(tiny_world, tmp_path, models=4)
    drivers = [sweep.start("--engine", "serial", "--shard", f"{i}/2") for i in (1, 2)]
    assert [driver.wait(timeout=170) for driver in drivers] == [0, 0]
    assert sweep.run("--engine", "serial") == 0  # writes the table of all
    assert sweep.table == serial[4]
    assert all(log.count("--- finished") == 1 for log in sweep.logs)


def test_an_interrupted_sweep_ends_with_130_and_goes_on_later(serial, tiny_world, tmp_path):
    sweep = Sweep(tiny_world, tmp_path, models=4)
    driver = sweep.start("--engine", "process", "--workers", 2)
    wait_for(lambda: len(finished(sweep)) >= 2, driver)
    helpers = workers(driver)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(timeout=20) == 130
    assert "everything finished is saved" in driver.stderr.read()
    assert all_end(helpers)
    assert "interrupted" not in {
        state.state for state in SweepFolder(sweep.folder).states(SweepFolder(sweep.folder).load())
    }
    assert sweep.run("--engine", "serial") == 0
    assert sweep.table == serial[4]
