"""The run store: identity, atomic files, damage, claims between processes, tables."""

from __future__ import annotations

import json
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import residuum.errors
from residuum.errors import StoreError
from residuum.store import Busy, Outcome, Store, Task, canonical, content_hash, file_hash, provenance, table
from residuum.store.atomic import write_bytes, write_json, write_text
from residuum.store.origin import git_revision, redact

TASK = Task("uds", {"model": "full", "seed": 0})
Process = subprocess.Popen[str]
Spawn = Callable[..., Process]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "runs")


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Starts Python code in a process of its own; none outlives the test."""
    processes = []

    def start(code: str, *arguments: object) -> Process:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(Path(residuum.errors.__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


# Takes the unit, says so, and works until somebody writes a line to it.
HOLDER = """
import sys
from residuum.store import Store, Task

def work():
    print("holding", flush=True)
    sys.stdin.readline()
    return {"by": "holder"}

Store(sys.argv[1]).run(Task("uds", {"model": "full", "seed": 0}), work)
"""

# Wants the same unit; says on stderr when it has to wait.
WAITER = """
import logging, sys
from residuum.store import Store, Task

logging.basicConfig(level=logging.INFO)
unit = Store(sys.argv[1]).run(Task("uds", {"model": "full", "seed": 0}), lambda: {"by": "waiter"})
print(unit.value["by"], flush=True)
"""


@pytest.fixture
def holder(store: Store, spawn: Spawn) -> Process:
    """A process that is at work on the unit of TASK."""
    process = spawn(HOLDER, store.root)
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Identity


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


# Atomic files


def test_a_written_file_is_there_with_its_folders_and_nothing_else(tmp_path: Path) -> None:
    path = write_text(tmp_path / "a" / "b.txt", "ä\n")
    assert path.read_bytes() == "ä\n".encode()
    assert names(path.parent) == ["b.txt"]


def test_a_file_for_people_keeps_the_order_of_its_keys(tmp_path: Path) -> None:
    assert write_json(tmp_path / "a.json", {"b": 1, "a": "ä"}).read_text() == '{\n  "b": 1,\n  "a": "ä"\n}\n'


def test_a_refused_value_leaves_the_old_file(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", 1)
    with pytest.raises(StoreError):
        write_json(path, float("nan"))
    assert path.read_text() == "1\n"


def test_a_failed_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"cannot write .*taken"):
        write_bytes(tmp_path / "taken", b"a folder cannot be replaced by a file")
    assert names(tmp_path) == ["taken"]


def test_files_are_as_open_to_others_as_the_umask_says(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    written = write_bytes(tmp_path / "written", b"")
    assert stat.S_IMODE(written.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = write_bytes(tmp_path / "empty", b"")
    assert file_hash(path) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


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


@pytest.mark.usefixtures("holder")
def test_a_damaged_unit_that_somebody_is_doing_again_is_left_in_place(store: Store) -> None:
    write_text(store.path(TASK), "torn")
    with pytest.warns(UserWarning, match="counts as absent"):
        assert store.get(TASK) is None
    assert store.path(TASK).read_text() == "torn"


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


# Several processes


def test_two_processes_do_one_unit_once(store: Store, spawn: Spawn, holder: Process) -> None:
    waiter = spawn(WAITER, store.root)
    assert waiter.stderr is not None
    assert f"held by process {holder.pid} on" in waiter.stderr.readline()
    holder.communicate("finish\n")
    assert waiter.communicate()[0] == "holder\n"


def test_a_killed_unit_is_done_again_at_once_by_who_waits_for_it(store: Store, spawn: Spawn, holder: Process) -> None:
    waiter = spawn(WAITER, store.root)
    assert waiter.stderr is not None
    waiter.stderr.readline()
    holder.kill()
    assert waiter.communicate()[0] == "waiter\n"


def test_a_killed_process_leaves_its_name_until_the_unit_is_done(store: Store, holder: Process) -> None:
    holder.kill()
    holder.wait()
    assert [(owner.pid, owner.work) for owner in store.started()] == [(holder.pid, str(TASK))]
    store.run(TASK, lambda: 1, timeout=0)
    assert store.started() == []


def test_what_a_killed_writer_left_is_cleared_away(store: Store, holder: Process) -> None:
    holder.kill()
    holder.wait()
    folder = store.path(TASK).parent
    write_text(folder / f".{TASK.key}.json.{holder.pid}-0.tmp", "half a un")
    store.run(TASK, lambda: 1)
    assert names(folder) == [f"{TASK.key}.json"]


def test_a_busy_unit_names_its_owner_when_the_time_is_over(store: Store, holder: Process) -> None:
    with pytest.raises(Busy, match=f"{TASK} is being done by process {holder.pid} on"):
        store.run(TASK, lambda: 1, timeout=0)


def test_the_store_needs_no_heavy_imports(spawn: Spawn) -> None:
    code = "import sys, residuum.store; print({'torch', 'transformers', 'numpy', 'filelock'} & sys.modules.keys())"
    assert spawn(code).communicate()[0] == "set()\n"


# Tables


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


# Provenance


def test_provenance_says_what_is_needed_to_make_a_result_again() -> None:
    record = provenance(seed=0, dtype="float32", data="d", weights="w", batch=4)
    assert record["settings"] == {"batch": 4}
    assert record["versions"].keys() == {"python", "residuum", "torch", "transformers", "numpy"}
    assert record.keys() >= {"seed", "dtype", "data", "weights", "git", "platform", "threads", "command", "time"}
    canonical(record)


def test_a_folder_without_a_checkout_has_no_revision(tmp_path: Path) -> None:
    assert git_revision(tmp_path) is None


def test_the_revision_of_a_checkout_says_when_it_has_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "--message", "first")
    commit = git("rev-parse", "HEAD").strip()
    clean = git_revision(tmp_path)
    (tmp_path / "file").write_text("two")
    git_revision.cache_clear()
    assert (clean, git_revision(tmp_path)) == (commit, f"{commit}-dirty")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--api-key", "abc", "x"], ["--api-key", "***", "x"]),
        (["--hf_token=abc"], ["--hf_token=***"]),
        (["OPENAI_API_KEY=abc"], ["OPENAI_API_KEY=***"]),
        (["--judge", "sk-0123456789abcdefXYZ"], ["--judge", "***"]),
        (["https://me:pass@host/path"], ["https://***@host/path"]),
        (["--max-tokens", "512", "--tokenizer", "gpt2"], ["--max-tokens", "512", "--tokenizer", "gpt2"]),
        (["--token", "--verbose"], ["--token", "--verbose"]),
        (["simnpo_lr2e5_b35_a1_d1_g0125_ep5"], ["simnpo_lr2e5_b35_a1_d1_g0125_ep5"]),
    ],
)
def test_a_recorded_command_hides_secrets_and_only_those(given: list[str], shown: list[str]) -> None:
    assert redact(given) == shown
