"""Models are told apart by what they compute, and nothing else."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

from checkpoints import edit
from miniatures import miniature
from residuum.models import weights
from residuum.models.loading import LM, load, weights_fingerprint
from vocabularies import fast_tokenizer


def test_a_copy_has_the_same_fingerprint(tiny, tmp_path) -> None:
    shutil.copytree(tiny, tmp_path / "copy")
    assert weights_fingerprint(tmp_path / "copy") == weights_fingerprint(tiny)


def test_one_changed_weight_changes_the_fingerprint(tiny) -> None:
    before = weights_fingerprint(tiny)
    model = load(tiny, device="cpu").model
    with torch.no_grad():
        model.model.norm.weight[0] += 1
    model.save_pretrained(tiny)
    assert weights_fingerprint(tiny) != before


def test_a_config_that_computes_something_else_changes_the_fingerprint(tiny) -> None:
    before = weights_fingerprint(tiny)
    edit(tiny / "config.json", rms_norm_eps=0.1)
    assert weights_fingerprint(tiny) != before


def test_who_wrote_the_config_does_not_change_the_fingerprint(tiny) -> None:
    before = weights_fingerprint(tiny)
    edit(tiny / "config.json", transformers_version="4.0", _name_or_path="elsewhere", use_cache=False)
    assert weights_fingerprint(tiny) == before


def test_a_large_file_is_hashed_once(tiny, monkeypatch) -> None:
    monkeypatch.setattr(weights, "_MEMO_FROM", 0)
    before = weights_fingerprint(tiny)
    monkeypatch.setattr(weights, "_sha256", lambda path: pytest.fail("hashed again"))
    assert weights_fingerprint(tiny) == before


def test_a_large_file_replaced_under_the_same_size_and_mtime_is_hashed_again(tiny, monkeypatch) -> None:
    monkeypatch.setattr(weights, "_MEMO_FROM", 0)
    before = weights_fingerprint(tiny)
    file = tiny / "model.safetensors"
    stat = file.stat()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert weights_fingerprint(tiny) != before


def test_a_cache_that_cannot_be_written_does_not_matter(tiny, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(weights, "_MEMO_FROM", 0)
    (tmp_path / "file").touch()
    monkeypatch.setenv("RESIDUUM_CACHE", str(tmp_path / "file"))
    assert len(weights_fingerprint(tiny)) == 64


def test_models_in_memory_are_told_apart_by_their_tensors() -> None:
    one, same, other = (miniature("llama", vocab=640, seed=seed) for seed in (0, 0, 1))
    hashes = [LM.from_model(model, fast_tokenizer(), name="x").weights_hash for model in (one, same, other)]
    assert hashes[0] == hashes[1] != hashes[2]


def test_models_in_memory_are_told_apart_by_their_config() -> None:
    one, other = (miniature("llama", vocab=640, rms_norm_eps=eps) for eps in (1e-6, 1e-2))
    hashes = [LM.from_model(model, fast_tokenizer(), name="x").weights_hash for model in (one, other)]
    assert hashes[0] != hashes[1]


def test_a_half_precision_model_in_memory_can_be_hashed() -> None:
    lm = LM.from_model(miniature("llama", vocab=640).bfloat16(), fast_tokenizer(), name="x")
    assert (lm.source, lm.dtype, len(lm.weights_hash)) == ("memory", torch.bfloat16, 64)
