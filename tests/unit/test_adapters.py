"""Training adapters: only they learn, merged they are ordinary checkpoints."""

from __future__ import annotations

import pytest
import torch

from residuum.training import lora
from residuum.training.methods import make_method
from residuum.training.unlearn import Unlearning, unlearn
from trainable import (
    QUICK,
    RMU,
    SMALL,
    draw,
    tiny_lm,
    weights,
)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_only_the_adapter_is_trained_and_merging_keeps_the_logits(family, tmp_path):
    lm = tiny_lm(family)
    ids = torch.tensor([[1, 5, 9, 12, 40]])
    before = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    adapted = lora.attach(lm.model, 4)
    lm.model = adapted
    from residuum.training.loop import TrainConfig, train

    objective = Unlearning(make_method("npo", {}), lm, draw(lm), epochs=3)
    train(adapted, objective, TrainConfig(epochs=3, lr=1e-2, trainable=lora.ADAPTER_PATTERN), tmp_path, title=None)
    base = {name.replace(".base_layer", ""): tensor for name, tensor in adapted.get_base_model().state_dict().items()}
    assert all(torch.equal(base[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        with_adapter = adapted(input_ids=ids).logits
        with lora.switched_off(adapted) as off:
            without = off(input_ids=ids).logits
        merged = lora.merge(adapted)(input_ids=ids).logits
    assert (with_adapter - without).abs().max() > 1e-3
    torch.testing.assert_close(merged, with_adapter, atol=1e-5, rtol=0)


def test_an_adapter_starts_as_the_model_itself(lm):
    ids = torch.tensor([[1, 5, 9]])
    with torch.no_grad():
        before = lm.model(input_ids=ids).logits
        assert torch.equal(lora.attach(lm.model, 4)(input_ids=ids).logits, before)


@pytest.mark.parametrize("method", ["npo", "undial", "rmu"])
def test_an_adapted_run_ends_in_an_ordinary_checkpoint(lm, tmp_path, method):
    extra = RMU if method == "rmu" else {}
    folder = unlearn(method, model=lm, out=tmp_path / "out", lora_rank=2, **extra, **QUICK, **SMALL)
    changed = {name for name, tensor in weights(folder).items() if not torch.equal(tensor, lm.model.state_dict()[name])}
    assert changed
    assert all("proj" in name for name in changed)
    assert not (folder / "adapter_config.json").exists()


def test_an_adapter_learns_under_gradient_checkpointing(lm, tmp_path):
    plain, saving = (
        weights(
            unlearn(
                "npo", model=lm, out=tmp_path / str(flag), lora_rank=2, gradient_checkpointing=flag, **QUICK, **SMALL
            )
        )
        for flag in (False, True)
    )
    for name in plain:
        torch.testing.assert_close(plain[name], saving[name], atol=1e-6, rtol=0)


def test_an_adapters_reference_is_the_model_with_the_adapter_off(lm):
    model = lm.model
    lm.model = lora.attach(model, 2)
    objective = Unlearning(make_method("undial", {"alpha": 1.0, "retain_loss": "kl"}), lm, draw(lm), epochs=1)
    batch = objective.batches(0)[0]
    assert objective.losses(lm.model, batch)["retain"].item() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        for name, parameter in lm.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    assert objective.losses(lm.model, batch)["retain"].item() > 1e-3
