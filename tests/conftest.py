"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Two contending threads can be 70 times slower than one; the tests run in two processes instead.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real public data beside the checkout; tests that need it skip when it is absent."""
    folder = Path(os.environ.get("RESIDUUM_SHARED_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("the real data folder is not here")
    return folder
