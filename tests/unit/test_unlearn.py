"""Unlearning from data to checkpoint: pairing, reference, output folders, refusals, adapters, sweeps."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import residuum
from residuum.data.jsonfiles import DataWarning
from residuum.data.prompts import ChatFormat, RawFormat
from residuum.data.tofu import QA
from residuum.errors import DataError, Diverged, InputError, UnknownName, UsageError
from residuum.models.loading import load
from residuum.training import lora
from residuum.training.alternates import sample_alternates, write_alternates
from residuum.training.finetune import finetune
from residuum.training.losses import mean_kl, mean_nll, sequence_nll
from residuum.training.methods import METHODS, make_method, npo_loss
from residuum.training.pairs import PairDraw, alternate_items, check_apart, idk_items
from residuum.training.relearn import relearn
from residuum.training.sweep import grid, sweep
from residuum.training.unlearn import Unlearning, unlearn
from trainable import ALTERNATES, FORGET, IDK, RETAIN, saved, tiny_lm

QUICK = {"forget": FORGET, "retain": RETAIN, "idk": IDK, "alternates": ALTERNATES, "title": None, "lr": 1e-3}
SMALL = {"epochs": 2, "batch_size": 2, "accumulation": 1}
RMU = {"layer": 1}
CHAT = ChatFormat()


@pytest.fixture
def lm():
    return tiny_lm()


def draw(lm, *, seed=0, items=None, forms=(CHAT,), batch_size=2):
    return PairDraw(items or idk_items(FORGET, IDK), RETAIN, lm.tokenizer, forms, batch_size=batch_size, seed=seed)


def weights(folder):
    return load_file(folder / "model.safetensors")


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


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
    start = torch.cat([sequence_nll(*_whole(model, row))[0] for row in batch.answer])
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    logits = [_whole(model, row) for row in batch.answer]
    singles = [npo_loss(*logits[i], start[i : i + 1], beta=0.1) for i in range(len(logits))]
    assert now["forget"].item() == pytest.approx(torch.stack(singles).mean().item(), rel=1e-5)


def test_rmu_with_a_kl_retain_term_compares_the_right_rows(lm):
    model = lm.model.double()
    objective = Unlearning(make_method("rmu", {**RMU, "retain_loss": "kl"}), lm, draw(lm), epochs=1)
    batch = objective.batches(0)[0]
    assert objective.losses(model, batch)["retain"].item() == pytest.approx(0, abs=1e-12)
    start = [_whole(model, row) for row in batch.retain]
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    singles = [mean_kl(*_whole(model, row), before) for row, (before, _) in zip(batch.retain, start, strict=True)]
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


def _whole(model, row):
    ids = torch.tensor([row.ids])
    labels = torch.tensor([[-100] * row.prompt_length + list(row.labels)])
    return model(input_ids=ids).logits.detach(), labels


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


# --- adapters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_only_the_adapter_is_trained_and_merging_keeps_the_logits(family, tmp_path):
    lm = tiny_lm(family)
    ids = torch.tensor([[1, 5, 9, 12, 40]])
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    adapted = lora.attach(lm.model, 4)
    lm.model = adapted
    from residuum.training.loop import TrainConfig, train

    objective = Unlearning(make_method("npo", {}), lm, draw(lm), epochs=3)
    train(adapted, objective, TrainConfig(epochs=3, lr=1e-2, trainable=lora.ADAPTER_PATTERN), tmp_path, title=None)
    base = {name.replace(".base_layer", ""): tensor for name, tensor in adapted.get_base_model().state_dict().items()}
    assert all(torch.equal(base[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        with_adapter = adapted(input_ids=ids).logits
        with lora.switched_off(adapted) as off:
            without = off(input_ids=ids).logits
        merged = lora.merge(adapted)(input_ids=ids).logits
    assert (with_adapter - without).abs().max() > 1e-3
    torch.testing.assert_close(merged, with_adapter, atol=1e-5, rtol=0)


def test_an_adapter_starts_as_the_model_itself(lm):
    ids = torch.tensor([[1, 5, 9]])
    with torch.no_grad():
        before = lm.model(input_ids=ids).logits
        assert torch.equal(lora.attach(lm.model, 4)(input_ids=ids).logits, before)


@pytest.mark.parametrize("method", ["npo", "undial", "rmu"])
def test_an_adapted_run_ends_in_an_ordinary_checkpoint(lm, tmp_path, method):
    extra = RMU if method == "rmu" else {}
    folder = unlearn(method, model=lm, out=tmp_path / "out", lora_rank=2, **extra, **QUICK, **SMALL)
    changed = {name for name, tensor in weights(folder).items() if not torch.equal(tensor, lm.model.state_dict()[name])}
    assert changed
    assert all("proj" in name for name in changed)
    assert not (folder / "adapter_config.json").exists()


def test_an_adapter_learns_under_gradient_checkpointing(lm, tmp_path):
    plain, saving = (
        weights(
            unlearn(
                "npo", model=lm, out=tmp_path / str(flag), lora_rank=2, gradient_checkpointing=flag, **QUICK, **SMALL
            )
        )
        for flag in (False, True)
    )
    for name in plain:
        torch.testing.assert_close(plain[name], saving[name], atol=1e-6, rtol=0)


def test_an_adapters_reference_is_the_model_with_the_adapter_off(lm):
    model = lm.model
    lm.model = lora.attach(model, 2)
    objective = Unlearning(make_method("undial", {"alpha": 1.0, "retain_loss": "kl"}), lm, draw(lm), epochs=1)
    batch = objective.batches(0)[0]
    assert objective.losses(lm.model, batch)["retain"].item() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        for name, parameter in lm.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    assert objective.losses(lm.model, batch)["retain"].item() > 1e-3


# --- sweeps, fine-tuning, relearning, alternates, quantization --------------------------------------------------------


def test_a_sweep_is_the_whole_grid_by_name():
    members = grid("npo", {"lr": [1e-5, 2e-5], "alpha": [1, 2, 5]}, {"epochs": 5})
    assert len(members) == 6
    assert members["npo_lr2e5_b01_a5_ep5"] == {"epochs": 5, "lr": 2e-5, "alpha": 5}


def test_members_that_would_share_a_folder_are_refused():
    with pytest.raises(UsageError, match="two members"):
        grid("npo", {"gamma": [1, 2]}, {})


def test_one_failing_member_does_not_end_a_sweep(lm, tmp_path):
    common = {key: value for key, value in QUICK.items() if key not in ("lr", "title")} | {"model": lm}
    members = list(sweep("npo", {"lr": [1e-3, -1.0, 1e-4]}, out=tmp_path, fixed=SMALL, **common))
    assert [member.error is None for member in members] == [True, False, True]
    assert "learning rate" in members[1].error
    assert members[2].folder == tmp_path / "npo_lr1e4_b01_a1_ep2"


def test_finetuning_teaches_and_relearning_brings_back(lm, tmp_path):
    settings = {"batch_size": 2, "accumulation": 1, "title": None}
    taught = finetune(model=lm, data=FORGET, out=tmp_path / "taught", lr=1e-2, epochs=15, **settings)
    gone = unlearn("graddiff", model=taught, out=tmp_path / "gone", **{**QUICK, **SMALL, "lr": 3e-3})
    back = relearn(model=gone, data=FORGET, out=tmp_path / "back", lr=1e-2, **settings)
    losses = [_answer_loss(folder) for folder in (taught, gone, back)]
    assert losses[0] < losses[2] < losses[1]


def _answer_loss(folder):
    lm = load(folder, device="cpu")
    rows = [ChatFormat().encode(lm.tokenizer, row.question, row.answer) for row in FORGET]
    return sum(mean_nll(*_whole(lm.model, row)).item() for row in rows)


def test_relearning_has_the_published_defaults(lm, tmp_path):
    said = manifest(relearn(model=lm, data=FORGET, out=tmp_path / "out", title=None))
    expected = {
        "lr": 2e-5, "epochs": 1, "weight_decay": 0.0, "warmup": 0, "accumulation": 4, "max_grad_norm": 1.0,
        "schedule": "linear", "seed": 42,
    }  # fmt: skip
    assert {key: said["config"][key] for key in expected} == expected
    assert said["job"]["batch_size"] == 8
    assert said["job"]["kind"] == "relearn"


def test_unlearning_has_tofus_defaults(lm, tmp_path):
    rows = [replace(FORGET[0], question=f"Where {i}?") for i in range(100)]
    said = manifest(unlearn("npo", model=lm, forget=rows, retain=RETAIN, out=tmp_path / "out", epochs=1, title=None))
    assert said["config"]["lr"] == 1e-5
    assert said["config"]["weight_decay"] == 0.01
    assert said["config"]["warmup"] == 100 // 32
    assert said["losses"]["steps"] == math.ceil(100 / 32)


def test_true_answers_are_no_alternates(lm, tmp_path):
    truth = {"question": FORGET[0].question, "answer": "x"}
    rows, dropped = sample_alternates(lm, [FORGET[0], truth], per_question=3, max_new_tokens=5)
    assert len(rows) + dropped == 6
    assert all(row["alternate"] and row["alternate"] != row["answer"] for row in rows)
    assert len({row["alternate"] for row in rows}) > 1
    path = write_alternates(tmp_path / "alternates.jsonl", rows)
    assert [json.loads(line) for line in path.read_text().splitlines()] == rows


def test_a_quantized_checkpoint_is_smaller_and_gives_the_logits_of_loading_it_so(tmp_path):
    pytest.importorskip("bitsandbytes")
    from residuum.training.quantize import quantize

    start = saved(tiny_lm(), tmp_path / "start")
    made = quantize(start, out=tmp_path / "nf4")
    assert made["bytes_after"] < made["bytes_before"]
    ids = torch.tensor([[1, 5, 9]])
    ours, theirs = load(tmp_path / "nf4", device="cpu"), load(start, device="cpu", quantize="nf4")
    assert ours.quantize == "nf4"
    torch.testing.assert_close(ours.model(input_ids=ids).logits, theirs.model(input_ids=ids).logits)
