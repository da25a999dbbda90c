"""Settings of an RTT sweep, result files, overlap between splits."""

from __future__ import annotations

import csv
import json

import pytest

from residuum.data.tofu import QA
from residuum.errors import DataError, UsageError
from residuum.rtt.artefacts import (
    MODEL_FIELDS,
    RUN_FIELDS,
    SUMMARY_FIELDS,
    known_ids,
    read_cell,
    read_rows,
    split_id,
    write_row,
)
from residuum.rtt.config import read_config
from residuum.rtt.facts import load_mcq_facts
from residuum.rtt.overlap import overlap_warnings
from residuum.rtt.questions import cut_by_author, load_qa_facts
from residuum.rtt.resummarize import resummarize
from residuum.rtt.settings import log_range, merge, read_toml


def test_a_file_and_keyword_arguments_join_and_the_arguments_win(tmp_path):
    path = tmp_path / "sweep.toml"
    path.write_text(
        'dataset = "d"\ndata_seed = 7\n[ft]\nlrs = [1e-6]\nnum_splits = 3\n[unlearn]\ntypes = ["GD"]\nlr = 1e-5\n'
    )
    config = read_config(merge(read_toml(path), {"ft": {"lrs": "2e-6,4e-6", "num_splits": None}, "data_seed": None}))
    assert (config.dataset, config.data_seed, config.ft.num_splits) == ("d", 7, 3)
    assert config.ft.lrs == (2e-6, 4e-6)
    assert [(one.type, one.lr) for one in config.unlearn] == [("GD", 1e-5)]


def test_lists_of_unlearning_settings_become_one_model_each():
    config = read_config({"unlearn": {"types": "GD,WHP", "lr": [1e-5, 2e-5], "GD": {"retain_coeff": [0, 1]}}})
    assert [one.type for one in config.unlearn] == ["GD"] * 4 + ["RIA"] * 2
    assert {one.retain_coeff for one in config.unlearn if one.type == "GD"} == {0.0, 1.0}


def test_names_of_the_paper_and_of_its_code_mean_the_same():
    kinds = [one.type for one in read_config({"unlearn": {"types": ["whp", "RIA", "rmu", "CUT"]}}).unlearn]
    assert kinds == ["RIA", "RIA", "CUT", "CUT"]


def test_rates_may_be_a_log_range():
    assert list(read_config({"ft": {"lrs": "1e-7:5e-6:2"}}).ft.lrs) == log_range(1e-7, 5e-6, 2)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"datasett": "x"}, "Did you mean dataset"),
        ({"ft": {"epoch_lst": [1]}}, "Did you mean ft.epochs_lst"),
        ({"unlearn": {"types": ["GD"], "retain_coef": 1}}, "Did you mean unlearn.retain_coeff"),
        ({"unlearn": {"types": ["GDD"]}}, "Did you mean GD"),
        ({"ft": {"lrs": []}}, "grid is empty"),
        ({"ft": {"lrs": ["fast"]}}, "ft.lrs"),
        ({"ft": {"lrs": [-1e-6]}}, "positive"),
        ({"ft": {"epochs_lst": [0]}}, "positive"),
        ({"ft": {"epochs_lst": [1.5]}}, "ft.epochs_lst"),
        ({"ft": {"optimizer": "sgd"}}, "optimizer"),
        ({"conditions": "A,D"}, "conditions"),
        ({"missing": "ignore"}, "missing"),
        ({"acc_selection_rule": "best"}, "acc_selection_rule"),
        ({"compat": "upstream"}, "compat"),
        ({"label_variant": "spaced"}, "label_variant"),
        ({"k_shot": -1}, "k_shot"),
        ({"max_seq_len": 0}, "max_seq_len"),
        ({"rows_per_author": 0}, "rows_per_author"),
        ({"conditions": ""}, "conditions is empty"),
        ({"devices": ""}, "devices is empty"),
        ({"ft": 3}, "ft is a table"),
        ({"unlearn": "GD"}, "unlearn is a table"),
        ({"ft": {"num_splits": -1}}, "num_splits"),
        ({"ft": {"warmup_steps": -1}}, "warmup_steps"),
        ({"ft": {"freeze_layers": [[0.8, 0.2]]}}, "ft.freeze_layers"),
        ({"unlearn": {"types": ["GD"], "type": "GD"}}, "Did you mean unlearn.types"),
        ({"unlearn": {"types": ["GD"], "RIA": {"rates": 1}}}, "unlearn.RIA.rates"),
        ({"unlearn": {"types": ["GD"], "retain_coeff": float("nan")}}, "retain_coeff"),
        ({"unlearn": {"types": ["GD"], "retain_coeff": -1}}, "retain_coeff"),
        ({"unlearn": {"types": ["GD"], "loss_types": ["WORDS"]}}, "unlearn.loss_types"),
        ({"unlearn": {"types": ["GD"], "loss_types": []}}, "unlearn.loss_types"),
        ({"unlearn": {"types": ["GD"], "lr": "1e-5:x:2"}}, "unlearn.lr"),
        ({"unlearn": {"types": ["CUT"], "freeze": [[0, 0.5]]}}, "unlearn.freeze"),
        ({"unlearn": {"types": ["LORA"], "freeze": [[0, 0.5]]}}, "unlearn.freeze"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, word):
    with pytest.raises(UsageError, match=word):
        read_config(settings)


@pytest.mark.parametrize("content", [b"dataset = \n", b"\xff\xfe", None])
def test_a_file_that_is_not_toml_is_refused(tmp_path, content):
    path = tmp_path / "x.toml"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=r"x\.toml"):
        read_toml(path)


def test_rates_of_unlearning_may_be_lists_in_text_and_log_ranges():
    given = {"types": "GD", "lr": "1e-5:1e-3:10", "retain_coeff": "0, 1", "loss_types": "corpus"}
    made = read_config({"unlearn": given}).unlearn
    assert {one.lr for one in made} == {1e-5, 1e-4}
    assert {one.retain_coeff for one in made} == {0.0, 1.0}
    assert made[0].loss_types == ("CORPUS",)


def test_every_key_is_an_option_of_the_command():
    from dataclasses import fields

    import typer

    from residuum.cli.rtt import rtt
    from residuum.rtt.config import FtConfig, RttConfig, UnlearnConfig

    command = typer.main.get_command(rtt).commands["run"]  # type: ignore[attr-defined]
    known = {name for parameter in command.params for name in parameter.opts}
    keys = {f.name for f in fields(RttConfig)} - {"ft", "unlearn"}
    keys |= {f"ft.{f.name}" for f in fields(FtConfig)}
    keys |= {f"unlearn.{f.name}" for f in fields(UnlearnConfig) if f.name != "type"} | {"unlearn.types"}
    assert not {f"--{key.replace('_', '-')}" for key in keys} - known


def test_the_settings_of_a_sweep_are_told_as_json():
    plain = read_config({"ft": {"freeze_layers": [[0, 0.5]]}, "unlearn": {"types": ["GD"]}}).plain()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["ft"]["freeze_layers"] == [[0.0, 0.5]]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("", None),
        ("nan", None),
        ("{'a': {0: 0.5, 1: nan}}", {"a": {0: 0.5, 1: None}}),
        ("{'a': np.float64(0.25)}", {"a": 0.25}),
        ('{"0": 0.5}', {"0": 0.5}),
        ("[0, 2]", [0, 2]),
        ("4e-07", 4e-07),
        ("{'x': array([[1., ..., 2.]])}", "{'x': array([[1., ..., 2.]])}"),
        ("__import__('os').system('false')", "__import__('os').system('false')"),
    ],
)
def test_cells_are_read_without_being_run(cell, value):
    assert read_cell(cell) == value


def test_rows_are_read_back_as_written_and_names_are_never_taken_twice(tmp_path):
    rows = [
        {"time": "2026-01-01-00-00-00", "run_id": f"{i}e5", "lr": 1e-6, "forget_accs_local": {"1": None}}
        for i in (1, 2)
    ]
    paths = [write_row(tmp_path, row, RUN_FIELDS) for row in rows]
    assert [path.name for path in paths] == ["2026-01-01-00-00-00--num0.csv", "2026-01-01-00-00-00--num1.csv"]
    assert known_ids(tmp_path) == {"1e5", "2e5"}
    assert read_rows(tmp_path)[0]["forget_accs_local"] == {"1": None}


def test_the_published_fields_come_first_and_in_their_order():
    assert MODEL_FIELDS[:3] == ["model_path", "dataset", "forget_accs"]
    assert RUN_FIELDS[:2] == ["dataset", "forget_accs_local"]
    assert SUMMARY_FIELDS[9:15] == [
        "forget_acc_baseline", "forget_acc_unlearn", "forget_acc_unlearn_rtt", "forget_acc_baseline_rtt",
        "rtt_signature", "recovery_rate",
    ]  # fmt: skip
    for fields in (MODEL_FIELDS, RUN_FIELDS, SUMMARY_FIELDS):
        assert len(set(fields)) == len(fields)


def test_split_1_is_not_taken_for_split_10():
    files = [f"data/set/split_{i}" for i in range(11)]
    assert split_id("root/data/set/split_1.jsonl", files) == 1
    assert split_id("root/data/set/split_10.jsonl", files) == 10
    assert split_id("root/data/other/split_1.jsonl", files) is None


def test_a_folder_without_rows_says_what_it_should_hold(tmp_path):
    with pytest.raises(DataError, match="unlearning"):
        resummarize(tmp_path)


def write_rows(folder, model, run) -> None:
    (folder / "unlearning").mkdir()
    (folder / "ft").mkdir()
    for part, row in (("unlearning", model), ("ft", run)):
        with (folder / part / "1.csv").open("w", newline="") as file:
            csv.writer(file).writerows([list(row), list(row.values())])


MODEL_ROW = {
    "model_path": "u", "base_model": "b", "dataset": "D", "val_files": "['s_0', 's_1']", "forget_accs": "{'s_0': {5: 0.3}}",
}  # fmt: skip
RUN_ROW = {
    "dataset": "D", "base_model": "u", "val_files": "['s_0']", "loss_type": "LETTER", "lr": "1e-6", "epochs": "1",
    "forget_accs_local": "{0: 0.3, 1: 0.5}",
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "run", "word"),
    [
        ({"model_path": ""}, {}, "model_path"),
        ({"forget_accs": "0.3"}, {}, "forget_accs"),
        ({}, {"lr": "fast"}, "no number"),
        ({}, {"lr": ""}, "lr"),
        ({}, {"forget_accs_local": "{'last': 0.5}"}, "by epoch"),
        ({}, {"base_model": "another"}, "no training"),
        ({}, {"rtt_eval_split_id": "-1"}, "no training"),  # trained on all splits
    ],
)
def test_result_rows_that_cannot_be_used_are_told(tmp_path, model, run, word):
    write_rows(tmp_path, MODEL_ROW | model, RUN_ROW | run)
    with pytest.raises(DataError, match=word):
        resummarize(tmp_path)


def test_chance_is_read_from_the_rows(tmp_path):
    write_rows(tmp_path, MODEL_ROW, RUN_ROW | {"chance": "0.125", "eval_split_ids": "0"})
    (row,) = resummarize(tmp_path)
    assert (row["chance"], row["eval_split_ids"], row["forget_acc_unlearn_rtt"]) == (0.125, [0], 0.5)


def test_a_torn_file_is_named(tmp_path):
    (tmp_path / "ft").mkdir()
    with (tmp_path / "ft" / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b"], ["1"]])
    with pytest.raises(DataError, match=r"x\.csv:2"):
        read_rows(tmp_path / "ft")


def question(name: str, choices=(1, 2, 3, 4), answer=0) -> str:
    return json.dumps({"question": f"When was {name} born?", "choices": list(choices), "answer": answer})


def test_a_question_in_two_splits_is_warned_about():
    found = overlap_warnings({"a": ["Who is it?", "Why?"], "b": ["who  is it?"]})
    assert len(found) == 1
    assert "2 of 3" in found[0]


def test_a_name_in_two_splits_is_warned_about():
    (found,) = overlap_warnings({"a": ["When was Ada Brook born?"], "b": ["Where does Ada Brook live?"]})
    assert "Ada Brook" in found


def test_independent_splits_are_not_warned_about():
    assert overlap_warnings({"a": ["When was Ada Brook born?"], "b": ["When was Bob Reed born?"]}) == []


def test_a_split_without_items_is_refused(tmp_path):
    (tmp_path / "split_0.jsonl").write_text(question("A B"))
    (tmp_path / "split_1.jsonl").write_text("")
    with pytest.raises(DataError, match=r"split_1\.jsonl: holds no rows"):
        load_mcq_facts(tmp_path)


def test_the_right_answer_twice_is_warned_about(tmp_path):
    (tmp_path / "split_0.jsonl").write_text(question("A B", (5, 5, 6, 7)))
    with pytest.warns(UserWarning, match="there twice"):
        load_mcq_facts(tmp_path)


def test_more_shots_than_there_are_questions_are_refused(tmp_path):
    (tmp_path / "split_0.jsonl").write_text(question("A B"))
    with pytest.raises(UsageError, match="k_shot"):
        _ = load_mcq_facts(tmp_path, k_shot=1).shots


def test_somebody_elses_manifest_is_not_ours(tmp_path):
    (tmp_path / "split_0.jsonl").write_text(question("A B"))
    (tmp_path / "manifest.json").write_text('{"version": 1}')
    assert [split.name for split in load_mcq_facts(tmp_path).splits] == ["split_0"]


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        load_mcq_facts(tmp_path / "nowhere")


def test_mmlu_categories_are_told_apart_by_name(tmp_path):
    folder = tmp_path / "mmlu_cats_random_trimmed"
    folder.mkdir()
    for name in ("mmlu_STEM", "mmlu_business", "mmlu_law", "mmlu_social sciences"):
        (folder / f"{name}.jsonl").write_text(question(name))
    facts = load_mcq_facts(folder)
    assert facts.name == "MMLU"
    assert [split.name for split in facts.splits] == ["mmlu_STEM", "mmlu_business"]
    assert [split.name for split in facts.retain] == ["mmlu_law", "mmlu_social sciences"]


def write_tofu(folder, authors=4, rows=3, wrong=2) -> None:
    lines = [
        {"question": f"Q{a}-{r}?", "answer": f"right {a} {r}", "paraphrased_answer": f"so {a} {r}",
         "perturbed_answer": [f"wrong {a} {r} {w}" for w in range(wrong)]}
        for a in range(authors) for r in range(rows)
    ]  # fmt: skip
    (folder / "forget10_perturbed.jsonl").write_text("\n".join(map(json.dumps, lines)))


def test_an_author_is_never_cut_in_two(tmp_path):
    write_tofu(tmp_path)
    facts = load_qa_facts(tmp_path, num_total_splits=3, rows_per_author=3)
    assert [len(split.items) for split in facts.splits] == [3, 3, 6]
    homes = {item.question.split("-")[0]: split.name for split in facts.splits for item in split.items}
    for split in facts.splits:
        assert all(homes[item.question.split("-")[0]] == split.name for item in split.items)


def test_chance_follows_from_the_number_of_candidates(tmp_path):
    write_tofu(tmp_path, wrong=5)
    assert load_qa_facts(tmp_path, rows_per_author=3).chance == pytest.approx(1 / 6)


def test_there_are_no_more_splits_than_authors():
    assert len(cut_by_author([QA("q", "a")] * 7, 3)) == 3


def test_a_row_without_wrong_answers_is_refused(tmp_path):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"question": "q", "answer": "a"}))
    with pytest.raises(DataError, match="perturbed_answer"):
        load_qa_facts(tmp_path, split="mine")
