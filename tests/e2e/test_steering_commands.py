"""Steering as users call it: from scenarios to results on the command line, from Python, with a served judge."""

from __future__ import annotations

import json
import random
import signal
import warnings

import pytest

from judging import serving
from residuum.steering.config import EvaluateConfig
from residuum.steering.judge.base import JudgeOptions
from steering_lab import SHORT, SOURCE, call, results_of


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
