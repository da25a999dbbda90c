"""What RTT is given: plans, the command, and what is refused or warned about."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from commanding import call
from residuum.errors import InputError, UsageError
from residuum.rtt.protocol import RttWarning, plan_rtt
from residuum.store import Store
from residuum.worlds.people import Birthdays
from retraining import FT, UNLEARN, settings, sweep


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
        ({"prompt_format": "raw"}, "prompt_format has no meaning here: .* has multiple choices"),
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


def test_methods_for_choices_are_refused_on_free_answers(tiny_world):
    with pytest.raises(UsageError, match="--unlearned"):
        plan_rtt(dataset=str(tiny_world.folder), model=str(tiny_world.model("full")), unlearn={"types": ["GD"]})


@pytest.mark.parametrize("more", [{"compat": "published"}, {"label_variant": "nospace"}, {"k_shot": 2}])
def test_whatever_decides_a_number_makes_another_sweep(small, more):
    usual, other = plan_rtt(**settings(small)), plan_rtt(**settings(small, **more))
    assert usual.signature != other.signature
    assert not {run.run_id for run in usual.runs} & {run.run_id for run in other.runs}


@pytest.mark.parametrize("given", [{"k_shot": 2}, {"label_variant": "sum"}, {"max_seq_len": 64}])
def test_settings_for_choices_are_refused_on_free_answers(tiny_world, given):
    with pytest.raises(UsageError, match=f"{next(iter(given))} has no meaning here: .* has free answers"):
        plan_rtt(dataset=str(tiny_world.folder), model=str(tiny_world.model("full")), unlearned=["x"], **given)


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


@pytest.mark.parametrize("conditions", ["A,N", "A,B", "C,N"])
def test_a_check_asks_only_for_the_conditions_of_the_sweep(small, tmp_path, conditions):
    file = str(config_file(small, tmp_path))
    few = ("--runs", str(tmp_path / "runs"), "--eval-split-ids", "0", "--lrs", "1e-2", "--conditions", conditions)
    assert call("rtt", "run", file, *few, "--check") == 0
