"""Hooks leave no trace, fit or complain, and notice when they did nothing."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from miniatures import FAMILIES, miniature
from residuum.errors import HookError
from residuum.hooks import add_rows, capture, replace_rows
from residuum.models.anatomy import Anatomy, anatomy

IDS = torch.arange(3, 21).view(2, 9)


class Layer(nn.Module):
    """Doubles its input and hands the result over in one of the shapes that transformers blocks use."""

    def __init__(self, shape: str = "tensor") -> None:
        super().__init__()
        self.shape = shape

    def forward(self, hidden_states: Tensor, extra: int = 0) -> Any:
        doubled = hidden_states * 2 + extra
        return {"tensor": doubled, "tuple": (doubled, "weights"), "list": [doubled, 7], "dict": {"state": doubled}}[
            self.shape
        ]


class Stack(nn.Module):
    """Calls one layer by position and one by keyword; the third is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.idle = Layer(), Layer("tuple"), Layer()

    def forward(self, state: Tensor) -> Tensor:
        hidden: Tensor = self.second(hidden_states=self.first(state), extra=1)[0]
        return hidden


@cache
def tiny(family: str = "llama") -> tuple[Any, Anatomy]:
    model = miniature(family)
    return model, anatomy(model)


def hooks_on(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


# --- capture


def test_capture_gives_each_modules_output_after_the_block() -> None:
    stack, state = Stack(), states(2, 3, 4)
    with capture([stack.first, stack.second]) as seen:
        stack(state)
    assert_close(torch.stack(list(seen)), torch.stack([state * 2, state * 4 + 1]))


def test_capture_reads_inputs_given_by_position_or_keyword() -> None:
    stack, state = Stack(), states(2, 3, 4)
    with capture([stack.first, stack.second], where="input") as seen:
        stack(state)
    assert_close(torch.stack(list(seen)), torch.stack([state, state * 2]))


def test_capture_keeps_only_the_rows_asked_for() -> None:
    layer, state, rows = Layer(), states(2, 5, 4), torch.tensor([[0, 1, 1], [3, 4, 2]])
    with capture([layer]) as whole, capture([layer], rows=rows) as some, capture([layer], rows=rows[:, 0]) as one:
        layer(state)
    assert_close(some[0], torch.stack([whole[0][0, rows[0]], whole[0][1, rows[1]]]))
    assert_close(one[0], some[0][:, 0])


@pytest.mark.parametrize("rows", [torch.tensor([[5], [0]]), torch.tensor([[-1], [0]]), torch.tensor([[0], [0], [0]])])
def test_captured_rows_that_do_not_exist_are_an_error(rows: Tensor) -> None:
    layer = Layer()
    with pytest.raises(HookError, match="do not fit"), capture([layer], rows=rows):
        layer(states(2, 5, 4))


def test_a_captured_state_does_not_change_when_the_model_goes_on_in_place() -> None:
    layer, state = Layer(), states(2, 3, 4)
    with capture([layer]) as seen:
        layer(state).add_(100)
    assert_close(seen[0], state * 2)


def test_captured_states_carry_gradients() -> None:
    layer, state = Layer(), states(2, 3, 4).requires_grad_()
    with capture([layer]) as seen:
        layer(state)
    seen[0].sum().backward()
    assert_close(state.grad, torch.full_like(state, 2))


def test_reading_before_the_model_ran_is_an_error() -> None:
    layer = Layer()
    with capture([layer]) as seen:
        with pytest.raises(HookError, match="not run yet"):
            seen[0]
        layer(states(1, 1, 1))


# --- replace_rows


@pytest.mark.parametrize("shape", ["tensor", "tuple", "list"])
def test_replaced_rows_keep_the_type_of_the_output(shape: str) -> None:
    layer, state, mask = Layer(shape), states(2, 3, 4), torch.tensor([[0, 1, 0], [1, 0, 1]]).bool()
    plain = layer(state)
    with replace_rows(layer, mask, torch.zeros(3, 4)) as edited:
        output = layer(state)
    assert edited.fired == 1
    assert type(output) is type(plain)
    if shape != "tensor":
        assert output[1:] == plain[1:]
        output, plain = output[0], plain[0]
    assert_close(output, plain * ~mask[..., None])


def test_rows_may_be_given_as_pairs_of_indices() -> None:
    layer, state, values = Layer(), states(2, 3, 4), states(2, 4)
    with replace_rows(layer, (torch.tensor([1, 0]), torch.tensor([2, 0])), values):
        output = layer(state)
    assert_close(torch.stack([output[1, 2], output[0, 0]]), values)
    assert_close(output[1, :2], state[1, :2] * 2)


def test_mask_rows_are_filled_in_reading_order() -> None:
    layer, values, mask = Layer(), states(3, 4), torch.tensor([[0, 1, 0], [1, 0, 1]]).bool()
    with replace_rows(layer, mask, values):
        output = layer(states(2, 3, 4))
    assert_close(output[mask], values)


@pytest.mark.parametrize("name", ["first", "second"])
def test_inputs_are_replaced_by_position_or_keyword(name: str) -> None:
    stack, mask = Stack(), torch.ones(2, 3).bool()
    with replace_rows(getattr(stack, name), mask, torch.zeros(6, 4), where="input"):
        output = stack(states(2, 3, 4))
    assert_close(output, torch.ones(2, 3, 4))


def test_values_take_the_dtype_of_the_activation() -> None:
    layer, mask = Layer(), torch.ones(1, 2).bool()
    with replace_rows(layer, mask, states(2, 4).double()):
        assert layer(states(1, 2, 4).bfloat16()).dtype == torch.bfloat16


def test_the_replaced_tensor_itself_is_not_written_to() -> None:
    state, mask = states(1, 2, 4), torch.ones(1, 2).bool()
    identity, before = nn.Identity(), state.clone()
    with replace_rows(identity, mask, torch.zeros(2, 4)):
        identity(state)
    assert_close(state, before)


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (torch.ones(2, 4).bool(), torch.zeros(8, 4)),  # one token too many
        (torch.ones(3, 3).bool(), torch.zeros(9, 4)),  # one example too many
        (torch.ones(2, 3).bool(), torch.zeros(5, 4)),  # one value missing
        (torch.ones(2, 3).bool(), torch.zeros(6, 5)),  # another hidden size
        ((torch.tensor([0]), torch.tensor([3])), torch.zeros(1, 4)),
        ((torch.tensor([0, 1]), torch.tensor([0])), torch.zeros(2, 4)),
        ((torch.tensor([0]), torch.tensor([-1])), torch.zeros(1, 4)),
        (torch.ones(3).bool(), torch.zeros(3, 4)),
    ],
)
def test_rows_or_values_that_do_not_fit_are_an_error(rows: Any, values: Tensor) -> None:
    layer = Layer()
    with pytest.raises(HookError, match=r"shape|negative"), replace_rows(layer, rows, values):
        layer(states(2, 3, 4))
    assert hooks_on(layer) == 0


def test_an_output_that_is_no_state_is_an_error() -> None:
    layer = Layer("dict")
    with pytest.raises(HookError, match="dict"), capture([layer]):
        layer(states(2, 3, 4))


@pytest.mark.parametrize("family", FAMILIES)
def test_patching_a_model_with_its_own_states_changes_nothing(family: str) -> None:
    model, parts = tiny(family)
    mask = torch.zeros(2, 9).bool()
    mask[0, 2:5] = mask[1, 4:9] = True
    with torch.no_grad(), capture(parts.blocks) as seen:
        plain = model(input_ids=IDS).logits
    for layer in (0, parts.num_layers - 1):
        with torch.no_grad(), replace_rows(parts.blocks[layer], mask, seen[layer][mask]):
            assert_close(model(input_ids=IDS).logits, plain, atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_patching_a_model_with_other_states_changes_the_rows_from_there_on(family: str) -> None:
    model, parts = tiny(family)
    with torch.no_grad():
        plain = model(input_ids=IDS).logits
        with replace_rows(parts.blocks[1], (torch.tensor([0]), torch.tensor([4])), states(1, parts.hidden_size)):
            moved = (model(input_ids=IDS).logits - plain).abs().amax(-1) > 1e-4  # [batch, T]
    assert not moved[0, :4].any()
    assert moved[0, 4:].all()
    assert not moved[1].any()


# --- add_rows


def test_every_row_of_the_batch_gets_its_own_vector() -> None:
    layer, state, deltas = Layer("tuple"), states(2, 3, 4), states(2, 4) + 1
    with add_rows(layer, deltas) as edited:
        output = layer(state)[0]
    assert edited.fired == 1
    assert_close(output, state * 2 + deltas[:, None])


def test_deltas_may_differ_by_token() -> None:
    layer, state, deltas = Layer(), states(2, 3, 4), states(2, 3, 4) + 1
    with add_rows(layer, deltas):
        assert_close(layer(state), state * 2 + deltas)


def test_only_masked_positions_are_changed() -> None:
    layer, state, mask = Layer(), states(2, 3, 4), torch.tensor([[0, 1, 0], [1, 0, 1]]).bool()
    with add_rows(layer, torch.ones(2, 4), positions=mask):
        assert_close(layer(state), state * 2 + mask[..., None])


@pytest.mark.parametrize(
    ("deltas", "positions"),
    [
        (torch.ones(1, 4), None),  # would broadcast over the batch
        (torch.ones(2, 5), None),
        (torch.ones(2, 1, 4), None),
        (torch.ones(2, 4), torch.ones(2, 2).bool()),
    ],
)
def test_deltas_that_do_not_fit_are_an_error(deltas: Tensor, positions: Tensor | None) -> None:
    layer = Layer()
    with pytest.raises(HookError, match="do not fit"), add_rows(layer, deltas, positions=positions):
        layer(states(2, 3, 4))


def test_a_split_batch_gives_what_the_whole_batch_gives() -> None:
    model, parts = tiny()
    deltas = states(2, parts.hidden_size)

    def steered(rows: slice) -> Tensor:
        with torch.no_grad(), add_rows(parts.blocks[1], deltas[rows]):
            logits: Tensor = model(input_ids=IDS[rows]).logits
        return logits

    assert_close(torch.cat([steered(slice(0, 1)), steered(slice(1, 2))]), steered(slice(0, 2)), atol=1e-5, rtol=0)


def test_generation_is_steered_at_every_step() -> None:
    model, parts = tiny()
    with add_rows(parts.blocks[1], states(2, parts.hidden_size)) as edited:
        model.generate(IDS, max_new_tokens=3, min_new_tokens=3, do_sample=False)
    assert edited.fired == 3


# --- coming and going


def test_nested_hooks_add_up_and_the_inner_one_sees_the_change() -> None:
    layer, state = Layer(), states(1, 2, 4)
    one = torch.ones(1, 4)
    with capture([layer]) as before, add_rows(layer, one), add_rows(layer, one), capture([layer]) as after:
        layer(state)
    assert_close(after[0], before[0] + 2)
    assert hooks_on(layer) == 0


def test_an_inner_block_ends_without_touching_the_outer_one() -> None:
    layer, state = Layer(), states(1, 2, 4)
    with add_rows(layer, torch.ones(1, 4)):
        with add_rows(layer, torch.ones(1, 4)):
            layer(state)
        assert_close(layer(state), state * 2 + 1)


def test_hooks_are_removed_after_an_exception_which_passes_unchanged() -> None:
    stack = Stack()
    with (
        pytest.raises(KeyError, match="mine"),
        capture([stack.first, stack.idle]),
        add_rows(stack.second, states(1, 4)),
    ):
        raise KeyError("mine")
    assert hooks_on(stack) == 0


def test_hooks_are_removed_when_the_model_fails() -> None:
    stack = Stack()
    with pytest.raises(TypeError), capture([stack.first]):
        stack("not a tensor", "too many")
    assert hooks_on(stack) == 0


def test_hooks_are_removed_when_one_of_the_modules_is_none() -> None:
    stack = Stack()
    with pytest.raises(AttributeError), capture([stack.first, None]):  # type: ignore[list-item]
        pass
    assert hooks_on(stack) == 0


def test_a_hook_that_never_fired_is_named() -> None:
    stack = Stack()
    with pytest.raises(HookError, match=r"module 1 \(Layer\) never fired"), capture([stack.first, stack.idle]):
        stack(states(1, 2, 4))
    assert hooks_on(stack) == 0


@pytest.mark.parametrize(
    "hook",
    [
        lambda module: replace_rows(module, torch.ones(1, 2).bool(), torch.zeros(2, 4)),
        lambda module: add_rows(module, torch.zeros(1, 4)),
    ],
)
def test_a_change_that_never_took_place_is_an_error(hook: Any) -> None:
    stack = Stack()
    with pytest.raises(HookError, match="never fired"), hook(stack.idle):
        stack(states(1, 2, 4))
