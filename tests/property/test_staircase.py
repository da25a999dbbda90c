"""The staircase and the hook loop give the same scores, whatever the shapes."""

from __future__ import annotations

from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from patchable import located, tiny
from residuum.data.spans import Located
from residuum.models.loading import LM
from residuum.patching.engine import PatchConfig
from residuum.patching.naive import Naive
from residuum.patching.staircase import Staircase


@cache
def models() -> tuple[LM, LM]:
    return tiny(), tiny(seed=1)


@st.composite
def examples(draw: st.DrawFn) -> Located:
    """Any prompt, and an entity anywhere in any reference."""
    reference = draw(st.integers(1, 14))
    first = draw(st.integers(0, reference - 1))
    return located(draw(st.integers(1, 20)), reference, first, draw(st.integers(1, reference - first)))


LAYERS = st.sets(st.integers(0, 3), min_size=1).map(lambda chosen: tuple(sorted(chosen)))
CONFIGS = st.builds(
    PatchConfig,
    mode=st.sampled_from(["layer", "mlp", "attn", "mid"]),
    scope=st.sampled_from(["span", "boundary"]),
    layers=LAYERS | st.none(),
)


@settings(max_examples=60, deadline=None)
@given(batch=st.lists(examples(), min_size=1, max_size=7), config=CONFIGS, data=st.data())
def test_skipping_what_a_patch_cannot_change_moves_no_score(
    batch: list[Located], config: PatchConfig, data: st.DataObject
) -> None:
    target, source = models()
    some = st.sets(st.sampled_from(config.layers_of(4))).map(sorted)
    layers = data.draw(st.none() | st.lists(some, min_size=len(batch), max_size=len(batch)), label="layers")
    memory = data.draw(st.none() | st.integers(2_000_000, 4_000_000), label="max_memory")
    found = Staircase(target, config, max_memory=memory).patched(source, batch, layers)
    for one, other in zip(found, Naive(target, config).patched(source, batch, layers), strict=True):
        assert_close(one.log_probs, other.log_probs, atol=1e-5, rtol=0, equal_nan=True)
        assert one.hits.equal(other.hits)


@settings(max_examples=20, deadline=None)
@given(batch=st.lists(examples(), min_size=1, max_size=6), config=CONFIGS)
def test_a_target_patched_with_itself_is_unpatched(batch: list[Located], config: PatchConfig) -> None:
    target, _ = models()
    engine = Staircase(target, config)
    for plain, patched in zip(engine.unpatched(batch), engine.patched(target, batch), strict=True):
        assert_close(patched.log_probs, plain.log_probs.expand_as(patched.log_probs), atol=1e-5, rtol=0)
