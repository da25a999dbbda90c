"""Evaluation of the tiny world's models, as a user meets it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import residuum
from residuum.cli.app import run
from residuum.data.prompts import ChatFormat
from residuum.data.tofu import load_split
from residuum.errors import DataError, InputError, ModelError, UnknownName, UsageError
from residuum.metrics.evaluate import EvaluationWarning
from residuum.models.loading import LM, load
from residuum.store import Store

KEYS = set(
    "em es prob paraprob truth_ratio truth_ratio_ou rouge para_rouge jailbreak_rouge mia_loss mia_zlib mia_min_k "
    "mia_min_kpp mia_gradnorm mia_reference s_mia_loss s_mia_zlib s_mia_min_k s_mia_min_kpp privacy_mia privleak "
    "forget_quality retain_q_prob retain_q_rouge retain_truth_ratio ra_q_prob ra_q_rouge ra_truth_ratio wf_q_prob "
    "wf_q_rouge wf_truth_ratio model_utility fluency utility utility_rel cka logit_lens fisher_masked_0.0001 "
    "fisher_masked_0.001 fisher_masked_0.01 uds mem privacy overall".split()
)


NO_CLASSIFIER = "no/such/classifier"  # no hub id, so nobody looks for it in the network


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def evaluate(tiny_world, runs):
    """`residuum.evaluate` on the tiny world, with everything given; one store for the whole module."""

    def call(stage="base", **options):
        given = {
            "data": tiny_world.data, "retain": tiny_world.model("retain90"), "full": tiny_world.model("full"),
            "device": "cpu", "runs": runs, "fluency_model": NO_CLASSIFIER,
        }  # fmt: skip
        model = options.pop("model", None) or tiny_world.model(stage)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EvaluationWarning)
            return residuum.evaluate(model, **{**given, **options})

    return call


@pytest.fixture(scope="module")
def base(evaluate):
    return evaluate("base")


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        run([str(word) for word in words])
    return int(stop.value.code or 0)


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


# Fluency


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, tiny_world) -> Path:
    """A sequence classifier with random weights, for want of the published one."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("classifier")
    tokenizer = AutoTokenizer.from_pretrained(tiny_world.model("base"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=4, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_fluency_enters_utility_when_its_classifier_can_be_loaded(evaluate, classifier):
    found = evaluate("base", metrics="utility,fluency,utility_rel,model_utility", fluency_model=str(classifier))
    parts = (found["model_utility"].value, found["fluency"].value)
    assert found["utility"].value == pytest.approx(2 / (1 / parts[0] + 1 / parts[1]), abs=1e-9)
    assert found.record["utility_parts"] == ["model_utility", "fluency"]


def test_another_classifier_in_the_same_folder_is_asked_anew(evaluate, classifier, tmp_path):
    import torch
    from transformers import AutoModelForSequenceClassification

    folder = shutil.copytree(classifier, tmp_path / "classifier")
    before = evaluate("base", metrics="fluency", fluency_model=str(folder))["fluency"].value
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias[0] += 3
    model.save_pretrained(folder)
    assert evaluate("base", metrics="fluency", fluency_model=str(folder))["fluency"].value > before


def test_without_the_classifier_utility_is_model_utility_and_says_so(base):
    assert base["utility"].value == base["model_utility"].value
    assert base.record["utility_parts"] == ["model_utility"]
    assert "fluency" in base.record["left_out"]
    assert "without fluency" in base["utility"].notes[0]


def test_fluency_asked_for_by_name_is_an_error_without_its_classifier(evaluate):
    with pytest.raises(ModelError, match="fluency classifier"):
        evaluate("base", metrics=["fluency"], fluency_model=NO_CLASSIFIER)


# Membership attacks on data of one's own


def test_attacks_on_two_local_files(base, evaluate, tiny_world):
    found = evaluate(
        "base", data=None, metrics="mia", retain=None, full=None, members=tiny_world.data / "forget10.jsonl",
        nonmembers=tiny_world.data / "holdout10.jsonl",
    )  # fmt: skip
    assert set(found) == {"mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp", "mia_gradnorm"}
    assert found["mia_loss"].value == base["mia_loss"].value


def test_attacks_on_plain_texts(evaluate):
    members, others = [{"text": "Ada was here."}, {"text": "So she was."}], [{"text": "Nobody was."}]
    found = evaluate("base", data=None, metrics="mia_loss", members=members, nonmembers=others)
    assert len(found["mia_loss"].values) == 3


def test_an_auc_far_below_chance_is_flagged_as_over_unlearned(evaluate, tiny_world):
    # The full model knows the "held-out" rows here, as if it had been driven away from the forget set.
    found = evaluate(
        "full", metrics="mia_loss", members=tiny_world.data / "holdout10.jsonl",
        nonmembers=tiny_world.data / "forget10.jsonl",
    )  # fmt: skip
    assert found["mia_loss"].value < 0.25
    assert "over-unlearned" in found["mia_loss"].notes[0]


def test_two_files_of_one_name_are_told_apart(evaluate, tiny_world, tmp_path):
    for folder, split in (("in", "forget10"), ("out", "holdout10")):
        (tmp_path / folder).mkdir()
        shutil.copy(tiny_world.data / f"{split}.jsonl", tmp_path / folder / "rows.jsonl")
    given = {"members": tmp_path / "in" / "rows.jsonl", "nonmembers": tmp_path / "out" / "rows.jsonl"}
    found = evaluate("base", data=None, metrics="mia_loss", retain=None, full=None, **given)
    assert set(found.record["data"]) == {"rows (members)", "rows (nonmembers)"}
    assert len(set(found.record["data"].values())) == 2


def test_members_need_nonmembers(evaluate, tiny_world):
    with pytest.raises(UsageError, match="go together"):
        evaluate("base", metrics="mia", members=tiny_world.data / "forget10.jsonl")


# Bad input


@pytest.fixture
def data(tiny_world, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_world.data, tmp_path / "data"))


def edit(path: Path, change) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_missing_split_names_the_metrics_that_need_it_and_those_that_can_run(evaluate, data):
    (data / "holdout10.jsonl").unlink()
    with pytest.raises(
        DataError, match=r"holdout10\.jsonl.*\n.*\n  Needed by: mia_loss.*\n.*--metrics em,es"
    ) as caught:
        evaluate("base", data=data, metrics="em,es,mia_loss,privleak")
    assert "privleak" in str(caught.value)
    assert evaluate("base", data=data, metrics="em,es")["em"].n > 0


def test_several_missing_splits_are_named_at_once_and_the_rest_can_really_run(evaluate, data):
    for split in ("holdout10", "retain_perturbed"):
        (data / f"{split}.jsonl").unlink()
    edit(data / "forget10_perturbed.jsonl", lambda rows: rows[0].pop("paraphrased_answer"))
    with pytest.raises(DataError) as caught:
        evaluate("base", data=data, metrics="em,mia_loss,retain_q_prob,paraprob,rouge")
    text = str(caught.value)
    for file, metric in (("holdout10", "mia_loss"), ("retain_perturbed", "retain_q_prob"), ("forget10", "paraprob")):
        assert file in text
        assert f"Needed by: {metric}." in text
    assert text.endswith("The rest can run: --metrics em,rouge")


def test_no_rows_at_all_are_refused(evaluate):
    with pytest.raises(DataError, match="forget10_perturbed holds no rows"):
        evaluate("base", data={"forget10_perturbed": []}, metrics="em")


def test_a_missing_annotated_set_names_what_needs_it(evaluate, data):
    (data / "forget10_annotated.json").unlink()
    with pytest.raises(DataError, match=r"forget10_annotated(.|\n)*Needed by: uds, cka"):
        evaluate("base", data=data, metrics="em,uds,cka")


def test_a_row_without_paraphrase_stops_only_the_metrics_that_need_it(evaluate, data):
    edit(data / "forget10_perturbed.jsonl", lambda rows: rows[2].pop("paraphrased_answer"))
    with pytest.raises(DataError, match=r"forget10_perturbed\.jsonl:3, field 'paraphrased_answer'.*(.|\n)*paraprob"):
        evaluate("base", data=data)
    assert evaluate("base", data=data, metrics="em,mia_loss,rouge")["em"].n > 0


def test_rows_longer_than_the_context_are_counted_and_said(evaluate, data, tiny_world, runs):
    edit(data / "forget10_perturbed.jsonl", lambda rows: rows[1].update(answer="Ada Brook wrote a book. " * 60))
    with pytest.warns(EvaluationWarning, match="1 of 10 rows of forget10_perturbed are longer than the context of 256"):
        found = residuum.evaluate(tiny_world.model("base"), data=data, metrics="em,mia_loss,rouge", runs=runs)
    assert (found["em"].n, found["em"].n_undefined, found["em"].values[1]) == (9, 1, None)
    assert found["mia_loss"].n_undefined == 1


def test_a_tokenizer_without_a_chat_template_is_offered_the_raw_format(evaluate, tiny_world):
    lm = load(tiny_world.model("base"), device="cpu")
    lm.tokenizer.chat_template = None
    bare = LM.from_model(lm.model, lm.tokenizer, name="bare")
    with pytest.raises(InputError, match="--format raw"):
        evaluate(model=bare, metrics="em", retain=None, full=None)
    assert (
        evaluate(model=bare, metrics="em", retain=None, full=None, format="raw").record["settings"]["format"] == "raw"
    )


def test_a_reference_with_another_vocabulary_is_refused(evaluate, tiny_world):
    lm = load(tiny_world.model("base"), device="cpu")
    lm.tokenizer.add_tokens(["<new>"])
    other = LM.from_model(lm.model, lm.tokenizer, name="other")
    with pytest.raises(ModelError, match=r"vocabularies of base .* and of its reference other"):
        evaluate("base", retain=other, metrics="s_mia_loss")


def test_a_needed_reference_that_is_not_given_is_an_error_with_the_rest(evaluate):
    with pytest.raises(UsageError, match=r"needed by: s_mia_loss, uds.*\n.*--retain-model(.|\n)*--metrics em$"):
        evaluate("base", metrics="em,s_mia_loss,uds", retain=None, full=None)


def test_all_metrics_without_references_leaves_out_and_names_what_needs_them(tiny_world, runs):
    with pytest.warns(EvaluationWarning, match=r"no retain and no full model is given, but needed by: .*uds"):
        found = residuum.evaluate(
            tiny_world.model("base"), data=tiny_world.data, runs=runs, device="cpu", fluency_model=NO_CLASSIFIER
        )
    assert "em" in found
    assert found.record["left_out"]["uds"] == "needs the retain and the full model"


def test_metrics_may_come_from_a_generator_but_not_be_none_at_all(evaluate):
    assert set(evaluate("base", metrics=(name for name in ("em", "es")))) == {"em", "es"}
    with pytest.raises(UsageError, match="no metric is named"):
        evaluate("base", metrics=[])


def test_a_score_without_a_value_says_why(evaluate, tiny_world):
    # Full and retain are one model, so retain lacks nothing anywhere.
    found = evaluate("base", metrics="uds,privacy", full=tiny_world.model("retain90"))
    assert found["uds"].value is None
    assert "none of the" in found["uds"].notes[0]
    assert "without uds" in found["privacy"].notes[-1]


def test_an_unknown_metric_has_a_nearest_name(evaluate):
    with pytest.raises(UnknownName, match="rouge"):
        evaluate("base", metrics="rogue")


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


def test_bad_words_on_the_command_line_end_with_2_and_no_traceback(tiny_world, runs, capsys):
    words = ["evaluate", "--model", tiny_world.model("base"), "--runs", runs]
    given = ["--data-dir", tiny_world.data]
    bad = (
        ["--data-dir", "nowhere"],
        [],
        [*given, "--metrics", "uds"],
        [*given, "--mask-mode", "eos"],
        [*given, "--set", "../x"],
        [*given, "--metrics", "em", "--seed", "-5"],
        [*given, "--metrics", "em", "--batch-tokens", "0"],
        [*given, "--metrics", ","],
        [*given, "--metrics", "em", "--model", "no-such-model"],
    )
    for more in bad:
        assert call(*words, *more) == 2
        error = capsys.readouterr().err
        assert error.startswith("residuum: ")
        assert "Traceback" not in error


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
