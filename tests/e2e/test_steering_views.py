"""Results on disk: views of the runs, that can be lost and made again."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from residuum.errors import UsageError
from residuum.steering.config import EvaluateConfig
from residuum.steering.evaluate import evaluate
from residuum.steering.experiments import Experiment
from residuum.steering.rebuild import rebuild
from residuum.steering.results import Results
from residuum.steering.traits import SteeringWarning
from residuum.store import Store
from steering_lab import SHORT, SOURCE, TRAIT, call, results_of, steer


def test_results_have_the_shape_that_older_tools_read(root, subject, judge):
    steer(root, subject, judge, layers="1", find_coef=False, coefficients=(1.0,))
    view = results_of(root)
    assert {"trait", "prompts_file", "baseline", "runs"} <= set(view)
    assert {"trait_mean", "coherence_mean", "n"} <= set(view["baseline"])
    run_ = view["runs"][0]
    assert {"layers": [1], "methods": ["mean_diff"], "coefficients": [1.0], "component": "residual"}.items() <= run_[
        "config"
    ].items()
    assert {"trait_mean", "trait_std", "coherence_mean", "n"} <= set(run_["result"])
    assert re.match(r"\d{4}-\d\d-\d\dT", run_["timestamp"])


def test_the_same_configuration_twice_is_one_run_that_keeps_its_place(root, subject, judge):
    fixed = {"layers": "1", "find_coef": False}
    steer(root, subject, judge, coefficients=(0.5, 1.0), **fixed)
    before = results_of(root)["runs"]
    evaluate(Experiment(root, "moods"), SOURCE, config=EvaluateConfig(method="mean_diff", controls=0, generation=SHORT, coefficients=(0.5,), **fixed), model=subject, judge=judge, force=True)  # fmt: skip
    after = results_of(root)["runs"]
    assert [run["run_id"] for run in after] == [run["run_id"] for run in before]
    assert after[0]["timestamp"] > before[0]["timestamp"]
    assert after[0]["result"] == before[0]["result"]


def test_rebuild_equals_the_live_view(root, subject, judge):
    steer(root, subject, judge, layers="1-2", holdout=0.5, controls=2, also_judge=("mood/gloomy",))
    results = Results(Experiment(root, "moods"), TRAIT, Store(root / "runs"))
    assert rebuild(results).view == results_of(root)


def test_two_roots_with_one_store_keep_their_results_apart(root, subject, judge, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(root, other, symlinks=True)
    fixed = {"layers": "1", "find_coef": False}
    steer(root, subject, judge, coefficients=(0.5,), **fixed)
    steer(other, subject, judge, coefficients=(1.0,), **fixed)
    assert [run["config"]["coefficients"] for run in results_of(root)["runs"]] == [[0.5]]
    assert [run["config"]["coefficients"] for run in results_of(other)["runs"]] == [[1.0]]
    mine, others = (Results(Experiment(place, "moods"), TRAIT, Store(root / "runs")) for place in (root, other))
    mine.archive()
    assert rebuild(others).view == results_of(other)


def test_a_damaged_view_is_set_aside_and_made_anew(root, subject, judge):
    steer(root, subject, judge, layers="1", find_coef=False, coefficients=(1.0,))
    path = root / "experiments/moods/steering" / TRAIT / "results.json"
    good = path.read_text()
    path.write_text(good[: len(good) // 2])
    with pytest.warns(SteeringWarning, match="damaged"):
        steer(root, subject, judge, layers="1", find_coef=False, coefficients=(1.0,))
    assert json.loads(path.read_text())["runs"] == json.loads(good)["runs"]
    assert len(list(path.parent.glob("results.json.corrupt-*"))) == 1


def test_a_deleted_view_asks_what_to_do(root, subject, judge):
    fixed = {"layers": "1", "find_coef": False, "coefficients": (1.0,)}
    steer(root, subject, judge, **fixed)
    path = root / "experiments/moods/steering" / TRAIT / "results.json"
    path.unlink()
    with pytest.raises(UsageError, match="--fresh"):
        steer(root, subject, judge, **fixed)
    evaluate(Experiment(root, "moods"), SOURCE, config=EvaluateConfig(method="mean_diff", controls=0, generation=SHORT, **fixed), model=subject, judge=judge, fresh=True)  # fmt: skip
    assert len(results_of(root)["runs"]) == 1
    archived = list((path.parent / "archive").glob("*/runs/units/steer/*/*.json"))
    assert len(archived) == 2


def test_edited_prompts_are_an_error_that_shows_the_ways_out(root, subject, judge):
    fixed = {"layers": "1", "find_coef": False, "coefficients": (1.0,)}
    steer(root, subject, judge, **fixed)
    path = root / "datasets/traits" / TRAIT / "steering.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content))  # another spelling of the same content
    steer(root, subject, judge, **fixed)
    path.write_text(json.dumps({**content, "questions": content["questions"][1:]}))
    with pytest.raises(UsageError) as caught:
        steer(root, subject, judge, **fixed)
    assert all(word in str(caught.value) for word in ("stored", "current", "--fresh", "--experiment", "delete"))


def test_a_subset_is_another_context_not_other_prompts(root, subject, judge):
    fixed = {"layers": "1", "find_coef": False, "coefficients": (1.0,)}
    steer(root, subject, judge, **fixed)
    steer(root, subject, judge, subset=3, **fixed)
    view = results_of(root)
    assert sorted(run["result"]["n"] for run in view["runs"]) == [3, 10]
    assert len({run["context_id"] for run in view["runs"]}) == 2


def test_rescoring_needs_no_subject_and_stands_beside_the_old_scores(root, subject, judge, mood_world, capsys):
    steer(root, subject, judge, layers="1", find_coef=False, coefficients=(1.0,))
    (root / "models").unlink()
    digits = str(mood_world.judge("digits"))
    assert (
        call(
            "steer",
            "rescore",
            "--experiment",
            "moods",
            "--trait",
            TRAIT,
            "--judge",
            "hf",
            "--judge-model",
            digits,
            "--json",
        )
        == 0
    )
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 2
    view = results_of(root)
    assert len(view["runs"]) == 2
    assert {run["judge"]["scoring"] for run in view["runs"]} == {"single", "trie"}
    assert rows[1]["trait"] == pytest.approx(rows[1]["trait_before"], abs=20)
