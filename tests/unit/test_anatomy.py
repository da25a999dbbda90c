"""The family table, proven on a random-weight miniature of every family."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedModel

from miniatures import FAMILIES as MINIATURES
from miniatures import miniature
from residuum.errors import ModelError, UnknownName
from residuum.hooks import add_rows, capture
from residuum.models.anatomy import FAMILIES, Anatomy, Family, anatomy, families

VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gpt_neox", {"use_parallel_residual": False}),
    ("falcon", {"parallel_attn": False}),
    ("falcon", {"new_decoder_architecture": True}),
    ("falcon", {"alibi": True}),
    ("stablelm", {"use_parallel_residual": True}),
)
CASES = [pytest.param(name, (), id=name) for name in MINIATURES] + [
    pytest.param(name, tuple(changes.items()), id=f"{name}-{'-'.join(changes)}") for name, changes in VARIANTS
]
PARALLEL = {
    "phi",
    "gpt_neox",
    "falcon",
    "cohere",
    "falcon-new_decoder_architecture",
    "falcon-alibi",
    "stablelm-use_parallel_residual",
}
every_family = pytest.mark.parametrize(("family", "changes"), CASES)
every_sequential_family = pytest.mark.parametrize(
    ("family", "changes"), [case for case in CASES if case.id not in PARALLEL]
)


def padded_batch() -> dict[str, Tensor]:
    """Three rows of 12, 8 and 5 real tokens, right-padded; longer than the miniatures' sliding windows."""
    ids = torch.randint(3, 60, (3, 12), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(12)[None] < torch.tensor([[12], [8], [5]])
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


@dataclass(frozen=True)
class Run:
    """One pass of a miniature with everything the table names captured, layer by layer."""

    model: PreTrainedModel
    parts: Anatomy
    logits: Tensor
    inputs: list[Tensor]
    outputs: list[Tensor]
    attention: list[Tensor]
    mlp: list[Tensor]


@cache
def run(family: str, changes: tuple[tuple[str, Any], ...] = ()) -> Run:
    model = miniature(family, **dict(changes))
    parts = anatomy(model)
    layers = range(parts.num_layers)
    with (
        torch.no_grad(),
        capture(parts.blocks, where="input") as inputs,
        capture(parts.blocks) as outputs,
        capture([parts.attention_contribution(layer) for layer in layers]) as attention,
        capture([parts.mlp_contribution(layer) for layer in layers]) as mlp,
    ):
        logits = model(**padded_batch()).logits
    return Run(model, parts, logits, list(inputs), list(outputs), list(attention), list(mlp))


@every_family
def test_the_head_turns_the_last_block_into_the_models_logits(family: str, changes: tuple[Any, ...]) -> None:
    seen = run(family, changes)
    with torch.no_grad():
        assert_close(seen.parts.logits(seen.outputs[-1]), seen.logits, atol=1e-5, rtol=0)


@every_family
def test_a_block_adds_its_two_contributions_to_the_residual_stream(family: str, changes: tuple[Any, ...]) -> None:
    seen = run(family, changes)
    for layer, output in enumerate(seen.outputs):
        added = seen.attention[layer] + seen.mlp[layer]
        assert_close(seen.inputs[layer] + seen.parts.residual_scale * added, output, atol=1e-5, rtol=1e-5)


@every_family
def test_the_output_projections_say_what_their_sublayers_say(family: str, changes: tuple[Any, ...]) -> None:
    seen = run(family, changes)
    pairs = [("attention", "attention_out")] + [("mlp", "mlp_out")] * (family != "mixtral")
    for whole, projection in pairs:
        modules = [getattr(seen.parts, name)(2) for name in (whole, projection)]
        with torch.no_grad(), capture(modules) as states:
            seen.model(**padded_batch())
        assert_close(states[1], states[0])


@every_family
def test_only_in_parallel_blocks_the_mlp_ignores_the_attention(family: str, changes: tuple[Any, ...]) -> None:
    seen = run(family, changes)
    shout = torch.ones(3, seen.parts.hidden_size)
    shout[:, 0] = 5
    with (
        torch.no_grad(),
        add_rows(seen.parts.attention_contribution(1), shout),
        capture([seen.parts.mlp(1)]) as disturbed,
    ):
        seen.model(**padded_batch())
    with torch.no_grad(), capture([seen.parts.mlp(1)]) as quiet:
        seen.model(**padded_batch())
    assert torch.equal(disturbed[0], quiet[0]) == seen.parts.parallel


@every_sequential_family
def test_the_mlp_norm_reads_the_residual_after_attention(family: str, changes: tuple[Any, ...]) -> None:
    seen = run(family, changes)
    with torch.no_grad(), capture([seen.parts.mlp_norm(1)], where="input") as read:
        seen.model(**padded_batch())
    assert_close(read[0], seen.inputs[1] + seen.parts.residual_scale * seen.attention[1], atol=1e-5, rtol=1e-5)


def test_every_row_of_the_table_has_a_miniature() -> None:
    assert set(MINIATURES) == set(FAMILIES)


def test_families_are_listed_by_name_with_their_fields() -> None:
    listed = {entry["name"]: entry for entry in families()}
    assert listed["gpt2"]["blocks"] == "transformer.h"
    assert list(listed) == list(FAMILIES)


@pytest.mark.parametrize(("family", "post_norm"), [("llama", False), ("gemma2", True), ("olmo2", True)])
def test_blocks_that_norm_after_the_sublayer_are_known(family: str, post_norm: bool) -> None:
    assert run(family).parts.post_norm is post_norm


def test_sizes_come_with_the_anatomy() -> None:
    parts = anatomy(miniature("qwen2", layers=3, hidden=48))
    assert (parts.num_layers, parts.hidden_size, parts.family) == (3, 48, "qwen2")
    assert isinstance(parts.embedding, nn.Embedding)


def test_a_mixture_of_experts_has_no_single_output_projection() -> None:
    with pytest.raises(ModelError, match=r'mlp_out of block 1.*"mixtral"'):
        run("mixtral").parts.mlp_out(1)


def test_a_peft_wrapper_is_looked_through() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["o_proj", "down_proj"], init_lora_weights=False)
    wrapped = peft.get_peft_model(miniature("llama"), config).eval()
    parts = anatomy(wrapped)
    with torch.no_grad(), capture([parts.blocks[-1], parts.attention_out(3)]) as states:
        logits = wrapped(**padded_batch()).logits
    assert_close(parts.logits(states[0]), logits, atol=1e-5, rtol=0)
    assert isinstance(parts.attention_out(3), peft.tuners.lora.LoraLayer)


def test_a_model_without_its_head_is_refused() -> None:
    with pytest.raises(ModelError, match="language-model head"):
        anatomy(LlamaModel(run("llama").model.config))


@pytest.mark.parametrize("family", ["olmo", "starcoder2", "cohere2", "olmo3", "qwen3_moe"])
def test_an_unknown_family_is_guessed(family: str) -> None:
    assert family not in FAMILIES
    test_the_head_turns_the_last_block_into_the_models_logits(family, ())
    test_a_block_adds_its_two_contributions_to_the_residual_stream(family, ())


@pytest.mark.parametrize(
    "family", ["llama", "mixtral", "gemma2", "phi", "gpt_neox", "gpt2", "olmo2", "falcon", "granite"]
)
def test_the_guess_finds_what_the_table_says(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, known = run(family).model, run(family).parts
    monkeypatch.delitem(FAMILIES, family)
    guessed = anatomy(model)
    for field in ("blocks", "attention", "attention_out", "mlp", "mlp_out", "post_mlp_norm", "final_norm", "head"):
        assert getattr(guessed.row, field) == getattr(known.row, field), field
    for field in ("logit_scale", "logit_divisor", "soft_cap", "residual_scale", "parallel"):
        assert getattr(guessed, field) == getattr(known, field), field


def test_a_guess_that_the_observation_contradicts_is_withheld() -> None:
    # OPT keeps its feed-forward matrices in the block itself, so there is no mlp module to find.
    parts = anatomy(miniature("opt", ffn_dim=64, word_embed_proj_dim=32))
    with pytest.raises(ModelError, match="override"):
        parts.mlp(0)
    with pytest.raises(ModelError, match="residual_scale"):
        parts.attention_contribution(0)


def test_a_guess_leaves_no_hooks_behind() -> None:
    model = miniature("olmo")
    anatomy(model)
    assert not any(module._forward_hooks for module in model.modules())


class Tripled(LlamaForCausalLM):
    """A family with a secret: nothing in its config says that the logits are scaled."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 3
        return output


@pytest.fixture
def tripled() -> Tripled:
    settings = run("llama").model.config.to_dict()
    config = LlamaConfig(**settings)
    config.model_type = "tripled"
    return Tripled(config).eval()


def test_a_guess_that_misses_the_logits_asks_for_an_override(tripled: Tripled) -> None:
    with pytest.raises(ModelError, match=r'"tripled"(.|\n)*override='):
        anatomy(tripled)


def test_an_override_corrects_the_guess(tripled: Tripled) -> None:
    assert anatomy(tripled, override={"logit_scale": 3.0}).logit_scale == 3


def test_a_row_in_the_table_makes_a_family_known(tripled: Tripled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "tripled", Family(logit_scale=3.0))
    assert anatomy(tripled).row.mlp_norm == "{}.post_attention_layernorm"


def test_an_override_goes_before_the_table() -> None:
    parts = anatomy(run("llama").model, override={"mlp": "{}.mlp.gate_proj"})
    assert parts.mlp(0) is parts.blocks[0].mlp.gate_proj


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ({"final_norm": "model.embed_tokens"}, "logits"),
        ({"final_norm": "model.nrm"}, "has no .model.nrm.; it has model, lm_head"),
        ({"head": "model.layers.0.mlp.up_proj"}, "logits"),
        ({"blocks": "model.norm"}, "not the list of decoder blocks"),
        ({"attention": "self_attn"}, r"begins with .\{\}\."),
        ({"attention": "{}.atention"}, "LlamaDecoderLayer has no"),
        ({"soft_cap": "cap"}, "LlamaConfig"),
    ],
)
def test_a_wrong_override_is_refused(override: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        anatomy(run("llama").model, override=override)


def test_an_unknown_field_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownName, match="final_norm"):
        anatomy(run("llama").model, override={"final_nrm": "model.norm"})
