"""Steering with a real small subject and a real small judge."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from residuum.errors import HookError, ModelError, UsageError
from residuum.steering.bench import Bench
from residuum.steering.config import EvaluateConfig
from residuum.steering.evaluate import evaluate
from residuum.steering.experiments import Experiment
from residuum.steering.judge.prompts import COHERENCE
from residuum.steering.results import Results
from residuum.steering.search import SearchConfig
from residuum.steering.settings import Generation, Setting
from residuum.steering.traits import SteeringWarning, load_prompts
from residuum.steering.vectors import Vector, find_vectors
from residuum.store import Store
from steering_lab import SHORT, SOURCE, TRAIT, results_of, steer


def base_coefficient(root, subject, judge, layer: int = 2) -> float:
    """At which the push is as long as the activation."""
    out = steer(root, subject, judge, layers=str(layer), find_coef=False, coefficients=(1.0,), subset=1)
    return 1 / out["layers"][0]["steps"][0]["relative"][0]


def test_the_extracted_vector_raises_the_trait_until_coherence_breaks(root, subject, judge):
    base = base_coefficient(root, subject, judge)
    scales = (0.0, 0.4, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 2.0, 4.0)
    out = steer(root, subject, judge, layers="2", find_coef=False, coefficients=tuple(base * x for x in scales))
    steps = [layer["steps"][0] for layer in out["layers"]]
    whole = [s["trait_mean"] for s in steps if s["coherence_mean"] >= 70]
    # Monotone but for the judge's own noise of a point.
    assert all(after >= before - 1.5 for before, after in itertools.pairwise(whole))
    assert whole[-1] > whole[0] + 40
    assert steps[-1]["coherence_mean"] < 50


def test_random_vectors_show_no_trend(root, subject, judge):
    """The mean over random directions stays where it was, up to the strength at which the real one has done its work."""
    base = base_coefficient(root, subject, judge)
    bench = bench_of(root, subject, judge)
    found = find_vectors(root / "experiments/moods/extraction" / TRAIT, "mean_diff", "residual").read(2)
    settings = []
    for seed in range(6):
        values = torch.nn.functional.normalize(torch.randn(64, generator=torch.Generator().manual_seed(seed)), dim=0)
        vector = Vector(2, "random", "residual", values * found.norm, found.norm)
        settings += [Setting((vector,), (base * x,)) for x in (0.4, 0.8, 1.2)]
    units = bench.run([None, Setting((found,), (base * 1.2,)), *settings])
    traits = [unit.value["result"]["trait_mean"] for unit in units]
    by_scale = np.array(traits[2:]).reshape(6, 3).mean(axis=0)
    assert traits[1] > traits[0] + 40
    assert np.abs(by_scale - traits[0]).max() < 12


def bench_of(root, subject, judge, **changes):
    experiment = Experiment(root, "moods")
    prompts = load_prompts(root / "datasets/traits" / TRAIT / "steering.json")
    from residuum.models.handles import ModelHandle

    fields = {
        "results": Results(experiment, TRAIT, Store(root / "runs")), "handle": ModelHandle(subject), "prompts": prompts,
        "questions": prompts.questions, "generation": SHORT, "panel": judge, "coherence_prompt": COHERENCE,
    }  # fmt: skip
    return Bench(**{**fields, **changes})


def test_a_coefficient_of_zero_says_what_the_baseline_says(root, subject, judge):
    bench = bench_of(root, subject, judge)
    vector = find_vectors(root / "experiments/moods/extraction" / TRAIT, "mean_diff", "residual").read(1)
    plain, zero = bench.run([None, Setting((vector,), (0.0,))])
    assert [i["response"] for i in plain.value["items"]] == [i["response"] for i in zero.value["items"]]


def test_all_layers_searched_together_say_what_each_says_alone(root, subject, judge):
    def texts():
        return {u.task.key: [i["response"] for i in u.value["items"]] for u in Store(root / "runs").units("steer")}

    steer(root, subject, judge, search=SearchConfig(steps=2))
    together = texts()
    shutil.rmtree(root / "runs")
    shutil.rmtree(root / "experiments/moods/steering")
    steer(root, subject, judge, search=SearchConfig(steps=2), batch_layers=1)
    assert texts() == together
    assert len(together) == 1 + 4 * 2


def test_the_search_follows_the_rule_and_saves_every_step(root, subject, judge):
    out = steer(root, subject, judge, layers="1,3")
    for layer in out["layers"]:
        relative = [step["relative"][0] for step in layer["steps"]]
        assert relative[0] == pytest.approx(1.0, abs=1e-4)
        for before, step, after in zip(relative, layer["steps"], relative[1:], strict=False):
            assert after / before == pytest.approx(1.3 if step["coherence_mean"] >= 70 else 0.9, rel=1e-4)
    view = results_of(root)
    assert len(view["runs"]) == 8
    assert sum(run["search"]["best"] for run in view["runs"]) == 2
    assert view["baseline"]["n"] == 10


def test_a_resumed_search_generates_nothing_again(root, subject, judge, monkeypatch):
    first = steer(root, subject, judge, layers="1")
    before = (root / "experiments/moods/steering" / TRAIT / "results.json").read_text()
    monkeypatch.setattr("residuum.generation.continue_prompts", None)
    again = steer(root, subject, judge, layers="1")
    assert again["layers"] == first["layers"]
    assert (root / "experiments/moods/steering" / TRAIT / "results.json").read_text() == before


def test_the_reported_number_comes_from_questions_the_search_never_saw(root, subject, judge):
    out = steer(root, subject, judge, layers="1-2", holdout=0.4, controls=2)
    view = results_of(root)
    assert {run["split"] for run in view["runs"]} == {"search", "report"}
    assert {run["result"]["n"] for run in view["runs"] if run["split"] == "report"} == {4}
    assert out["best"]["held_out"]
    assert out["best"]["n"] == 4
    assert len(view["baselines"]) == 2
    assert len(view["controls"]) == 2
    assert out["best"]["beyond_random"] is not None


def test_the_negative_direction_suppresses_the_trait(root, subject, judge):
    out = steer(root, subject, judge, layers="1", search=SearchConfig(search="bracket", steps=5, direction="negative"))
    assert all(step["coefficients"][0] < 0 for step in out["layers"][0]["steps"])
    assert out["best"]["trait_mean"] < out["baseline"]["trait_mean"] - 20


def test_other_traits_can_be_judged_on_the_same_answers(root, subject, judge):
    search = SearchConfig(search="bracket", steps=5, direction="negative")
    out = steer(root, subject, judge, layers="1", search=search, also_judge=("mood/gloomy",))
    assert out["cross"][0]["judged_trait"] == "mood/gloomy"
    assert out["cross"][0]["delta"] > 20
    assert results_of(root)["cross"][0]["delta"] == pytest.approx(out["cross"][0]["delta"], abs=1e-3)


def test_sampled_rollouts_are_honoured_and_greedy_ones_are_not_counted_twice(root, subject, judge):
    drawn = Generation(max_new_tokens=12, temperature=1.0, rollouts=3)
    out = steer(root, subject, judge, layers="1", find_coef=False, coefficients=(1.0,), subset=2, generation=drawn)
    assert out["best"]["n"] == 6
    with pytest.warns(SteeringWarning, match="--rollouts"):
        out = steer(root, subject, judge, layers="1", find_coef=False, coefficients=(1.0,), subset=2, generation=Generation(max_new_tokens=12, rollouts=3))  # fmt: skip
    assert out["best"]["n"] == 2


def test_ablation_has_no_coefficient(root, subject, judge):
    out = steer(root, subject, judge, operator="ablate", multi_layer=True)
    assert results_of(root)["runs"][0]["config"]["operator"] == "ablate"
    assert out["best"]["layers"] == [0, 1, 2, 3]


def test_broken_text_is_warned_about(root, subject, judge):
    with pytest.warns(SteeringWarning, match="below 50 in 1 of 1 runs.* The best run is one of them"):
        steer(root, subject, judge, layers="1", find_coef=False, coefficients=(40.0,))


def test_broken_text_is_warned_about_when_a_better_run_is_whole(root, subject, judge):
    with pytest.warns(SteeringWarning, match="below 50 in 1 of 2 runs") as caught:
        out = steer(root, subject, judge, layers="1", find_coef=False, coefficients=(0.1, 40.0))
    assert out["best"]["coherence_mean"] > 70
    assert "The best run" not in " ".join(str(warning.message) for warning in caught)


def test_what_a_forced_run_replaces_is_kept_if_asked_for(root, subject, judge):
    fixed = {"layers": "1", "find_coef": False, "coefficients": (1.0,)}
    steer(root, subject, judge, **fixed)
    before = {path.name: path.read_text() for path in (root / "runs/units/steer").glob("*/*.json")}
    config = EvaluateConfig(method="mean_diff", controls=0, generation=SHORT, **fixed)
    evaluate(Experiment(root, "moods"), SOURCE, config=config, model=subject, judge=judge, force=True, keep_previous=True)  # fmt: skip
    kept = {path.name.removesuffix(".prev"): path.read_text() for path in (root / "runs/units/steer").glob("*/*.prev")}
    assert kept == before
    assert len(results_of(root)["runs"]) == 1


def test_vectors_of_another_width_are_refused_before_the_model_is_read(root, judge):
    with pytest.raises((ModelError, HookError), match="has a hidden size of 48") as caught:
        evaluate(Experiment(root, "moods"), SOURCE, config=EvaluateConfig(method="mean_diff", layers="0"), model=str(narrow(root)), judge=judge)  # fmt: skip
    assert "48" in str(caught.value)


def shallow(root: Path) -> Path:
    """The subject without its last two layers, beside vectors for all four."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(root / "models/subject")
    model.model.layers = model.model.layers[:2]
    model.config.num_hidden_layers = 2
    model.save_pretrained(root / "shallow")
    AutoTokenizer.from_pretrained(root / "models/subject").save_pretrained(root / "shallow")
    return root / "shallow"


@pytest.mark.filterwarnings("ignore::residuum.steering.traits.SteeringWarning")
@pytest.mark.parametrize(("layers", "steered"), [("all", [0, 1]), ("1-3", [1]), ("50%-100%", [1])])
def test_a_range_of_layers_is_cut_to_the_model_that_is_steered(root, judge, layers, steered):
    out = steer(root, str(shallow(root)), judge, layers=layers, find_coef=False, coefficients=(1.0,), subset=2)
    assert [row["label"] for row in out["layers"]] == [f"L{layer} c1" for layer in steered]
    assert ("do not exist in a model of 2 and are left out" in " ".join(out["notes"])) == (layers == "1-3")


def test_a_layer_named_by_its_number_must_exist_in_the_model_that_is_steered(root, judge):
    with pytest.raises(UsageError, match="layer 3 does not exist; the model has layers 0 to 1"):
        steer(root, str(shallow(root)), judge, layers="1,3")


def narrow(root: Path) -> Path:
    """A checkpoint whose config says another width; its weights are never looked at."""
    target = root / "narrow"
    shutil.copytree(root / "models/subject", target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "hidden_size": 48}))
    return target
