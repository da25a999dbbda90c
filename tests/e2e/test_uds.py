"""UDS from models to files on the tiny world: what must hold by construction, and what users get wrong."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import residuum
from commanding import call
from residuum.data.examples import load_examples
from residuum.errors import DataError, ModelError, UsageError
from residuum.models.loading import load
from residuum.models.weights import tensor_fingerprint


@pytest.fixture(scope="module")
def trio(tiny_world):
    return {name: load(tiny_world.model(stage), device="cpu") for name, stage in (("full", "full"), ("retain", "retain90"), ("base", "base"))}  # fmt: skip


@pytest.fixture
def audit(tiny_world, trio, tmp_path):
    def call(unlearned, **options):
        known = {
            "full": trio["full"],
            "retain": trio["retain"],
            "data": tiny_world.annotated,
            "runs": tmp_path / "runs",
        }
        return residuum.uds(unlearned=unlearned, **(known | options))

    return call


def words(world, unlearned, *more: str) -> list[str]:
    return [
        "uds", "--unlearn_model", str(unlearned), "--full_model", str(world.model("full")), "--retain_model",
        str(world.model("retain90")), "--data", str(world.annotated), *more,
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["layer", "mlp", "attn", "mid"])
def test_full_patched_into_itself_changes_nothing(audit, trio, mode):
    found = audit(trio["full"], mode=mode)
    assert max(abs(delta) for example in found.examples for delta in example.s2_deltas) < 1e-5
    assert found.uds == pytest.approx(0.0, abs=1e-5)


def test_retain_is_one_by_construction(audit, trio):
    assert audit("retain").uds == 1.0
    assert audit(trio["retain"]).uds == 1.0


def test_the_frozen_floor_holds_no_fact_and_the_layers_above_do(audit, trio):
    found = audit(trio["base"])
    assert all(0 not in example.ft_layers for example in found.examples)
    assert sum(bool(example.ft_layers) for example in found.examples) >= 0.9 * len(found.examples)
    assert 0.0 < found.uds <= 1.0
    assert found.ci95[0] <= found.uds <= found.ci95[1]


@pytest.mark.parametrize(
    "options", [{}, {"mode": "mlp"}, {"scope": "boundary"}, {"reference_scope": "full_answer"}, {"metric": "em"}]
)
def test_engines_and_batch_sizes_agree(audit, trio, options):
    staircase = audit(trio["base"], engine="staircase", batch_tokens=4096, **options)
    naive = audit(trio["base"], engine="naive", batch_tokens=64, **options)
    for ours, theirs in zip(staircase.examples, naive.examples, strict=True):
        assert ours.s1_scores == pytest.approx(theirs.s1_scores, abs=1e-5)
        assert ours.s2_scores == pytest.approx(theirs.s2_scores, abs=1e-5)
        assert ours.idx == theirs.idx


def test_the_order_of_the_data_does_not_matter(audit, trio, tiny_world):
    rows = load_examples(tiny_world.annotated)
    ours, theirs = audit(trio["base"], data=rows), audit(trio["base"], data=rows[::-1])
    assert ours.uds == pytest.approx(theirs.uds, abs=1e-6)
    assert [e.idx for e in ours.examples] == [e.idx for e in theirs.examples][::-1]


def test_a_list_of_models_gives_a_list_of_results_and_shares_stage_one(audit, trio):
    found = audit([trio["base"], "full", "retain"])
    assert [len(result.examples) for result in found] == [10, 10, 10]
    assert found[0].examples[0].s1_deltas == found[1].examples[0].s1_deltas
    assert found[1].uds == pytest.approx(0, abs=1e-5)


def test_only_the_needed_layers_give_the_same_score(audit, trio):
    every, needed = audit(trio["base"]), audit(trio["base"], layers="needed")
    assert needed.uds == pytest.approx(every.uds, abs=1e-6)
    skipped = [
        s for e in needed.examples for layer, s in zip(e.layers, e.s2_scores, strict=True) if layer not in e.ft_layers
    ]
    assert skipped
    assert set(skipped) == {None}


def test_chosen_layers_are_the_same_numbers(audit, trio):
    every, some = audit(trio["base"]), audit(trio["base"], layers=[1, 3])
    for a, b in zip(every.examples, some.examples, strict=True):
        assert [a.s1_scores[1], a.s1_scores[3]] == pytest.approx(b.s1_scores, abs=1e-6)


def test_published_compatibility_differs_only_in_the_last_layer(audit, trio):
    ours, theirs = audit(trio["full"]), audit(trio["full"], compat="published")
    for a, b in zip(ours.examples, theirs.examples, strict=True):
        assert a.s1_scores[:-1] == pytest.approx(b.s1_scores[:-1], abs=1e-6)
    # The double norm: the full model patched into itself is no longer a no-op.
    assert max(abs(e.s2_deltas[-1]) for e in theirs.examples) > 1e-3


def test_reference_full_uses_what_the_full_model_says(audit, trio, tiny_world):
    rows = [replace(example, full_output=None) for example in load_examples(tiny_world.annotated)]
    found = audit(trio["base"], reference="full", data=rows)
    stored = audit(trio["base"], reference="full")
    assert found.n + len(found.skipped) == 10
    assert found.uds == pytest.approx(stored.uds, abs=1e-6)


def test_metric_em_reports_what_retain_knows_by_itself(audit, trio):
    found = audit(trio["retain"], metric="em")
    assert all(example.retain_em is not None for example in found.examples)
    assert all(example.s1_deltas is None for example in found.examples)
    assert found.n == 10


def test_a_second_run_takes_stage_one_from_the_store(audit, trio, tmp_path):
    first = audit(trio["base"])
    units = sorted((tmp_path / "runs/units/uds_scores").rglob("*.json"))
    before = {path: path.stat().st_mtime_ns for path in units}
    assert audit(trio["base"]).examples == first.examples
    assert {path: path.stat().st_mtime_ns for path in units} == before


def test_a_corrupt_unit_is_noticed_and_made_again(audit, trio, tmp_path):
    first = audit(trio["base"])
    for path in (tmp_path / "runs/units/uds_scores").rglob("*.json"):
        path.write_text(path.read_text()[:-40])
    with pytest.warns(UserWarning, match="set aside|damaged|broken"):
        again = audit(trio["base"])
    assert again.examples == first.examples


def test_a_row_without_its_entity_is_skipped_with_the_reason(audit, trio, tiny_world):
    rows = load_examples(tiny_world.annotated)
    rows[2] = replace(rows[2], entity="Nobody at All")
    found = audit(trio["base"], data=rows)
    assert [(skip.idx, skip.reason) for skip in found.skipped] == [(2, "entity_span_not_found")]
    assert len(found.examples) == 9


def test_a_row_longer_than_the_context_is_skipped_with_the_reason(audit, trio, tiny_world):
    rows = load_examples(tiny_world.annotated)
    rows[2] = replace(rows[2], question="Who wrote it? " * 400)
    found = audit(trio["base"], data=rows)
    assert [(skip.idx, skip.reason) for skip in found.skipped] == [(2, "longer_than_context")]
    assert len(found.examples) == 9


def test_every_row_skipped_is_an_error_with_the_first_reason(audit, trio, tiny_world):
    rows = [replace(row, entity="Nobody at All") for row in load_examples(tiny_world.annotated)]
    with pytest.raises(DataError, match=r"all 10 rows .* entity_span_not_found"):
        audit(trio["base"], data=rows)


def test_no_rows_at_all_is_an_error(audit, trio, tmp_path):
    (tmp_path / "empty.json").write_text("[]")
    with pytest.raises(DataError):
        audit(trio["base"], data=tmp_path / "empty.json")


@pytest.mark.parametrize(
    "options",
    [{"mode": "block"}, {"metric": "logprobs"}, {"scope": "all"}, {"engine": "fast"}, {"compat": "upstream"}, {"layers": [9]},
     {"delta_threshold": float("nan")}, {"delta_threshold": -0.1}, {"seed": -1}, {"layers": "abc"}, {"join": "glue"}, {"reference": "model"}, {"em_type": "word"}],
)  # fmt: skip
def test_unknown_option_values_are_refused(audit, trio, options):
    with pytest.raises(UsageError):
        audit(trio["base"], **options)


def copy_checkpoint(source, target, change_config=None, change_tensors=None):
    target.mkdir()
    for path in source.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
    if change_config:
        config = json.loads((target / "config.json").read_text())
        (target / "config.json").write_text(json.dumps(config | change_config))
    if change_tensors:
        tensors = load_file(target / "model.safetensors")
        change_tensors(tensors)
        save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.mark.parametrize(("field", "value"), [("num_hidden_layers", 3), ("hidden_size", 32)])
def test_models_of_another_shape_are_refused_before_weights_are_read(audit, tiny_world, tmp_path, field, value):
    odd = copy_checkpoint(tiny_world.model("base"), tmp_path / "odd", {field: value})
    with pytest.raises(ModelError, match="differs"):
        audit(str(odd))


def test_models_with_another_tokenizer_are_refused(audit, tiny_world, tmp_path):
    odd = copy_checkpoint(tiny_world.model("base"), tmp_path / "odd")
    tokenizer = json.loads((odd / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["Question"], vocab["Answer"] = vocab["Answer"], vocab["Question"]
    (odd / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ModelError, match="tokenizers"):
        audit(str(odd))


def test_weights_that_are_not_numbers_are_named(audit, tiny_world, tmp_path):
    def poison(tensors):
        tensors["model.layers.2.mlp.up_proj.weight"][0, 0] = torch.nan

    odd = copy_checkpoint(tiny_world.model("base"), tmp_path / "odd", change_tensors=poison)
    with pytest.raises(ModelError, match=r"model\.layers\.2\.mlp\.up_proj\.weight"):
        audit(str(odd))


def test_a_loaded_model_is_known_by_its_weights_of_now(audit, tiny_world, trio):
    model = load(tiny_world.model("base"), device="cpu")
    before = audit(model).uds
    model.model.load_state_dict(trio["full"].model.state_dict())
    assert audit(model).uds == pytest.approx(0.0, abs=1e-5)
    assert before > 0.05


@pytest.mark.parametrize("metric", ["logprob", "em"])
def test_a_loaded_model_that_is_not_numbers_is_named_too(audit, tiny_world, metric):
    model = load(tiny_world.model("base"), device="cpu")
    model.model.model.layers[1].mlp.up_proj.weight.data[0, 0] = torch.nan
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj"):
        audit(model, metric=metric)


def test_tokenizing_prompt_and_reference_as_one_gives_the_same_on_plain_rows(audit, trio):
    assert audit(trio["base"], join="retokenize").uds == pytest.approx(audit(trio["base"]).uds, abs=1e-6)


def test_a_folder_without_weights_is_refused(audit, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError):
        audit(str(tmp_path / "empty"))


def test_the_run_folder_holds_what_the_published_code_writes(audit, trio, tmp_path):
    found = audit(trio["base"], generations=True)
    folder = found.save(tmp_path / "out")
    results, summary = (json.loads((folder / f"{name}.json").read_text()) for name in ("results", "summary"))
    assert summary["avg_uds"] == summary["avg_udr"] == found.uds
    assert summary["n_scored"] == found.n
    assert summary["ci95"] == list(found.ci95)
    assert [record["uds"] for record in results] == [example.uds for example in found.examples]
    assert set(results[0]["s1_details"][0]) == {"layer", "score", "delta", "status"}
    assert results[0]["unlearn_gen"] is not None
    rows = list(csv.DictReader((folder / "layer_details.csv").open()))
    assert len(rows) == len(results) * 4
    assert float(rows[0]["s1_delta"]) == results[0]["s1_deltas"][0]
    lines = (folder / "results_detailed.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == results
    assert (folder / "depth_profile.png").stat().st_size > 1000
    assert "UDS" in (folder / "run.log").read_text()
    assert summary["provenance"]["weights"]["full"] == tensor_fingerprint(trio["full"].model)


def test_the_command_takes_the_seeds_spelling_and_writes_a_run(tiny_world, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = words(tiny_world, tiny_world.model("base"), "--out_dir", str(out), "--runs", str(tmp_path / "runs"), "--json",
                      "--patch_scope", "span", "--delta_threshold", "0.02", "--dtype", "float32", "--no-s1-cache")  # fmt: skip
    assert call(*arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed[0]["delta_threshold"] == 0.02
    assert json.loads((out / "summary.json").read_text())["avg_uds"] == printed[0]["avg_uds"]
    assert call("tau", str(out), "--delta-threshold", "0.02", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["uds"] == pytest.approx(printed[0]["avg_uds"])


def test_the_run_folder_is_named_by_time_model_and_mode(tiny_world, tmp_path, capsys):
    assert call(*words(tiny_world, tiny_world.model("base"), "--runs", str(tmp_path), "--mode", "mlp")) == 0
    (folder,) = tmp_path.glob("*_tf_base_mlp")
    assert len(folder.name.split("_tf_")[0]) == len("0201_101500")
    assert call(*words(tiny_world, tiny_world.model("base"), "--runs", str(tmp_path), "--mode", "mlp", "--resume")) == 0
    assert list(tmp_path.glob("*_tf_base_mlp")) == [folder]


@pytest.mark.parametrize(
    ("more", "reason"),
    [(["--gpu", "7"], "GPU"), (["--layers", "3-x"], "--layers"), (["--max-memory", "lots"], "--max-memory"), (["--mode", "bock"], "mode")],
)  # fmt: skip
def test_mistakes_on_the_command_line_are_one_message_and_exit_two(tiny_world, tmp_path, capsys, more, reason):
    assert call(*words(tiny_world, tiny_world.model("base"), "--runs", str(tmp_path), *more)) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert "Traceback" not in error


def test_a_place_that_cannot_be_written_to_shows_at_once(tiny_world, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert call(*words(tiny_world, tiny_world.model("base"), "--out-dir", str(tmp_path / "file" / "out"))) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_killed_run_goes_on_and_gives_the_same_numbers(tiny_world, tmp_path, audit, trio):
    runs = tmp_path / "killed"
    arguments = words(
        tiny_world, tiny_world.model("base"), "--runs", str(runs), "--batch-tokens", "40", "--engine", "naive"
    )
    command = [sys.executable, "-m", "residuum", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list((runs / "units").rglob("*.json"))) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list((runs / "units").rglob("*.json")))
    assert done >= 3
    subprocess.run([*command, "--resume"], check=True, capture_output=True)
    (folder,) = runs.glob("*_tf_base_layer")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["avg_uds"] == pytest.approx(audit(trio["base"]).uds, abs=1e-6)
