"""A disk that holds less than the hub: what goes, what stays, and who is asked."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import constants

from residuum.errors import InputError
from residuum.models.names import ALIASES
from residuum.store import Store
from residuum.sweep.bench import Bench
from residuum.sweep.estimate import estimate
from residuum.sweep.hubcache import _mark, cached_models, make_room, using
from residuum.sweep.kinds import KINDS, Found, Kind
from residuum.sweep.plan import make_plan
from residuum.sweep.request import read_request
from residuum.sweep.tasks import Work
from residuum.sweep.work import Order, Worker

READER = """
import sys
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
    make_room("org/new", limit=4000, evict=True)
    make_room("org/a", limit=100, evict=True)
    make_room(str(tmp_path), limit=100, evict=True)
    assert models(cache) == "abc"


def test_the_least_recently_used_go_only_when_asked(cache):
    with pytest.raises(InputError, match="let the least recently used ones go with --evict"):
        make_room("org/new", limit=3000, evict=False)
    assert models(cache) == "abc"
    make_room("org/new", limit=3000, evict=True)
    assert models(cache) == "bc"


def test_models_in_use_are_never_removed(cache):
    with using("org/a", None, str(cache)):
        make_room("org/new", limit=3000, evict=True)
        assert models(cache) == "ac"
        with using("org/a", "org/c"), pytest.raises(InputError, match="all other models are in use"):
            make_room("org/other", limit=2000, evict=True)
    assert models(cache) == "ac"


def test_a_model_that_another_process_reads_stays_until_that_one_ends(cache):
    command, env = [sys.executable, "-c", READER], os.environ | {"HF_HUB_CACHE": str(cache)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True) as reader:
        assert reader.stdout.readline() == "reading\n"
        make_room("org/new", limit=3000, evict=True)
        assert models(cache) == "ac"
        reader.kill()
    make_room("org/new", limit=2000, evict=True)
    assert models(cache) == "c"


def test_a_worker_keeps_what_its_task_reads(cache, tmp_path, monkeypatch):
    def look(*_) -> Found:
        with pytest.raises(InputError, match="in use"):
            make_room("org/new", limit=1000, evict=True)
        return Found({})

    monkeypatch.setitem(KINDS._entries, "look", Kind(look))
    work = Work("a", "default", model="org/a", full_model="org/b", retain_model="org/c")
    order = Order("look/a", "look", work, str(tmp_path / "runs"), str(tmp_path / "a.log"))
    assert Worker("cpu", 1).do(order).error is None
    assert models(cache) == "abc"


def test_a_name_of_the_registry_marks_the_model_it_means(cache, monkeypatch):
    monkeypatch.setitem(ALIASES, "full", "org/a")
    with using("full"):
        make_room("org/new", limit=3000, evict=True)
    assert models(cache) == "ac"


def test_models_that_are_still_to_come_have_their_room(cache):
    with using("org/coming", "no such name"):
        make_room("org/new", limit=5000, evict=False)
        with pytest.raises(InputError, match="2 more to fetch"):
            make_room("org/new", limit=4000, evict=False)
        with pytest.raises(InputError, match=r"no room for org/coming, org/new: .* 2 more to fetch"):
            make_room("org/coming", "org/new", "org/a", limit=4000, evict=False)
    make_room("org/new", limit=4000, evict=False)


def test_half_a_model_is_still_to_come_and_needs_room_for_the_other_half(cache):
    (cache / "models--org--a/blobs/0").write_bytes(b"x" * 600)
    (cache / "models--org--a/blobs/1.incomplete").touch()
    make_room("org/a", limit=3000, evict=False)
    with pytest.raises(InputError, match="no room for org/a"):
        make_room("org/a", limit=2999, evict=False)
    with using("org/a"):
        make_room("org/new", limit=4000, evict=False)
        with pytest.raises(InputError, match="no room for org/new"):
            make_room("org/new", limit=3999, evict=False)


def test_what_a_killed_download_left_of_a_whole_model_needs_no_room(cache):
    (cache / "models--org--a/blobs/0.1b2c.incomplete").touch()
    make_room("org/a", limit=100, evict=False)


def test_a_model_that_is_read_ahead_keeps_its_room_until_it_is_read(cache, tmp_path, monkeypatch):
    from residuum.models import weights

    reading = threading.Event()
    monkeypatch.setattr(weights, "find", lambda _: (reading.wait(), _nothing_there()))
    bench = Bench(tmp_path, "cpu")
    with pytest.raises(InputError, match="no room for org/next"):
        bench.read_ahead("org/next", partial(make_room, limit=3000, evict=False))
    bench.read_ahead("org/next", partial(make_room, limit=4000, evict=False))
    with pytest.raises(InputError, match="2 more to fetch"):
        make_room("org/new", limit=4000, evict=False)
    reading.set()
    bench._reader.join()
    make_room("org/new", limit=4000, evict=False)


def _nothing_there():
    raise InputError("nothing there")


def test_marks_are_for_all_users_of_a_cache(cache):
    before = os.umask(0o022)
    try:
        with using("org/a"):
            (mark,) = (cache / ".locks/residuum").iterdir()
            assert [stat.S_IMODE(path.stat().st_mode) for path in (mark, mark.parent)] == [0o666, 0o1777]
    finally:
        os.umask(before)


def test_a_model_whose_mark_cannot_be_opened_is_in_use(cache, monkeypatch):
    def refuse(path, *how, **more):
        if path == _mark("org/a"):
            raise PermissionError(path)
        return opened(path, *how, **more)

    opened = os.open
    monkeypatch.setattr(os, "open", refuse)
    make_room("org/new", limit=3000, evict=True)
    assert models(cache) == "ac"


def test_the_fluency_classifier_is_kept_by_those_who_read_it_when_it_is_there(cache):
    work, other = (Work("a", "default", {"fluency_model": name}, model="org/a") for name in ("org/c", "org/none"))
    assert [name for name, kind in KINDS.items() if "org/c" in kind.models(work)] == ["evaluate", "meta"]
    assert not any("org/none" in kind.models(other) for _, kind in KINDS.items())


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
