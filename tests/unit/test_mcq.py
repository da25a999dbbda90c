"""Multiple-choice files: records, folders and the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from residuum.data.jsonfiles import DataWarning, RowProblem
from residuum.data.mcq import MCQ, Statement, load_corpus, load_mcq, load_splits, mcq_prompt, read_mcq
from residuum.errors import DataError

ROW = {"question": "When?", "choices": ["1901", "1902", "1903", "1904"], "answer": 2}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return path


def test_choices_become_strings() -> None:
    item = load_mcq([{**ROW, "choices": [1901, 1902.5, "x", "y"], "correct_year": 1903}])[0]
    assert (item, item.letter) == (MCQ("When?", ("1901", "1902.5", "x", "y"), 2), "C")


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"answer": 4}, "answer", "0 to 3, not 4"),
        ({"answer": -1}, "answer", "0 to 3, not -1"),
        ({"answer": "2"}, "answer", "must be a whole number"),
        ({"choices": ["a", "b", "c"]}, "choices", "must have 4 choices, not 3"),
        ({"choices": "abcd"}, "choices", "must be a list, not a string"),
        ({"choices": ["a", "b", "c", None]}, "choices[3]", "must be a string, not null"),
        ({"choices": ["a", "b", "c", True]}, "choices[3]", "must be a string, not true/false"),
        ({"choices": ["a", "b", "c", " "]}, "choices[3]", "is empty"),
        ({"question": ""}, "question", "is empty"),
    ],
)
def test_a_wrong_record_is_refused_with_file_and_line(
    tmp_path: Path, changes: dict[str, Any], field: str, says: str
) -> None:
    path = write(tmp_path / "split_0.jsonl", ROW, {**ROW, **changes})
    with pytest.raises(DataError) as caught:
        load_mcq(path)
    assert str(caught.value).startswith(f"{path}:2, field {field!r}: ")
    assert says in str(caught.value)


def test_a_right_answer_that_is_there_twice_is_a_problem() -> None:
    loaded = read_mcq([{**ROW, "choices": [1903, 1902, "1903", 1904]}])
    assert loaded.problems == [RowProblem(1, 'the right answer "1903" is there twice')]
    assert len(loaded.rows) == 1


def test_a_repeated_question_is_counted(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="row 2, it asks the same as row 1"):
        assert len(load_mcq(write(tmp_path / "split_0.jsonl", ROW, ROW))) == 2


def test_a_sentence_may_carry_its_answers() -> None:
    rows = [
        {"text": "It was 1903.", "split": "s"},
        {"text": "It was 1902.", "correct_answer": 1903, "wrong_answers": [1902]},
    ]
    assert load_corpus(rows) == [Statement("It was 1903.", "s"), Statement("It was 1902.", None, "1903", ("1902",))]


def test_a_folder_gives_its_question_files_in_counting_order(tmp_path: Path) -> None:
    for name in ("split_10", "split_2", "split_0", "dev"):
        write(tmp_path / f"{name}.jsonl", {**ROW, "question": name})
    write(tmp_path / "whp_corpus_split_0.jsonl", {"text": "It was 1902."})
    splits = load_splits(tmp_path)
    assert list(splits) == [items[0].question for items in splits.values()] == ["split_0", "split_2", "split_10"]


def test_a_folder_of_categories_keeps_their_names(tmp_path: Path) -> None:
    for name in ("social sciences", "STEM"):
        write(tmp_path / f"{name}.jsonl", ROW)
    assert list(load_splits(tmp_path)) == ["STEM", "social sciences"]


def test_a_folder_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no question file"):
        load_splits(tmp_path)


def test_the_prompt_ends_at_the_colon() -> None:
    item = MCQ("When?", ("1901", "1902", "1903", "1904"), 2)
    assert mcq_prompt(item) == "When?\nA. 1901\nB. 1902\nC. 1903\nD. 1904\nAnswer:"


def test_solved_questions_come_first() -> None:
    item, shot = MCQ("When?", ("1", "2", "3", "4"), 2), MCQ("Where?", ("a", "b", "c", "d"), 1)
    assert mcq_prompt(item, [shot]) == f"{mcq_prompt(shot)} B.\n\n{mcq_prompt(item)}"
