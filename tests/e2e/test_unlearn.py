"""Unlearning as a user meets it: on the tiny world, from the command line, killed and started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from safetensors.torch import load_file

from commanding import call
from residuum.worlds.build import World
from residuum.worlds.unlearned import SETTINGS, relearn_world, unlearn_one, unlearn_world, unlearned_table


@pytest.fixture
def command(tiny_world):
    """The words of an unlearning run on the tiny world, up to its own options."""
    data = tiny_world.data
    return [
        "unlearn", "--model", tiny_world.model("full"), "--forget", data / "forget10.jsonl",
        "--retain", data / "retain90.jsonl", "--batch-size", 2, "--accumulation", 1, "--lr", "5e-4",
    ]  # fmt: skip


def test_a_run_killed_half_way_ends_with_the_same_weights(command, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    words = [*command, "--method", "npo", "--epochs", 8]
    process = subprocess.Popen(
        [sys.executable, "-m", "residuum", *map(str, words), "--checkpoint-seconds", "0", "--out", str(killed)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    state, deadline = killed / "checkpoints/latest/state.json", time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and _step(state) < 10:
        time.sleep(0.01)
    assert process.poll() is None, "the run ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    reached = _step(state) or _step(killed / "checkpoints/old/state.json")
    assert 0 < reached < 40
    assert call(*words, "--checkpoint-seconds", 0, "--out", killed) == 0
    assert call(*words, "--out", whole) == 0
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (killed, whole))
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    assert (killed / "losses.jsonl").read_text() == (whole / "losses.jsonl").read_text()
    assert not (killed / "checkpoints").exists()


def _step(state) -> int:
    try:
        return int(json.loads(state.read_text())["step"])
    except (OSError, ValueError):
        return 0


def test_a_sweep_makes_the_grid_and_skips_what_is_finished(command, tmp_path, capsys):
    words = [*command[:-2], "--method", "simnpo", "--lr", "1e-4,2e-4", "--beta", "3.5,4.5", "--epochs", 1, "--sweep",
             "--out", tmp_path, "--json"]  # fmt: skip
    assert call(*words) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert names == [f"simnpo_lr{lr}_b{b}_a1_d0_g0125_ep1" for lr in ("1e4", "2e4") for b in ("35", "45")]
    before = {name: (tmp_path / name / "manifest.json").stat().st_mtime_ns for name in names}
    assert call(*words) == 0
    assert before == {name: (tmp_path / name / "manifest.json").stat().st_mtime_ns for name in names}


def test_a_sweep_with_a_failing_member_ends_with_3(command, tmp_path, capsys):
    words = [*command, "--method", "rmu", "--layer", "1,9", "--epochs", 1, "--sweep", "--out", tmp_path]
    assert call(*words) == 3
    captured = capsys.readouterr()
    assert "rmu_lr5e4_l1_s2_ep1" in captured.out
    assert "1 of 2 members failed" in captured.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "grad_dif"], "Nearest: graddiff"),
        (["--method", "graddiff", "--beta", "0.1"], "graddiff has no option beta"),
        (["--method", "npo", "--alpha", "1,2"], "Add --sweep"),
        (["--method", "npo", "--alpha", "one"], "--alpha takes a number"),
        (["--method", "npo", "--lr", "0"], "learning rate"),
        (["--method", "altpo"], "residuum data alternates"),
    ],
)
def test_a_mistake_is_one_readable_sentence(command, tmp_path, capsys, options, message):
    assert call(*command, *options, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_overlapping_sets_name_their_rows(command, tiny_world, tmp_path, capsys):
    words = [*command, "--method", "npo", "--retain", tiny_world.data / "full.jsonl", "--out", tmp_path / "out"]
    assert call(*words) == 2
    assert "forget row 1 is retain row 41" in capsys.readouterr().err


def test_idk_lines_come_from_beside_the_forget_file(command, tmp_path):
    assert call(*command, "--method", "idkdpo", "--epochs", 1, "--out", tmp_path / "out") == 0


def test_alternates_feed_altpo(command, tiny_world, tmp_path, capsys):
    file = tmp_path / "alternates.jsonl"
    words = ["--model", tiny_world.model("full"), "--data", tiny_world.data / "forget10.jsonl", "--out", file]
    assert call("data", "alternates", *words, "--temperature", 2, "--max-new-tokens", 12, "--json") == 0
    counts = json.loads(capsys.readouterr().out)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert counts["kept"] == len(rows) > 0
    assert counts["kept"] + counts["dropped"] == 50
    assert set(rows[0]) == {"question", "answer", "alternate"}
    assert call(*command, "--method", "altpo", "--epochs", 1, "--alternates", file, "--out", tmp_path / "out") == 0


def test_finetune_and_relearn_report_what_they_made(tiny_world, tmp_path, capsys):
    for name in ("finetune", "relearn"):
        words = ["--model", tiny_world.model("base"), "--data", tiny_world.data / "forget10.jsonl", "--json"]
        assert call(name, *words, "--epochs", 1, "--out", tmp_path / name) == 0
        assert json.loads(capsys.readouterr().out)[0]["folder"] == str(tmp_path / name)


def test_methods_are_listed_with_their_hyper_parameters(capsys):
    assert call("ls", "methods", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} == set(SETTINGS)
    assert all({"description", "hyper_parameters", "cite"} <= set(row) for row in rows)


def test_a_world_is_unlearned_by_every_method_and_two_processes_do_what_one_does(tiny_world, tmp_path):
    world, other = (World(shutil.copytree(tiny_world.folder, tmp_path / name)) for name in ("world", "other"))
    made = unlearn_world(world, workers=2)
    assert set(made) == set(SETTINGS)
    table = {row["model"]: row["forget_prob"] for row in unlearned_table(world, made)}
    assert all(table[method] < table["full"] for method in ("graddiff", "npo", "simnpo", "idkdpo", "undial", "rmu"))
    for method in ("npo", "simnpo"):
        ours, theirs = (
            load_file(folder / "model.safetensors") for folder in (made[method], unlearn_one(other.folder, method))
        )
        assert all((ours[name] == theirs[name]).all() for name in theirs)


def test_relearning_a_world_covers_retain_too(tiny_world, tmp_path):
    world = World(shutil.copytree(tiny_world.folder, tmp_path / "world"))
    made = relearn_world(world, {"base": world.model("base")})
    before, after = (
        {row["model"]: row["forget_prob"] for row in unlearned_table(world, models)}
        for models in ({"base": world.model("base")}, made)
    )
    assert after["base"] > before["base"]
    assert after["retain90"] > before["retain90"]
