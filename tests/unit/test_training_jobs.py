"""Around unlearning: sweeps, fine-tuning, relearning, alternates, quantization."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from residuum.data.prompts import ChatFormat
from residuum.errors import UsageError
from residuum.models.loading import load
from residuum.training.alternates import sample_alternates, write_alternates
from residuum.training.finetune import finetune
from residuum.training.losses import mean_nll
from residuum.training.relearn import relearn
from residuum.training.sweep import grid, sweep
from residuum.training.unlearn import unlearn
from trainable import (
    FORGET,
    QUICK,
    RETAIN,
    SMALL,
    manifest,
    saved,
    tiny_lm,
    whole_row,
)


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
    return sum(mean_nll(*whole_row(lm.model, row)).item() for row in rows)


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
