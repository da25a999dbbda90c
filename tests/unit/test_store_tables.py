"""Tables over units: views that follow them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from residuum.store import Store, Task, table
from residuum.store.atomic import write_text

TASK = Task("uds", {"model": "full", "seed": 0})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def test_a_table_has_one_flat_row_per_unit_in_the_order_of_the_specs(store: Store) -> None:
    for model in ("retain", "full"):
        store.put(Task("uds", {"model": model}), {"uds": {"mean": 0.5}, "examples": [1, 2]})
    rows = table(store, "uds")
    assert [row["spec.model"] for row in rows] == ["full", "retain"]
    assert rows[0].keys() == {"spec.model", "value.uds.mean", "key", "created"}


def test_a_table_keeps_the_columns_that_are_asked_for(store: Store) -> None:
    store.put(TASK, 0.5)
    assert table(store, "uds", ["value", "spec.model", "spec.other"]) == [
        {"value": 0.5, "spec.model": "full", "spec.other": None}
    ]


def test_a_table_of_a_kind_without_units_is_empty(store: Store) -> None:
    assert table(store, "uds") == []


def test_a_table_follows_new_replaced_and_removed_units(store: Store) -> None:
    other = Task("uds", {"model": "retain", "seed": 0})
    seen = []
    for change in (
        lambda: store.put(TASK, 1),
        lambda: store.put(other, 2),
        lambda: store.put(TASK, 3),
        lambda: store.path(other).unlink(),
        lambda: store.path(other).parent.rmdir(),
    ):
        change()
        seen.append([row["value"] for row in table(store, "uds")])
    assert seen == [[1], [1, 2], [3, 2], [3], [3]]


def test_a_settled_folder_is_not_listed_again_until_it_changes(store: Store) -> None:
    store.put(TASK, 1)
    folder = store.path(TASK).parent
    os.utime(folder, (1, 1))
    table(store, "uds")
    store.path(TASK).rename(store.root / "hidden.json")
    os.utime(folder, (1, 1))
    assert len(table(store, "uds")) == 1
    os.utime(folder, (2, 2))
    assert table(store, "uds") == []


def test_a_damaged_unit_leaves_the_table(store: Store) -> None:
    store.put(TASK, 1)
    table(store, "uds")
    write_text(store.path(TASK), "torn")
    with pytest.warns(UserWarning, match="counts as absent"):
        assert table(store, "uds") == []


@pytest.mark.parametrize("content", [b"not an index at all", b"SQLite format 3\0" + bytes(200)])
def test_a_damaged_index_is_made_again(store: Store, content: bytes) -> None:
    store.put(TASK, 1)
    index = store.root / "index.sqlite"
    index.write_bytes(content)
    assert len(table(store, "uds")) == 1
    assert len(table(store, "uds")) == 1
    assert index.read_bytes() != content


def test_a_table_needs_no_index(store: Store) -> None:
    store.put(TASK, 1)
    (store.root / "index.sqlite").mkdir()
    assert len(table(store, "uds")) == 1
