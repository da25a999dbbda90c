"""Both engines give the published scores; the fast one also when it must skip, cut, forget or step back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from miniatures import FAMILIES
from patchable import RAGGED, located, tiny
from residuum.data.spans import Located
from residuum.errors import ModelError, UnknownName, UsageError
from residuum.hooks import capture
from residuum.models.loading import LM
from residuum.patching.engine import PatchConfig, TokenScores
from residuum.patching.memory import Shelf, pieces
from residuum.patching.naive import Naive
from residuum.patching.selfcheck import EngineWarning, disagreement, make_engine
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


@cache
def pair(family: str = "llama") -> tuple[LM, LM]:
    """A target and a source with other weights."""
    return tiny(family), tiny(family, seed=1)


def assert_same(found: list[TokenScores], expected: list[TokenScores]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert_close(one.log_probs, other.log_probs, atol=1e-5, rtol=0, equal_nan=True)
        assert torch.equal(one.hits, other.hits)


def assert_engines_agree(target: LM, source: LM, config: PatchConfig, batch: list[Located] = RAGGED) -> None:
    naive, staircase = Naive(target, config), Staircase(target, config)
    assert_same(staircase.unpatched(batch), naive.unpatched(batch))
    assert_same(staircase.patched(source, batch), naive.patched(source, batch))


@contextmanager
def runs_of(module: nn.Module) -> Iterator[list[int]]:
    """Counts how often a module runs."""
    count = [0]
    handle = module.register_forward_hook(lambda *_: count.__setitem__(0, count[0] + 1))
    yield count
    handle.remove()


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


# Work that is saved


def test_a_source_runs_no_further_than_it_must() -> None:
    target, source = pair()
    engine = Staircase(target, PatchConfig(layers=(0, 2)))
    with runs_of(source.anatomy.lm_head) as head, runs_of(source.anatomy.blocks[3]) as after:
        engine.patched(source, RAGGED)
    assert head == after == [0]


def test_rows_after_the_last_evaluated_one_are_never_run() -> None:
    target, source = pair()
    example = located(6, 9, 0, 2)
    with capture(target.anatomy.blocks[:1]) as own, capture(source.anatomy.blocks[:1]) as other:
        Staircase(target, PatchConfig(layers=(0, 1))).patched(source, [example])
    assert own[0].shape[1] == other[0].shape[1] == example.rows.stop


def test_the_target_runs_once_for_several_sources() -> None:
    target, source = pair()
    engine = Staircase(target, PatchConfig())
    with runs_of(target.anatomy.embedding) as passes:
        engine.unpatched(RAGGED)
        first = passes[0]
        engine.patched(source, RAGGED)
        engine.patched(target, RAGGED[2:4])
    # Only the last call runs it again: there it is the source.
    assert first > 0
    assert passes[0] <= first + 2


def test_hooks_and_model_are_left_as_they_were() -> None:
    target, source = pair("gemma2")
    Staircase(target, PatchConfig(mode="mlp")).patched(source, RAGGED)
    for lm in (target, source):
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in lm.model.modules())


# Memory


@ENGINES
def test_a_bound_on_memory_moves_no_score(engine: Any) -> None:
    target, source = pair()
    config = PatchConfig()
    assert_same(
        engine(target, config, max_memory=800_000).patched(source, RAGGED),
        Naive(target, config).patched(source, RAGGED),
    )


def test_what_is_kept_stays_within_its_half() -> None:
    target, source = pair()
    free, bound = Staircase(target, PatchConfig()), Staircase(target, PatchConfig(), max_memory=800_000)
    many = [located(20, 8, 0, 2, idx=i) for i in range(120)]
    free.patched(source, many)
    bound.patched(source, many)
    assert free.kept_bytes > 400_000
    assert 300_000 < bound.kept_bytes <= 400_000


def test_a_batch_that_was_not_kept_is_run_again() -> None:
    target, source = pair()
    engine = Staircase(target, PatchConfig(), max_memory=800_000)
    many = [located(20, 8, 0, 2, idx=i) for i in range(120)]
    engine.patched(source, many)
    with runs_of(target.anatomy.embedding) as passes:
        again = engine.patched(source, many)
    assert passes[0] > 0
    assert_same(again, Staircase(target, PatchConfig()).patched(source, many))


@ENGINES
def test_a_bound_too_tight_for_one_example_says_what_is_needed(engine: Any) -> None:
    target, source = pair()
    with pytest.raises(UsageError, match=r"(?s)20 KB is too little.*at least [\d.]+ KB"):
        engine(target, PatchConfig(), max_memory=20 * 1024).patched(source, RAGGED)


def test_what_is_kept_goes_when_memory_runs_out() -> None:
    target, source = pair()
    engine = Staircase(target, PatchConfig())
    engine.patched(source, RAGGED)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    handle = target.anatomy.blocks[2].register_forward_hook(fail)
    with pytest.raises(torch.OutOfMemoryError):
        engine.patched(source, RAGGED)
    handle.remove()
    assert engine.kept_bytes == 0
    assert_same(engine.patched(source, RAGGED), Naive(target, PatchConfig()).patched(source, RAGGED))


def test_pieces_stay_within_the_budget_and_in_order() -> None:
    assert list(pieces([3, 3, 3, 9, 1], 9)) == [[0, 1, 2], [3], [4]]


def test_a_full_shelf_keeps_what_it_has_and_takes_guests() -> None:
    shelf: Shelf[str, int] = Shelf(10)
    for name in ("one", "two", "three"):
        shelf.put(name, 0, 5)
    assert list(shelf.find(["one", "two", "three"])) == ["one", "two", "three"]
    shelf.dismiss()
    assert list(shelf.find(["one", "two", "three"])) == ["one", "two"]


# Choosing an engine


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESIDUUM_CACHE", str(tmp_path))
    return tmp_path


def remembered(cache: Path) -> list[Path]:
    return list(cache.glob("engines/*.json"))


@pytest.mark.parametrize("mode", ["layer", "mlp", "attn", "mid"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_staircase_suits_every_family_of_the_table(family: str, mode: Any) -> None:
    assert disagreement(pair(family)[0], PatchConfig(mode=mode), RAGGED[1]) == ""


def test_auto_takes_the_staircase_where_it_agrees(empty_cache: Path) -> None:
    target, source = pair()
    engine = make_engine("auto", target)
    assert engine.name == "auto"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(engine.patched(source, RAGGED), Naive(target, PatchConfig()).patched(source, RAGGED))
    assert engine.name == "staircase"


def test_auto_falls_back_with_a_warning_that_names_the_family(empty_cache: Path) -> None:
    target, source = pair("bloom")
    engine = make_engine("auto", target)
    with pytest.warns(EngineWarning, match='"bloom"'):
        found = engine.unpatched(RAGGED)
    assert engine.name == "naive"
    assert_same(found, Naive(target, PatchConfig()).unpatched(RAGGED))
    assert_same(engine.patched(source, RAGGED), Naive(target, PatchConfig()).patched(source, RAGGED))


def test_auto_notices_scores_that_differ(empty_cache: Path) -> None:
    target = tiny()
    # A block that looks at how many rows it gets is fine in whole sequences, but not in pieces of them.
    target.anatomy.blocks[2].register_forward_hook(lambda _, __, out: out + 0.1 * out.shape[1])
    assert "differ by" in disagreement(target, PatchConfig(), RAGGED[1])


def test_the_outcome_is_remembered_for_the_architecture(empty_cache: Path) -> None:
    target, source = pair()
    make_engine("auto", target).unpatched(RAGGED)
    with runs_of(source.anatomy.lm_head) as heads:
        make_engine("auto", source).unpatched(RAGGED[:1])
    assert heads == [1]
    assert len(remembered(empty_cache)) == 1


def test_a_spoilt_memory_is_made_anew(empty_cache: Path) -> None:
    target, _ = pair()
    make_engine("auto", target).unpatched(RAGGED)
    (file,) = remembered(empty_cache)
    good = file.read_text()
    file.write_text("{")
    make_engine("auto", target).unpatched(RAGGED)
    assert file.read_text() == good


def test_another_attention_is_another_architecture(empty_cache: Path) -> None:
    for attn in ("sdpa", "eager"):
        make_engine("auto", tiny(attn=attn)).unpatched(RAGGED)
    assert len(remembered(empty_cache)) == 2


def test_a_cache_that_cannot_be_written_does_not_stop_the_run(empty_cache: Path) -> None:
    (empty_cache / "engines").write_text("a file where the folder should be")
    engine = make_engine("auto", pair()[0])
    engine.unpatched(RAGGED)
    assert engine.name == "staircase"


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
