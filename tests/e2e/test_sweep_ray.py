"""Sweeps on a real Ray cluster, started on loopback by the test: the same tables, whatever dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from sweeping import Sweep

ray = pytest.importorskip("ray", reason="the extra ray is not installed")


@pytest.fixture
def cluster() -> Iterator[object]:
    """A cluster whose only node takes no work yet."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def serial(tiny_world, tmp_path_factory) -> str:
    sweep = Sweep(tiny_world, tmp_path_factory.mktemp("serial"), models=4)
    assert sweep.run("--engine", "serial") == 0
    return sweep.table


def pids(sweep: Sweep) -> set[int]:
    lines = [line for log in sweep.logs for line in log.splitlines() if ", attempt " in line]
    return {int(line.split("process ")[1].split()[0]) for line in lines}


def running(sweep: Sweep) -> list[int]:
    """Workers that are at a task now, by the logs."""
    last = [log.splitlines()[-1] for log in sweep.logs if log]
    return [int(line.split("process ")[1].split()[0]) for line in last if ", attempt " in line]


def wait_for(condition, driver, seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert driver.poll() is None, f"the driver ended: {driver.stderr.read()}"
        assert time.monotonic() < deadline, "nothing happened for too long"
        time.sleep(0.05)


def has_logs(sweep: Sweep) -> bool:
    return (sweep.folder / "logs").is_dir()


def test_ray_makes_the_same_table(cluster, serial, tiny_world, tmp_path, capsys):
    sweep = Sweep(tiny_world, tmp_path, models=4)
    # No node can take a task yet: that is said at once, instead of waiting for ever.
    assert sweep.run("--engine", "ray", "--address", cluster.address) == 2
    assert "no node of the cluster has that: 1 nodes with 0 GPUs and 0 CPUs" in capsys.readouterr().err
    cluster.add_node(num_cpus=2)
    assert sweep.run("--engine", "ray", "--address", cluster.address, "--gpus-per-task", 0.5) == 2
    assert "every task asks for 0.5 GPUs" in capsys.readouterr().err
    assert sweep.run("--engine", "ray", "--address", cluster.address) == 0
    assert sweep.table == serial
    assert len(pids(sweep)) == 2


def test_an_address_without_a_cluster_is_an_error_at_once(tiny_world, tmp_path, capsys):
    assert Sweep(tiny_world, tmp_path, models=4).run("--engine", "ray", "--address", "127.0.0.1:9") == 2
    assert "there is no Ray cluster at 127.0.0.1:9: nobody answers there" in capsys.readouterr().err


@pytest.mark.slow
def test_results_come_back_from_nodes_that_do_not_see_the_store(cluster, tiny_world, tmp_path):
    cluster.add_node(num_cpus=2)
    words = [
        "--engine", "ray", "--address", cluster.address, "--storage", "driver", "--do", "uds",
        "--models", tiny_world.model("base"), "--name", "back",
    ]  # fmt: skip
    sweep = Sweep(tiny_world, tmp_path, models=4)
    sweep.plan.write_text(sweep.plan.read_text().split("[[unlearn]]")[0])
    assert sweep.run(*words) == 0
    there = (tmp_path / "runs/sweeps/back/table.csv").read_text()
    assert (
        sweep.run(
            "--engine", "serial", "--do", "uds", "--models", tiny_world.model("base"), "--name", "here", "--set", "here"
        )
        == 0
    )
    here = (tmp_path / "runs/sweeps/here/table.csv").read_text()
    assert there == here
    assert list((tmp_path / "runs/units/uds_scores").rglob("*.json"))
    assert (tmp_path / "runs/default/uds/base/summary.json").exists()
    assert "--- finished" in (tmp_path / "runs/sweeps/back/logs/uds__base.log").read_text()


@pytest.mark.slow
def test_24_models_on_ray_make_the_table_of_the_serial_engine(cluster, tiny_world, tmp_path):
    cluster.add_node(num_cpus=2)
    (tmp_path / "serial").mkdir()
    (tmp_path / "ray").mkdir()
    alone, sweep = (Sweep(tiny_world, tmp_path / name, models=24) for name in ("serial", "ray"))
    assert alone.run("--engine", "serial") == 0
    assert sweep.run("--engine", "ray", "--address", cluster.address) == 0
    assert sweep.table == alone.table


@pytest.mark.slow
def test_a_killed_ray_worker_costs_one_try(cluster, serial, tiny_world, tmp_path):
    cluster.add_node(num_cpus=2)
    sweep = Sweep(tiny_world, tmp_path, models=4)
    driver = sweep.start("--engine", "ray", "--address", cluster.address)
    wait_for(lambda: has_logs(sweep) and running(sweep), driver)
    victim = running(sweep)[0]
    os.kill(victim, signal.SIGKILL)
    assert driver.wait(timeout=170) == 0
    assert sweep.table == serial
    assert any("did not end well: its worker was lost" in log for log in sweep.logs)
    assert len(pids(sweep)) == 3


@pytest.mark.slow
def test_a_node_comes_and_another_goes(cluster, serial, tiny_world, tmp_path):
    first = cluster.add_node(num_cpus=1)
    sweep = Sweep(tiny_world, tmp_path, models=4)
    driver = sweep.start("--engine", "ray", "--address", cluster.address)
    wait_for(lambda: has_logs(sweep) and pids(sweep), driver)
    cluster.add_node(num_cpus=1)
    cluster.remove_node(first, allow_graceful=False)
    assert driver.wait(timeout=170) == 0
    assert sweep.table == serial
    assert len(pids(sweep)) == 2


@pytest.mark.slow
def test_tasks_that_ask_for_half_a_gpu_share_one(cluster):
    from residuum.sweep.cluster import RayEngine
    from residuum.sweep.request import EngineConfig

    cluster.add_node(num_cpus=8, num_gpus=1)
    engine = RayEngine(EngineConfig(name="ray", address=cluster.address, gpus_per_task=0.5))
    try:
        deadline = time.monotonic() + 100
        while len(engine.free()) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(engine.free()) == 2
    finally:
        engine.close()
