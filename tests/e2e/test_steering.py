"""Steering from scenarios to results, with a real small subject and a real small judge."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from judging import serving
from residuum.errors import DataError, HookError, ModelError, Unavailable, UsageError
from residuum.steering.bench import Bench
from residuum.steering.config import EvaluateConfig
from residuum.steering.evaluate import evaluate
from residuum.steering.experiments import Experiment
from residuum.steering.extract import ExtractConfig, extract
from residuum.steering.judge.base import JudgeOptions
from residuum.steering.judge.prompts import COHERENCE
from residuum.steering.rebuild import rebuild
from residuum.steering.results import Results
from residuum.steering.search import SearchConfig
from residuum.steering.settings import Generation, Setting
from residuum.steering.traits import SteeringWarning, load_prompts
from residuum.steering.vectors import Vector, find_vectors
from residuum.store import Store
from steering_lab import SHORT, SOURCE, TRAIT, call, results_of, steer

# Extraction


def test_extraction_writes_vectors_that_tell_the_sides_apart(extracted):
    home = extracted / "experiments/moods/extraction" / TRAIT
    quality = json.loads((home / "subject/vectors/response__5/quality.json").read_text())["rows"]
    by_method = {}
    for row in quality:
        if row["component"] == "residual":
            by_method.setdefault(row["method"], []).append(row["auc"])
    assert all(max(by_method[m]) == 1.0 for m in ("mean_diff", "probe", "pca_diff", "lda"))
    vectors = find_vectors(home, "mean_diff", "residual")
    assert sorted(vectors.files) == [0, 1, 2, 3]
    assert vectors.position == "response[:5]"
    assert vectors.metadata["hidden_size"] == 64
    assert vectors.read(2).norm == pytest.approx(vectors.metadata["layers"]["2"]["norm"], rel=1e-5)


def test_extraction_keeps_responses_with_their_scenario(extracted):
    rows = json.loads((extracted / "experiments/moods/extraction" / TRAIT / "subject/responses/pos.json").read_text())
    assert rows[5]["scenario_idx"] == 5
    assert rows[0]["response"].startswith("the ")


def test_the_same_extraction_again_is_only_read(root, monkeypatch):
    experiment = Experiment(root, "moods")
    config = ExtractConfig(methods=("mean_diff",))
    first = extract(experiment, TRAIT, config=config)
    monkeypatch.setattr("residuum.steering.extract.respond", None)
    assert extract(experiment, TRAIT, config=config) == first


def test_unit_vectors_keep_their_natural_length_beside_them(root):
    experiment = Experiment(root, "moods")
    extract(experiment, TRAIT, config=ExtractConfig(methods=("mean_diff",), position="prompt[-1]", normalize=True))
    found = find_vectors(experiment.extraction(TRAIT), "mean_diff", "residual", position="prompt[-1]").read(1)
    assert found.norm == pytest.approx(1.0)
    assert found.raw_norm > 1.2
    assert found.raw().norm() == pytest.approx(found.raw_norm, rel=1e-5)


def test_vectors_of_the_oldest_layout_are_read(root):
    home = root / "experiments/old/extraction" / TRAIT / "vectors"
    home.mkdir(parents=True)
    for layer in range(4):
        torch.save(torch.randn(64), home / f"mean_diff_layer{layer}.pt")
        torch.save(torch.randn(64), home / f"attn_out_probe_layer{layer}.pt")
    assert sorted(find_vectors(home.parent, "mean_diff", "residual").files) == [0, 1, 2, 3]
    assert find_vectors(home.parent, "probe", "attn_out").read(3).values.shape == (64,)
    with pytest.raises(DataError, match="mean_diff \\(residual\\)"):
        find_vectors(home.parent, "probe", "residual")


def test_a_changed_vector_is_noticed(root):
    from safetensors.torch import save_file

    vectors = find_vectors(root / "experiments/moods/extraction" / TRAIT, "mean_diff", "residual")
    save_file({"vector": torch.randn(64)}, vectors.files[1])
    with pytest.raises(DataError, match="does not match its hash"):
        vectors.read(1)


# Steering works


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
    with pytest.warns(SteeringWarning, match="below 50"):
        steer(root, subject, judge, layers="1", find_coef=False, coefficients=(40.0,))


# Judges that fail half-way


def test_answers_survive_a_judge_that_dies_and_are_only_judged_later(root, subject, mood_world, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    options = {"backoff": 0.01, "retries": 1, "timeout": 5.0}
    config = EvaluateConfig(
        method="mean_diff", controls=0, generation=SHORT, layers="1", find_coef=False, coefficients=(1.0,)
    )
    with serving(mood_world.judge()) as server:
        settings = {
            "config": config,
            "model": subject,
            "judge": "openai",
            "judge_options": JudgeOptions(base_url=server.url, **options),
        }
        # Two calls of the test, twenty of the baseline, then nothing.
        server.faults.extend(["ok"] * 22)
        server.always = "status 500"
        with pytest.raises(Unavailable, match="in a row"):
            evaluate(Experiment(root, "moods"), SOURCE, **settings)
        view = results_of(root)
        assert [run["status"] for run in view["runs"]] == ["judge_failed"]
        server.always = None
        monkeypatch.setattr("residuum.generation.continue_prompts", None)
        out = evaluate(Experiment(root, "moods"), SOURCE, **settings)
    assert out["best"]["n"] == 10
    assert [run["status"] for run in results_of(root)["runs"]] == ["ok"]


def test_a_judge_without_numbers_stops_at_the_baseline(root, subject, mood_world):
    unsure = JudgeOptions(model=str(mood_world.judge("unsure")))
    with pytest.raises(Unavailable, match="low_mass"):
        evaluate(Experiment(root, "moods"), SOURCE, config=EvaluateConfig(method="mean_diff", generation=SHORT), model=subject, judge="hf", judge_options=unsure)  # fmt: skip


# Fits


def test_vectors_of_another_width_are_refused_before_the_model_is_read(root, judge):
    with pytest.raises((ModelError, HookError), match="has a hidden size of 48") as caught:
        evaluate(Experiment(root, "moods"), SOURCE, config=EvaluateConfig(method="mean_diff", layers="0"), model=str(narrow(root)), judge=judge)  # fmt: skip
    assert "48" in str(caught.value)


def narrow(root: Path) -> Path:
    """A checkpoint whose config says another width; its weights are never looked at."""
    target = root / "narrow"
    shutil.copytree(root / "models/subject", target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "hidden_size": 48}))
    return target


# Results


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


# End to end


def test_from_scenarios_to_a_rebuilt_result_on_the_command_line(root, mood_world, capsys):
    """extract, quality, search, results, rebuild: all of it, as a user types it."""
    judge_words = ("--judge", "hf", "--judge-model", str(mood_world.judge()))
    assert (
        call("steer", "extract", "--experiment", "moods", "--trait", "mood/gloomy", "--methods", "mean_diff", "--json")
        == 0
    )
    assert max(row["auc"] for row in json.loads(capsys.readouterr().out)) == 1.0
    words = (
        "steer",
        "evaluate",
        "--experiment",
        "moods",
        "--vector-from-trait",
        "moods/mood/gloomy",
        "--method",
        "mean_diff",
    )
    assert call(*words, *judge_words, "--max-new-tokens", "24", "--layers", "1-2", "--controls", "2", "--json") == 0
    out = json.loads(capsys.readouterr().out)
    assert out["best"]["trait_mean"] > out["baseline"]["trait_mean"] + 30
    place = root / "experiments/moods/steering/mood/gloomy/results.json"
    live = place.read_text()
    place.unlink()
    assert call("steer", "rebuild", "--experiment", "moods", "--trait", "mood/gloomy", "--apply", "--overwrite") == 0
    assert "came back: 8" in capsys.readouterr().out
    assert place.read_text() == live
    assert call("steer", "report", "--experiment", "moods", "--trait", "mood/gloomy") == 0
    page = place.with_name("report.html").read_text()
    assert "Answers before and after" in page
    assert "Random vectors of equal length" in page


def test_a_replayed_evaluation_is_the_same_run(root, mood_world, capsys):
    words = ("steer", "evaluate", "--experiment", "moods", "--vector-from-trait", SOURCE, "--method", "mean_diff", "--layers", "1", "--no-find-coef", "--coefficients", "1", "--controls", "0", "--max-new-tokens", "12", "--json", "--judge-log", "judge.jsonl")  # fmt: skip
    assert call(*words, "--judge", "hf", "--judge-model", str(mood_world.judge()), "--no-judge-cache") == 0
    first = json.loads(capsys.readouterr().out)
    assert call(*words, "--judge", "replay", "--force") == 0
    again = json.loads(capsys.readouterr().out)
    assert again["best"] == first["best"]
    assert again["runs"] == 1


def test_warnings_of_ours_are_shown_as_sentences(root, mood_world, capsys):
    words = ("steer", "evaluate", "--experiment", "moods", "--vector-from-trait", SOURCE, "--layers", "1", "--coefficients", "3", "--search-steps", "1", "--controls", "0", "--max-new-tokens", "8", "--subset", "1", "--judge", "hf", "--judge-model", str(mood_world.judge()))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert call(*words) == 0
    assert "residuum: --coefficients are ignored: adaptive search is on." in capsys.readouterr().err


def test_python_steers_by_name_like_the_command(root, mood_world):
    import residuum

    out = residuum.steer(
        "moods", SOURCE, root=root, judge="hf", judge_options=JudgeOptions(model=str(mood_world.judge())),
        config=EvaluateConfig(method="mean_diff", layers="2", find_coef=False, coefficients=(1.0,), controls=0, generation=SHORT),
    )  # fmt: skip
    assert out["best"]["layers"] == [2]
    assert out["runs"] == len(results_of(root)["runs"]) == 1


def test_a_served_judge_answers_the_official_client_until_it_is_stopped(mood_world):
    import signal
    import subprocess
    import sys

    from openai import OpenAI

    words = ["steer", "serve-judge", "--model", str(mood_world.judge()), "--port", "0"]
    server = subprocess.Popen([sys.executable, "-m", "residuum", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    try:
        url = server.stdout.readline().split()[-1]
        with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            assert [model.id for model in client.models.list()] == ["judge-numbers"]
            reply = client.chat.completions.create(
                model="any", messages=[{"role": "user", "content": "Reply with exactly 57."}], max_tokens=1, logprobs=True, top_logprobs=20
            )  # fmt: skip
        assert len(reply.choices[0].logprobs.content[0].top_logprobs) == 20
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=20) == 130
    finally:
        server.kill()
        server.communicate()


def test_a_port_that_is_taken_is_told(mood_world, capsys):
    with serving(mood_world.judge()) as server:
        port = server.server_address[1]
        assert call("steer", "serve-judge", "--model", mood_world.judge(), "--port", port) == 2
    assert "--port" in capsys.readouterr().err


@pytest.mark.slow
def test_another_seed_is_trained_on_the_spot(tmp_path):
    from residuum.steering.judge.hf import HFJudge
    from residuum.steering.judge.panel import Panel
    from residuum.steering.judge.prompts import build_request, default_trait_prompt
    from residuum.worlds import moods
    from residuum.worlds.steering import build_moods

    world = build_moods(tmp_path / "moods", seed=1)
    template = default_trait_prompt(moods.DEFINITIONS["cheerful"])
    rng = random.Random(0)
    said = [moods.answer(rng, "park", (mood,)) for mood in ("cheerful", "gloomy")]
    for kind in ("numbers", "digits"):
        panel = Panel(HFJudge(JudgeOptions(model=str(world.judge(kind)))))
        panel.probe()
        good, bad = panel.rate([build_request(template, "How was the park?", text) for text in said])
        assert good.score > 80
        assert bad.score < 20
    assert build_moods(tmp_path / "moods", seed=1) == world
