"""Fixtures that all tests share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

# Two contending threads can be 70 times slower than one; the tests run in two processes instead.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Started in the background, a process ignores interrupts, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real public data beside the checkout; tests that need it skip when it is absent."""
    folder = Path(os.environ.get("RESIDUUM_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("the real data folder is not here")
    return folder


@pytest.fixture(scope="session")
def tiny_world(tmp_path_factory: pytest.TempPathFactory):
    """The tiny embedded world, built once for all test processes."""
    from residuum.worlds.build import build_world

    root = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        root = root.parent  # shared by the workers; the build itself is locked
    return build_world(root / "tiny-world", name="tiny", workers=1)


@pytest.fixture(scope="session")
def mood_world(tmp_path_factory: pytest.TempPathFactory):
    """The embedded steering world (subject, judges, trait folders), built once for all test processes; read only."""
    from residuum.worlds.steering import build_moods

    root = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        root = root.parent
    return build_moods(root / "mood-world")
