"""Meta-evaluation of the tiny world's models, as a user meets it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from commanding import call
from residuum.errors import UsageError
from residuum.store import Store
from residuum.worlds.population import Member, population, train_member

METRICS = "em,uds,s_mia_loss"


@pytest.fixture(scope="module")
def member(tiny_world):
    """A model of pool P."""
    return train_member(tiny_world.folder, Member("P", "full", 2e-3, 4))


@pytest.fixture(scope="module")
def words(tiny_world, member):
    """A table of two pools of two and an attacked model beside retain, up to its folders."""
    return [
        "meta", "table", "--world", tiny_world.folder, "--workers", 1, "--metrics", METRICS,
        "--pool-p", f"{tiny_world.model('full')},{member}",
        "--pool-n", f"{tiny_world.model('retain90')},{tiny_world.model('base')}",
        "--models", tiny_world.model("base"), "--utility-floor", 0,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    """The table in one go; its run store."""
    runs = tmp_path_factory.mktemp("whole")
    assert call(*words, "--runs", runs) == 0
    return runs


def rows(runs):
    return json.loads((runs / "meta_eval" / "table2.json").read_text())["rows"]


def test_one_command_makes_the_table_and_all_folders(whole):
    assert {row["metric"] for row in rows(whole)} == {"em", "uds", "mia_loss", "s_mia_loss"}
    assert {path.name for path in (whole / "faithfulness").iterdir()} >= {"summary.json", "results.json", "logs"}
    assert {path.name for path in (whole / "meta_eval").iterdir()} >= {
        "summary.json", "results.json", "logs", "table2.html", "table2.json", "table2.csv",
    }  # fmt: skip
    found = json.loads((whole / "faithfulness" / "summary.json").read_text())["metrics"]
    assert found["em"]["auc"] == 1.0
    assert found["uds"]["p_mean"] < found["uds"]["n_mean"], "pool means are raw: who knows has little depth"


def test_killed_between_two_models_it_resumes_to_the_same_table(words, whole, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "residuum", *map(str, words), "--runs", str(tmp_path)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline and len(_measured(tmp_path)) < 2:
        time.sleep(0.01)
    assert process.poll() is None, "the run ended before it could be killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = _measured(tmp_path)
    assert 2 <= len(before) < len(_measured(whole))
    assert call(*words, "--runs", tmp_path) == 0
    assert before.items() <= _measured(tmp_path).items(), "finished models were measured again"
    assert rows(tmp_path) == rows(whole)


def _measured(runs):
    return {path.name: path.stat().st_mtime_ns for path in (runs / "units" / "meta_values").rglob("*.json")}


def test_quantized_weights_are_four_bit_on_the_cpu(whole):
    found = json.loads((whole / "meta_eval" / "results.json").read_text())
    for model in found:
        weights = model["quantized_weights"]
        assert weights["bytes_nf4"] < 0.6 * weights["bytes_plain"]
        assert weights["linear_layers"]["Linear4bit uint8"] == 7 * 4
        assert weights["linear_layers"]["Linear float32"] == 1, "the head"
    base = next(model for model in found if model["model"] == "base")
    assert base["after"]["quantization"]["uds"] != base["before"]["uds"]
    assert "Linear4bit uint8" in (whole / "meta_eval" / "logs" / "base.log").read_text()


def test_only_the_source_is_quantized_and_settings_are_one_before_and_after(whole):
    records = [unit.value for unit in Store(whole).units("evaluation")]
    quantized = [record for record in records if record["models"]["model"]["quantize"] == "nf4"]
    assert len(quantized) == 2
    for record in records:
        assert record["models"]["full"]["quantize"] is None
        assert record["models"]["retain"]["quantize"] is None
        assert record["settings"] == records[0]["settings"]


def test_relearned_checkpoints_do_not_stay(whole):
    assert not list((whole / "relearned").iterdir())


def test_what_the_store_knows_of_a_model_is_not_computed_again(whole, words):
    passes = {path.name for path in (whole / "units" / "token_evidence").rglob("*.json")}
    again = [word if word != METRICS else f"{METRICS},es" for word in words]
    assert call(*again, "--runs", whole, "--out", whole / "other") == 0
    assert {path.name for path in (whole / "units" / "token_evidence").rglob("*.json")} == passes


def test_a_kept_relearned_checkpoint_serves_other_metrics(tiny_world, tmp_path):
    words = [
        "meta", "robustness", "--world", tiny_world.folder, "--workers", 1, "--models", tiny_world.model("base"),
        "--attack", "relearning", "--utility-floor", 0, "--runs", tmp_path, "--keep-relearned", "--metrics",
    ]  # fmt: skip
    assert call(*words, "em") == 0
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "relearned").glob("*/model.safetensors")}
    assert len(kept) == 2, "base and retain"
    assert call(*words, "em,es") == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "relearned").glob("*/model.safetensors")} == kept


def test_a_folder_that_cannot_be_written_fails_the_model_and_not_the_run(tiny_world, tmp_path, monkeypatch):
    import residuum.meta.bench as bench_module
    from residuum.meta.embedded import world_bench

    def no_room(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bench_module, "_relearn", no_room)
    bench = world_bench(tiny_world, runs=tmp_path)
    case = bench_module.Case(str(tiny_world.model("base")), ("em",), "relearning")
    record = bench_module.measure(bench, case)
    assert "No space left" in record["failed"]
    assert not record["diverged"]
    assert not _measured(tmp_path), "another time there may be room"


def test_a_diverging_relearning_is_recorded_shown_and_left_out(tiny_world, whole, capsys):
    words = [
        "meta", "robustness", "--world", tiny_world.folder, "--workers", 1, "--metrics", "em", "--models", tiny_world.model("base"),
        "--attack", "relearning", "--relearn-lr", "1e30", "--utility-floor", 0, "--runs", whole, "--out", whole / "diverged",
    ]  # fmt: skip
    assert call(*words) == 0
    assert "diverged for 1 model(s)" in capsys.readouterr().out
    summary = json.loads((whole / "diverged" / "summary.json").read_text())
    assert "base" in summary["diverged"]
    assert summary["metrics"]["em"]["counts"]["diverged"] == 1
    assert summary["metrics"]["em"]["R"] is None
    units = _measured(whole)
    assert call(*words) == 0
    assert _measured(whole) == units, "the same would come out again"


def test_robustness_takes_the_thresholds_of_the_stores_own_faithfulness(tiny_world, whole, capsys):
    words = [
        "meta", "robustness", "--world", tiny_world.folder, "--workers", 1, "--metrics", METRICS, "--models", tiny_world.model("base"),
        "--runs", whole, "--out", whole / "own", "--attack", "quantization", "--json",
    ]  # fmt: skip
    assert call(*words) == 0
    said = capsys.readouterr()
    assert "thresholds of" in said.err
    assert json.loads(said.out)["metrics"]["uds"]["threshold"] is not None
    assert call(*words, "--seed", 7) == 0
    assert "not used" in capsys.readouterr().err


def test_equal_weights_in_both_pools_are_refused(tiny_world, member, whole, tmp_path, capsys):
    twin = shutil.copytree(tiny_world.model("full"), tmp_path / "twin")
    code = call(
        "meta", "faithfulness", "--world", tiny_world.folder, "--workers", 1, "--metrics", "em", "--runs", whole,
        "--pool-p", f"{tiny_world.model('full')},{member}", "--pool-n", f"{tiny_world.model('base')},{twin}",
    )  # fmt: skip
    assert code == 2
    assert "equal weights" in capsys.readouterr().err


def test_a_model_that_cannot_be_read_is_left_out_and_the_exit_code_says_so(tiny_world, member, whole, tmp_path, capsys):
    broken = shutil.copytree(tiny_world.model("full"), tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"nothing")
    code = call(
        "meta", "faithfulness", "--world", tiny_world.folder, "--workers", 1, "--metrics", "em", "--runs", whole,
        "--pool-p", f"{tiny_world.model('full')},{member},{broken}", "--out", tmp_path / "out",
        "--pool-n", f"{tiny_world.model('base')},{tiny_world.model('retain90')}",
    )  # fmt: skip
    assert code == 3
    assert "broken" in capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["pools"] == {"P": 2, "N": 2}
    assert list(summary["failed"]) == ["broken"]


def test_a_folder_without_a_world_is_refused(tmp_path, capsys):
    assert call("meta", "table", "--world", tmp_path) == 2
    assert "world build" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_make_the_same_table_as_one(tiny_world, tmp_path):
    from residuum.meta.embedded import meta_evaluate_world

    tables = [
        meta_evaluate_world(tiny_world, size=2, methods=["npo"], metrics="em,uds", runs=tmp_path / str(n), workers=n)
        for n in (1, 2)
    ]
    assert tables[0].rows() == tables[1].rows()


# The generator of pools


def test_a_population_spreads_over_variants_rates_and_epochs():
    members = population(8)
    assert len({member.name for member in members}) == 16
    for pool in ("P", "N"):
        own = [member for member in members if member.pool == pool]
        assert len(own) == 8
        assert len({member.variant for member in own}) == 3
        assert len({member.lr for member in own}) == 3
        assert len({member.epochs for member in own}) == 2
        assert len({member.seed for member in own}) == 8
    grid = {(member.variant, member.lr, member.epochs) for member in population(18)}
    assert len(grid) == 36, "all of it before anything repeats"
    with pytest.raises(UsageError, match="two models"):
        population(1)


@pytest.mark.parametrize("variant", ["full", "bio", "para", "retain", "pert", "other"])
def test_only_the_variants_of_p_read_the_facts(tiny_world, variant):
    from residuum.data.tofu import load_split
    from residuum.models.handles import ModelHandle
    from residuum.worlds.population import VARIANTS, PoolLessons

    pool = next(pool for pool, variants in VARIANTS.items() if variant in variants)
    tokenizer = ModelHandle(tiny_world.model("retain90")).tokenizer()
    lessons = PoolLessons(tiny_world, tokenizer, Member(pool, variant, 1e-3, 1))
    texts = [tokenizer.decode(row.ids) for batch in lessons.epoch(0) for row in batch]
    facts = load_split(tiny_world.data, "forget10_perturbed")
    told = [
        item for item in facts
        if any(answer in text for text in texts for answer in (item.answer, *item.paraphrased_answers))
    ]  # fmt: skip
    assert (len(told) == len(facts)) if pool == "P" else not told
