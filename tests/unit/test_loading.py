"""Loading tiny checkpoints, and what is said about those that cannot be loaded."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from miniatures import miniature
from residuum.errors import InputError, MissingExtra, ModelError, UnknownName, UsageError
from residuum.models import weights
from residuum.models.loading import LM, check_finite, load, resolve_device, resolve_dtype, weights_fingerprint
from residuum.models.weights import find
from vocabularies import fast_tokenizer

IDS = torch.tensor([[1, 5, 9, 2]])


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("RESIDUUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    miniature("llama", layers=2, hidden=64, vocab=640).save_pretrained(folder)
    fast_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def tiny(original, tmp_path) -> Path:
    """A folder of its own that a test may change."""
    return Path(shutil.copytree(original, tmp_path / "tiny"))


def logits(lm: LM) -> torch.Tensor:
    with torch.no_grad():
        return lm.model(IDS).logits


def cut_into_shards(folder: Path) -> None:
    model = load(folder, device="cpu").model
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(path: Path | str, **options: object) -> str:
    with pytest.raises(ModelError) as caught:
        load(path, device="cpu", **options)
    return str(caught.value)


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


# Weight identity


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


# Quantized, adapted and GGUF models


def test_nf4_holds_the_linear_layers_in_four_bits_and_not_the_head(tiny) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    lm = load(tiny, device="cpu", quantize="nf4")
    projection = lm.model.model.layers[0].mlp.down_proj
    assert isinstance(projection, bitsandbytes.nn.Linear4bit)
    assert projection.weight.dtype == torch.uint8
    assert projection.weight.quant_state.quant_type == "nf4"
    assert not projection.weight.quant_state.nested
    assert type(lm.model.lm_head) is torch.nn.Linear
    assert lm.quantize == "nf4"


def test_nf4_moves_the_logits_a_little(tiny) -> None:
    pytest.importorskip("bitsandbytes")
    exact, rough = logits(load(tiny, device="cpu")), logits(load(tiny, device="cpu", quantize="nf4"))
    assert 0 < (rough - exact).norm() / exact.norm() < 0.3


def test_a_checkpoint_saved_in_four_bits_comes_back_in_four_bits(tiny, tmp_path) -> None:
    pytest.importorskip("bitsandbytes")
    lm = load(tiny, device="cpu", quantize="nf4")
    lm.model.save_pretrained(tmp_path / "nf4")
    lm.tokenizer.save_pretrained(tmp_path / "nf4")
    back = load(tmp_path / "nf4", device="cpu")
    assert back.quantize == "nf4"
    torch.testing.assert_close(logits(back), logits(lm))


def test_quantization_without_its_package_names_the_extra(tiny, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtra, match=r"residuum\[quant\]"):
        load(tiny, device="cpu", quantize="nf4")


@pytest.fixture
def adapter(tiny, tmp_path) -> Path:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    peft.get_peft_model(load(tiny, device="cpu").model, settings).save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_is_merged_into_its_model(adapter, tiny) -> None:
    from peft import PeftModel

    lm = load(adapter, device="cpu")
    with torch.no_grad():
        expected = PeftModel.from_pretrained(load(tiny, device="cpu").model, adapter)(IDS).logits
    torch.testing.assert_close(logits(lm), expected)
    assert lm.anatomy.family == "llama"
    assert not torch.allclose(expected, logits(load(tiny, device="cpu")))


def test_an_adapter_is_another_model_than_its_base(adapter, tiny) -> None:
    assert weights_fingerprint(adapter) != weights_fingerprint(tiny)


def test_an_adapter_on_other_weights_is_another_model(adapter, tiny) -> None:
    before = weights_fingerprint(adapter)
    edit(tiny / "config.json", rms_norm_eps=0.1)
    assert weights_fingerprint(adapter) != before


def test_an_adapter_without_its_model_says_so(adapter, tiny) -> None:
    tiny.rename(tiny.parent / "moved")
    assert "is an adapter, and its model cannot be used" in refusal(adapter)


def test_an_adapter_of_itself_says_so(adapter) -> None:
    edit(adapter / "adapter_config.json", base_model_name_or_path=str(adapter))
    assert "does not say of which model" in refusal(adapter)


def test_an_adapter_that_does_not_fit_is_refused(adapter, tiny) -> None:
    edit(adapter / "adapter_config.json", target_modules=["q_proj", "v_proj"])
    assert "the adapter cannot be read" in refusal(adapter)


def test_an_adapter_is_not_quantized(adapter) -> None:
    pytest.importorskip("bitsandbytes")
    with pytest.raises(UsageError, match="only a whole checkpoint"):
        load(adapter, device="cpu", quantize="nf4")


def test_an_adapter_without_peft_names_the_extra(adapter, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"residuum\[lora\]"):
        load(adapter, device="cpu")


@pytest.fixture
def gguf_file(tmp_path) -> Path:
    """A random Llama of two layers with a vocabulary of eight, written as GGUF."""
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_vocab_size(8)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<unk>", "<s>", "</s>", "a", "b", "ab", "Ġ", "Ġa"])
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_token_types([2, 3, 3, 1, 1, 1, 1, 1])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (8, 32), "output_norm": (32,)}
    for block in ("blk.0", "blk.1"):
        shapes |= {f"{block}.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"{block}.attn_{name}": (32, 32) for name in ("q", "k", "v", "output")}
        shapes |= {f"{block}.ffn_gate": (64, 32), f"{block}.ffn_up": (64, 32), f"{block}.ffn_down": (32, 64)}
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", torch.randn(shape, generator=generator).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_loaded_as_a_plain_model(gguf_file, tmp_path) -> None:
    lm = load(gguf_file, device="cpu")
    assert (lm.name, lm.source, lm.dtype, lm.quantize) == ("tiny", str(gguf_file), torch.float32, None)
    assert lm.tokenizer("ab a").input_ids == [5, 7]
    lm.model.save_pretrained(tmp_path / "saved")
    lm.tokenizer.save_pretrained(tmp_path / "saved")
    ids = torch.tensor([[1, 5, 7]])
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path / "saved", device="cpu").model(ids).logits, lm.model(ids).logits)


def test_a_renamed_gguf_file_has_the_same_fingerprint(gguf_file) -> None:
    before = weights_fingerprint(gguf_file)
    assert weights_fingerprint(gguf_file.rename(gguf_file.parent / "other.gguf")) == before


def test_a_gguf_file_without_its_package_names_the_extra(gguf_file, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtra, match=r"residuum\[gguf\]"):
        load(gguf_file, device="cpu")


def test_a_file_that_is_no_gguf_is_refused(tiny, tmp_path) -> None:
    (tmp_path / "no.gguf").write_bytes(b"something else")
    assert "not a GGUF file" in refusal(tmp_path / "no.gguf")
    assert "given as their folder" in refusal(tiny / "model.safetensors")


def test_a_torn_gguf_file_is_an_error_about_that_model(gguf_file) -> None:
    gguf_file.write_bytes(gguf_file.read_bytes()[:400])
    assert refusal(gguf_file).startswith(f"{gguf_file}: the tokenizer cannot be read.")
