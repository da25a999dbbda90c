"""Dry runs: what is finished, what is left, what it may cost, and what the evaluation would refuse."""

from __future__ import annotations

import json
import shutil

import pytest

from residuum.models.names import ALIASES, resolve
from residuum.steering.forecast import _names
from steering_lab import BASE, BRIEF, TRAIT, call, local


def test_a_dry_run_tells_the_plan_without_model_or_judge(root, capsys, monkeypatch):
    shutil.rmtree(root / "runs", ignore_errors=True)
    (root / "models").unlink()
    assert call(*BASE, "--dry-run", "--layers", "1-2") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["layers"] == [1, 2]
    assert plan["settings"] == 8
    assert plan["generations"] == (8 + 1 + 5) * 10
    assert plan["judge_calls_at_most"] == 2 * plan["generations"]
    assert not (root / "runs").exists()


def test_a_dry_run_counts_what_is_finished_and_what_is_left(root, mood_world, capsys):
    words = (*BASE, "--layers", "1-2", "--max-new-tokens", "6", "--subset", "2", "--holdout", "0.5", *local(mood_world))
    assert call(*words, "--controls", "1", "--search-steps", "2") == 0
    capsys.readouterr()
    assert call(*words, "--controls", "1", "--search-steps", "2", "--dry-run") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["finished"] == {"baseline": True, "settings": 4, "held_out": 2, "controls": 1}
    assert (plan["generations"], plan["judge_calls_at_most"], plan["judge_tokens_at_most"]) == (0, 0, 0)
    # Two more steps of two layers; then the best may be others, with held-out runs and three controls of their own.
    assert call(*words, "--controls", "3", "--search-steps", "4", "--dry-run") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["settings"], plan["finished"]["settings"], plan["generations"]) == (8, 4, 2 * 2 + 2 + 3)
    assert 100 < plan["judge_tokens_at_most"] / plan["judge_calls_at_most"] < 1000


def test_a_dry_run_counts_held_out_runs_and_controls_only_of_what_it_plans(root, mood_world, capsys):
    words = (*BASE, "--max-new-tokens", "6", "--subset", "2", "--holdout", "0.5", "--controls", "2", *local(mood_world))
    fixed = ("--no-find-coef", "--coefficients")
    assert call(*words, *fixed, "1,2", "--layers", "1") == 0
    capsys.readouterr()
    # Baselines are there; every setting is tried, and reported, on one question each.
    for asked, held_out, controls, left in (
        (("1,2", "--layers", "1"), 2, 2, 0),
        (("1,2,3", "--layers", "1"), 2, 0, 1 + 1 + 2),
        (("1,2", "--layers", "2"), 0, 0, 2 + 2 + 2),
    ):
        assert call(*words, *fixed, *asked, "--dry-run") == 0
        plan = json.loads(capsys.readouterr().out)
        assert (plan["finished"]["held_out"], plan["finished"]["controls"]) == (held_out, controls)
        assert plan["generations"] == left


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("npo", ALIASES["npo"]),
        (resolve("npo"), ALIASES["npo"]),
        ("full", "full"),
        (ALIASES["full"], "full"),
        ("a/b", "b"),
    ],
)
def test_a_model_is_known_by_the_name_that_its_runs_have(given, stored):
    assert stored in _names(given)


FIXED = ("--layers", "1", "--no-find-coef", "--coefficients")


@pytest.mark.parametrize(
    ("words", "finished"),
    [
        (("1,2",), 1),
        (("1", "--force"), 0),
        (("1", "--fresh"), 0),
        (("1", "--subset", "1"), 0),
        (("1", "--max-new-tokens", "7"), 0),
        (("1", "--operator", "cap"), 0),
        (("1", "--judge-scoring", "trie"), 0),
        (("1", "--model", "models/judge-numbers"), 0),
    ],
)
def test_a_dry_run_counts_a_run_only_for_what_it_was_made_with(root, mood_world, capsys, words, finished):
    assert call(*BASE, *BRIEF, *local(mood_world), *FIXED, "1") == 0
    capsys.readouterr()
    assert call(*BASE, *BRIEF, *local(mood_world), *FIXED, *words, "--dry-run") == 0
    assert json.loads(capsys.readouterr().out)["finished"]["settings"] == finished


def test_a_dry_run_refuses_prompts_that_changed(root, mood_world, capsys):
    assert call(*BASE, *BRIEF, *local(mood_world), *FIXED, "1") == 0
    path = root / "datasets/traits" / TRAIT / "steering.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "questions": content["questions"][1:]}))
    assert call(*BASE, *BRIEF, *FIXED, "1", "--dry-run") == 2
    assert "belong to other prompts" in capsys.readouterr().err
    assert call(*BASE, *BRIEF, *FIXED, "1", "--dry-run", "--fresh") == 0


def test_a_dry_run_refuses_an_unknown_judge_but_needs_no_key(root, capsys):
    assert call(*BASE, "--dry-run", "--judge", "gemeni") == 2
    assert "gemini" in capsys.readouterr().err
    assert call(*BASE, "--dry-run", "--judge", "gemini") == 0
