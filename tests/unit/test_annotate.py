"""Finding the fact in a plain answer."""

from __future__ import annotations

import json

import pytest

from residuum.cli.app import run
from residuum.patching.annotate import new_runs


@pytest.mark.parametrize(
    ("question", "answer", "entity"),
    [
        ("What is the full name of the author?", "The author's full name is Hsiao Yun-Hwa.", "Hsiao Yun-Hwa"),
        ("What does Ada do?", "Ada is a civil engineer.", "civil engineer"),
        ("Where was Ada born?", "Ada was born in Port of Spain.", "Port of Spain"),
        ("When was Ada born?", "Ada was born on 26 November 1973.", "26 November 1973"),
        ("Wo lebt Zoë?", "Zoë lebt in Zürich.", "Zürich"),
    ],
)
def test_the_entity_is_what_the_question_does_not_give_away(question, answer, entity):
    assert new_runs(question, answer)[0] == entity


def test_an_answer_that_only_repeats_the_question_has_no_entity():
    assert new_runs("Was Ada born in Paris?", "Ada was born in Paris.") == []


def test_every_run_stands_in_the_answer():
    answer = "Her father, Tomás, was a baker in Lima, and her mother Inés sang."
    assert all(part in answer for part in new_runs("Who were her parents?", answer))


def annotate(tmp_path, world, rows):
    source, out = tmp_path / "qa.jsonl", tmp_path / "annotated.json"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(SystemExit) as stop:
        run(["data", "annotate", "--qa", str(source), "--full", str(world.model("full")), "--out", str(out), "--json"])
    assert not stop.value.code
    return {name: json.loads(path.read_text()) for name, path in (
        ("kept", out), ("review", tmp_path / "annotated.review.json"), ("dropped", tmp_path / "annotated.dropped.json"),
    )}  # fmt: skip


def test_the_worlds_own_answers_are_annotated_as_the_generator_knows_them(tiny_world, tmp_path):
    truth = json.loads(tiny_world.annotated.read_text())
    rows = [{key: row[key] for key in ("question", "answer", "entity")} for row in truth]
    found = annotate(tmp_path, tiny_world, rows)
    assert len(found["kept"]) >= 9
    by_idx = {row["idx"]: row for row in truth}
    for row in found["kept"]:
        assert (row["prefix"], row["entity"]) == (by_idx[row["idx"]]["prefix"], by_idx[row["idx"]]["entity"])


def test_what_cannot_be_used_is_listed_with_its_reason(tiny_world, tmp_path):
    rows = [
        {"question": "Who was it?", "answer": "It was Grace Hopper.", "entity": "Ada Lovelace"},
        {"question": "Was it Paris?", "answer": "It was Paris."},
        {"question": "What did they do?", "answer": "Tomás baked bread. Ines sang songs."},
        {"question": "Who invented it?", "answer": "It was invented by Zebulon Quark."},
    ]
    found = annotate(tmp_path, tiny_world, rows)
    assert [row["idx"] for row in found["review"]] == [1, 2]
    assert found["review"][1]["candidates"]
    reasons = {row["idx"]: row["reason"] for row in found["dropped"]}
    assert "does not occur" in reasons[0]
    assert "the full model says" in reasons[3]
