"""Models that are not plain checkpoints: four-bit weights, adapters, GGUF files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from checkpoints import IDS, edit, logits, refusal
from residuum.errors import MissingExtra, UsageError
from residuum.models.loading import load, weights_fingerprint


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
