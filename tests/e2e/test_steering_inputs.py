"""What users get wrong: one sentence, the right exit code, and never a model loaded or a judge paid first."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from residuum.steering.vectors import find_vectors
from residuum.store import Store
from steering_lab import BASE, BRIEF, TRAIT, call, local, results_of


@pytest.fixture
def _no_model(monkeypatch):
    """Loading a model, or asking a judge, would be too late."""

    def too_late(*_, **__):
        raise AssertionError("too late")

    monkeypatch.setattr("residuum.models.handles.ModelHandle.__init__", too_late)
    monkeypatch.setattr("residuum.steering.judge.panel.Panel.probe", too_late)


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--layers", "20-5"), "20-5 runs backwards"),
        (("--layers", "1,,2"), "empty part"),
        (("--layers", "one"), "'one' is no layer"),
        (("--layers=-1",), "is no layer"),
        (("--layers", "9"), "layers 0 to 3"),
        (("--layers", "7-9"), "no layer is left"),
        (("--method", "rfm"), "mean_diff (residual)"),
        (("--component", "attention"), "attn_out"),
        (("--component", "attn_out"), "no vectors of method mean_diff for attn_out"),
        (("--subset", "0"), "--subset is at least 1"),
        (("--rollouts", "0"), "--rollouts is at least 1"),
        (("--temperature=-1",), "--temperature"),
        (("--temperature", "nan"), "--temperature"),
        (("--no-find-coef", "--coefficients", "1,x"), "'1,x'"),
        (("--no-find-coef", "--coefficients", "nan"), "--coefficients"),
        (("--multi-layer", "--layers", "1-3", "--no-find-coef", "--coefficients", "1,2"), "3 layers at once but 2 coefficients"),
        (("--judge", "gemeni"), "gemini"),
        (("--judge", "gemini"), "GEMINI_API_KEY is not set"),
        (("--judge", "openai"), "OPENAI_API_KEY is not set"),
        (("--judge", "openai-compatible", "--judge-model", "m"), "--judge-base-url"),
        (("--judge", "hf"), "--judge-model"),
        (("--judge", "replay"), "--judge-log"),
        (("--judge-scoring", "guess"), "letters"),
        (("--search", "grid"), "bracket"),
        (("--direction", "up"), "negative"),
        (("--positions", "everywhere"), "response"),
        (("--operator", "multiply"), "ablate"),
        (("--holdout", "1.5"), "--holdout"),
        (("--search-steps", "0"), "--search-steps"),
        (("--min-coherence", "120"), "--min-coherence"),
        (("--batch-layers", "many"), "--batch-layers"),
        (("--prompts-file", "nowhere.json"), "nowhere.json"),
        (("--trait", "cheerful"), "category/name"),
        (("--also-judge", "mood/unknown"), "unknown"),
        (("--experiment", "nowhere"), "no such experiment"),
        (("--vector-from-trait", "moods/cheerful"), "experiment/category/trait"),
        (("--vector-from-trait", "moods"), "experiment/category/trait"),
        (("--vector-from-trait", "moods/mood/sleepy"), "there are no vectors"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_a_mistake_is_told_in_a_sentence_before_anything_is_loaded(root, capsys, words, said):
    assert call(*BASE, *words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize("name", ["../../etc", "/etc", "a/../../b", "..", "x\x00y", "~root", "a b"])
@pytest.mark.parametrize("option", ["--experiment", "--vector-from-trait", "--trait", "rebuild"])
def test_names_cannot_lead_out_of_their_folder(root, capsys, name, option):
    if option == "rebuild":
        code = call("steer", "rebuild", "--experiment", "moods", "--trait", f"mood/{name}", "--apply")
    else:
        value = name if option == "--experiment" else f"moods/mood/{name}" if option == "--vector-from-trait" else f"mood/{name}"  # fmt: skip
        code = call(*BASE, option, value)
    assert code == 2
    assert "no name of a" in capsys.readouterr().err


@pytest.mark.usefixtures("_no_model")
def test_an_experiment_that_names_no_model_says_how_to_name_one(root, capsys):
    (root / "experiments/moods/config.json").unlink()
    assert call(*BASE) == 2
    error = capsys.readouterr().err
    assert "--model" in error
    assert "config.json" in error


def spoil(root, layer, values):
    """Replace one vector, and forget its hash."""
    from safetensors.torch import save_file

    found = find_vectors(root / "experiments/moods/extraction" / TRAIT, "mean_diff", "residual")
    save_file({"vector": values}, found.files[layer])
    metadata = found.files[layer].with_name("metadata.json")
    content = json.loads(metadata.read_text())
    for key in ("sha256", "raw_norm"):
        content["layers"][str(layer)].pop(key)
    metadata.write_text(json.dumps(content))


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize(
    ("values", "said"),
    [(torch.full((64,), torch.nan), "NaN"), (torch.ones(2, 64), "shape [2, 64]"), (torch.zeros(64), "all zero")],
)
def test_a_vector_that_is_none_is_refused(root, capsys, values, said):
    spoil(root, 1, values)
    assert call(*BASE, "--layers", "1") == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize("layers", [[0, 1], {"1": 0.5}])
def test_metadata_of_another_shape_are_not_relied_on(root, layers):
    found = find_vectors(root / "experiments/moods/extraction" / TRAIT, "mean_diff", "residual")
    metadata = found.files[1].with_name("metadata.json")
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "layers": layers}))
    assert call(*BASE, "--layers", "1", "--dry-run") == 0


def test_a_zero_vector_among_others_is_left_out_with_a_warning(root, mood_world, capsys):
    spoil(root, 1, torch.zeros(64))
    assert call(*BASE, "--layers", "1-2", "--no-find-coef", *BRIEF, *local(mood_world)) == 0
    assert "all zero and left out" in capsys.readouterr().err
    assert [run["config"]["layers"] for run in results_of(root)["runs"]] == [[2]]


def test_a_vector_of_another_size_is_refused_before_the_weights_are_read(root, mood_world, capsys):
    spoil(root, 1, torch.ones(48))
    assert call(*BASE, "--layers", "1", *local(mood_world)) == 2
    assert "48 numbers, but subject has a hidden size of 64" in capsys.readouterr().err


def drop(root, layer):
    find_vectors(root / "experiments/moods/extraction" / TRAIT, "mean_diff", "residual").files[layer].unlink()


def test_a_missing_vector_is_an_error_if_named_and_a_note_in_a_range(root, mood_world, capsys):
    drop(root, 2)
    assert call(*BASE, "--layers", "2") == 2
    assert "layer 2 has no vector; there are vectors for layers 0-1, 3" in capsys.readouterr().err
    assert call(*BASE, "--layers", "1-9", "--no-find-coef", *BRIEF, *local(mood_world)) == 0
    out = capsys.readouterr().out
    assert "layers 2 have no vector and are left out" in out
    assert "layers 4-9 do not exist in a model of 4 and are left out" in out


def test_an_incremental_vector_needs_the_layer_below(root, capsys):
    drop(root, 1)
    assert call(*BASE, "--layers", "2", "--incremental") == 2
    assert "--incremental needs the vector of layer 1" in capsys.readouterr().err


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[]", "object with questions"),
        ({"eval_prompt": "{question} {answer}"}, "questions"),
        ({"questions": [], "eval_prompt": "{question} {answer}"}, "empty list"),
        ({"questions": "why?", "eval_prompt": "{question} {answer}"}, "must be a list"),
        ({"questions": ["why?", 3], "eval_prompt": "{question} {answer}"}, "questions[1]"),
        ({"questions": ["why?", " "], "eval_prompt": "{question} {answer}"}, "is empty"),
        ({"questions": ["why?"], "eval_prompt": "{question}"}, "{answer}"),
        ({"questions": ["why?"], "eval_prompt": "{answer}"}, "{question}"),
        ({"questions": ["why?"], "eval_prompt": "{question} {answer} {mood}"}, "unknown placeholder {mood}"),
        ({"questions": ["why?"], "eval_prompt": 7}, "must be a text"),
        ({"questions": ["why?"], "eval_prompt": "{question} {answer}", "direction": "up"}, "direction"),
    ],
)
def test_an_eval_file_that_cannot_be_used_is_named_with_its_field(root, capsys, content, said):
    (root / "bad.json").write_text(content if isinstance(content, str) else json.dumps(content))
    assert call(*BASE, "--prompts-file", "bad.json") == 2
    error = capsys.readouterr().err
    assert said in error
    assert "bad.json" in error


@pytest.mark.usefixtures("_no_model")
def test_an_eval_file_without_prompt_needs_a_definition(root, capsys):
    (root / "datasets/traits" / TRAIT / "definition.txt").unlink()
    (root / "bad.json").write_text(json.dumps({"questions": ["why?"]}))
    assert call(*BASE, "--prompts-file", "bad.json") == 2
    assert "eval_prompt" in capsys.readouterr().err


@pytest.mark.usefixtures("_no_model")
def test_prompts_that_changed_are_told_before_anything_is_loaded(root, capsys):
    place = root / "experiments/moods/steering" / TRAIT / "results.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({"trait": TRAIT, "prompts_file": "old.json", "prompts_hash": "0" * 64, "baseline": None, "runs": []}))  # fmt: skip
    assert call(*BASE, *("--judge", "replay", "--judge-log", "x")) == 2
    assert "belong to other prompts" in capsys.readouterr().err


def test_braces_in_an_eval_prompt_and_in_questions_are_only_braces(root, mood_world):
    content = {
        "questions": ['Is {answer} in {"a": 1}?', "How was the park?"],
        "eval_prompt": 'Like {"score": 50}. {question} {answer} {}',
    }
    (root / "braces.json").write_text(json.dumps(content))
    words = ("--prompts-file", "braces.json", "--no-find-coef", "--layers", "1", *BRIEF)
    assert call(*BASE, *words, *local(mood_world)) in (0, 4)  # our judge may not know what to make of such a prompt
    items = [item for unit in Store(root / "runs").units("steer") for item in unit.value["items"]]
    assert {item["question"] for item in items} == set(content["questions"])


def test_questions_that_repeat_or_were_scenarios_are_warned_about(root, mood_world, capsys):
    scenario = (root / "datasets/traits" / TRAIT / "positive.txt").read_text().splitlines()[0]
    content = json.loads((root / "datasets/traits" / TRAIT / "steering.json").read_text())
    content["questions"] = [scenario, "How was the park?", "How was the park?"]
    (root / "odd.json").write_text(json.dumps(content))
    words = (*BASE, "--prompts-file", "odd.json", "--dry-run")
    assert call(*words) == 0
    error = capsys.readouterr().err
    assert "1 questions repeat earlier ones" in error
    assert "1 of 3 questions are extraction scenarios" in error
    assert call(*words, "--strict-overlap") == 2


def test_one_layer_as_many_and_a_tiny_default_are_warned_about(root, mood_world, capsys):
    spoil(root, 1, torch.randn(64, generator=torch.Generator().manual_seed(0)) / 1000)
    assert call(*BASE, "--layers", "1", "--multi-layer", "--no-find-coef", *BRIEF, *local(mood_world)) == 0
    error = capsys.readouterr().err
    assert "steers that layer alone" in error
    assert "default coefficient 2 is tiny" in error


def test_a_range_of_layers_given_twice_counts_once(root, capsys):
    assert call(*BASE, "--layers", "1,1,2", "--dry-run") == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["layers"] == [1, 2]
    assert "given twice" in " ".join(plan["notes"])


def test_a_port_that_is_none_is_told_before_the_model_is_loaded(capsys):
    assert call("steer", "serve-judge", "--model", "nowhere", "--port", "70000") == 2
    assert "--port is between" in capsys.readouterr().err


def test_overwrite_without_apply_and_loss_without_leave_are_refused(root, mood_world, capsys):
    assert call(*BASE, "--layers", "1", "--no-find-coef", *BRIEF, *local(mood_world)) == 0
    rebuild = ("steer", "rebuild", "--experiment", "moods", "--trait", TRAIT)
    assert call(*rebuild, "--overwrite") == 2
    assert "--overwrite needs --apply" in capsys.readouterr().err
    shutil.rmtree(root / "runs/units")
    assert call(*rebuild, "--apply", "--overwrite") == 2
    assert "--allow-loss" in capsys.readouterr().err
    assert len(results_of(root)["runs"]) == 1
    assert call(*rebuild, "--apply", "--overwrite", "--allow-loss") == 0
    assert (root / "experiments/moods/steering" / TRAIT / "results.json.bak").exists()


def test_a_trait_without_results_cannot_be_rebuilt_reported_or_judged_again(root, mood_world, capsys):
    place = ("--experiment", "moods", "--trait", "mood/gloomy")
    assert call("steer", "rebuild", *place) == 2
    assert call("steer", "report", *place) == 2
    assert call("steer", "rescore", *place, *local(mood_world)) == 2
    assert "Traceback" not in capsys.readouterr().err
