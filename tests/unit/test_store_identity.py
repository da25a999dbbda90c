"""Identity of tasks: keys, and the JSON that they are made of."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from residuum.errors import StoreError
from residuum.store import Task, canonical, content_hash

TASK = Task("uds", {"model": "full", "seed": 0})

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def test_a_key_does_not_depend_on_the_order_of_the_spec() -> None:
    assert Task("uds", {"seed": 0, "layers": (1, 2)}).key == Task("uds", {"layers": [1, 2], "seed": 0}).key


def test_a_key_depends_on_kind_and_every_field() -> None:
    tasks = [TASK, Task("em", TASK.spec), Task("uds", {"model": "full", "seed": 1}), Task("uds", {"model": "full"})]
    assert len({task.key for task in tasks}) == 4


def test_a_key_is_the_same_in_every_version() -> None:
    """A change here would make people compute everything again."""
    assert TASK.key == "2c2eec2731c70f7d38bd514b55ef460fa0ebd0feb1ee5040e6fadc3454214572"


def test_equal_tasks_are_one_member_of_a_set() -> None:
    assert len({TASK, Task("uds", {"seed": 0, "model": "full"})}) == 1


def test_a_task_travels_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(TASK)) == TASK


def test_a_task_does_not_follow_later_changes_of_its_spec() -> None:
    spec = {"layers": [1]}
    task = Task("uds", spec)
    spec["layers"].append(2)
    assert task.key == Task("uds", {"layers": [1]}).key


@pytest.mark.parametrize("kind", ["", "UDS", "a/b", "..", "a.b"])
def test_a_kind_that_cannot_name_a_folder_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match="kind"):
        Task(kind, {})


@settings(deadline=None)
@given(json_values)
def test_the_canonical_text_survives_a_round_trip(value: object) -> None:
    assert canonical(json.loads(canonical(value))) == canonical(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"scores": [0.5, float("nan")]}, r"value\.scores\[1\] is nan"),
        ([float("inf")], r"value\[0\] is inf"),
        ({"by_layer": {3: 0.5}}, r"value\.by_layer has the key 3"),
        ({"mean": np.float32(0.5)}, r"value\.mean is a float32"),
        (Path("runs"), "value is a .*Path"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_its_place(value: object, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        content_hash(value)
