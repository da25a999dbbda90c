"""RTT from data to summary on models that know nothing, and (slow) on the embedded birthdays world that does."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from residuum.cli.app import run
from residuum.errors import InputError, UsageError
from residuum.models.loading import load
from residuum.rtt.artefacts import read_rows
from residuum.rtt.protocol import RttResult, RttWarning, plan_rtt, run_rtt
from residuum.rtt.resummarize import resummarize
from residuum.store import Store
from residuum.worlds.people import Birthdays, build_birthdays

FT: dict[str, Any] = {"lrs": [1e-3, 1e-2], "epochs_lst": [1, 2], "loss_types": ["LETTER_ANSWER"], "optimizer": "adamw"}
UNLEARN: dict[str, Any] = {
    "types": ["RIA"], "epochs": 1, "lr": 1e-3, "optimizer": "adamw", "loss_types": ["NUMBER", "LETTER_ANSWER"],
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Birthdays:
    """Three splits of four people to forget, one to keep, models of two layers that know nothing."""
    return build_birthdays(tmp_path_factory.mktemp("small") / "world", name="tiny", title=None)


def settings(world: Birthdays, **more: Any) -> dict[str, Any]:
    return {
        "dataset": str(world.data), "model": str(world.model("base")), "naive_model": str(world.model("naive")), "ft": FT,
        "unlearn": UNLEARN, "baseline_min_forget_acc": 0.0, **more,
    }  # fmt: skip


def sweep(world: Birthdays, place: Path, **more: Any) -> RttResult:
    return run_rtt(runs=place / "runs", **settings(world, results_dir=place / "evals", **more))


@pytest.fixture(scope="module")
def done(small: Birthdays, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RttResult]:
    """A finished sweep; read only."""
    place = tmp_path_factory.mktemp("done")
    return place, sweep(small, place)


def units(place: Path, kind: str = "rtt-epoch") -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in place.glob(f"runs/units/{kind}/*/*.json")}


def numbers(result: RttResult) -> list[Any]:
    """Everything that a sweep reports, without when it was found."""
    return [[f.summary.plain(), f.intervals, f.retain, f.curve] for f in result.findings]


def test_a_sweep_has_every_condition_over_the_same_splits(done):
    place, result = done
    (finding,) = result.findings
    assert finding.summary.status == "complete"
    assert not result.failures
    # 2 V runs x 2 rates x 2 epochs for each of B, C and N.
    assert len(units(place)) == 24
    assert len(finding.summary.b.used) == len(finding.summary.c.used) == len(finding.summary.n.used) == 2
    assert {"forget_acc_unlearn_rtt", "forget_acc_naive_rtt_nested"} <= finding.intervals.keys()
    assert finding.retain["unlearn"] is not None
    assert {point.condition for point in finding.curve} == {"B", "C", "N"}


def test_result_files_have_one_row_each_and_give_the_same_summary_again(done):
    place, result = done
    assert len(read_rows(place / "evals" / "unlearning")) == 3
    assert len(read_rows(place / "evals" / "ft")) == 12
    (row,) = resummarize(place / "evals")
    plain = result.findings[0].summary.plain()
    assert {key: row[key] for key in plain} == plain


def test_the_scores_behind_every_row_are_in_a_file(done):
    place, _ = done
    for folder, items in (("unlearning", 4), ("ft", 4)):
        for row in read_rows(place / "evals" / folder):
            for where in row["forget_logits_dict"].values():
                file, _, part = where.partition("#")
                assert np.load(place / "evals" / file)[part].shape == (items, 4)


def test_retain_accuracy_is_that_of_the_epoch_that_won(done):
    place, result = done
    rows = {(r["rtt_condition"], r["rtt_eval_split_id"], r["lr"]): r for r in read_rows(place / "evals" / "ft")}
    (finding,) = result.findings
    won = [
        rows["unlearn+rtt", v, best.cell.lr]["retain_accs_local"][str(best.cell.epochs)]
        for v, best in finding.summary.b.best.items()
    ]
    assert finding.retain["unlearn_rtt"] == pytest.approx(np.mean(won))


def test_the_summary_has_a_picture_with_one_panel_for_each_model(done):
    _, result = done
    table, picture = result.files
    assert (table.suffix, picture.suffix) == (".csv", ".svg")
    assert "epochs of retraining on T" in picture.read_text()
    assert result.findings[0].start.label in picture.read_text()


def test_sweeps_of_one_model_in_one_folder_are_told_apart(small, done, tmp_path):
    place, first = done
    shutil.copytree(place, tmp_path / "copy")
    others = [v for v in range(3) if v not in first.plan.eval_split_ids]
    second = sweep(
        small, tmp_path / "copy", unlearn={}, unlearned=[first.findings[0].start.path],
        ft={**FT, "eval_split_ids": others}, conditions="A,B,C",
    )  # fmt: skip
    rows = {row["rtt_signature"]: row for row in resummarize(tmp_path / "copy" / "evals")}
    for result in (first, second):
        found = rows[result.plan.signature]
        assert found["status"] == "complete"
        assert found["forget_acc_unlearn"] == result.findings[0].summary.unlearned
        assert found["forget_acc_baseline"] == result.findings[0].summary.base


@pytest.mark.parametrize("more", [{"compat": "published"}, {"label_variant": "nospace"}, {"k_shot": 2}])
def test_whatever_decides_a_number_makes_another_sweep(small, more):
    usual, other = plan_rtt(**settings(small)), plan_rtt(**settings(small, **more))
    assert usual.signature != other.signature
    assert not {run.run_id for run in usual.runs} & {run.run_id for run in other.runs}


def test_a_finished_sweep_is_not_done_again_even_without_its_checkpoints(small, done, tmp_path):
    place, result = done
    shutil.copytree(place, tmp_path / "copy")
    before = units(tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy" / "evals")
    again = sweep(small, tmp_path / "copy")
    assert units(tmp_path / "copy") == before
    assert numbers(again) == numbers(result)
    assert len(read_rows(tmp_path / "copy" / "evals" / "ft")) == 12


def test_c_and_n_are_shared_by_all_methods_and_grids(small, done, tmp_path):
    place, _ = done
    shutil.copytree(place, tmp_path / "copy")
    before = units(tmp_path / "copy")
    sweep(small, tmp_path / "copy", unlearn={**UNLEARN, "types": ["GD"]}, ft={**FT, "lrs": [1e-3]})
    new = units(tmp_path / "copy").keys() - before.keys()
    assert len(new) == 4  # B alone: 2 V runs x 1 rate x 2 epochs


def test_epochs_of_one_training_are_bit_identical_to_one_training_per_number_of_epochs(small, tmp_path):
    def scores(place: Path, epochs: list[int]) -> dict[str, np.ndarray]:
        sweep(small, place, conditions="C", ft={**FT, "epochs_lst": epochs, "lrs": [1e-2], "eval_split_ids": [0]})
        return {unit.task.key: unit.arrays()["scores"] for unit in Store(place / "runs").units("rtt-epoch")}

    together = scores(tmp_path / "together", [1, 2, 3])
    for epochs in (1, 2, 3):
        apart = scores(tmp_path / f"apart{epochs}", [epochs])
        assert len(apart) == epochs
        assert all(np.array_equal(apart[key], together[key]) for key in apart)


def test_a_diverged_run_is_null_and_never_zero(small, tmp_path):
    result = sweep(small, tmp_path, ft={**FT, "lrs": [1e-3, 1e30], "eval_split_ids": [0]}, conditions="A,B,C")
    (finding,) = result.findings
    rows = [row for row in read_rows(tmp_path / "evals" / "ft") if row["lr"] == 1e30]
    assert rows
    assert all(row["forget_accs_local"]["2"] is None for row in rows)
    assert finding.summary.status == "partial_grid"
    assert {best.cell.lr for best in finding.summary.b.best.values()} == {1e-3}


def test_every_method_makes_a_model_that_is_put_through_the_protocol(small, tmp_path):
    unlearn = {**UNLEARN, "types": ["GD", "FWF", "CUT", "LORA"], "CUT": {"layer": 1}, "LORA": {"rank": 2}}
    result = sweep(small, tmp_path, unlearn=unlearn, conditions="A")
    assert [finding.start.unlearning.type for finding in result.findings] == ["GD", "FWF", "CUT", "LORA"]
    assert not result.failures
    base = load(small.model("base")).model.state_dict()
    for finding in result.findings:
        made = load(finding.start.path).model.state_dict()
        assert made.keys() == base.keys()
        assert any(not torch.equal(made[name], base[name]) for name in base)


def test_the_published_way_runs_from_end_to_end(small, tmp_path):
    ft = {**FT, "loss_types": ["QUESTION_LETTER_ANSWER", "CORPUS"], "optimizer": "lion", "eval_split_ids": [1]}
    unlearn = {"types": ["GD", "WHP"], "epochs": 1, "lr": 1e-4}
    result = sweep(small, tmp_path, ft=ft, unlearn=unlearn, compat="published", label_variant="nospace")
    assert [finding.summary.status for finding in result.findings] == ["complete", "complete"]


def test_a_checkpoint_from_elsewhere_is_put_in_as_a(small, done, tmp_path):
    _, first = done
    result = sweep(small, tmp_path, unlearn={}, unlearned=[first.findings[0].start.path], conditions="A,B")
    (finding,) = result.findings
    assert finding.summary.unlearned == first.findings[0].summary.unlearned
    assert finding.summary.b.accuracy == first.findings[0].summary.b.accuracy
    assert finding.summary.status == "no_c"


def test_a_loaded_model_comes_back_as_it_was(small, tmp_path):
    lm = load(small.model("base"))
    before = {name: weight.clone() for name, weight in lm.model.state_dict().items()}
    sweep(small, tmp_path, model=lm)
    assert all(torch.equal(before[name], weight) for name, weight in lm.model.state_dict().items())


def test_seeds_repeat_each_cell(small, tmp_path):
    ft = {**FT, "num_seeds": 2, "lrs": [1e-2], "eval_split_ids": [0]}
    result = sweep(small, tmp_path, ft=ft, conditions="C", unlearn={})
    assert [run.seed for run in result.plan.runs] == [0, 1]


def test_frozen_parts_of_the_depth_do_not_move_while_retraining(small, tmp_path):
    ft = {**FT, "freeze_layers": [[0, 0.5]], "lrs": [1e-2], "eval_split_ids": [0]}
    sweep(small, tmp_path, ft=ft, conditions="C", unlearn={})
    (row,) = read_rows(tmp_path / "evals" / "ft")
    assert 0 < row["changed_weights"] < 0.3


def test_a_model_that_does_not_know_the_facts_is_refused(small, tmp_path):
    with pytest.raises(InputError, match="nothing to unlearn"):
        sweep(small, tmp_path, baseline_min_forget_acc=0.99)


def test_questions_that_t_and_v_share_are_warned_about(small, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(small.data, data)
    first = (data / "split_0.jsonl").read_text().splitlines()[0]
    with (data / "split_1.jsonl").open("a") as file:
        file.write(first + "\n")
    with pytest.warns(RttWarning, match="another split"):
        sweep(small, tmp_path, dataset=str(data), conditions="A")


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"ft": {**FT, "eval_split_ids": [7]}}, "eval_split_ids"),
        ({"forget_files": ["split_0"]}, "at least two splits"),
        ({"ft": {**FT, "loss_types": ["WORDS"]}}, "loss_types"),
        ({"unlearn": {}}, "no unlearned model"),
        ({"model": None}, "--model"),
        ({"unlearn": {**UNLEARN, "types": ["CUT"]}}, "layer 7"),
        ({"unlearn": {**UNLEARN, "freeze": [[0, 1]]}}, "no block"),
        ({"naive_model": None, "conditions": "A,B,C,N"}, "--naive-model"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_before_anything_is_loaded(small, more, word):
    with pytest.raises(UsageError, match=word):
        plan_rtt(**settings(small, **more))


def test_a_warm_up_that_never_ends_is_warned_about(small, tmp_path):
    with pytest.warns(RttWarning, match="warm-up"):
        sweep(small, tmp_path, ft={**FT, "lrs": [1e-3], "eval_split_ids": [0]}, conditions="C", unlearn={})
    assert plan_rtt(**settings(small, ft={**FT, "warmup_steps": 2})).cautions() == []


def test_steps_of_a_plan_count_sentences_where_sentences_are_read(small):
    plan = plan_rtt(**settings(small, ft={**FT, "loss_types": ["LETTER", "CORPUS"], "eval_split_ids": [0]}))
    assert plan.steps == {(0, "LETTER"): 2, (0, "CORPUS"): 6}


def test_controls_alone_are_reported(small, tmp_path):
    result = sweep(small, tmp_path, conditions="C,N", unlearn={})
    assert not result.findings
    assert result.controls is not None
    assert result.controls.summary.c.accuracy is not None
    assert result.controls.summary.n.accuracy is not None


def test_a_model_given_twice_is_one_model(small):
    given = [str(small.model("naive"))] * 2
    assert len(plan_rtt(**settings(small, unlearn={}, unlearned=given)).unlearned) == 1


def test_a_look_at_the_embedded_world_does_not_build_it(tmp_path, monkeypatch):
    monkeypatch.setenv("RESIDUUM_CACHE", str(tmp_path))
    with pytest.warns(RttWarning, match="not there yet"):
        plan = plan_rtt(draft=True)
    assert [start.condition for start in plan.starts] == ["baseline+rtt", *["unlearn+rtt"] * 2, "naive+rtt"]
    assert plan.cost(Store(tmp_path / "runs"))[0]["steps_left"] > 0
    assert not list(tmp_path.glob("worlds/*/models"))


def test_split_ids_out_of_range_are_clipped(small):
    assert plan_rtt(**settings(small, ft={**FT, "eval_split_ids": [9, 2, -1]})).eval_split_ids == (2,)


def test_tofu_models_are_put_through_a_b_and_c(tiny_world, tmp_path):
    result = run_rtt(
        dataset=str(tiny_world.folder), model=str(tiny_world.model("full")), unlearned=[str(tiny_world.model("retain90"))],
        naive_model=str(tiny_world.model("base")), prompt_format="raw", num_total_splits=2, right="paraphrase",
        ft={"lrs": [1e-3], "epochs_lst": [1, 2], "optimizer": "adamw"}, baseline_min_forget_acc=0.0,
        runs=tmp_path / "runs", results_dir=tmp_path / "evals",
    )  # fmt: skip
    (finding,) = result.findings
    assert finding.summary.chance == pytest.approx(1 / 6)
    assert finding.summary.status == "complete"
    assert finding.summary.base is not None
    assert finding.summary.unlearned is not None
    assert finding.summary.base > finding.summary.unlearned


def test_methods_for_choices_are_refused_on_free_answers(tiny_world):
    with pytest.raises(UsageError, match="--unlearned"):
        plan_rtt(dataset=str(tiny_world.folder), model=str(tiny_world.model("full")), unlearn={"types": ["GD"]})


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        run(words)
    return int(stop.value.code or 0)


def config_file(world: Birthdays, folder: Path) -> Path:
    path = folder / "sweep.toml"
    path.write_text(
        f'dataset = "{world.data}"\nmodel = "{world.model("base")}"\nnaive_model = "{world.model("naive")}"\n'
        f'baseline_min_forget_acc = 0\nresults_dir = "{folder / "evals"}"\n[ft]\nlrs = [1e-3, 1e-2]\n'
        'epochs_lst = [1, 2]\nloss_types = ["LETTER_ANSWER"]\noptimizer = "adamw"\n[unlearn]\ntypes = ["RIA"]\nepochs = 1\n'
        'lr = 1e-3\noptimizer = "adamw"\nloss_types = ["NUMBER", "LETTER_ANSWER"]\n'
    )
    return path


def test_the_command_plans_runs_and_summarises(small, tmp_path, capsys):
    file, store = str(config_file(small, tmp_path)), str(tmp_path / "runs")
    common = (file, "--runs", store, "--eval-split-ids", "0,2", "--ft.lrs", "1e-2", "--json")
    assert call("rtt", "run", *common, "--dry-run") == 0
    plan = json.loads(capsys.readouterr().out)
    assert [row["cached"] for row in plan["cost"]] == [0, 0, 0]
    assert len(plan["runs"]) == 6

    assert call("rtt", "run", *common, "--check") == 0
    (finding,) = json.loads(capsys.readouterr().out)
    assert finding["status"] == "complete"
    assert finding["eval_split_ids"] == [0, 2]

    assert call("rtt", "run", *common, "--dry-run") == 0
    assert [row["cached"] for row in json.loads(capsys.readouterr().out)["cost"]] == [2, 2, 2]

    assert call("rtt", "summarize", str(tmp_path / "evals"), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["forget_acc_unlearn_rtt"] == finding["forget_acc_unlearn_rtt"]


def test_a_key_that_does_not_exist_is_an_error(small, tmp_path, capsys):
    path = config_file(small, tmp_path)
    path.write_text("epochs = 3\n" + path.read_text())
    assert call("rtt", "run", str(path)) == 2
    assert "there is no setting epochs" in capsys.readouterr().err


WORKER = """
import json, sys
from residuum.rtt.protocol import run_rtt
run_rtt(runs=sys.argv[1], **json.loads(sys.argv[2]))
"""


def start(world: Birthdays, place: Path, more: dict[str, Any]) -> subprocess.Popen[bytes]:
    given = json.dumps(settings(world, results_dir=str(place / "evals"), **more))
    command = [sys.executable, "-W", "ignore", "-c", WORKER, str(place / "runs"), given]
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})


def wait_for_units(worker: subprocess.Popen[bytes], place: Path, count: int) -> None:
    deadline = time.monotonic() + 300
    while len(list(place.glob("runs/units/rtt-epoch/*/*.json"))) < count:
        assert worker.poll() is None, "the sweep ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def trial(world: Birthdays, place: Path, kills: list[int], more: dict[str, Any]) -> None:
    """Kill a sweep when it has so many units, again and again; two processes finish it; compare with one in peace."""
    for count in kills:
        worker = start(world, place, more)
        wait_for_units(worker, place, count)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    before = units(place)
    workers = [start(world, place, more) for _ in range(2)]
    assert [worker.wait(timeout=300) for worker in workers] == [0, 0]

    peace = sweep(world, place.parent / f"{place.name}-peace", **more)
    after = units(place)
    assert {key: after[key] for key in before} == before, "a finished unit was done again"
    assert after.keys() == units(place.parent / f"{place.name}-peace").keys()
    found = sweep(world, place, **more)
    assert numbers(found) == numbers(peace)
    rows = read_rows(place / "evals" / "ft")
    assert len({row["run_id"] for row in rows}) == len(rows) == len(found.plan.runs)


def test_a_killed_sweep_is_finished_by_two_processes_and_nothing_is_lost(small, tmp_path):
    trial(small, tmp_path / "killed", [3], {"ft": {**FT, "epochs_lst": [1, 2, 3], "num_splits": 3}})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_kills_at_random_moments_change_nothing(small, tmp_path, seed):
    kills = sorted(random.Random(seed).sample(range(1, 40), 3))
    ft = {**FT, "epochs_lst": [1, 2, 3, 4, 5, 6], "num_splits": 3}
    trial(small, tmp_path / "killed", kills, {"ft": ft, "checkpoint_seconds": 0.0})


@pytest.mark.slow
def test_one_process_per_device_gives_the_same_summary(small, done, tmp_path):
    _, alone = done
    both = sweep(small, tmp_path, devices=["cpu", "cpu"])
    assert numbers(both) == numbers(alone)


@pytest.mark.slow
def test_birthdays_come_back_after_retraining_and_the_control_stays_low(tmp_path, monkeypatch):
    monkeypatch.setenv("RESIDUUM_CACHE", str(tmp_path / "cache"))
    result = run_rtt(dataset="birthdays", ft={"num_splits": 3}, runs=tmp_path / "runs", results_dir=tmp_path / "evals")
    assert {finding.start.unlearning.type for finding in result.findings} == {"GD", "RIA"}
    for finding in result.findings:
        found = finding.summary
        assert found.status == "complete"
        assert found.c.accuracy >= 0.9
        assert finding.retain["unlearn"] >= 0.9
        assert found.n.accuracy_nested < found.b.accuracy_nested
        assert "forget_acc_naive_rtt_nested" in finding.intervals
    assert any(
        f.summary.unlearned <= 0.4 and f.summary.b.accuracy - f.summary.unlearned >= 0.25 for f in result.findings
    )
