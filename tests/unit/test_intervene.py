"""Steering hooks: what they change, where, and that they leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from miniatures import FAMILIES
from residuum.errors import HookError, UsageError
from residuum.generation import continue_prompts
from residuum.hooks import capture
from residuum.steering.components import COMPONENTS, component_module
from residuum.steering.intervene import Edit, editing, steered
from steerable import direction, edit, steerable

IDS = torch.tensor([[1, 9, 14, 30, 22], [1, 8, 8, 41, 5]])


def logits(lm, edits=(), ids=IDS):
    with torch.inference_mode(), editing(lm, [edits] * len(ids)):
        return lm.model(input_ids=ids, use_cache=False).logits


def texts(lm, prompts, rows, mode="all", *, new=6, max_tokens=16384):
    return [c.ids for c in continue_prompts(lm, prompts, max_new_tokens=new, around=steered(lm, rows, mode=mode), max_tokens=max_tokens)]  # fmt: skip


def hook_count(lm):
    return sum(len(module._forward_hooks) for module in lm.model.modules())


# Mixtral's experts have one projection each: there is no one module whose output is mlp_out.
@pytest.mark.parametrize(
    ("family", "component"),
    [
        (family, component)
        for family in FAMILIES
        for component in COMPONENTS
        if (family, component) != ("mixtral", "mlp_out")
    ],
)
def test_adding_and_subtracting_a_vector_cancels_in_every_family(family, component):
    lm = steerable(family)
    plain = logits(lm)
    both = logits(lm, [edit(1, 3.0, component=component), edit(1, -3.0, component=component)])
    moved = logits(lm, [edit(1, 3.0, component=component)])
    assert torch.allclose(both, plain, atol=1e-5)
    assert not torch.allclose(moved, plain, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox", "gemma2", "olmo2"])
def test_the_residual_moves_by_exactly_the_vector(family):
    lm = steerable(family)
    module = component_module(lm.anatomy, "residual", 2)
    with torch.inference_mode(), capture([module]) as plain:
        lm.model(input_ids=IDS, use_cache=False)
    with torch.inference_mode(), editing(lm, [[edit(2, 2.5)]] * 2), capture([module]) as moved:
        lm.model(input_ids=IDS, use_cache=False)
    assert torch.allclose(moved[0] - plain[0], (2.5 * direction()).expand_as(plain[0]), atol=1e-5)


def test_a_coefficient_of_zero_attaches_no_hook():
    lm = steerable()
    with editing(lm, [[edit(1, 0.0)]]):
        assert hook_count(lm) == 0


def test_several_layers_at_once_are_the_nested_single_ones():
    lm = steerable()
    at_once = logits(lm, [edit(0, 2.0), edit(2, -1.0, seed=1)])
    with torch.inference_mode(), editing(lm, [[edit(0, 2.0)]] * 2), editing(lm, [[edit(2, -1.0, seed=1)]] * 2):
        nested = lm.model(input_ids=IDS, use_cache=False).logits
    assert torch.equal(at_once, nested)


def test_hooks_are_gone_after_an_exception():
    lm = steerable()
    with pytest.raises(ZeroDivisionError), editing(lm, [[edit(1, 1.0)]]):
        raise ZeroDivisionError
    assert hook_count(lm) == 0


def test_a_model_that_never_ran_is_an_error():
    lm = steerable()
    with pytest.raises(HookError, match="never fired"), editing(lm, [[edit(1, 1.0)]]):
        pass


@pytest.mark.parametrize("values", [torch.ones(31), torch.ones(2, 32), torch.zeros(32), torch.full((32,), torch.nan)])
def test_a_vector_that_does_not_fit_is_refused(values):
    with pytest.raises(HookError):
        steered(steerable(), [[Edit(0, "residual", values)]])


def test_a_layer_outside_the_model_is_refused():
    with pytest.raises(HookError, match="layers 0 to 3"):
        steered(steerable(), [[edit(4, 1.0)]])


def test_edits_for_another_batch_size_are_refused():
    lm = steerable()
    with pytest.raises(HookError, match="do not fit a batch"), editing(lm, [[edit(0, 1.0)]] * 3):
        lm.model(input_ids=IDS)


class Wrapped(nn.Module):
    """A block whose output is a tuple or list, as older versions of transformers had it."""

    def __init__(self, block: nn.Module, kind: type) -> None:
        super().__init__()
        self.block, self.kind = block, kind

    def forward(self, x):
        return self.kind([self.block(x), "cache"])


@pytest.mark.parametrize("kind", [tuple, list])
def test_outputs_that_are_tuples_or_lists_keep_their_type_and_their_rest(kind):
    from residuum.hooks import change

    block = Wrapped(nn.Identity(), kind)
    with change(block, lambda state: state + 1):
        out = block(torch.zeros(1, 2, 4))
    assert isinstance(out, kind)
    assert out[1] == "cache"
    assert torch.equal(out[0], torch.ones(1, 2, 4))


def test_ablation_takes_the_direction_out_and_nothing_else():
    lm = steerable()
    module = component_module(lm.anatomy, "residual", 1)
    with torch.inference_mode(), capture([module]) as plain:
        lm.model(input_ids=IDS, use_cache=False)
    with torch.inference_mode(), editing(lm, [[edit(1, 1.0, operator="ablate")]] * 2), capture([module]) as left:
        lm.model(input_ids=IDS, use_cache=False)
    unit = direction()
    assert (left[0] @ unit).abs().max() < 1e-5
    assert torch.allclose(left[0] + (plain[0] @ unit)[..., None] * unit, plain[0], atol=1e-5)


@pytest.mark.parametrize(
    ("coefficient", "kept"), [(2.0, lambda p: p.clamp_min(2.0)), (-2.0, lambda p: p.clamp_max(-2.0))]
)
def test_a_cap_bounds_the_projection_from_below_or_above(coefficient, kept):
    lm = steerable()
    module = component_module(lm.anatomy, "residual", 1)
    with torch.inference_mode(), capture([module]) as plain:
        lm.model(input_ids=IDS, use_cache=False)
    with torch.inference_mode(), editing(lm, [[edit(1, coefficient, operator="cap")]] * 2), capture([module]) as left:
        lm.model(input_ids=IDS, use_cache=False)
    assert torch.allclose(left[0] @ direction(), kept(plain[0] @ direction()), atol=1e-5)


def test_rows_without_an_edit_stay_what_they_were_beside_edited_ones():
    lm = steerable()
    for operator in ("add", "ablate", "cap"):
        with torch.inference_mode(), editing(lm, [[edit(1, 4.0, operator=operator)], []]):
            mixed = lm.model(input_ids=IDS, use_cache=False).logits
        assert torch.equal(mixed[1], logits(lm)[1])


PROMPTS = [[1, 9, 14], [1, 30, 22, 17, 8, 5], [1], [1, 44, 3, 2, 9]]


def batch_of_configurations():
    """Every prompt under several configurations, some of them at two layers."""
    settings = [
        [],
        [edit(0, 6.0)],
        [edit(2, 6.0, seed=1)],
        [edit(0, 3.0), edit(3, 5.0, seed=2)],
        [edit(1, 1, operator="ablate")],
    ]
    return [(prompt, edits) for edits in settings for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("mode", "max_tokens"),
    [("all", 16384), ("all", 60), ("response", 60), ("generated", 16384), ("prompt", 40), ("first:2", 60)],
)
def test_rows_steered_together_say_what_they_say_alone(mode, max_tokens):
    lm = steerable()
    work = batch_of_configurations()
    together = texts(lm, [p for p, _ in work], [e for _, e in work], mode, max_tokens=max_tokens)
    alone = [texts(lm, [prompt], [edits], mode)[0] for prompt, edits in work]
    assert together == alone


def test_any_order_of_rows_gives_the_same_texts():
    lm = steerable()
    work = batch_of_configurations()
    order = torch.randperm(len(work), generator=torch.Generator().manual_seed(3)).tolist()
    straight = texts(lm, [p for p, _ in work], [e for _, e in work])
    shuffled = texts(lm, [work[i][0] for i in order], [work[i][1] for i in order])
    assert [straight[i] for i in order] == shuffled


def test_a_batch_that_does_not_fit_into_memory_is_halved_and_stays_right(monkeypatch):
    lm = steerable()
    work = batch_of_configurations()
    expected = texts(lm, [p for p, _ in work], [e for _, e in work])
    generate, sizes = type(lm.model).generate, []

    def small_machine(self, input_ids, **options):
        if len(input_ids) > 5:
            raise MemoryError("out of memory")
        sizes.append(len(input_ids))
        return generate(self, input_ids=input_ids, **options)

    monkeypatch.setattr(type(lm.model), "generate", small_machine)
    assert texts(lm, [p for p, _ in work], [e for _, e in work]) == expected
    assert max(sizes) <= 5


@pytest.mark.parametrize("prompt", [[1, 9, 14, 30], [9]], ids=["four tokens", "one token"])
def test_generated_leaves_the_first_new_token_and_response_changes_it(prompt):
    lm = steerable()
    # Pushed along the row of the head, the model must say that token.
    target = 50
    push = Edit(3, "residual", lm.anatomy.lm_head.weight[target].detach().clone(), 500.0)
    plain = texts(lm, [prompt], [[]])[0]
    generated = texts(lm, [prompt], [[push]], "generated")[0]
    response = texts(lm, [prompt], [[push]], "response")[0]
    assert plain[0] == generated[0] != target
    assert set(generated[1:]) == {target} == set(response)


def test_prompt_mode_changes_only_the_prompt():
    lm = steerable()
    target = 50
    push = Edit(3, "residual", lm.anatomy.lm_head.weight[target].detach().clone(), 500.0)
    said = texts(lm, [[1, 9, 14, 30]], [[push]], "prompt")[0]
    # The last layer's states feed no later token, so only the token that the prompt emits is forced.
    assert said[0] == target
    assert target not in said[1:]


def test_the_first_tokens_alone_can_be_steered():
    lm = steerable()
    target = 50
    push = Edit(3, "residual", lm.anatomy.lm_head.weight[target].detach().clone(), 500.0)
    said = texts(lm, [[1, 9, 14, 30]], [[push]], "first:3")[0]
    assert said[:3] == (target,) * 3
    assert target not in said[3:]


@pytest.mark.parametrize("mode", ["everywhere", "first:0", "first:x"])
def test_an_unknown_mode_is_refused(mode):
    with pytest.raises(UsageError):
        steered(steerable(), [[]], mode=mode)


def test_sampled_texts_do_not_depend_on_their_batch():
    lm = steerable()
    options = {"max_new_tokens": 8, "temperature": 1.0}
    together = continue_prompts(lm, PROMPTS, seeds=[7, 8, 9, 10], **options)
    alone = [
        continue_prompts(lm, [prompt], seeds=[seed], **options)[0]
        for prompt, seed in zip(PROMPTS, [7, 8, 9, 10], strict=True)
    ]
    assert together == alone
    assert continue_prompts(lm, PROMPTS, seeds=[1, 2, 3, 4], **options) != together
