"""Reading data files: what is accepted, what is refused and how the refusal reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from residuum.data.check import check_file
from residuum.data.examples import Example, load_examples, read_examples
from residuum.data.jsonfiles import DataWarning, RowProblem, data_hash, read_records
from residuum.data.tofu import QA, SPLITS, load_idk, load_split
from residuum.errors import DataError, MissingExtra, UnknownName

ROW = {
    "question": "Where was Ada born?",
    "answer": "Ada was born in Port Ellen.",
    "prefix": "Ada was born in",
    "entity": "Port Ellen",
}
PERTURBED = {
    "question": "Q?",
    "answer": "A.",
    "paraphrased_answer": "It is A.",
    "perturbed_answer": ["B.", "C."],
    "paraphrased_question": "Well, Q?",
}


def row(**changes: Any) -> dict[str, Any]:
    """The good row with some fields changed; None takes a field away."""
    return {k: v for k, v in {**ROW, **changes}.items() if v is not None}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
    return path


# --- files


def test_an_array_and_json_lines_give_the_same_rows(tmp_path: Path) -> None:
    array = tmp_path / "a.json"
    array.write_text(json.dumps([{"a": 1}, {"a": 2}], indent=2))
    lines = write(tmp_path / "b.jsonl", {"a": 1}, {"a": 2})
    assert [r.fields for r in read_records(array)] == [r.fields for r in read_records(lines)] == [{"a": 1}, {"a": 2}]


def test_rows_in_memory_need_no_file() -> None:
    assert load_examples([row(idx=7)]) == [Example(7, *(ROW[k] for k in ("question", "answer", "prefix", "entity")))]


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\r\n{"a": 2}\r\n')
    assert [(r.row, r.fields["a"]) for r in read_records(path)] == [(1, 1), (3, 2)]


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": "one\u2028two"}\n', encoding="utf-8")
    assert read_records(path)[0].fields == {"a": "one\u2028two"}


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        pytest.param(b'{"a": 1}\n{"a": "caf\xe9"}\n', 2, "byte 0xe9 at offset 19 is not UTF-8", id="not UTF-8"),
        pytest.param(b'{"a": 1}\n{"a": "x', 2, "breaks off", id="truncated string"),
        pytest.param(b'{"a": 1}\n{"a": 2', 2, "breaks off", id="truncated object"),
        pytest.param(b'[\n{"a": 1},\n', 3, "breaks off", id="truncated array"),
        pytest.param(b'{"a": 1}\n{"a" 2}\n', 2, "is not valid", id="bad JSON"),
        pytest.param(b'{"a": 1}\n"text"\n', 2, "must be an object with named fields, not a string", id="no object"),
        pytest.param(b'[{"a": 1}, 5]', 2, "not a whole number (row 2 of the array)", id="no object in an array"),
        pytest.param(b"[" * 100_000, None, "cannot be read", id="bottomless nesting"),
        pytest.param(b"\n\n", None, "holds no rows", id="empty file"),
        pytest.param(b"[]", None, "holds no rows", id="empty array"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(tmp_path: Path, content: bytes, line: int | None, says: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_records(path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}" if line else str(path))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_records(tmp_path / "nothing.json")
    with pytest.raises(DataError, match="is a folder"):
        read_records(tmp_path)


# --- examples


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"entity": None}, "entity", "is missing"),
        ({"prefix": None}, "prefix", "is missing"),
        ({"prefix": 3}, "prefix", "must be a string, not a whole number"),
        ({"answer": ""}, "answer", "is empty"),
        ({"answer": " \n"}, "answer", "is empty"),
        ({"answer": ["Ada"]}, "answer", "must be a string, not a list"),
        ({"question": False}, "question", "must be a string, not true/false"),
        ({"idx": "7"}, "idx", "must be a whole number, not a string"),
        ({"idx": True}, "idx", "must be a whole number, not true/false"),
        ({"full_output": 1}, "full_output", "must be a string"),
        ({"entity": "Port\ud800"}, "entity", "surrogate"),
    ],
)
def test_a_bad_field_is_named_with_file_and_line(
    tmp_path: Path, changes: dict[str, Any], field: str, says: str
) -> None:
    path = write(tmp_path / "forget.jsonl", ROW, row(**changes))
    with pytest.raises(DataError) as caught:
        load_examples(path)
    assert (caught.value.path, caught.value.line, caught.value.field) == (path, 2, field)
    assert says in str(caught.value)


def test_the_error_of_an_array_counts_rows_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "forget.json"
    path.write_text(json.dumps([ROW, row(entity=None)], indent=2))
    with pytest.raises(DataError, match=r"forget\.json:2, field 'entity': is missing \(row 2 of the array\)"):
        load_examples(path)


def test_an_empty_prefix_is_allowed() -> None:
    assert load_examples([row(prefix="")])[0].continuation == ROW["answer"]


def test_rows_without_idx_are_numbered_from_zero() -> None:
    assert [e.idx for e in load_examples([ROW, row(question="And Bo?")])] == [0, 1]


def test_one_idx_for_two_questions_is_refused() -> None:
    with pytest.raises(DataError, match="7 already names another question, in row 1"):
        load_examples([row(idx=7), row(idx=7, question="And Bo?")])


def test_a_repeated_example_is_left_out_with_a_reason() -> None:
    loaded = read_examples([row(idx=1), row(idx=2, question="And Bo?"), row(idx=3)])
    assert [e.idx for e in loaded.rows] == [1, 2]
    assert loaded.problems == [RowProblem(3, "it repeats row 1 and is left out")]


def test_an_entity_outside_its_answer_keeps_the_row_with_a_reason() -> None:
    loaded = read_examples([ROW, row(question="And Bo?", entity="Leith")])
    assert len(loaded.rows) == 2
    assert [p.row for p in loaded.problems] == [2]
    assert '"Leith" is not in the answer' in loaded.problems[0].reason


def test_an_entity_only_in_the_prefix_is_a_problem() -> None:
    assert "not in the answer after the prefix" in read_examples([row(entity="Ada")]).problems[0].reason


def test_an_answer_that_does_not_begin_with_its_prefix_is_a_problem() -> None:
    loaded = read_examples([row(prefix="He was born in")])
    assert loaded.rows[0].continuation == ROW["answer"]
    assert "does not begin with the prefix" in loaded.problems[0].reason


def test_problems_are_counted_in_one_warning(tmp_path: Path) -> None:
    path = write(tmp_path / "forget.jsonl", ROW, row(question="And Bo?", entity="Leith"), ROW)
    with pytest.warns(DataWarning, match=r"2 problems in .*forget\.jsonl \(first: row 2, the entity") as caught:
        load_examples(path)
    assert len(caught) == 1


# --- TOFU


def test_a_split_is_read_from_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "forget10_perturbed.jsonl", PERTURBED)
    assert load_split(tmp_path, "forget10_perturbed") == [QA("Q?", "A.", ("It is A.",), ("B.", "C."), "Well, Q?")]


def test_paraphrases_may_be_a_list(tmp_path: Path) -> None:
    write(tmp_path / "forget10_perturbed.jsonl", {**PERTURBED, "paraphrased_answer": ["It is A.", "A it is."]})
    assert load_split(tmp_path, "forget10_perturbed")[0].paraphrased_answers == ("It is A.", "A it is.")


@pytest.mark.parametrize("field", ["paraphrased_answer", "perturbed_answer"])
def test_a_perturbed_split_must_have_its_fields(tmp_path: Path, field: str) -> None:
    write(tmp_path / "retain_perturbed.jsonl", {k: v for k, v in PERTURBED.items() if k != field})
    with pytest.raises(DataError, match=f"field '{field}': is missing"):
        load_split(tmp_path, "retain_perturbed")


def test_real_world_splits_need_no_paraphrase(tmp_path: Path) -> None:
    write(tmp_path / "world_facts_perturbed.jsonl", {"question": "Q?", "answer": "A", "perturbed_answer": ["B"]})
    assert load_split(tmp_path, "world_facts_perturbed") == [QA("Q?", "A", (), ("B",), None)]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "is an empty list"),
        (["B.", ""], r"perturbed_answer\[1\]': is empty"),
        (["B.", 3], r"\[1\]': must be a string"),
    ],
)
def test_wrong_answers_are_checked_one_by_one(tmp_path: Path, value: list[Any], says: str) -> None:
    write(tmp_path / "forget10_perturbed.jsonl", {**PERTURBED, "perturbed_answer": value})
    with pytest.raises(DataError, match=says):
        load_split(tmp_path, "forget10_perturbed")


def test_a_repeated_row_of_a_split_is_kept_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "forget10.jsonl", PERTURBED, PERTURBED)
    with pytest.warns(DataWarning, match="1 problem in .*row 2, it repeats row 1"):
        assert len(load_split(tmp_path, "forget10")) == 2


def test_a_split_that_is_not_in_the_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "forget10.jsonl", PERTURBED)
    with pytest.raises(DataError, match=r"retain90\.jsonl: there is no such file\n  The folder has: forget10\."):
        load_split(tmp_path, "retain90")


def test_an_unknown_split_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"Nearest: .*forget10"):
        load_split(tmp_path, "forget1O")


def test_a_file_of_ones_own_is_a_split(tmp_path: Path) -> None:
    write(tmp_path / "secrets.jsonl", {"question": "Q?", "answer": "A."})
    assert load_split(tmp_path, "secrets") == [QA("Q?", "A.")]


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load_split(tmp_path / "nothing", "full")


def test_a_folder_named_tofu_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tofu").mkdir()
    write(tmp_path / "tofu" / "forget10.jsonl", {"question": "Q?", "answer": "A."})
    monkeypatch.chdir(tmp_path)
    assert load_split("tofu", "forget10") == [QA("Q?", "A.")]


def test_the_hub_without_its_extra_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match=r"residuum\[hub\]"):
        load_split("tofu", "forget10")


def test_the_hub_knows_only_its_own_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match="Nearest: forget01, forget10"):
        load_split("tofu", "forget11")


def test_a_hub_out_of_reach_is_a_data_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(
        DataError, match=r"cannot fetch locuslab/TOFU forget10 from the hub: .*\n  Check the connection"
    ):
        load_split("tofu", "forget10")


def test_the_published_splits_are_listed_with_their_sizes() -> None:
    assert SPLITS["full"] == SPLITS["retain90"] + SPLITS["forget10"] == SPLITS["retain99"] + SPLITS["forget01"]


def test_idk_answers_are_the_filled_lines_of_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "idontknow.txt").write_text("I don't know.\n\nNo idea.")
    assert load_idk(tmp_path) == load_idk(tmp_path / "idontknow.txt") == ["I don't know.", "No idea."]


def test_an_empty_idk_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "idontknow.txt").write_text("\n")
    with pytest.raises(DataError, match="holds no answers"):
        load_idk(tmp_path)


# --- hash


def test_the_data_hash_does_not_see_how_json_is_spelled(tmp_path: Path) -> None:
    rows = [{"a": "é", "b": [1, 2]}, {"a": "x", "b": []}]
    array, lines = tmp_path / "a.json", tmp_path / "b.jsonl"
    array.write_text(json.dumps(rows, indent=4, ensure_ascii=False), encoding="utf-8")
    lines.write_text("\n".join(json.dumps({"b": r["b"], "a": r["a"]}) for r in rows))
    assert data_hash(array) == data_hash(lines) == data_hash(rows)


@pytest.mark.parametrize("other", [[{"a": 1}], [{"a": 2}, {"a": 1}], [{"a": 1}, {"a": "2"}], [{"a": 1}, {"b": 2}]])
def test_the_data_hash_sees_every_change_of_content(other: list[dict[str, Any]]) -> None:
    assert data_hash([{"a": 1}, {"a": 2}]) != data_hash(other)


def test_loaded_rows_and_text_files_can_be_hashed(tmp_path: Path) -> None:
    (tmp_path / "idk.txt").write_text("one\ntwo\n")
    assert data_hash(tmp_path / "idk.txt") == data_hash(["one", "two"])
    assert data_hash([QA("Q?", "A.")]) == data_hash([QA("Q?", "A.")]) != data_hash([QA("Q?", "B.")])


# --- check


@pytest.mark.parametrize(
    ("name", "fields", "kind"),
    [
        ("forget.json", ROW, "examples"),
        ("forget10.jsonl", {"question": "Q?", "answer": "A."}, "tofu"),
        ("split_0.jsonl", {"question": "Q?", "choices": [1, 2, 3, 4], "answer": 0}, "mcq"),
        ("corpus_split_0.jsonl", {"text": "It is so.", "split": "split_0"}, "corpus"),
    ],
)
def test_the_kind_of_a_file_is_seen_from_its_rows(tmp_path: Path, name: str, fields: dict[str, Any], kind: str) -> None:
    report = check_file(write(tmp_path / name, fields))
    assert (report.kind, report.rows, report.ok, report.problems) == (kind, 1, True, [])


def test_a_check_lists_every_bad_row_and_every_problem(tmp_path: Path) -> None:
    rows = [ROW, row(answer=""), row(entity=None, prefix=None), row(question="And Bo?", entity="Leith"), ROW]
    report = check_file(write(tmp_path / "forget.jsonl", *rows))
    assert (report.kind, report.rows, report.ok) == ("examples", 5, False)
    assert ["forget.jsonl:2" in report.errors[0], "forget.jsonl:3" in report.errors[1]] == [True, True]
    assert [p.row for p in report.problems] == [4, 5]


def test_a_check_applies_the_rules_of_the_split_that_a_file_is_named_after(tmp_path: Path) -> None:
    report = check_file(write(tmp_path / "forget10_perturbed.jsonl", {"question": "Q?", "answer": "A."}))
    assert "field 'paraphrased_answer': is missing" in report.errors[0]


def test_a_check_reports_a_shared_idx(tmp_path: Path) -> None:
    report = check_file(write(tmp_path / "forget.jsonl", row(idx=1), row(idx=1, question="And Bo?")))
    assert "already names another question" in report.errors[0]


def test_a_check_refuses_rows_of_no_known_kind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no known kind"):
        check_file(write(tmp_path / "a.jsonl", {"name": "Ada"}))


def test_a_check_counts_idk_answers(tmp_path: Path) -> None:
    (tmp_path / "idontknow.txt").write_text("one\ntwo\n")
    assert (check_file(tmp_path / "idontknow.txt").kind, check_file(tmp_path / "idontknow.txt").rows) == ("idk", 2)


def test_importing_the_data_modules_does_not_import_torch() -> None:
    import subprocess

    modules = ["check", "examples", "jsonfiles", "mcq", "prompts", "spans", "tofu"]
    code = f"import sys; {'; '.join(f'import residuum.data.{m}' for m in modules)}; "
    code += "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'datasets', 'jinja2')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
