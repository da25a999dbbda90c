"""Files that are there whole or not at all."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from residuum.errors import StoreError
from residuum.store import file_hash
from residuum.store.atomic import write_bytes, write_json, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


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
