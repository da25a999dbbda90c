"""Sweeps as a user meets them: four unlearned models of the tiny world, made and audited by one command."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from commanding import call
from residuum.store import Store, Task, table
from residuum.sweep.folder import SweepFolder
from sweeping import Sweep, kinds_of_units, unit_files


@pytest.fixture(scope="module")
def serial(tiny_world, tmp_path_factory) -> Sweep:
    """The four-model plan, done by the serial engine."""
    sweep = Sweep(tiny_world, tmp_path_factory.mktemp("serial"), models=4)
    assert sweep.run("--engine", "serial") == 0
    return sweep


def test_one_command_makes_and_audits_four_models(serial):
    rows = json.loads((serial.folder / "table.json").read_text())
    assert rows[0]["model"] == "retain90"
    assert len(rows) == 5
    assert rows[0]["uds"] == 1.0
    assert all(0 <= row["uds"] <= 1 and len(row["weights"]) == 64 for row in rows[1:])
    assert (serial.runs / "default/uds" / rows[1]["model"] / "summary.json").exists()


def test_an_audit_in_a_sweep_is_the_audit_of_the_command(serial, tiny_world, tmp_path):
    from residuum.patching.uds import uds

    row = json.loads((serial.folder / "table.json").read_text())[2]
    alone = uds(
        full=tiny_world.model("full"), retain=tiny_world.model("retain90"), unlearned=serial.made / row["model"],
        data=tiny_world.annotated, runs=tmp_path, device="cpu",
    )  # fmt: skip
    assert (alone.uds, *alone.ci95, alone.n) == (row["uds"], row["uds_low"], row["uds_high"], row["uds_n"])


def test_two_worker_processes_make_the_same_table(serial, tiny_world, tmp_path):
    sweep = Sweep(tiny_world, tmp_path, models=4)
    assert sweep.run("--engine", "process", "--workers", 2) == 0
    assert sweep.table == serial.table
    pids = {
        line.split("process ")[1].split()[0] for log in sweep.logs for line in log.splitlines() if "attempt" in line
    }
    assert len(pids) == 2
    assert str(os.getpid()) not in pids


def test_a_finished_sweep_is_skipped_and_seen_by_status_and_dry_run(serial, capsys):
    before = unit_files(serial.runs)
    assert serial.run("--engine", "serial") == 0
    assert unit_files(serial.runs) == before
    capsys.readouterr()
    assert call("sweep", "status", serial.folder, "--json") == 0
    states = json.loads(capsys.readouterr().out)
    assert {state["state"] for state in states} == {"done"}
    assert all(Path(state["log"]).read_text().endswith("--- finished\n") for state in states)
    assert serial.run("--dry-run") == 0
    assert "9 tasks, 9 cached, 0 to do; time about 0 s" in capsys.readouterr().out


def test_a_dry_run_says_what_it_would_cost_and_does_nothing(tiny_world, serial, tmp_path, capsys):
    sweep = Sweep(tiny_world, tmp_path, models=4)
    assert sweep.run("--dry-run", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["state"] for row in rows} == {"to do"}
    assert not sweep.runs.exists()
    plan = sweep.plan.read_text().replace("epochs = 1", "epochs = 2")
    sweep.plan.write_text(plan)
    assert call("sweep", "run", sweep.plan, "--runs", serial.runs, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "9 tasks, 1 cached, 8 to do; time about" in said
    assert "GB for new checkpoints" in said


def test_a_model_that_does_not_exist_is_recorded_and_the_rest_goes_on(tiny_world, tmp_path, capsys):
    words = [
        "sweep", "run", "--do", "uds", "--models", f"{tiny_world.model('base')},{tmp_path / 'nowhere'}",
        "--models", "npo_lr9e9_ep5", "--full-model", tiny_world.model("full"), "--retain-model",
        tiny_world.model("retain90"), "--data-dir", tiny_world.data, "--engine", "serial", "--runs", tmp_path / "runs", "--name", "some",
    ]  # fmt: skip
    assert call(*words) == 3
    captured = capsys.readouterr()
    assert "2 of 4 tasks failed, everything else is done" in captured.err
    assert "no such file or folder" in captured.err
    assert "unknown model" in captured.err
    assert "Traceback" not in captured.err
    folder = tmp_path / "runs/sweeps/some"
    assert [row["model"] for row in json.loads((folder / "table.json").read_text())] == ["retain90", "base"]
    assert call("sweep", "status", folder) == 0
    assert "2 done, 2 failed" in capsys.readouterr().out

    shutil.copytree(tiny_world.model("base"), tmp_path / "nowhere")
    assert call("sweep", "retry", folder) == 3
    names = [row["model"] for row in json.loads((folder / "table.json").read_text())]
    assert names == ["retain90", "base", "nowhere"]
    assert len(list((folder / "failed").iterdir())) == 1


def test_metrics_are_swept_too(tiny_world, tmp_path):
    plan = tmp_path / "PLAN.toml"
    plan.write_text(
        f'do = ["uds", "evaluate"]\nset = "ep5"\nmodels = ["{tiny_world.model("base")}"]\nfull_model = "{tiny_world.model("full")}"\n'
        f'retain_model = "{tiny_world.model("retain90")}"\ndata_dir = "{tiny_world.data}"\n'
        '[evaluate]\nmetrics = ["em", "uds", "privacy_mia"]\n[engine]\nname = "serial"\n'
    )
    assert call("sweep", "run", plan, "--runs", tmp_path / "runs", "--name", "both") == 0
    rows = json.loads((tmp_path / "runs/sweeps/both/table.json").read_text())
    assert [row["model"] for row in rows] == ["retain90", "base"]
    assert [row["uds.uds"] for row in rows] == [row["evaluate.uds"] for row in rows]
    assert rows[1]["em"] < 1
    for category in ("memorization", "uds"):
        assert (tmp_path / "runs/ep5" / category / "base/summary.json").exists()


def test_a_plan_that_asks_for_gpus_where_there_are_none_ends_at_once(tiny_world, tmp_path, capsys):
    sweep = Sweep(tiny_world, tmp_path, models=4)
    for words, reason in (
        (["--gpus", "0,1"], "asks for GPU 0, which does not exist. GPUs here: none"),
        (["--gpus-per-task", 1], "GPUs here: none"),
        (["--gpus", "zero"], "--gpus is a list of GPU numbers"),
    ):
        assert sweep.run(*words) == 2
        assert reason in capsys.readouterr().err
    assert not list(sweep.runs.glob("sweeps/*/logs"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--shard", "0/4"], "--shard is i/n with i from 1 to n"),
        (["--shard", "5/4"], "--shard is i/n"),
        (["--engine", "ray"], "Give --address HOST:PORT, or --address local"),
        (["--address", "local"], "belong to the ray engine"),
        (["--engine", "proces"], "Did you mean process?"),
        (["--max-disk", "much"], "a size is written like"),
        (["--do", "uds,evalute"], "Nearest: evaluate"),
        (["--models", "simnpp_*"], "unknown model"),
    ],
)
def test_a_wrong_option_is_one_readable_sentence(tiny_world, tmp_path, capsys, words, message):
    if "ray" in words:
        pytest.importorskip("ray", reason="the extra ray is not installed")
    assert Sweep(tiny_world, tmp_path, models=4).run(*words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_wrong_value_in_a_plan_file_is_said_with_the_file_before_anything_starts(tiny_world, tmp_path, capsys):
    sweep = Sweep(tiny_world, tmp_path, models=4)
    sweep.plan.write_text(sweep.plan.read_text() + '[evaluate]\nbatch_tokens = "many"\n')
    assert sweep.run() == 2
    assert f"{sweep.plan}: evaluate.batch_tokens is of type int, not 'many'" in capsys.readouterr().err.replace(
        "\n", ""
    )
    assert not sweep.runs.exists()


def test_status_guesses_the_time_left_from_what_is_done(serial, tmp_path, capsys):
    shutil.copytree(serial.runs, tmp_path / "runs")
    for unit in list((tmp_path / "runs/units/sweep_uds").glob("*/*.json"))[:2]:
        unit.unlink()
    assert call("sweep", "status", tmp_path / "runs/sweeps/grid") == 0
    assert re.search(r"7 done, 2 waiting, \d+:\d\d left", capsys.readouterr().out)


def test_a_store_from_a_newer_version_is_refused(tiny_world, tmp_path, capsys):
    sweep = Sweep(tiny_world, tmp_path, models=4)
    sweep.runs.mkdir()
    (sweep.runs / "manifest.json").write_text('{"format": 99, "residuum": "9.9"}')
    assert sweep.run("--engine", "serial") == 1
    assert "was made by a newer residuum" in capsys.readouterr().err
    assert [path.name for path in sweep.runs.iterdir()] == ["manifest.json"]


@contextlib.contextmanager
def small_disk(folder: Path, size: str):
    """A file system of its own; only those who may mount one get it, any other failure is one."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode and any(word in mounted.stderr for word in (b"superuser", b"denied", b"permitted")):
        pytest.skip("mounting a small file system needs root")
    mounted.check_returncode()
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)


def test_a_read_only_folder_is_refused_before_anything_starts(tiny_world, tmp_path, capsys):
    with small_disk(tmp_path / "disk", "1m") as disk:
        remount(disk, "ro")
        sweep = Sweep(tiny_world, tmp_path, models=4, runs=disk / "runs")
        assert sweep.run("--engine", "serial") == 1
        error = capsys.readouterr().err
        assert "read-only" in error.lower()
        assert "Traceback" not in error


def test_a_full_disk_ends_with_a_sentence_and_tears_nothing(tiny_world, serial, tmp_path, capsys):
    with small_disk(tmp_path / "disk", "1500k") as disk:
        sweep = Sweep(tiny_world, tmp_path, models=4, runs=disk / "runs", made=disk / "made")
        assert sweep.run("--engine", "serial") == 1
        error = capsys.readouterr().err
        assert "Free some space and start again" in error
        assert "Traceback" not in error
        store = Store(sweep.runs)
        whole = [unit for kind in kinds_of_units(sweep.runs) for unit in store.units(kind)]  # verifies every checksum
        assert len(whole) == len(unit_files(sweep.runs))
        remount(disk, "size=100m")
        assert sweep.run("--engine", "serial") == 0
        assert sweep.table == serial.table
        assert not list(disk.rglob("*.tmp"))


def test_a_table_over_many_units_needs_no_files_opened(tmp_path, monkeypatch):
    store = Store(tmp_path / "runs")
    for i in range(50):
        store.put(Task("sweep_uds", {"name": f"m{i}"}), {"columns": {"uds": i / 50}}, provenance={})
    first = table(store, "sweep_uds")
    for path in (tmp_path / "runs/units/sweep_uds").iterdir():
        os.utime(path, (1, 1))  # long settled
    assert table(store, "sweep_uds") == first

    def refuse(*_):
        raise AssertionError("a unit file was read again")

    monkeypatch.setattr(Store, "load", refuse)
    assert table(store, "sweep_uds") == first


def test_status_of_something_else_is_an_error(tmp_path, capsys):
    assert call("sweep", "status", tmp_path) == 2
    assert "is not the folder of a sweep" in capsys.readouterr().err


def test_a_checkpoint_replaced_by_another_is_made_again(serial, tiny_world, tmp_path):
    plan = SweepFolder(serial.folder).load()
    task = next(task for task in plan.tasks if task.kind == "unlearn")
    from residuum.sweep.plan import is_done

    manifest = Path(task.work.out) / "manifest.json"
    before = manifest.read_text()
    try:
        manifest.write_text(before.replace('"identity": "', '"identity": "0'))
        assert not is_done(task, Store(serial.runs))
    finally:
        manifest.write_text(before)
    assert is_done(task, Store(serial.runs))
