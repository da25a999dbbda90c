"""Unlearning from data to checkpoint: pairing, reference, output folders, refusals."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import residuum
from residuum.data.jsonfiles import DataWarning
from residuum.data.prompts import ChatFormat, RawFormat
from residuum.data.tofu import QA
from residuum.errors import DataError, Diverged, InputError, UnknownName, UsageError
from residuum.models.loading import load
from residuum.training.losses import mean_kl, sequence_nll
from residuum.training.methods import METHODS, make_method, npo_loss
from residuum.training.pairs import alternate_items, check_apart
from residuum.training.unlearn import Unlearning, unlearn
from trainable import (
    ALTERNATES,
    FORGET,
    IDK,
    QUICK,
    RETAIN,
    RMU,
    SMALL,
    draw,
    manifest,
    saved,
    tiny_lm,
    weights,
    whole_row,
)

# --- pairing ----------------------------------------------------------------------------------------------------------


def test_batches_are_a_function_of_seed_and_epoch(lm):
    assert draw(lm).epoch(3) == draw(lm).epoch(3)
    assert draw(lm).epoch(3) != draw(lm).epoch(4)
    assert draw(lm).epoch(3) != draw(lm, seed=1).epoch(3)


def test_every_forget_row_comes_once_in_an_epoch_and_brings_a_retain_row(lm):
    pairs = draw(lm, batch_size=3).epoch(0)
    expected = {ChatFormat().encode(lm.tokenizer, row.question, row.answer) for row in FORGET}
    seen = Counter(row for batch in pairs for row in batch.answer)
    assert set(seen) == expected
    assert set(seen.values()) == {1}
    assert [len(batch.answer) for batch in pairs] == [len(batch.retain) for batch in pairs] == [3, 1]


def test_retain_rows_and_idk_lines_are_drawn_anew_in_every_epoch(lm):
    source = draw(lm)
    retain = {row for epoch in range(20) for batch in source.epoch(epoch) for row in batch.retain}
    idk = {row for epoch in range(40) for batch in source.epoch(epoch) for row in batch.preferred}
    assert len(retain) == len(RETAIN)
    assert len(idk) == len(FORGET) * len(IDK)


def test_the_format_is_drawn_for_every_row(lm):
    source = draw(lm, forms=(RawFormat(), ChatFormat()))
    seen = {row for epoch in range(20) for batch in source.epoch(epoch) for row in batch.answer}
    assert len(seen) == 2 * len(FORGET)


def test_each_alternate_is_a_row_of_its_own(lm):
    items = alternate_items(FORGET, ALTERNATES)
    assert len(items) == len(ALTERNATES)
    assert sum(len(batch.preferred) for batch in draw(lm, items=items).epoch(0)) == len(ALTERNATES)


def test_questions_without_an_alternate_are_counted():
    with pytest.warns(DataWarning, match="1 of 4 forget questions"):
        alternate_items(FORGET, [row for row in ALTERNATES if row["question"] != FORGET[0].question])


def test_alternates_of_other_questions_are_refused():
    with pytest.raises(DataError, match="other questions"):
        alternate_items([QA("Who?", "Me.")], ALTERNATES)


def test_rows_in_both_sets_are_named():
    with pytest.raises(DataError, match=r"1 of 4 .*forget row 2 is retain row 6 \('Where was Brook born"):
        check_apart(FORGET, [*RETAIN, FORGET[1]])


# --- the objective ----------------------------------------------------------------------------------------------------


def test_the_precomputed_reference_is_the_start_model(lm):
    model = lm.model.double()
    objective = Unlearning(make_method("npo", {"alpha": 2.0}), lm, draw(lm), epochs=2)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    batch = objective.batches(1)[0]
    now = objective.losses(model, batch)
    with torch.no_grad():
        model.lm_head.weight.div_(1.1)
    start = torch.cat([sequence_nll(*whole_row(model, row))[0] for row in batch.answer])
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    logits = [whole_row(model, row) for row in batch.answer]
    singles = [npo_loss(*logits[i], start[i : i + 1], beta=0.1) for i in range(len(logits))]
    assert now["forget"].item() == pytest.approx(torch.stack(singles).mean().item(), rel=1e-5)


def test_rmu_with_a_kl_retain_term_compares_the_right_rows(lm):
    model = lm.model.double()
    objective = Unlearning(make_method("rmu", {**RMU, "retain_loss": "kl"}), lm, draw(lm), epochs=1)
    batch = objective.batches(0)[0]
    assert objective.losses(model, batch)["retain"].item() == pytest.approx(0, abs=1e-12)
    start = [whole_row(model, row) for row in batch.retain]
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    singles = [mean_kl(*whole_row(model, row), before) for row, (before, _) in zip(batch.retain, start, strict=True)]
    counts = [len(row.labels) for row in batch.retain]
    expected = sum(n * s.item() for n, s in zip(counts, singles, strict=True)) / sum(counts)
    assert objective.losses(model, batch)["retain"].item() == pytest.approx(expected, rel=1e-9)


def test_published_losses_see_prompt_and_padding(lm):
    model = lm.model.double()
    batch = draw(lm).epoch(0)[0]
    ours, published = (
        Unlearning(make_method("undial", {"compat": compat}), lm, draw(lm), epochs=1).losses(model, batch)["forget"]
        for compat in (None, "published")
    )
    assert abs(ours.item() - published.item()) > 1e-3


# --- from settings to a folder ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compat", [None, "published"])
@pytest.mark.parametrize("retain_loss", ["nll", "kl"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_ends_in_a_loadable_checkpoint(lm, tmp_path, method, retain_loss, compat):
    extra = {**SMALL, "epochs": 1, "alpha": 1.0, "retain_loss": retain_loss, "compat": compat} | (
        RMU if method == "rmu" else {}
    )
    folder = unlearn(method, model=lm, out=tmp_path / method, **QUICK, **extra)
    assert load(folder, device="cpu").weights_hash != lm.weights_hash
    said = manifest(folder)
    assert said["job"]["method"] == method
    assert set(said["losses"]["last"]) >= {"forget", "retain", "total"}
    assert said["provenance"]["weights"] == lm.weights_hash
    assert not (folder / "checkpoints").exists()


def test_the_public_name_is_the_function():
    assert residuum.unlearn is unlearn


def test_a_loaded_model_stays_as_it_is(lm, tmp_path):
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    unlearn("graddiff", model=lm, out=tmp_path / "out", **QUICK, **SMALL)
    assert all(torch.equal(tensor, before[name]) for name, tensor in lm.model.state_dict().items())


def test_without_a_folder_the_grammar_gives_the_name(lm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = unlearn("npo", model=lm, beta=0.1, alpha=2.5, **QUICK, **SMALL)
    assert str(folder) == "models/npo_lr1e3_b01_a2.5_ep2"


def test_a_finished_model_is_not_made_again(lm, tmp_path):
    settings = {"model": saved(lm, tmp_path / "start"), "out": tmp_path / "out", **QUICK, **SMALL}
    folder = unlearn("npo", **settings)
    before = (folder / "manifest.json").stat().st_mtime_ns
    unlearn("npo", **settings)
    assert (folder / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("change", "message"), [({"beta": 0.2}, "beta: 0.1 there, 0.2 here"), ({"retain": RETAIN[1:]}, "data")]
)
def test_a_folder_of_other_settings_is_refused(lm, tmp_path, change, message):
    unlearn("npo", model=lm, out=tmp_path / "out", **QUICK, **SMALL)
    with pytest.raises(InputError, match=message):
        unlearn("npo", model=lm, out=tmp_path / "out", **{**QUICK, **SMALL, **change})


def test_a_checkpoint_that_was_not_trained_here_is_never_overwritten(lm, tmp_path):
    folder = saved(lm, tmp_path / "precious")
    with pytest.raises(InputError, match="not trained here"):
        unlearn("npo", model=lm, out=folder, **QUICK, **SMALL)


def test_the_same_seed_gives_the_same_weights_and_another_one_does_not(lm, tmp_path):
    first, again, other = (
        weights(unlearn("idkdpo", model=lm, out=tmp_path / name, seed=seed, **QUICK, **SMALL))
        for name, seed in (("first", 0), ("again", 0), ("other", 1))
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_another_seed_is_another_control_vector(lm, tmp_path):
    folder = unlearn("rmu", model=lm, out=tmp_path / "out", seed=5, **RMU, **QUICK, **SMALL)
    assert manifest(folder)["job"]["seed"] == 5


def test_gradient_checkpointing_changes_nothing_but_memory(lm, tmp_path):
    plain, saving = (
        weights(unlearn("npo", model=lm, out=tmp_path / str(flag), gradient_checkpointing=flag, **QUICK, **SMALL))
        for flag in (False, True)
    )
    for name in plain:
        torch.testing.assert_close(plain[name], saving[name], atol=1e-6, rtol=0)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "change", "error", "message"),
    [
        ("npoo", {}, UnknownName, "Nearest: npo"),
        ("npo", {"lr": 0.0}, UsageError, "learning rate"),
        ("npo", {"lr": -1e-5}, UsageError, "learning rate"),
        ("npo", {"forget": []}, DataError, "forget set is empty"),
        ("npo", {"retain": []}, DataError, "retain set is empty"),
        ("npo", {"retain": FORGET}, DataError, "forget row 1 is retain row 1"),
        ("graddiff", {"beta": 0.1}, UsageError, "graddiff has no option beta"),
        ("npo", {"epoch": 3}, UsageError, "Did you mean epochs"),
        ("npo", {"batch_size": 0}, UsageError, "batch_size must be at least 1"),
        ("npo", {"format": "chatt"}, UsageError, "Did you mean chat"),
        ("rmu", {"layer": 2}, UsageError, "layer 2: the model has layers 0 to 1"),
        ("rmu", {"layer": 1, "lora_rank": 2, "trainable": "model"}, UsageError, "either lora_rank or trainable"),
        ("altpo", {"alternates": None}, UsageError, "residuum data alternates"),
        ("npo", {"optimizer": "adam"}, UnknownName, "adamw"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_and_leaves_the_folder_free(lm, tmp_path, method, change, error, message):
    with pytest.raises(error, match=message):
        unlearn(method, model=lm, out=tmp_path / "out", **{**QUICK, **SMALL, **change})
    unlearn("npo", model=lm, out=tmp_path / "out", **QUICK, **SMALL)


def test_a_tokenizer_without_chat_template_is_told_about_the_raw_format(tmp_path):
    bare = tiny_lm(chat_template=None)
    with pytest.raises(InputError, match="--format raw"):
        unlearn("npo", model=bare, out=tmp_path / "out", **QUICK, **SMALL)
    unlearn("npo", model=bare, out=tmp_path / "out", format="raw", **QUICK, **SMALL)


def test_a_tokenizer_without_pad_token_will_do(lm, tmp_path):
    lm.tokenizer.pad_token = None
    start = saved(lm, tmp_path / "start")
    folder = unlearn("npo", model=start, out=tmp_path / "out", **QUICK, **SMALL)
    assert load(folder, device="cpu").model.config.vocab_size == lm.model.config.vocab_size


def test_a_diverging_run_names_the_step(lm, tmp_path):
    with pytest.raises(Diverged, match=r"out: the loss is nan at step \d+ of 8"):
        unlearn("graddiff", model=lm, out=tmp_path / "out", **{**QUICK, **SMALL, "lr": 1e30, "epochs": 4})
