"""A disk that holds less than the hub: what goes, what stays, and who is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from residuum.errors import InputError
from residuum.store import Store
from residuum.sweep.estimate import estimate
from residuum.sweep.hubcache import cached_models, make_room, using
from residuum.sweep.kinds import KINDS, Found, Kind
from residuum.sweep.plan import make_plan
from residuum.sweep.request import read_request
from residuum.sweep.tasks import Work
from residuum.sweep.work import Order, Worker

READER = """
import sys
from residuum.store import Store
from residuum.sweep.estimate import estimate
from residuum.sweep.hubcache import using
with using("org/a"):
    print("reading", flush=True)
    sys.stdin.read()
"""


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
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


def models(cache: Path) -> str:
    return "".join(sorted(path.name[-1] for path in cache.glob("models--*")))


def test_a_model_that_fits_or_is_there_removes_nothing(cache, tmp_path):
    make_room("org/new", 4000, evict=True)
    make_room("org/a", 100, evict=True)
    make_room(str(tmp_path), 100, evict=True)
    assert models(cache) == "abc"


def test_the_least_recently_used_go_only_when_asked(cache):
    with pytest.raises(InputError, match="let the least recently used ones go with --evict"):
        make_room("org/new", 3000, evict=False)
    assert models(cache) == "abc"
    make_room("org/new", 3000, evict=True)
    assert models(cache) == "bc"


def test_models_in_use_are_never_removed(cache):
    with using("org/a", None, str(cache)):
        make_room("org/new", 3000, evict=True)
        assert models(cache) == "ac"
        with using("org/a", "org/c"), pytest.raises(InputError, match="all other models are in use"):
            make_room("org/other", 2000, evict=True)
    assert models(cache) == "ac"


def test_a_model_that_another_process_reads_stays_until_that_one_ends(cache):
    command, env = [sys.executable, "-c", READER], os.environ | {"HF_HUB_CACHE": str(cache)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True) as reader:
        assert reader.stdout.readline() == "reading\n"
        make_room("org/new", 3000, evict=True)
        assert models(cache) == "ac"
        reader.kill()
    make_room("org/new", 2000, evict=True)
    assert models(cache) == "c"


def test_a_worker_keeps_what_its_task_reads(cache, tmp_path, monkeypatch):
    def look(*_) -> Found:
        with pytest.raises(InputError, match="in use"):
            make_room("org/new", 1000, evict=True)
        return Found({})

    monkeypatch.setitem(KINDS._entries, "look", Kind(look))
    work = Work("a", "default", model="org/a", full_model="org/b", retain_model="org/c")
    order = Order("look/a", "look", work, str(tmp_path / "runs"), str(tmp_path / "a.log"))
    assert Worker("cpu", 1).do(order).error is None
    assert models(cache) == "abc"


def test_an_estimate_counts_the_models_that_are_still_to_be_fetched(cache, tmp_path):
    request = {
        "do": "uds", "models": ["org/a", "org/new"], "full_model": "org/full", "retain_model": "org/b",
        "engine": {"gpus": []},
    }  # fmt: skip
    assert estimate(make_plan(read_request(request)), Store(tmp_path / "runs")).downloads == 2  # new and full


def test_a_cache_that_is_not_there_holds_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "none"))
    assert cached_models() == set()


def test_the_models_of_a_cache_are_known_by_their_ids(cache):
    assert cached_models() == {"org/a", "org/b", "org/c"}
