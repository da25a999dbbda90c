"""Evaluation of the tiny world's models, as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import residuum
from commanding import call
from evidential import NO_CLASSIFIER
from residuum.data.prompts import ChatFormat
from residuum.data.tofu import load_split
from residuum.models.loading import load
from residuum.store import Store

KEYS = set(
    "em es prob paraprob truth_ratio truth_ratio_ou rouge para_rouge jailbreak_rouge mia_loss mia_zlib mia_min_k "
    "mia_min_kpp mia_gradnorm mia_reference s_mia_loss s_mia_zlib s_mia_min_k s_mia_min_kpp privacy_mia privleak "
    "forget_quality retain_q_prob retain_q_rouge retain_truth_ratio ra_q_prob ra_q_rouge ra_truth_ratio wf_q_prob "
    "wf_q_rouge wf_truth_ratio model_utility fluency utility utility_rel cka logit_lens fisher_masked_0.0001 "
    "fisher_masked_0.001 fisher_masked_0.01 uds mem privacy overall".split()
)


# Values


def test_every_metric_has_a_value_an_interval_and_a_direction(base):
    assert set(base) == KEYS - {"fluency"}
    for name, score in base.items():
        assert score.value is not None, name
        assert score.ci95 is not None, name
        assert score.ci95[0] <= score.value + 0.3, name
        assert score.n > 0, name
        assert score.higher_means in ("more knowledge", "less knowledge", "more utility", "two-sided")
        assert (score.higher_means == "two-sided") == (score.ideal is not None)


def test_a_few_numbers_computed_plainly(base, tiny_world):
    import torch

    lm = load(tiny_world.model("base"), device="cpu")
    ems, probs = [], []
    for item in load_split(tiny_world.data, "forget10_perturbed"):
        row = ChatFormat().encode(lm.tokenizer, item.question, item.answer)
        with torch.inference_mode():
            logits = lm.model(input_ids=torch.tensor([row.ids])).logits[0].log_softmax(dim=-1)
        rows, labels = logits[row.prompt_length - 1 : -1], torch.tensor(row.labels)
        ems.append(float((rows.argmax(dim=1) == labels)[:-1].float().mean()))
        probs.append(float(rows.gather(1, labels[:, None]).mean().exp()))
    assert base["em"].values == pytest.approx(ems)
    assert base["prob"].value == pytest.approx(np.mean(probs), abs=1e-6)


def test_uds_is_that_of_the_uds_command(base, tiny_world, runs):
    result = residuum.uds(
        full=tiny_world.model("full"), retain=tiny_world.model("retain90"), unlearned=tiny_world.model("base"),
        data=tiny_world.annotated, device="cpu", runs=runs,
    )  # fmt: skip
    assert base["uds"].value == pytest.approx(result.uds, abs=1e-12)
    assert base["uds"].ci95 == pytest.approx(result.ci95, abs=1e-9)


def test_the_retain_model_is_retain_like_and_the_full_model_is_not(evaluate):
    retain, full = evaluate("retain90"), evaluate("full")
    for name in ("uds", "cka", "logit_lens", "s_mia_loss", "s_mia_min_kpp", "forget_quality"):
        assert retain[name].value == pytest.approx(1.0, abs=1e-6), name
    assert retain["privleak"].value == pytest.approx(0.0, abs=1e-9)
    for name in ("uds", "cka", "logit_lens", "fisher_masked_0.01"):
        assert full[name].value == pytest.approx(0.0, abs=1e-6), name
    assert full["utility_rel"].value == pytest.approx(1.0, abs=1e-9)
    assert any("equal weights" in flag for flag in full.record["flags"])


def test_batches_of_one_row_and_full_batches_agree(evaluate, tmp_path):
    # Gradients are taken example by example at any batch size.
    metrics = KEYS - {"fluency", "mia_gradnorm"} - {key for key in KEYS if key.startswith("fisher")}
    small = evaluate("base", metrics=metrics, batch_tokens=1, runs=tmp_path / "small")
    large = evaluate("base", metrics=metrics, batch_tokens=100_000, runs=tmp_path / "large")
    for name, score in small.items():
        assert score.value == pytest.approx(large[name].value, abs=1e-6), name


def test_a_loaded_model_and_loaded_rows_are_fine(base, evaluate, tiny_world):
    lm = load(tiny_world.model("base"), device="cpu")
    data = {split: load_split(tiny_world.data, split) for split in ("forget10_perturbed", "holdout10")}
    found = evaluate(model=lm, data=data, metrics="em,mia_loss")
    assert found["em"].value == base["em"].value
    assert found["mia_loss"].value == base["mia_loss"].value


def test_what_the_store_has_needs_no_model(base, evaluate, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("residuum.models.loading.load", refuse)
    again = evaluate("base")
    assert {name: score.value for name, score in again.items()} == {name: score.value for name, score in base.items()}


def test_the_evaluation_is_a_unit_of_the_store(base, runs):
    units = [
        u.value for u in Store(runs).units("evaluation") if u.value["model"] == "base" and "uds" in u.value["metrics"]
    ]
    assert units[0]["metrics"]["em"]["value"] == base["em"].value


# Settings


def test_the_prompt_is_recorded_and_changes_the_numbers(base, evaluate):
    other = evaluate("base", metrics="prob", system_prompt="")
    assert base.record["settings"]["system_prompt"] == "You are a helpful assistant."
    assert base.record["settings"]["date"] == "10 Apr 2025"
    assert other["prob"].value != base["prob"].value


def test_a_mask_that_hides_no_token_changes_nothing(base, evaluate):
    # The tiny world has a pad token of its own, so no token of a chat equals it.
    other = evaluate("base", metrics="prob,rouge", mask_mode="pad_id")
    assert other["prob"].value == pytest.approx(base["prob"].value, abs=1e-6)
    assert other["rouge"].value == base["rouge"].value
    assert other.record["settings"]["mask_mode"] == "pad_id"


# Command line and files


def test_the_command_writes_the_seeds_layout(base, tiny_world, runs, capsys):
    words = ["evaluate", "--model", tiny_world.model("base"), "--data_dir", tiny_world.data, "--runs", runs, "--set", "ep5",
             "--retain-model", tiny_world.model("retain90"), "--full-model", tiny_world.model("full"), "--json",
             "--fluency-model", NO_CLASSIFIER]  # fmt: skip
    assert call(*words) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed[0]["metrics"]["em"]["value"] == base["em"].value
    for category in ("memorization", "generation", "privacy", "utility", "uds", "representation", "overall"):
        folder = runs / "ep5" / category / "base"
        summary = json.loads((folder / "summary.json").read_text())
        assert summary["settings"]["format"] == "chat"
        assert (folder / "results.json").exists()
    memorization = json.loads((runs / "ep5/memorization/base/summary.json").read_text())
    assert memorization["em"] == base["em"].value
    assert memorization["details"]["em"]["higher_means"] == "more knowledge"
    rows = json.loads((runs / "ep5/memorization/base/results.json").read_text())
    assert [row["em"] for row in rows] == base["em"].values
    said = json.loads((runs / "ep5/generation/base/results.json").read_text())
    assert {"question", "answer", "generated", "jailbreak_generated", "rouge"} <= said[0].keys()
    attacks = json.loads((runs / "ep5/privacy/base/results.json").read_text())
    assert {row["split"] for row in attacks} == {"forget10_perturbed", "holdout10"}
    depth = json.loads((runs / "ep5/uds/base/summary.json").read_text())
    assert depth["avg_uds"] == pytest.approx(base["uds"].value)


def test_a_later_run_about_other_metrics_keeps_the_earlier_ones(evaluate, tmp_path):
    evaluate("base", metrics="em,rouge").save(tmp_path)
    evaluate("base", metrics="es,para_rouge").save(tmp_path)
    summary = json.loads((tmp_path / "memorization/base/summary.json").read_text())
    rows = json.loads((tmp_path / "generation/base/results.json").read_text())
    assert {"em", "es"} <= summary.keys()
    assert {"rouge", "para_rouge"} <= rows[0].keys()


def test_a_later_run_keeps_what_utility_was_made_of(evaluate, tmp_path):
    evaluate("base", metrics="utility").save(tmp_path)
    evaluate("base", metrics="ra_q_rouge").save(tmp_path)
    assert json.loads((tmp_path / "utility/base/summary.json").read_text())["utility_parts"] == ["model_utility"]


def test_other_settings_under_one_name_replace_the_files_and_say_so(evaluate, tmp_path):
    evaluate("base", metrics="em").save(tmp_path)
    with pytest.warns(UserWarning, match="another --set"):
        evaluate("base", metrics="es", system_prompt="").save(tmp_path)
    assert "em" not in json.loads((tmp_path / "memorization/base/summary.json").read_text())


def test_metrics_are_listed_with_direction_and_range(capsys):
    assert call("ls", "metrics", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == KEYS
    assert rows["mia_loss"]["ideal"] == 0.5
    assert rows["privleak"]["range"] == [-100.0, "inf"]
    assert all(row["meaning"] and row["cite"] for row in rows.values())


def test_the_reference_page_is_current():
    from residuum.metrics.reference import reference_page

    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == reference_page()


def test_the_order_of_metrics_is_that_of_no_import():
    def listed(*modules: str) -> list[str]:
        code = f"import {', '.join(modules)}\nfrom residuum.metrics.registry import all_metrics\nprint(*all_metrics())"
        return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()

    order = listed("residuum")
    assert order == listed("residuum.metrics.aggregate", "residuum.metrics.utility")
    assert (order[0], order[-1]) == ("em", "overall")


# Interrupted


def test_a_killed_evaluation_goes_on_with_the_splits_that_are_missing(tiny_world, tmp_path, base):
    command = [
        sys.executable, "-m", "residuum", "evaluate", "--model", str(tiny_world.model("base")), "--data-dir",
        str(tiny_world.data), "--retain-model", str(tiny_world.model("retain90")), "--full-model",
        str(tiny_world.model("full")), "--runs", str(tmp_path), "--json", "--fluency-model", NO_CLASSIFIER,
    ]  # fmt: skip
    units = tmp_path / "units"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list(units.glob("*/*/*.json"))) < 4 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    finished = {path: path.read_bytes() for path in units.glob("*/*/*.json")}
    assert len(finished) >= 4
    assert not list(units.glob("evaluation/*/*.json"))
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert all(path.read_bytes() == content for path, content in finished.items())
    found = json.loads(printed)[0]["metrics"]
    assert {name: score["value"] for name, score in found.items()} == {
        name: pytest.approx(score.value, abs=1e-9) for name, score in base.items()
    }
