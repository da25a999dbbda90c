"""RTT from data to summary on models that know nothing, and (slow) on the embedded birthdays world that does."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from residuum.errors import PartlyFailed, ResiduumError
from residuum.models.loading import load
from residuum.rtt.artefacts import read_rows
from residuum.rtt.protocol import RttResult, check_failures, run_rtt
from residuum.rtt.resummarize import resummarize
from residuum.store import Store
from residuum.worlds.people import Birthdays
from retraining import FT, UNLEARN, numbers, sweep, units


@pytest.fixture(scope="module")
def done(small: Birthdays, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RttResult]:
    """A finished sweep; read only."""
    place = tmp_path_factory.mktemp("done")
    return place, sweep(small, place)


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
    assert finding.summary.status == "complete"  # C was not asked for
    assert resummarize(tmp_path / "evals")[0]["status"] == "complete"


def broken(model: Path, folder: Path) -> str:
    """A checkpoint whose weights cannot be read."""
    shutil.copytree(model, folder)
    (folder / "model.safetensors").write_bytes(b"no weights")
    return str(folder)


def test_a_model_that_cannot_be_read_costs_its_part_alone(small, tmp_path):
    result = sweep(small, tmp_path, unlearn={}, unlearned=[broken(small.model("base"), tmp_path / "torn")])
    assert result.findings[0].summary.status == "no_a"
    assert result.findings[0].summary.c.accuracy is not None
    with pytest.raises(PartlyFailed, match="everything else is done"):
        check_failures(result)


def test_a_sweep_that_finds_nothing_has_failed(small, tmp_path):
    torn = broken(small.model("base"), tmp_path / "torn")
    result = sweep(small, tmp_path, unlearn={}, unlearned=[torn], conditions="A,B")
    with pytest.raises(ResiduumError, match="nothing was found") as error:
        check_failures(result)
    assert error.value.exit_code == 1


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


def test_controls_alone_are_reported(small, tmp_path):
    result = sweep(small, tmp_path, conditions="C,N", unlearn={})
    assert not result.findings
    assert result.controls is not None
    assert result.controls.summary.c.accuracy is not None
    assert result.controls.summary.n.accuracy is not None


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
