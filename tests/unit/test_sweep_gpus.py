"""A GPU belongs to one sweep at a time; here it is made of nothing but its number."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from residuum.errors import InputError
from residuum.sweep.engines import hold


@pytest.fixture(autouse=True)
def gpus(tmp_path, monkeypatch) -> dict[str, str]:
    """What each device is called by its maker."""
    known = {"cuda:0": "GPU-a", "cuda:1": "GPU-b"}
    monkeypatch.setenv("RESIDUUM_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=known[device]))
    return known


def test_a_gpu_in_use_is_refused_with_the_name_of_its_holder_until_it_is_free():
    first = hold(["cuda:0"])
    with pytest.raises(InputError, match=r"cuda:0 is in use by another sweep, process \d+ on"):
        hold(["cuda:1", "cuda:0"])
    first.close()
    hold(["cuda:1", "cuda:0"]).close()  # the one that was free was not kept


def test_two_gpus_of_one_number_are_told_apart(gpus):
    with hold(["cuda:0"]):
        gpus["cuda:0"] = "GPU-c"  # as CUDA_VISIBLE_DEVICES does it
        hold(["cuda:0"]).close()


def test_a_cpu_is_for_everybody():
    with hold(["cpu", "cpu"]):
        hold(["cpu"]).close()


def test_a_cache_that_cannot_be_written_guards_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RESIDUUM_CACHE", str(tmp_path / "file"))
    hold(["cuda:0"]).close()
