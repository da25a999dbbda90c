"""What a worker keeps between tasks."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from residuum.sweep.bench import Bench
from residuum.sweep.tasks import Work
from residuum.sweep.work import Order, Worker


def order(world, model: str, folder: Path, ahead: str | None = None) -> Order:
    work = Work(
        model, "default", model=str(world.model(model)), full_model=str(world.model("full")),
        retain_model=str(world.model("retain90")), data=str(world.annotated),
    )  # fmt: skip
    return Order(f"uds/{model}", "uds", work, str(folder / "runs"), str(folder / f"{model}.log"), ahead=ahead)


def test_full_and_stage_1_stay_with_the_worker(tiny_world, tmp_path, monkeypatch):
    from residuum.models import loading

    loaded: Counter[str] = Counter()
    load = loading.load

    def counting(place, **options):
        loaded[Path(place).name] += 1
        return load(place, **options)

    monkeypatch.setattr(loading, "load", counting)
    worker = Worker("cpu", 1)
    for model in ("retain90", "base", "full"):
        assert worker.do(order(tiny_world, model, tmp_path)).error is None
    # The third task loads full once more, as the model that is audited.
    assert loaded == {"full": 2, "retain90": 1, "base": 1}


def test_an_error_leaves_nothing_behind_in_a_worker(tiny_world, tmp_path):
    worker = Worker("cpu", 1)
    good, bad = order(tiny_world, "base", tmp_path), order(tiny_world, "nowhere", tmp_path)
    assert worker.do(good).error is None
    assert "no such file or folder" in str(worker.do(bad).error)
    (bench,) = worker._benches.values()
    assert bench._kept == {}


def test_the_next_checkpoint_is_read_in_the_background(tmp_path, tiny_world, monkeypatch):
    from residuum.models import weights

    read: list[Path] = []
    monkeypatch.setattr(weights, "_sha256", lambda path: read.append(path) or "0")
    bench = Bench(tmp_path, "cpu")
    bench.read_ahead(str(tiny_world.model("base")))
    bench._reader.join()
    assert [path.name for path in read] == ["model.safetensors"]
    bench.read_ahead(str(tmp_path / "nowhere"))  # says nothing: the task will
    bench._reader.join()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), (False, True)),
        (RuntimeError("CUDA out of memory"), (True, False)),
    ],
)
def test_what_is_not_the_fault_of_a_model_is_left_to_the_driver(tiny_world, tmp_path, monkeypatch, error, outcome):
    from residuum.meta import bench

    def fail(*_):
        raise error

    monkeypatch.setattr(bench, "_measure", fail)
    work = Work(
        "base", "default", {"metrics": ["em"]}, model=str(tiny_world.model("base")), data_dir=str(tiny_world.data),
        full_model=str(tiny_world.model("full")), retain_model=str(tiny_world.model("retain90")),
    )  # fmt: skip
    report = Worker("cpu", 1).do(Order("meta/base", "meta", work, str(tmp_path / "runs"), str(tmp_path / "log")))
    assert (report.retry, report.fatal) == outcome, report.error
