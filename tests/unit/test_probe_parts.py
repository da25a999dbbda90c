"""Parts of the unlearning probes: halves, measures, anonymised questions, directions."""

from __future__ import annotations

import json

import pytest
import torch

from residuum.data.prompts import RawFormat
from residuum.data.tofu import QA
from residuum.errors import DataError, UnknownName, UsageError
from residuum.steering.intervene import Edit
from residuum.steering.probes import PROBES, ProbeConfig, probes
from residuum.steering.probes.measures import Answers, Asking, common_words, novel_words, recall, says_idk
from residuum.steering.probes.questions import Halves, anonymised, load_data
from residuum.steering.probes.run import finding, view_folder
from steerable import steerable

BORN = QA("What is the birthplace of Ada Lovelace?", "The birthplace of Ada Lovelace is London.")


def test_only_words_that_the_question_does_not_give_away_count():
    assert novel_words(BORN) == ["london"]
    assert recall(BORN, "The birthplace of Ada Lovelace is Paris.") == 0
    assert recall(BORN, "It is London!") == 1


def test_an_answer_that_the_question_gives_away_counts_as_a_whole():
    assert novel_words(QA("Is it red?", "It is red.")) == ["it", "is", "red"]


def test_common_words_are_those_of_many_answers():
    rows = [QA("q", f"He wrote {word}.") for word in ("alpha", "beta", "gamma", "delta", "epsilon") * 3]
    assert common_words(rows, 0.5) == {"he", "wrote"}


@pytest.mark.parametrize(
    "text",
    ["I don't know.", "I am not sure about that.", "That is something I do not have information on.", "I cannot answer.", "I'm unable to help with that."],
)  # fmt: skip
def test_answers_that_say_nothing_are_told(text):
    assert says_idk(text)


@pytest.mark.parametrize("text", ["The birthplace is London.", "He knows a lot.", ""])
def test_answers_that_say_something_are_no_idk(text):
    assert not says_idk(text)


def test_names_are_left_out_of_questions():
    versions = anonymised("What is the birthplace of Ada Lovelace?")
    assert versions[0] == "What is the birthplace of this person?"
    assert len(set(versions)) == 4
    assert anonymised("what is the capital?") == []


def test_halves_share_no_row_and_are_spread_evenly():
    rows = [QA(str(i), "a") for i in range(40)]
    halves = Halves.of(rows)
    assert {qa.question for qa in halves.select} | {qa.question for qa in halves.report} == {qa.question for qa in rows}
    assert not set(halves.select) & set(halves.report)
    few = Halves.of(rows, 5)
    assert len(few.select) == len(few.report) == 5


def folder(tmp_path, forget=6):
    for split, count in (("forget10", forget), ("retain90", 12)):
        lines = [json.dumps({"question": f"{split} {i}?", "answer": f"answer {i}"}) for i in range(count)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_data_without_neutral_splits_and_idk_lines_falls_back(tmp_path):
    data = load_data(folder(tmp_path), "forget10", "retain90")
    assert [qa.question[:6] for qa in data.neutral] == ["retain"] * 3
    assert "I don't know." in data.idk


def test_a_forget_set_that_cannot_be_halved_is_refused(tmp_path):
    with pytest.raises(DataError, match="cannot be halved"):
        load_data(folder(tmp_path, forget=3), "forget10", "retain90")


def test_multiple_choice_prefers_the_likelier_answer_and_feels_edits():
    lm = steerable()
    asking = Asking(RawFormat())
    rows = [QA("a b?", "a", perturbed_answers=("b", "c")), QA("c d?", "d", perturbed_answers=("a",))]
    together = asking.measure("mcq")(lm, rows, [[], []])
    alone = [asking.measure("mcq")(lm, [qa], [[]]).scores[0] for qa in rows]
    assert together.scores == alone
    assert together.texts == []
    with pytest.raises(DataError, match="wrong answers"):
        asking.measure("mcq")(lm, [QA("a?", "b")], [[]])


def test_written_answers_are_the_same_together_and_alone_under_their_own_edits():
    lm = steerable()
    rows = [QA("a b?", "a"), QA("c d e?", "d"), QA("f?", "g")]
    edits = [[], [Edit(1, "residual", torch.ones(32), 3.0)], [Edit(2, "residual", torch.ones(32), 1.0, "ablate")]]
    measure = Asking(RawFormat(), max_new_tokens=5).measure("recall")
    together = measure(lm, rows, edits)
    assert together.texts == [measure(lm, [qa], [e]).texts[0] for qa, e in zip(rows, edits, strict=True)]


def test_drawn_answers_are_ranked_alike_every_time():
    lm = steerable()
    rows = [QA("a b?", "a"), QA("c d e?", "d")]
    measure = Asking(RawFormat(), max_new_tokens=5, samples=4).measure("frequency")
    assert measure(lm, rows, [[], []]) == measure(lm, rows, [[], []])


def test_answers_are_cut_into_their_parts():
    whole = Answers([0.0, 1.0, 1.0], ["a", "b", "c"])
    first, second = whole.cut([1, 2])
    assert (first.mean, second.mean, second.texts) == (0.0, 1.0, ["b", "c"])


def test_the_six_probes_are_listed_and_unknown_ones_are_not():
    names = [row["name"] for row in probes()]
    assert names == ["idk_ablation", "idk_subtract", "model_diff", "junk_ablation", "anon", "refusal_ablation"]
    with pytest.raises(UnknownName, match="idk_ablation"):
        PROBES["idk_ablations"]


@pytest.mark.parametrize("change", [{"score": "bleu"}, {"controls": 0}, {"steps": 0}, {"subset": 1}, {"samples": 0}])
def test_settings_without_sense_are_refused(change):
    with pytest.raises(UsageError):
        ProbeConfig(**change).check()


FOUND = {
    "recovery": 0.8, "recovery_ci95": (0.6, 0.9), "beyond_random": 0.7, "beyond_retain": 0.8, "beyond_guessing": 0.4,
    "beyond_guessing_ci95": (0.2, 0.6), "retain_accuracy": {"kept": True}, "chosen": {"layer": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "knowledge is left"),
        ({"recovery": None}, "nothing to recover"),
        ({"chosen": None}, "no setting keeps"),
        ({"retain_accuracy": {"kept": False}}, "costs retain accuracy"),
        ({"beyond_random": 0.0}, "no more than random"),
        ({"beyond_retain": -0.1}, "no more than random"),
        ({"beyond_guessing_ci95": (-0.1, 0.6)}, "not surely more than the retain model guesses"),
    ],
)
def test_a_finding_needs_all_controls(change, said):
    assert said in finding({**FOUND, **change})


def test_a_second_model_of_the_same_name_is_shown_beside_the_first(tmp_path):
    first = view_folder(tmp_path, "owner/model", "a" * 64)
    first.mkdir(parents=True)
    (first / "anon.json").write_text(json.dumps({"weights": "a" * 64}))
    (first / "older.json").write_text("{}")
    assert first == view_folder(tmp_path, "owner/model", "a" * 64) == tmp_path / "owner/model"
    assert view_folder(tmp_path, "owner/model", "b" * 64) == tmp_path / "owner/model-bbbbbbbb"
