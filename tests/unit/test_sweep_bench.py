"""What a worker keeps between tasks, and a disk that holds less than the hub."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from residuum.errors import InputError
from residuum.sweep import hubcache
from residuum.sweep.bench import Bench
from residuum.sweep.hubcache import make_room
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


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A hub cache of three models of 1000 bytes, a the least recently used."""
    folder = tmp_path / "hub"
    for age, name in enumerate("cba"):
        repo = folder / f"models--org--{name}"
        revision = str(age) * 40
        for part in ("blobs", "refs", f"snapshots/{revision}"):
            (repo / part).mkdir(parents=True)
        blob = repo / "blobs/0"
        blob.write_bytes(b"x" * 1000)
        (repo / "refs/main").write_text(revision)
        (repo / f"snapshots/{revision}/model.safetensors").symlink_to(blob)
        os.utime(blob, (1_000_000 - age, 1_000_000 - age))
    monkeypatch.setattr(hubcache, "_cache_folder", lambda: folder)
    return folder


def models(cache: Path) -> str:
    return "".join(sorted(path.name[-1] for path in cache.glob("models--*")))


def test_a_model_that_fits_or_is_there_removes_nothing(cache, tmp_path):
    make_room("org/new", 4000, keep=(), evict=True)
    make_room("org/a", 100, keep=(), evict=True)
    make_room(str(tmp_path), 100, keep=(), evict=True)
    assert models(cache) == "abc"


def test_the_least_recently_used_go_only_when_asked(cache):
    with pytest.raises(InputError, match="let the least recently used ones go with --evict"):
        make_room("org/new", 3000, keep=(), evict=False)
    assert models(cache) == "abc"
    make_room("org/new", 3000, keep=(), evict=True)
    assert models(cache) == "bc"


def test_models_in_use_are_never_removed(cache):
    make_room("org/new", 3000, keep=("org/a",), evict=True)
    assert models(cache) == "ac"
    with pytest.raises(InputError, match="all other models are in use"):
        make_room("org/other", 2000, keep=("org/a", "org/c"), evict=True)
    assert models(cache) == "ac"
