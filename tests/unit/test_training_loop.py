"""The training loop: schedule, freezing, checkpoints, resume, divergence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from miniatures import miniature
from residuum.data.prompts import Encoded
from residuum.errors import Diverged, StoreError, UnknownName, UsageError
from residuum.training import checkpoints
from residuum.training.finetune import Finetune
from residuum.training.loop import TrainConfig, freeze_all_but, learning_rate, train
from residuum.training.optimizers import Lion

CONFIG = TrainConfig(epochs=3, lr=1e-3, warmup=0.2, accumulation=2, checkpoint_seconds=0.0)


def lessons(epoch: int) -> list[list[Encoded]]:
    generator = torch.Generator().manual_seed(epoch)
    rows = torch.randint(3, 60, (10, 7), generator=generator).tolist()
    return [[Encoded(tuple(row), 2) for row in rows[i : i + 2]] for i in range(0, 10, 2)]


class Interrupted(Exception):
    """Stands for the moment a process dies."""


class DyingFinetune(Finetune):
    """Fine-tuning that stops dead at a given micro-batch."""

    def __init__(self, die_at: int) -> None:
        super().__init__(lessons, pad_id=0)
        self.left = die_at

    def losses(self, model, batch):
        if self.left == 0:
            raise Interrupted
        self.left -= 1
        return super().losses(model, batch)


def test_training_lowers_the_loss_and_logs_every_step(tmp_path):
    log = train(miniature("llama"), Finetune(lambda _: lessons(0), 0), replace(CONFIG, epochs=8, lr=1e-2), tmp_path)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 8 * 3 + 1))
    assert lines[-1]["total"] < lines[0]["total"] - 0.5


@pytest.mark.parametrize("die_at", [1, 5, 6, 11])
def test_a_killed_run_ends_with_the_same_weights_and_the_same_log(tmp_path, die_at):
    whole, killed = miniature("llama"), miniature("llama")
    train(whole, Finetune(lessons, 0), CONFIG, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(killed, DyingFinetune(die_at), CONFIG, tmp_path / "killed")
    resumed = miniature("llama")
    train(resumed, Finetune(lessons, 0), CONFIG, tmp_path / "killed")
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name
    assert (tmp_path / "whole/losses.jsonl").read_text() == (tmp_path / "killed/losses.jsonl").read_text()


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        train(miniature("llama"), DyingFinetune(4), CONFIG, tmp_path)
    with pytest.raises(StoreError, match="other settings"):
        train(miniature("llama"), Finetune(lessons, 0), replace(CONFIG, lr=1e-4), tmp_path)


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    with pytest.raises(Interrupted):
        train(miniature("llama"), DyingFinetune(4), CONFIG, tmp_path)
    (tmp_path / "checkpoints/latest").rename(tmp_path / "checkpoints/old")
    resumed, whole = miniature("llama"), miniature("llama")
    train(resumed, Finetune(lessons, 0), CONFIG, tmp_path)
    train(whole, Finetune(lessons, 0), CONFIG, tmp_path / "whole")
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True))


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_checkpoint(tmp_path):
    class Exploding(Finetune):
        calls = 0

        def losses(self, model, batch):
            self.calls += 1
            parts = super().losses(model, batch)
            return parts if self.calls < 5 else {"total": parts["total"] * float("nan")}

    with pytest.raises(Diverged, match="step 3 of 9"):
        train(miniature("llama"), Exploding(lessons, 0), CONFIG, tmp_path)
    # The weights of step 2 are those that gave the bad loss; the ones of step 1 have proven themselves.
    assert json.loads((tmp_path / "checkpoints/latest/state.json").read_text())["step"] == 1


def test_frozen_parameters_do_not_move(tmp_path):
    model, before = miniature("llama"), miniature("llama").state_dict()
    train(model, Finetune(lessons, 0), replace(CONFIG, trainable=r"model\.layers\.3\."), tmp_path)
    moved = {name for name, weight in model.state_dict().items() if not torch.equal(weight, before[name])}
    assert moved
    assert all(name.startswith("model.layers.3.") for name in moved)


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(UsageError, match="no parameter"):
        freeze_all_but(miniature("llama"), "decoder.*")


@pytest.mark.parametrize("lr", [0.0, -1e-5, float("nan"), float("inf")])
def test_a_learning_rate_that_is_not_positive_is_refused(tmp_path, lr):
    with pytest.raises(UsageError, match="learning rate"):
        train(miniature("llama"), Finetune(lessons, 0), replace(CONFIG, lr=lr), tmp_path)


def test_an_unknown_optimizer_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(UnknownName, match="adamw"):
        train(miniature("llama"), Finetune(lessons, 0), replace(CONFIG, optimizer="adam"), tmp_path)


def test_nothing_to_train_on_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no batches"):
        train(miniature("llama"), Finetune(lambda _: [], 0), CONFIG, tmp_path)


def test_the_rate_rises_then_falls_linearly_to_zero():
    config = TrainConfig(lr=1.0, warmup=2)
    rates = [learning_rate(config, step, 6) for step in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.75, 0.5, 0.25])


def test_a_constant_schedule_does_not_depend_on_the_number_of_steps():
    config = TrainConfig(lr=1.0, warmup=3, schedule="constant")
    assert [learning_rate(config, s, 5) for s in range(5)] == [learning_rate(config, s, 50) for s in range(5)]


def test_accumulated_steps_equal_one_large_batch(tmp_path):
    rows = [Encoded(tuple(row), 2) for row in torch.randint(3, 60, (4, 7)).tolist()]
    large, split = miniature("llama"), miniature("llama")
    config = replace(CONFIG, epochs=1, warmup=0, max_grad_norm=None)
    train(large, Finetune(lambda _: [rows], 0), replace(config, accumulation=1), tmp_path / "large")
    train(split, Finetune(lambda _: [rows[:2], rows[2:]], 0), config, tmp_path / "split")
    for a, b in zip(large.parameters(), split.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=0)


def test_padding_does_not_enter_the_loss():
    model = miniature("llama").double()
    short, long = Encoded((5, 6, 7), 1), Encoded((8, 9, 10, 11, 12, 13), 4)
    objective = Finetune(lessons, 0)
    both = objective.losses(model, [short, long])["total"]
    apart = [objective.losses(model, [row])["total"] * len(row.labels) for row in (short, long)]
    assert both.item() == pytest.approx((sum(apart) / 4).item(), abs=1e-12)


def test_lion_follows_its_formula():
    weight = nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = Lion([{"params": [weight], "weight_decay": 0.1}], lr=0.01)
    momentum, expected = torch.zeros(2), torch.tensor([1.0, -2.0])
    for gradient in (torch.tensor([0.3, -0.2]), torch.tensor([-5.0, 0.1])):
        weight.grad = gradient.clone()
        optimizer.step()
        expected = expected - 0.01 * (torch.sign(0.9 * momentum + 0.1 * gradient) + 0.1 * expected)
        momentum = 0.99 * momentum + 0.01 * gradient
    torch.testing.assert_close(weight.data, expected)


def test_discarded_checkpoints_are_gone(tmp_path):
    train(miniature("llama"), Finetune(lessons, 0), CONFIG, tmp_path)
    assert (tmp_path / "checkpoints").exists()
    checkpoints.discard(tmp_path)
    assert not (tmp_path / "checkpoints").exists()


def test_epochs_are_reported_after_a_resume_too(tmp_path):
    seen: list[int] = []
    with pytest.raises(Interrupted):
        train(miniature("llama"), DyingFinetune(5), CONFIG, tmp_path, on_epoch=seen.append)
    train(miniature("llama"), Finetune(lessons, 0), CONFIG, tmp_path, on_epoch=seen.append)
    assert seen == [1, 1, 2, 3]
