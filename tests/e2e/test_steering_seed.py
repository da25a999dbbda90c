"""The commands that users of the older scripts know, over the real client against our judge server."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch

from judging import serving
from residuum.steering.experiments import Experiment
from residuum.steering.extract import ExtractConfig, extract
from steering_lab import call, results_of


@pytest.fixture(scope="session")
def deep(extracted, mood_world, tmp_path_factory) -> Path:
    """The subject with 24 layers: blocks that add next to nothing between its own, so that it speaks as before."""
    root = tmp_path_factory.mktemp("deep")
    deepen(mood_world.subject, root / "models/subject", 24)
    shutil.copytree(extracted / "datasets", root / "datasets")
    (root / "experiments/gemma-2-2b-it").mkdir(parents=True)
    (root / "experiments/gemma-2-2b-it/config.json").write_text('{"model": "models/subject"}')
    shutil.copytree(root / "datasets/traits/mood/cheerful", root / "datasets/traits/og_10/confidence")
    extract(Experiment(root, "gemma-2-2b-it"), "og_10/confidence", config=ExtractConfig(methods=("probe", "mean_diff")))
    # As if a base model had given them.
    shutil.copytree(root / "experiments/gemma-2-2b-it", root / "experiments/gemma-2-2b-base")
    return root


def deepen(source: Path, target: Path, layers: int) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(source)
    blocks = model.model.layers
    every = layers // len(blocks)
    deep = []
    for index in range(layers):
        block = copy.deepcopy(blocks[index // every])
        if index % every:
            torch.nn.init.normal_(block.self_attn.o_proj.weight, std=1e-4)
            torch.nn.init.normal_(block.mlp.down_proj.weight, std=1e-4)
        block.self_attn.layer_idx = index
        deep.append(block)
    model.model.layers = torch.nn.ModuleList(deep)
    model.config.num_hidden_layers = layers
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source).save_pretrained(target)


@pytest.fixture
def lab(deep, mood_world, tmp_path, monkeypatch):
    """A copy of it to work in, with our judge server where OpenAI's would be."""
    root = tmp_path / "deep"
    shutil.copytree(deep, root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("RESIDUUM_RUNS", str(root / "runs"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")
    with serving(mood_world.judge()) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        yield root


EVALUATE = ("steer", "evaluate", "--experiment", "gemma-2-2b-it", "--vector-from-trait")
OWN = "gemma-2-2b-it/og_10/confidence"
BRIEF = ("--max-new-tokens", "6", "--controls", "0")
"""Only what keeps a test short."""
FEW = ("--subset", "1")


def view_of(root: Path) -> dict:
    return results_of(root, "gemma-2-2b-it", "og_10/confidence")


@pytest.mark.parametrize(
    ("words", "runs", "n"),
    [
        pytest.param((OWN, "--subset", "3", "--search-steps", "1"), 24, 3, id="all layers, three questions"),
        pytest.param(("gemma-2-2b-base/og_10/confidence", "--layers", "10,12", *FEW), 8, 1, id="vectors of another experiment"),
        pytest.param((OWN, "--layers", "10,12,14,16", *FEW), 16, 1, id="listed layers"),
        pytest.param((OWN, "--layers", "5-20", "--search-steps", "1", *FEW), 16, 1, id="a range of layers"),
        pytest.param((OWN, "--no-find-coef", "--coefficients", "50,100,150", *FEW), 72, 1, id="fixed coefficients"),
        pytest.param((OWN, "--no-find-coef", "--layers", "10,12,14,16", "--coefficients", "100", *FEW), 4, 1, id="a sweep with one coefficient"),
        pytest.param((OWN, "--layers", "12,14,16", "--multi-layer", *FEW), 4, 1, id="several layers at once"),
        pytest.param((OWN, "--layers", "12,14,16", "--multi-layer", "--incremental", *FEW), 4, 1, id="incremental"),
        pytest.param((OWN, "--find_coef", "--layers", "16", *FEW), 4, 1, id="underscores"),
        pytest.param(
            (OWN, "--layers", "16", "--coefficients", "2.0", "--method", "mean_diff", "--component", "residual", "--rollouts", "2",
             "--temperature", "0.7", "--judge", "openai", "--subset", "2", "--multi-layer", "--incremental", "--no-find-coef"),
            1, 4, id="every flag",
        ),
    ],
)  # fmt: skip
def test_a_command_of_the_seed_works_with_the_real_client_and_our_server(lab, words, runs, n):
    assert call(*EVALUATE, *words, *BRIEF) == 0
    view = view_of(lab)
    assert len(view["runs"]) == runs
    assert {run["result"]["n"] for run in view["runs"]} == {n}
    assert {run["status"] for run in view["runs"]} == {"ok"}
    assert view["runs"][0]["judge"] == {"provider": "openai", "model": "gpt-4.1-mini", "scoring": "single"}


def test_runs_accumulate_and_the_same_config_overwrites(lab):
    words = (*EVALUATE, OWN, "--no-find-coef", "--layers", "3", *FEW, *BRIEF)
    for coefficients, runs in (("1,2", 2), ("2,3", 3), ("1,2", 3)):
        assert call(*words, "--coefficients", coefficients) == 0
        assert len(view_of(lab)["runs"]) == runs
    assert len(view_of(lab)["baselines"]) == 1


def test_vectors_of_another_experiment_are_named_in_the_run(lab):
    words = (*EVALUATE, "gemma-2-2b-base/og_10/confidence", "--no-find-coef", "--layers", "3", *FEW, *BRIEF)
    assert call(*words) == 0
    assert view_of(lab)["runs"][0]["vector_source"] == "gemma-2-2b-base/og_10/confidence"


def test_several_layers_at_once_share_the_push(lab):
    assert call(*EVALUATE, OWN, "--layers", "12,14,16", "--multi-layer", "--search-steps", "1", *FEW, *BRIEF) == 0
    assert view_of(lab)["runs"][0]["relative_coefficient"] == pytest.approx([1 / 3] * 3, abs=1e-3)


def test_a_key_is_written_nowhere(lab, capsys):
    assert call(*EVALUATE, OWN, "--layers", "3", "--no-find-coef", "--judge-log", "log.jsonl", *FEW, *BRIEF) == 0
    seen = capsys.readouterr()
    assert "sk-loopback" not in seen.out + seen.err
    assert not [path for path in lab.rglob("*") if path.is_file() and b"sk-loopback" in path.read_bytes()]


@pytest.mark.slow
def test_the_quick_start_works_as_it_is_written(lab, capsys):
    """No flag but those of the document: 24 layers, 4 steps, 10 questions, 128 tokens, controls."""
    assert call(*EVALUATE, OWN) == 0
    assert len(view_of(lab)["runs"]) == 24 * 4
    capsys.readouterr()
    assert call("steer", "rebuild", "--experiment", "gemma-2-2b-it", "--trait", "og_10/confidence", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["runs"], made["lost"], made["recovered"]) == (96, [], [])
