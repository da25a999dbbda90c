"""The run store: units, damage, the folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from residuum.errors import StoreError
from residuum.store import Outcome, Store, Task, provenance, table
from residuum.store.atomic import write_json

TASK = Task("uds", {"model": "full", "seed": 0})

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Units


def test_an_unknown_task_has_no_unit(store: Store) -> None:
    assert store.get(TASK) is None
    assert not store.has(TASK)


def test_looking_into_a_store_writes_nothing(store: Store) -> None:
    store.get(TASK)
    list(store.units())
    table(store, "uds")
    store.started()
    assert not store.root.exists()


@settings(deadline=None, max_examples=50)
@given(value=json_values)
def test_a_unit_is_read_as_it_was_written(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    store = Store(tmp_path_factory.getbasetemp() / "round-trip")
    written = store.put(TASK, value, provenance={})
    assert written == store.get(TASK)
    assert written.value == value


def test_arrays_are_read_as_they_were_written(store: Store) -> None:
    arrays = {"deltas": np.arange(6, dtype=np.float16).reshape(2, 3), "rows": np.array([True, False])}
    store.put(TASK, None, arrays=arrays)
    unit = store.get(TASK)
    assert unit is not None
    read = unit.arrays()
    assert all(np.array_equal(read[name], arrays[name]) and read[name].dtype == arrays[name].dtype for name in arrays)


def test_a_finished_task_is_not_run_again(store: Store) -> None:
    store.run(TASK, lambda: {"uds": 0.5})
    assert store.run(TASK, lambda: pytest.fail("ran twice")).value == {"uds": 0.5}


def test_the_first_run_returns_what_later_runs_return(store: Store) -> None:
    assert store.run(TASK, lambda: {"layers": (1, 2)}) == store.run(TASK, lambda: None)


def test_a_function_may_return_arrays_too(store: Store) -> None:
    unit = store.run(TASK, lambda: Outcome({"n": 1}, {"x": np.ones(2)}))
    assert unit.arrays()["x"].tolist() == [1, 1]


def test_a_function_that_fails_leaves_no_unit_and_no_mark(store: Store) -> None:
    with pytest.raises(ZeroDivisionError):
        store.run(TASK, lambda: 1 / 0)
    assert not store.has(TASK)
    assert store.started() == []


def test_a_unit_carries_its_provenance(store: Store) -> None:
    unit = store.run(TASK, lambda: 1, provenance=provenance(seed=3, dtype="float32", weights={"full": "abc"}))
    assert (unit.provenance["seed"], unit.provenance["dtype"], unit.provenance["weights"]) == (
        3,
        "float32",
        {"full": "abc"},
    )


def test_units_are_listed_by_kind(store: Store) -> None:
    for task in (TASK, Task("uds", {}), Task("em", {})):
        store.put(task, None)
    assert store.kinds() == ["em", "uds"]
    assert [len(list(store.units(kind))) for kind in ("uds", "em", "other", None)] == [2, 1, 0, 3]


def test_finished_work_leaves_no_lock_behind(store: Store) -> None:
    store.put(TASK, 1)
    store.run(Task("uds", {}), lambda: 1)
    assert names(store.root / "claims") == []


# Damage


def damage_by_cutting(store: Store) -> None:
    path = store.path(TASK)
    path.write_bytes(path.read_bytes()[:-20])


def damage_by_editing(store: Store) -> None:
    path = store.path(TASK)
    path.write_text(path.read_text().replace("0.5", "0.9"))


def damage_by_emptying(store: Store) -> None:
    store.path(TASK).write_bytes(b"")


def damage_by_other_json(store: Store) -> None:
    store.path(TASK).write_text("[1, 2, 3]")


def damage_by_a_unit_of_another_task(store: Store) -> None:
    other = Task("uds", {"model": "retain"})
    store.put(other, {"uds": 0.1})
    store.path(TASK).write_bytes(store.path(other).read_bytes())


def damage_by_other_arrays(store: Store) -> None:
    store.path(TASK).with_suffix(".safetensors").write_bytes(b"other")


def damage_by_missing_arrays(store: Store) -> None:
    store.path(TASK).with_suffix(".safetensors").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        damage_by_cutting,
        damage_by_editing,
        damage_by_emptying,
        damage_by_other_json,
        damage_by_a_unit_of_another_task,
        damage_by_other_arrays,
        damage_by_missing_arrays,
    ],
)
def test_a_damaged_unit_is_set_aside_and_done_again(store: Store, damage: Callable[[Store], None]) -> None:
    arrays = {"x": np.ones(3)}
    store.put(TASK, {"uds": 0.5}, arrays=arrays)
    damage(store)
    with pytest.warns(UserWarning, match="counts as absent"):
        assert store.get(TASK) is None
    assert store.path(TASK).with_suffix(".json.broken").exists()
    assert store.run(TASK, lambda: Outcome({"uds": 0.6}, arrays)).value == {"uds": 0.6}


def test_a_unit_of_a_newer_version_is_an_error_and_stays(store: Store) -> None:
    store.put(TASK, 1)
    path = store.path(TASK)
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(StoreError, match="newer residuum"):
        store.get(TASK)
    assert path.exists()


# The folder


def test_a_store_of_a_newer_version_is_refused(store: Store) -> None:
    write_json(store.root / "manifest.json", {"format": 2, "residuum": "9.0", "created": ""})
    with pytest.raises(StoreError, match=r"newer residuum: 9\.0, store format 2"):
        Store(store.root)


@pytest.mark.parametrize("content", ["", "[]", '{"format": "one"}', "{}"])
def test_a_manifest_that_is_none_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(StoreError, match="not the manifest of a run store"):
        Store(tmp_path)


def test_the_manifest_says_who_made_the_store(store: Store) -> None:
    store.put(TASK, 1)
    assert json.loads((store.root / "manifest.json").read_text()).keys() == {"format", "residuum", "created"}


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    with pytest.raises(StoreError, match=r"cannot read .*\n.*is a file"):
        Store(tmp_path / "runs")


def test_a_folder_that_cannot_be_written_is_an_error_before_any_work(tmp_path: Path) -> None:
    """Not by permissions: the super-user ignores them, and tests may run as one."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "claims").touch()
    with pytest.raises(StoreError, match="cannot lock"):
        Store(tmp_path / "runs").run(TASK, lambda: pytest.fail("worked for nothing"))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to")
def test_a_read_only_place_is_an_error_with_advice() -> None:
    with pytest.raises(StoreError, match=r"cannot write /proc/runs/manifest\.json"):
        Store("/proc/runs").put(TASK, 1)
