"""Membership attacks on data of one's own, and fluency with a classifier of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evidential import NO_CLASSIFIER
from residuum.errors import ModelError, UsageError

# Fluency


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, tiny_world) -> Path:
    """A sequence classifier with random weights, for want of the published one."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    folder = tmp_path_factory.mktemp("classifier")
    tokenizer = AutoTokenizer.from_pretrained(tiny_world.model("base"))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=4, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_fluency_enters_utility_when_its_classifier_can_be_loaded(evaluate, classifier):
    found = evaluate("base", metrics="utility,fluency,utility_rel,model_utility", fluency_model=str(classifier))
    parts = (found["model_utility"].value, found["fluency"].value)
    assert found["utility"].value == pytest.approx(2 / (1 / parts[0] + 1 / parts[1]), abs=1e-9)
    assert found.record["utility_parts"] == ["model_utility", "fluency"]


def test_another_classifier_in_the_same_folder_is_asked_anew(evaluate, classifier, tmp_path):
    import torch
    from transformers import AutoModelForSequenceClassification

    folder = shutil.copytree(classifier, tmp_path / "classifier")
    before = evaluate("base", metrics="fluency", fluency_model=str(folder))["fluency"].value
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias[0] += 3
    model.save_pretrained(folder)
    assert evaluate("base", metrics="fluency", fluency_model=str(folder))["fluency"].value > before


def test_without_the_classifier_utility_is_model_utility_and_says_so(base):
    assert base["utility"].value == base["model_utility"].value
    assert base.record["utility_parts"] == ["model_utility"]
    assert "fluency" in base.record["left_out"]
    assert "without fluency" in base["utility"].notes[0]


def test_fluency_asked_for_by_name_is_an_error_without_its_classifier(evaluate):
    with pytest.raises(ModelError, match="fluency classifier"):
        evaluate("base", metrics=["fluency"], fluency_model=NO_CLASSIFIER)


# Membership attacks on data of one's own


def test_attacks_on_two_local_files(base, evaluate, tiny_world):
    found = evaluate(
        "base", data=None, metrics="mia", retain=None, full=None, members=tiny_world.data / "forget10.jsonl",
        nonmembers=tiny_world.data / "holdout10.jsonl",
    )  # fmt: skip
    assert set(found) == {"mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp", "mia_gradnorm"}
    assert found["mia_loss"].value == base["mia_loss"].value


def test_attacks_on_plain_texts(evaluate):
    members, others = [{"text": "Ada was here."}, {"text": "So she was."}], [{"text": "Nobody was."}]
    found = evaluate("base", data=None, metrics="mia_loss", members=members, nonmembers=others)
    assert len(found["mia_loss"].values) == 3


def test_an_auc_far_below_chance_is_flagged_as_over_unlearned(evaluate, tiny_world):
    # The full model knows the "held-out" rows here, as if it had been driven away from the forget set.
    found = evaluate(
        "full", metrics="mia_loss", members=tiny_world.data / "holdout10.jsonl",
        nonmembers=tiny_world.data / "forget10.jsonl",
    )  # fmt: skip
    assert found["mia_loss"].value < 0.25
    assert "over-unlearned" in found["mia_loss"].notes[0]


def test_two_files_of_one_name_are_told_apart(evaluate, tiny_world, tmp_path):
    for folder, split in (("in", "forget10"), ("out", "holdout10")):
        (tmp_path / folder).mkdir()
        shutil.copy(tiny_world.data / f"{split}.jsonl", tmp_path / folder / "rows.jsonl")
    given = {"members": tmp_path / "in" / "rows.jsonl", "nonmembers": tmp_path / "out" / "rows.jsonl"}
    found = evaluate("base", data=None, metrics="mia_loss", retain=None, full=None, **given)
    assert set(found.record["data"]) == {"rows (members)", "rows (nonmembers)"}
    assert len(set(found.record["data"].values())) == 2


def test_members_need_nonmembers(evaluate, tiny_world):
    with pytest.raises(UsageError, match="go together"):
        evaluate("base", metrics="mia", members=tiny_world.data / "forget10.jsonl")
