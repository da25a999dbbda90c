"""The other parts in a sweep: meta-evaluation, RTT and steering, each over models. Slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commanding import call
from sweeping import unit_files

pytestmark = pytest.mark.slow


def table(runs: Path) -> list[dict]:
    return json.loads((runs / "sweeps/parts/table.json").read_text())


def test_rtt_and_the_values_of_the_meta_evaluation_are_swept(tiny_world, tmp_path):
    plan, runs = tmp_path / "PLAN.toml", tmp_path / "runs"
    full, retain = tiny_world.model("full"), tiny_world.model("retain90")
    plan.write_text(f"""
        name = "parts"
        do = ["meta", "rtt"]
        models = ["{tiny_world.model("base")}"]
        full_model = "{full}"
        retain_model = "{retain}"
        data_dir = "{tiny_world.data}"
        engine = {{ name = "serial" }}
        [meta]
        metrics = ["em"]
        attacks = ["relearning"]
        fluency = false
        relearning = {{ lr = 1e-4 }}
        [rtt]
        dataset = "{tiny_world.data}"
        model = "{full}"
        naive_model = "{retain}"
        rows_per_author = 5
        num_total_splits = 2
        ft = {{ lrs = [1e-3], epochs_lst = [1], num_splits = 1, warmup_steps = 0 }}
    """)
    assert call("sweep", "run", plan, "--runs", runs) == 0
    rows = {row["model"]: row for row in table(runs)}
    assert rows["base"]["rtt_status"] == "complete"
    assert rows["base"]["rtt_a"] < rows["base"]["rtt_c"]
    assert rows["base"]["em.relearning"] != rows["base"]["em.before"]

    from residuum.meta.attacks import run_robustness
    from residuum.meta.bench import Bench, Relearning

    before = set(unit_files(runs))
    bench = Bench(str(tiny_world.data), str(full), str(retain), str(runs), device="cpu", relearning=Relearning(lr=1e-4))
    run_robustness(
        bench,
        [str(tiny_world.model("base"))],
        attacks=["relearning"],
        metrics=["em"],
        thresholds={"em": None},
        fluency=False,
    )
    new = [path for path in runs.glob("units/meta_values/*/*.json") if path.stem not in before]
    assert len(new) == 1, "only the utility of the full model was not in the sweep"


def test_steering_is_swept(root, mood_world):
    plan, runs = root / "PLAN.toml", root / "runs"
    plan.write_text(f"""
        name = "parts"
        do = ["steer"]
        models = ["{mood_world.subject}"]
        engine = {{ name = "serial" }}
        [steer]
        experiment = "moods"
        vector_from_trait = "moods/mood/cheerful"
        layers = "2"
        method = "mean_diff"
        controls = 0
        find_coef = false
        coefficients = [2.0]
        judge = "hf"
        judge_options = {{ model = "{mood_world.judge()}", device = "cpu" }}
        generation = {{ max_new_tokens = 24 }}
    """)
    assert call("sweep", "run", plan, "--runs", runs) == 0
    (row,) = table(runs)
    assert row["steer_baseline"] is not None
    before = unit_files(runs)
    assert call("sweep", "run", plan, "--runs", runs) == 0
    assert unit_files(runs) == before
