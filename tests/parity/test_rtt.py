"""The worked example of RTT: fifteen cases under three policies, split ids, signatures, log ranges, calibration."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from residuum.data.mcq import mcq_prompt
from residuum.errors import DataError, UsageError
from residuum.rtt.accuracy import Scores, letter_ids
from residuum.rtt.artefacts import accuracies, split_id
from residuum.rtt.facts import load_mcq_facts
from residuum.rtt.losses import encode_question, encode_text
from residuum.rtt.resummarize import resummarize
from residuum.rtt.selection import Run, read_accuracy
from residuum.rtt.settings import log_range
from residuum.rtt.signature import canonical_config, legacy_signature, signature
from residuum.rtt.splits import resolve_eval_split_ids
from residuum.rtt.summary import MISSING, Evidence, summarize

TOLERANCE = 1e-9
CASES = (
    "per_v_vs_global", "ties", "ties_epochs_lr_loss_type", "single_v", "max_epoch_rule", "max_epoch_rule_with_epoch0",
    "missing_v_in_b", "missing_grid_cell", "no_baseline_rtt", "foreign_rows_ignored", "epoch_prefix_expansion", "zero_c",
    "a_missing_split", "all_five_v", "nan_accuracy",
)  # fmt: skip


@pytest.fixture(scope="module")
def example(shared_data: Path) -> dict[str, Any]:
    return json.loads((shared_data / "rtt_worked_example.json").read_text())


def case_of(example: dict[str, Any], name: str) -> dict[str, Any]:
    return next(case for case in example["cases"] if case["name"] == name)


def evidence_of(given: dict[str, Any]) -> Evidence:
    """What the rows of a case say, joined as the specification asks."""
    a = given["unlearn_row"]

    def runs(condition: str, start: str | None = None) -> list[Run]:
        return [
            Run(
                row["rtt_eval_split_id"], row["loss_type"], row["lr"], row["epochs"], accuracies(row["forget_accs_local"]),
                expand=row.get("epochs_expand", False),
            )
            for row in given["ft_rows"]
            if row["rtt_condition"] == condition
            and row["rtt_signature"] == given["rtt_signature"]
            and start in (None, row["rtt_start_model_path"])
        ]  # fmt: skip

    before = {}
    for path, by_epoch in a["forget_accs"].items():
        read = read_accuracy(accuracies(by_epoch), "final_epoch")
        assert read is not None
        before[split_id(path, given["val_files"])] = read[0]
    return Evidence(
        eval_split_ids=given["eval_split_ids"],
        base={split: given["baseline_per_file"][file] for split, file in enumerate(given["val_files"])},
        unlearned=before,
        unlearned_runs=runs("unlearn+rtt", a["model_path"]),
        base_runs=runs("baseline+rtt"),
        grid_size=given["grid_size"],
        epochs_lst=given.get("epochs_lst"),
    )


def rules_of(given: dict[str, Any]) -> dict[str, Any]:
    return {"rule": given["acc_selection_rule"], "include_epoch0": given.get("include_epoch0", False)}


def close(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
    if isinstance(expected, float) and found is not None:
        return abs(found - expected) <= TOLERANCE
    return bool(found == expected)


def test_no_case_of_the_example_is_left_out(example):
    assert tuple(case["name"] for case in example["cases"]) == CASES


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("name", CASES)
def test_a_case_comes_out_as_worked_by_hand(example, name, missing):
    case = case_of(example, name)
    found = summarize(evidence_of(case["input"]), missing=missing, **rules_of(case["input"])).plain()
    found["recovery_gap_closed"] = found["gap_closed"]
    wrong = {
        key: (found[key], value) for key, value in case["expected"][missing].items() if not close(found[key], value)
    }
    assert not wrong


@pytest.mark.parametrize("name", CASES)
def test_global_selection_comes_out_as_worked_by_hand(example, name):
    case = case_of(example, name)
    summary = summarize(evidence_of(case["input"]), **rules_of(case["input"]))
    for condition, expected in ((summary.b, "b"), (summary.c, "c")):
        worked = case["contrast_global_selection"][expected]
        if worked is None:
            assert condition.global_cell is None
            continue
        assert condition.global_cell is not None
        found = {"acc": condition.accuracy_global, **vars(condition.global_cell)}
        assert close(found, worked)


def test_split_ids_are_resolved_as_worked_by_hand(example):
    for row in example["resolve_eval_split_ids"]:
        options = {key: row[key] for key in ("eval_split_ids", "num_splits", "eval_seed", "data_seed")}
        if row["expect_error"]:
            with pytest.raises(UsageError, match="eval_split_ids"):
                resolve_eval_split_ids(row["dataset"], row["num_total_splits"], **options)
        else:
            assert resolve_eval_split_ids(row["dataset"], row["num_total_splits"], **options) == row["expected"]


def test_signatures_are_those_of_the_example(example):
    for row in example["signature_v1"]:
        assert canonical_config(row["config"]) == row["canonical_json"], row["name"]
        assert signature(row["config"]) == row["signature"], row["name"]


def test_the_signature_of_the_fork_is_understood(example):
    for row in example["signature_legacy"]:
        options = {key: value for key, value in row.items() if key not in ("dataset", "signature")}
        assert legacy_signature(row["dataset"], **options) == row["signature"]


def test_log_ranges_are_those_of_the_example(example):
    for row in example["get_log_range"]:
        assert log_range(row["start"], row["end"], row["step"]) == pytest.approx(row["expected"], rel=TOLERANCE)


def test_calibration_takes_a_bias_for_a_letter_off(example):
    worked = example["calibrated_accuracy"]
    scores = Scores(np.array(worked["logits"], dtype=np.float32), np.array(worked["answers"]))
    assert scores.accuracy == worked["accuracy"]
    assert scores.calibrated == worked["calibrated_accuracy"]


def write_upstream(folder: Path, given: dict[str, Any], *, fork: bool) -> None:
    """The rows of a case as the published pipeline, or its fork, writes them: one file each, cells as ``repr``."""
    a = given["unlearn_row"]
    model = {
        "model_path": a["model_path"], "dataset": f"Datasets.{given['dataset']}", "unlearn_type": a["unlearn_type"],
        "forget_accs": {path: {int(e): v for e, v in by.items()} for path, by in a["forget_accs"].items()},
        "val_files": given["val_files"], "base_model": "base-model", "lr": 4e-07, "epochs": 5,
        "forget_logits_dict": "{'x': array([[1., 2., ..., 3.]])}", "time": "2025-01-01-00-00-00",
    }  # fmt: skip
    rows = []
    for row in given["ft_rows"]:
        by_epoch = {int(e): float("nan") if v is None else v for e, v in row["forget_accs_local"].items()}
        old = {
            "dataset": model["dataset"], "forget_accs_local": by_epoch, "loss_type": row["loss_type"], "lr": row["lr"],
            "epochs": row["epochs"], "val_files": [given["val_files"][row["rtt_eval_split_id"]]],
            "base_model": row["rtt_start_model_path"], "time": "2025-01-02-00-00-00",
        }  # fmt: skip
        if fork:
            names = ("rtt_condition", "rtt_start_model_path", "rtt_signature", "rtt_eval_split_id")
            old |= {name: row[name] for name in names} | {"eval_split_ids": given["eval_split_ids"]}
        rows.append(old)
    for sub, content in (("unlearning", [model]), ("ft", rows)):
        (folder / sub).mkdir(parents=True)
        for number, row in enumerate(content):
            with (folder / sub / f"{row['time']}--num{number}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
                writer.writerow({key: value if isinstance(value, str) else repr(value) for key, value in row.items()})


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("epoch_prefix_expansion", "foreign_rows_ignored")]
)
def test_old_files_are_summarised_by_the_right_rule(tmp_path, example, name):
    case = case_of(example, name)
    write_upstream(tmp_path, case["input"], fork=True)
    (row,) = resummarize(tmp_path, **rules_of(case["input"]))
    expected = case["expected"]["intersect"]
    for key in (
        "forget_acc_unlearn",
        "forget_acc_unlearn_rtt",
        "forget_acc_baseline_rtt",
        "recovery_rate",
        "best_per_v_b",
    ):
        assert close(row[key], expected[key]), key


def test_foreign_rows_of_old_files_do_not_leak_in(tmp_path, example):
    case = case_of(example, "foreign_rows_ignored")
    write_upstream(tmp_path, case["input"], fork=True)
    rows = [row for row in resummarize(tmp_path) if row["rtt_signature"] == case["input"]["rtt_signature"]]
    assert close(rows[0]["recovery_rate"], case["expected"]["intersect"]["recovery_rate"])


def test_files_of_the_published_pipeline_name_neither_condition_nor_split_and_are_understood(tmp_path, example):
    case = case_of(example, "per_v_vs_global")
    write_upstream(tmp_path, case["input"], fork=False)
    (row,) = resummarize(tmp_path)
    expected = case["expected"]["intersect"]
    for key in (
        "forget_acc_baseline",
        "forget_acc_unlearn_rtt",
        "forget_acc_baseline_rtt",
        "recovery_rate",
        "best_per_v_c",
    ):
        assert close(row[key], expected[key]), key


def test_the_real_years_files_load(shared_data):
    facts = load_mcq_facts(shared_data / "rtt" / "dates-years-trimmed")
    assert facts.name == "YEARS"
    assert [len(split.items) for split in facts.splits] == [158, 158, 158, 158, 157]
    assert len(facts.dev) == 5
    for split in facts.splits:
        assert len(facts.statements("corpus_", split)) == 471
    assert resolve_eval_split_ids(facts.name, len(facts.splits), eval_seed=0) == [0, 4]


def test_a_wrong_record_among_the_years_is_refused_with_file_and_line(shared_data, tmp_path):
    lines = (shared_data / "rtt" / "dates-years-trimmed" / "split_0.jsonl").read_text().splitlines()
    lines[6] = json.dumps({**json.loads(lines[6]), "answer": 4})
    (tmp_path / "split_0.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"split_0\.jsonl:7, field 'answer'"):
        load_mcq_facts(tmp_path)


@pytest.fixture(scope="module", params=["llama3_2", "qwen3", "gpt2"])
def tokenizer(request: pytest.FixtureRequest, shared_data: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(shared_data / "tokenizers" / request.param)


def test_the_letter_after_a_colon_is_another_token_than_the_bare_one(shared_data, tokenizer):
    item = load_mcq_facts(shared_data / "rtt" / "dates-years-trimmed").splits[0].items[0]
    continued, bare, both = (letter_ids(tokenizer, mcq_prompt(item), v) for v in ("continuation", "nospace", "sum"))
    assert [tokenizer.decode(ids) for ids in continued] == [" A", " B", " C", " D"]
    assert [tokenizer.decode(ids) for ids in bare] == ["A", "B", "C", "D"]
    assert both == [[a, b] for [a], [b] in zip(continued, bare, strict=True)]


def test_letter_and_answer_are_labelled_with_real_tokenizers(shared_data, tokenizer):
    for item in load_mcq_facts(shared_data / "rtt" / "dates-years-trimmed").splits[0].items[:20]:
        row = encode_question(tokenizer, item, "LETTER_ANSWER")
        assert tokenizer.decode(list(row.labels)) == f" {item.letter}. {item.choices[item.answer]}"
        assert (
            list(encode_question(tokenizer, item, "LETTER").labels)
            == letter_ids(tokenizer, mcq_prompt(item))[item.answer]
        )


def test_the_year_is_labelled_whole_with_real_tokenizers(shared_data, tokenizer):
    facts = load_mcq_facts(shared_data / "rtt" / "dates-years-trimmed")
    for text in facts.statements("corpus_", facts.splits[0])[:60]:
        row = encode_text(tokenizer, text, "NUMBER", unlearning=True)
        assert any(character.isdigit() for character in tokenizer.decode(list(row.labels)))
        assert text.startswith(tokenizer.decode(list(row.ids), skip_special_tokens=True))
