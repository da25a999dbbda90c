"""Files that are there whole or not at all.

Every file residuum keeps is written beside its place, flushed to the disk and renamed over it. A reader sees the
old content or the new one, a killed writer leaves only a ``.tmp`` file, and nothing more than an atomic rename is
asked of the file system, so network folders are fine too.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

from residuum.errors import StoreError
from residuum.store.hashing import plain

_HINTS = {
    errno.ENOSPC: "The disk is full. Free some space and start again; everything finished so far is kept.",
    errno.EDQUOT: "The disk quota is used up. Free some space and start again; everything finished so far is kept.",
    errno.EACCES: "Choose a folder that you may write to.",
    errno.EPERM: "Choose a folder that you may write to.",
    errno.EROFS: "The file system is read-only. Choose a folder that you may write to.",
    errno.ENOTDIR: "A part of this path is a file. Choose another folder.",
    errno.EEXIST: "A file is where a folder should be. Choose another folder.",
}


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Put ``data`` at ``path`` atomically and durably, and make the folders above it.

    Raises:
        StoreError: the file system refused; what was at ``path`` before is untouched.
    """
    path = Path(path)
    # Not tempfile.mkstemp: its files are private, and a store is often shared by a group.
    temp = path.parent / f".{path.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temp.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temp.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temp.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise storage_error("write", path, error) from error
    _sync_folder(path.parent)
    return path


def write_text(path: str | Path, text: str) -> Path:
    """Put ``text`` at ``path`` as UTF-8, like `write_bytes`."""
    return write_bytes(path, text.encode())


def write_json(path: str | Path, value: object) -> Path:
    """Put a JSON value at ``path`` for people to read: indented, keys in their own order.

    Raises:
        StoreError: the value holds something JSON cannot (NaN among others), or the file system refused.
    """
    return write_text(path, json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def storage_error(doing: str, path: Path, error: OSError) -> StoreError:
    """What the file system refused, as a sentence with advice."""
    hint = _HINTS.get(error.errno or 0)
    return StoreError(f"cannot {doing} {path}: {error.strerror or error}." + (f"\n  {hint}" if hint else ""))


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut; some network file systems refuse this and do it by themselves."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
