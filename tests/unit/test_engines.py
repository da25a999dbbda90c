"""Both engines give the published scores, and the fast one those of the hook loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from miniatures import FAMILIES
from patchable import RAGGED, assert_same, located, pair, tiny
from residuum.data.spans import Located
from residuum.errors import ModelError, UnknownName, UsageError
from residuum.hooks import capture
from residuum.models.loading import LM
from residuum.patching.engine import PatchConfig
from residuum.patching.naive import Naive
from residuum.patching.selfcheck import make_engine
from residuum.patching.staircase import Staircase

ENGINES = pytest.mark.parametrize("engine", [Naive, Staircase])
VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama", {"attn": "eager"}),
    ("mistral", {"attn": "eager"}),
    ("gpt2", {"attn": "eager"}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("falcon", {"parallel_attn": False}),
    ("falcon", {"new_decoder_architecture": True}),
    ("falcon", {"alibi": True}),
    ("stablelm", {"use_parallel_residual": True}),
)


def assert_engines_agree(target: LM, source: LM, config: PatchConfig, batch: list[Located] = RAGGED) -> None:
    naive, staircase = Naive(target, config), Staircase(target, config)
    assert_same(staircase.unpatched(batch), naive.unpatched(batch))
    assert_same(staircase.patched(source, batch), naive.patched(source, batch))


# The published algorithm, and what is known about its results


def test_a_patched_layer_is_the_target_above_and_the_source_below() -> None:
    target, source = pair()
    example, layer = located(6, 5, 1, 3), 2
    ids = torch.tensor([example.ids])
    rows = list(example.rows)
    with torch.no_grad():
        # hidden_states[l + 1] is the raw output of every block l but the last.
        states = source.model(ids, output_hidden_states=True).hidden_states[layer + 1][0, rows]

        def patch(_: nn.Module, __: Any, output: Tensor) -> Tensor:
            return torch.cat([output[:, : rows[0]], states[None], output[:, rows[-1] + 1 :]], 1)

        handle = target.model.model.layers[layer].register_forward_hook(patch)
        logits = target.model(ids).logits[0, rows].log_softmax(-1)
        handle.remove()
    expected = logits[torch.arange(3), torch.tensor(example.labels)]
    assert_close(Naive(target, PatchConfig()).patched(source, [example])[0].log_probs[layer], expected)


@ENGINES
def test_the_last_layer_is_the_source_under_the_targets_head(engine: Any) -> None:
    target, source = pair()
    example = located(6, 5, 1, 3)
    with torch.no_grad(), capture(source.anatomy.blocks[-1:]) as top:
        source.model(torch.tensor([example.ids]))
    expected = target.anatomy.logits(top[0][0, list(example.rows)]).log_softmax(-1)
    expected = expected[torch.arange(3), torch.tensor(example.labels)]
    assert_close(engine(target, PatchConfig()).patched(source, [example])[0].log_probs[-1], expected)


@ENGINES
def test_the_published_last_layer_is_normed_by_both_models(engine: Any) -> None:
    target, source = pair()
    raw, published = (
        engine(target, PatchConfig(last_layer=last)).patched(source, RAGGED) for last in ("raw", "post_norm")
    )
    example = RAGGED[0]
    with torch.no_grad():
        hidden = source.model(torch.tensor([example.ids]), output_hidden_states=True).hidden_states[-1]
    expected = target.anatomy.logits(hidden[0, list(example.rows)]).log_softmax(-1)
    expected = expected[torch.arange(len(example.rows)), torch.tensor(example.labels)]
    assert_close(published[0].log_probs[-1], expected, atol=1e-5, rtol=0)
    assert_close(published[0].log_probs[:-1], raw[0].log_probs[:-1])


@ENGINES
@pytest.mark.parametrize("mode", ["layer", "mlp", "attn", "mid"])
@pytest.mark.parametrize("scope", ["span", "boundary"])
def test_a_model_patched_with_itself_is_itself(engine: Any, mode: Any, scope: Any) -> None:
    target, _ = pair()
    own = engine(target, PatchConfig(mode=mode, scope=scope))
    for plain, patched in zip(own.unpatched(RAGGED), own.patched(target, RAGGED), strict=True):
        assert_close(patched.log_probs, plain.log_probs.expand_as(patched.log_probs), atol=1e-5, rtol=0)


def test_hits_say_whether_the_label_is_the_most_likely_token() -> None:
    target, _ = pair()
    example = located(6, 5, 1, 3)
    with torch.no_grad():
        best = target.model(torch.tensor([example.ids])).logits[0, list(example.rows)].argmax(-1)
    (found,) = Naive(target, PatchConfig()).unpatched([example])
    assert found.hits.tolist() == (best == torch.tensor(example.labels)).tolist()


# The staircase against the hook loop


@pytest.mark.parametrize("mode", ["layer", "mlp"])
@pytest.mark.parametrize("family", FAMILIES)
def test_staircase_equals_the_hook_loop(family: str, mode: Any) -> None:
    assert_engines_agree(*pair(family), PatchConfig(mode=mode))


@pytest.mark.parametrize("config", [PatchConfig(mode="attn"), PatchConfig(mode="mid")], ids=["attn", "mid"])
@pytest.mark.parametrize("family", FAMILIES)
def test_staircase_equals_the_hook_loop_within_a_block(family: str, config: PatchConfig) -> None:
    assert_engines_agree(*pair(family), config)


@pytest.mark.parametrize(("family", "changes"), VARIANTS, ids=lambda value: "-".join(value))
@pytest.mark.parametrize("mode", ["layer", "mlp"])
def test_staircase_equals_the_hook_loop_in_variants_of_a_family(
    family: str, changes: dict[str, Any], mode: Any
) -> None:
    assert_engines_agree(tiny(family, **changes), tiny(family, seed=1, **changes), PatchConfig(mode=mode))


@pytest.mark.parametrize("mode", ["layer", "mlp", "attn", "mid"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "falcon"])
def test_engines_agree_when_only_the_boundary_is_patched(family: str, mode: Any) -> None:
    assert_engines_agree(*pair(family), PatchConfig(mode=mode, scope="boundary"))


@pytest.mark.parametrize("layers", [(0,), (3,), (1, 2), (0, 3)])
@pytest.mark.parametrize("mode", ["layer", "mlp"])
def test_engines_agree_on_some_of_the_layers(layers: tuple[int, ...], mode: Any) -> None:
    assert_engines_agree(*pair(), PatchConfig(mode=mode, layers=layers))


def test_engines_agree_on_the_published_mid() -> None:
    assert_engines_agree(*pair(), PatchConfig(mode="mid", mid="mlp_input"))


def test_engines_agree_in_half_precision() -> None:
    target, source = (LM.from_model(lm.model.bfloat16(), lm.tokenizer, name="b") for lm in (tiny(), tiny(seed=1)))
    config = PatchConfig(score_dtype="logits")
    found = Staircase(target, config).patched(source, RAGGED)
    for one, other in zip(found, Naive(target, config).patched(source, RAGGED), strict=True):
        assert one.log_probs.dtype == other.log_probs.dtype == torch.bfloat16
        assert_close(one.log_probs, other.log_probs, atol=0.3, rtol=0.05)


@ENGINES
def test_scores_are_float32_unless_the_logits_type_is_asked_for(engine: Any) -> None:
    target = tiny()
    half = LM.from_model(target.model.bfloat16(), target.tokenizer, name="half")
    assert engine(half, PatchConfig()).patched(half, RAGGED[:1])[0].log_probs.dtype == torch.float32


@ENGINES
def test_batch_size_and_order_move_no_score(engine: Any) -> None:
    target, source = pair()
    config = PatchConfig()
    together = engine(target, config).patched(source, RAGGED)
    alone = [engine(target, config).patched(source, [example])[0] for example in RAGGED]
    backwards = engine(target, config).patched(source, RAGGED[::-1])[::-1]
    assert_same(together, alone)
    assert_same(together, backwards)


@ENGINES
@pytest.mark.parametrize("mode", ["layer", "mlp"])
def test_layers_that_are_not_needed_are_not_computed(engine: Any, mode: Any) -> None:
    target, source = pair()
    own = engine(target, PatchConfig(mode=mode))
    needed = [[0, 3], [], [2], [0, 1, 2, 3], [1], [3], [1, 2]]
    everything = own.patched(source, RAGGED)
    for full, part, layers in zip(everything, own.patched(source, RAGGED, needed), needed, strict=True):
        rest = [layer for layer in range(4) if layer not in layers]
        assert_close(part.log_probs[layers], full.log_probs[layers], atol=1e-5, rtol=0)
        assert part.log_probs[rest].isnan().all()
        assert not part.hits[rest].any()


# Modes


def test_mid_replaces_the_residual_stream_after_attention() -> None:
    target, source = pair()
    example, layer = located(6, 5, 1, 3), 1
    rows, block = list(example.rows), target.anatomy.blocks[layer]
    naive = Naive(target, PatchConfig(mode="mid", layers=(layer,)))
    states = naive.source_states(source, [example])
    with (
        capture([target.anatomy.mlp_norm(layer)], where="input") as read,
        capture([target.anatomy.mlp(layer)]) as mlp,
        capture([block]) as output,
    ):
        naive.inject(states, [example])
    assert_close(read[0][0, rows], states[0][0], atol=1e-5, rtol=0)
    assert_close(output[0][0, rows] - mlp[0][0, rows], states[0][0], atol=1e-5, rtol=0)


def test_published_mid_leaves_the_residual_stream_alone() -> None:
    target, source = pair()
    example, layer = located(6, 5, 1, 3), 1
    rows, parts = list(example.rows), target.anatomy
    naive = Naive(target, PatchConfig(mode="mid", mid="mlp_input", layers=(layer,)))
    states = naive.source_states(source, [example])
    with capture([parts.mlp(layer), parts.blocks[layer]]) as patched:
        naive.inject(states, [example])
    with torch.no_grad(), capture([parts.mlp(layer), parts.blocks[layer]]) as plain:
        target.model(torch.tensor([example.ids]))
    assert_close(patched[0][0, rows], parts.mlp(layer)(parts.mlp_norm(layer)(states[0]))[0], atol=1e-5, rtol=0)
    assert_close(patched[1][0, rows] - patched[0][0, rows], plain[1][0, rows] - plain[0][0, rows], atol=1e-5, rtol=0)


def test_published_mid_is_refused_where_the_mlp_does_not_read_it() -> None:
    target, source = pair("phi")
    with pytest.raises(ModelError, match="phi"):
        Naive(target, PatchConfig(mode="mid", mid="mlp_input")).patched(source, RAGGED)


# Mistakes


def test_an_unknown_engine_is_named() -> None:
    with pytest.raises(UnknownName, match="stairs"):
        make_engine("stairs", pair()[0])


@pytest.mark.parametrize("layers", [(), (2, 1), (1, 1)])
def test_layers_are_given_in_order_and_once(layers: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="ascending"):
        PatchConfig(layers=layers)


@ENGINES
def test_layers_that_the_model_lacks_are_refused(engine: Any) -> None:
    with pytest.raises(UsageError, match="0 to 3"):
        engine(pair()[0], PatchConfig(layers=(2, 4)))


@ENGINES
def test_layers_that_are_not_configured_are_refused(engine: Any) -> None:
    target, source = pair()
    with pytest.raises(UsageError, match=r"\[3\]"):
        engine(target, PatchConfig(layers=(0, 1))).patched(source, RAGGED, [0, 3])


def test_the_published_norm_belongs_to_whole_layers() -> None:
    with pytest.raises(UsageError, match="post_norm"):
        PatchConfig(mode="mlp", last_layer="post_norm")


@ENGINES
@pytest.mark.parametrize(("change", "what"), [({"layers": 3}, "layers"), ({"hidden": 64}, "hidden size")])
def test_models_that_do_not_fit_are_refused(engine: Any, change: dict[str, int], what: str) -> None:
    with pytest.raises(ModelError, match=what):
        engine(pair()[0], PatchConfig()).patched(tiny(**change), RAGGED)
