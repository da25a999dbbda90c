"""Loading tiny checkpoints, and what is said about those that cannot be loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from checkpoints import IDS, cut_into_shards, edit, logits, refusal
from miniatures import miniature
from residuum.errors import InputError, ModelError, UnknownName, UsageError
from residuum.models.loading import check_finite, load, resolve_device, resolve_dtype, weights_fingerprint
from residuum.models.weights import find
from vocabularies import fast_tokenizer

# What a good checkpoint gives


def test_a_saved_model_comes_back_as_it_was(tiny) -> None:
    with torch.no_grad():
        expected = miniature("llama", layers=2, hidden=64, vocab=640)(IDS).logits
    torch.testing.assert_close(logits(load(tiny, device="cpu")), expected)


def test_a_loaded_model_is_ready_for_evaluation_and_can_be_trained(tiny) -> None:
    lm = load(tiny, device="cpu")
    assert not lm.model.training
    assert all(parameter.requires_grad for parameter in lm.model.parameters())


def test_a_loaded_model_knows_its_parts(tiny) -> None:
    lm = load(tiny, device="cpu")
    assert (lm.anatomy.family, lm.anatomy.num_layers) == ("llama", 2)


def test_provenance_says_everything_and_fits_into_json(tiny) -> None:
    record = json.loads(json.dumps(load(tiny, device="cpu", attn="eager").provenance()))
    assert set(record.pop("versions")) == {"torch", "transformers"}
    assert record == {
        "name": "tiny",
        "source": str(tiny),
        "revision": None,
        "weights_hash": weights_fingerprint(tiny),
        "dtype": "float32",
        "device": "cpu",
        "attn": "eager",
        "quantize": None,
        "family": "llama",
        "pad_is_eos": False,
    }


def test_the_representation_does_not_print_the_weights(tiny) -> None:
    assert len(repr(load(tiny, device="cpu"))) < 500


def test_the_dtype_asked_for_is_the_dtype_of_the_weights(tiny) -> None:
    lm = load(tiny, device="cpu", dtype="bfloat16")
    assert lm.dtype == torch.bfloat16 == next(lm.model.parameters()).dtype


def test_eos_stands_in_for_a_missing_pad_token(tiny) -> None:
    tokenizer = fast_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tiny)
    lm = load(tiny, device="cpu")
    assert lm.pad_is_eos
    assert lm.pad_id == lm.tokenizer.eos_token_id


def test_a_relative_folder_is_recorded_by_its_absolute_path(tiny, monkeypatch) -> None:
    monkeypatch.chdir(tiny.parent)
    assert load("tiny", device="cpu").source == str(tiny)


def test_a_path_is_never_taken_for_a_registered_name(tiny, monkeypatch) -> None:
    tiny.rename(tiny.parent / "full")
    monkeypatch.chdir(tiny.parent)
    assert find(Path("full")).source == str(tiny.parent / "full")


def test_a_model_in_shards_is_loaded(tiny) -> None:
    whole = logits(load(tiny, device="cpu"))
    cut_into_shards(tiny)
    torch.testing.assert_close(logits(load(tiny, device="cpu")), whole)


# Devices and number formats


def test_auto_is_the_first_gpu_or_the_cpu() -> None:
    assert resolve_device("auto") == torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("device", [99, "cuda:99"])
def test_a_gpu_that_does_not_exist_is_an_error_that_says_what_exists(device) -> None:
    with pytest.raises(InputError, match=r"GPU 99 does not exist\. GPUs here: "):
        resolve_device(device)


@pytest.mark.parametrize("device", ["gpu", "", "meta", -1])
def test_what_is_no_device_is_a_usage_error(device) -> None:
    with pytest.raises(UsageError, match="auto, cpu, cuda:N"):
        resolve_device(device)


def test_auto_is_float32_on_the_cpu_and_bfloat16_on_a_gpu() -> None:
    assert resolve_dtype("auto", torch.device("cpu")) == torch.float32
    assert resolve_dtype("auto", torch.device("cuda:0")) == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "bfloat61"}, "Nearest: bfloat16"),
        ({"dtype": torch.int8}, 'unknown dtype "int8"'),
        ({"attn": "eagre"}, "Nearest: eager"),
        ({"quantize": "int3"}, "Known: nf4"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_known_ones(tiny, options, message) -> None:
    with pytest.raises(UnknownName, match=message):
        load(tiny, device="cpu", **options)


# Checkpoints that cannot be used


def test_a_missing_folder_is_named(tmp_path) -> None:
    assert refusal(tmp_path / "nowhere") == f"{tmp_path / 'nowhere'}: no such file or folder."


def test_a_folder_without_a_config_is_no_checkpoint(tmp_path) -> None:
    assert "no config.json" in refusal(tmp_path)


def test_the_folder_above_a_checkpoint_gets_a_hint(tiny) -> None:
    assert "There is one in tiny." in refusal(tiny.parent)


def test_a_torn_config_is_named(tiny) -> None:
    (tiny / "config.json").write_text('{"model_type": ')
    assert str(tiny / "config.json") in refusal(tiny)


def test_a_folder_without_weights_is_refused(tiny) -> None:
    (tiny / "model.safetensors").unlink()
    assert "no weights" in refusal(tiny)


def test_a_missing_shard_is_named(tiny) -> None:
    cut_into_shards(tiny)
    shard = sorted(tiny.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(tiny)


def test_a_folder_without_a_tokenizer_is_refused_before_the_weights_are_read(tiny) -> None:
    (tiny / "tokenizer.json").unlink()
    (tiny / "model.safetensors").write_bytes(b"not read")
    assert "no tokenizer" in refusal(tiny)


def test_a_truncated_weight_file_is_an_error_about_that_model(tiny) -> None:
    file = tiny / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert refusal(tiny).startswith(f"{tiny}: the model cannot be read.")


def test_weights_that_are_missing_are_not_made_up(tiny) -> None:
    edit(tiny / "config.json", num_hidden_layers=3)
    assert "that the files do not have in that shape, first model.layers.2." in refusal(tiny)


def test_weights_of_another_shape_are_not_made_up(tiny) -> None:
    edit(tiny / "config.json", vocab_size=700)
    with pytest.raises(ModelError):
        load(tiny, device="cpu")


def test_a_model_that_brings_its_own_code_is_refused(tiny) -> None:
    edit(tiny / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"})
    (tiny / "mine.py").write_text("raise SystemExit('remote code ran')")
    assert "cannot be read" in refusal(tiny)


def test_a_tokenizer_without_pad_and_eos_is_refused(tiny) -> None:
    tokenizer = fast_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token = None
    tokenizer.save_pretrained(tiny)
    assert "neither a pad nor an EOS token" in refusal(tiny)


@pytest.fixture
def pickled(tiny) -> Path:
    torch.save(miniature("llama", layers=2, hidden=64, vocab=640).state_dict(), tiny / "pytorch_model.bin")
    (tiny / "model.safetensors").unlink()
    return tiny


def test_pickled_weights_are_refused_with_the_way_to_allow_them(pickled) -> None:
    assert "allow_pickle=True" in refusal(pickled)


def test_pickled_weights_are_read_when_allowed(pickled, original) -> None:
    expected = logits(load(original, device="cpu"))
    torch.testing.assert_close(logits(load(pickled, device="cpu", allow_pickle=True)), expected)


def test_a_folder_has_no_revisions(tiny) -> None:
    with pytest.raises(UsageError, match="no revisions"):
        load(tiny, device="cpu", revision="main")


def test_the_first_tensor_with_a_nan_is_named(tiny) -> None:
    lm = load(tiny, device="cpu")
    check_finite(lm)
    with torch.no_grad():
        lm.model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds NaN"):
        check_finite(lm)


# The hub, offline


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """An empty hub cache, and no way out."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def cached(hub: Path, repo: str, content: Path) -> str:
    """Puts a folder into the hub cache as the snapshot of a model; returns its commit."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    entry = hub / f"models--{repo.replace('/', '--')}"
    shutil.copytree(content, entry / "snapshots" / commit)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(commit)
    return commit


def test_a_cached_hub_model_is_loaded_offline_with_its_revision(hub, tiny) -> None:
    commit = cached(hub, "somebody/small", tiny)
    lm = load("somebody/small", device="cpu")
    assert (lm.name, lm.source, lm.revision) == ("small", "somebody/small", commit)
    assert lm.weights_hash == weights_fingerprint(tiny)


def test_a_registered_model_keeps_its_short_name(hub, tiny) -> None:
    cached(hub, "open-unlearning/tofu_Llama-3.2-1B-Instruct_full", tiny)
    lm = load("full", device="cpu")
    assert (lm.name, lm.source) == ("full", "open-unlearning/tofu_Llama-3.2-1B-Instruct_full")


def test_a_hub_model_that_is_not_cached_says_why_it_cannot_be_had(hub) -> None:
    message = refusal("somebody/absent")
    assert message.startswith("somebody/absent: no such folder here")
    assert "HF_HUB_OFFLINE is set" in message


def test_a_half_cached_hub_model_is_refused(hub, tiny) -> None:
    (tiny / "model.safetensors").unlink()
    cached(hub, "somebody/half", tiny)
    assert "somebody/half: no weights" in refusal("somebody/half")
