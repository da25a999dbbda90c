"""The hub's cache under a limit: hundreds of checkpoints pass through a disk that holds a few."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import InputError
from residuum.models.names import resolve
from residuum.store.atomic import storage_error

if TYPE_CHECKING:
    from huggingface_hub import HFCacheInfo


@contextmanager
def using(*places: str | None) -> Iterator[None]:
    """Keep models in the cache while this block reads them, whoever wants their room; a mark dies with its process.

    A mark of a model that is not in the cache yet says that it is on its way: `make_room` counts it.

    Args:
        places: names or hub ids; paths have nothing to do with the cache.
    """
    with ExitStack() as marks:
        for place in _hub_ids(places):
            with suppress(OSError):  # nobody removes anything from a cache that cannot be written
                marks.enter_context(_locked(_mark(place), fcntl.LOCK_SH))
        yield


def make_room(*places: str | None, limit: int, evict: bool) -> None:
    """See that models fit under the limit beside those that others are fetching; what is here already needs no room.

    The size of a model that is not here yet is taken to be that of the largest one that is: the models of a sweep are
    of one architecture. An empty cache has no such measure, and takes whatever comes first.

    Args:
        places: names or hub ids; paths have nothing to do with the cache. Be `using` them, or others get the same room.
        limit: bytes that the cache may take.
        evict: delete the least recently used snapshots until it fits, but none that somebody is `using`.

    Raises:
        InputError: they do not fit.
        StoreError: the cache cannot be written.
    """
    wanted, folder = _hub_ids(places), _cache_folder()
    if not wanted:
        return
    try:
        with _locked(_marks() / "room", fcntl.LOCK_EX):
            _make_room(folder, wanted, limit, evict)
    except OSError as error:
        raise storage_error("make room in", folder, error) from error


def _make_room(folder: Path, wanted: set[str], limit: int, evict: bool) -> None:
    cache = _scan(folder)
    models = {repo.repo_id: repo for repo in cache.repos if repo.repo_type == "model"}
    here = {name for name, repo in models.items() if _is_whole(repo.repo_path)}
    if wanted <= here:
        return
    known = {_mark(place) for place in wanted | here}
    coming = len(wanted - here) + sum(_in_use(mark) for mark in _marks().glob("?" * 32) if mark not in known)
    begun = [repo for name, repo in models.items() if name not in here and (name in wanted or _in_use(_mark(name)))]
    largest = max((repo.size_on_disk for repo in models.values()), default=0)
    need = coming * largest - sum(repo.size_on_disk for repo in begun)
    used = cache.size_on_disk
    old = sorted((models[name] for name in models.keys() - wanted), key=lambda repo: repo.last_accessed)
    gone: list[Any] = []
    with ExitStack() as marks:
        while evict and old and used + need > limit:
            repo = old.pop(0)
            with suppress(BlockingIOError, PermissionError):  # somebody reads it
                marks.enter_context(_locked(_mark(repo.repo_id), fcntl.LOCK_EX | fcntl.LOCK_NB))
                gone.append(repo)
                used -= repo.size_on_disk
        if used + need > limit:
            raise InputError(
                f"there is no room for {', '.join(sorted(wanted - here))}: the hub's cache in {folder} takes {_size(used)},"
                f" {coming} more to fetch about {_size(need)}, and --max-disk is {_size(limit)}.\n  "
                + ("Raise it: all other models are in use." if evict else "Raise it, or let the least recently used ones go with --evict.")
            )  # fmt: skip
        if gone:
            revisions = [revision.commit_hash for repo in gone for revision in repo.revisions]
            cache.delete_revisions(*revisions).execute()
            print(f"removed from the hub's cache: {', '.join(repo.repo_id for repo in gone)}")


def _is_whole(repo: Path) -> bool:
    """Whether nothing of it is on its way; a killed download leaves a part that nobody takes up again."""
    return all((part.parent / part.name.split(".")[0]).exists() for part in repo.glob("blobs/*.incomplete"))


def is_cached(place: str) -> bool:
    """Whether the cache has anything of a model."""
    from huggingface_hub.file_download import repo_folder_name

    return (_cache_folder() / repo_folder_name(repo_id=place, repo_type="model")).is_dir()


def cached_models() -> set[str]:
    """Hub ids of the models in the cache."""
    folder = _cache_folder()
    return {repo.repo_id for repo in _scan(folder).repos if repo.repo_type == "model"} if folder.is_dir() else set()


def _hub_ids(places: Iterable[str | None]) -> set[str]:
    """Of names and hub ids; what is neither is left to the one who loads it."""
    found = set()
    for place in places:
        with suppress(InputError):
            if place is not None and not Path(target := resolve(place)).exists():
                found.add(target)
    return found


def _marks() -> Path:
    return _cache_folder() / ".locks" / "residuum"


def _mark(place: str) -> Path:
    return _marks() / hashlib.sha256(place.encode()).hexdigest()[:32]


def _in_use(mark: Path) -> bool:
    try:
        with _locked(mark, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return False
    except (BlockingIOError, PermissionError):
        return True


@contextmanager
def _locked(mark: Path, how: int) -> Iterator[None]:
    file = _open(mark)
    try:
        fcntl.flock(file, how)
        yield
    finally:
        os.close(file)


def _open(mark: Path) -> int:
    """Open a mark that all users of a shared cache may lock, whatever their umask."""
    with suppress(FileNotFoundError):  # Linux may refuse O_CREAT for files of others in a folder of all
        return os.open(mark, os.O_RDWR)
    mark.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(mark, os.O_RDWR | os.O_CREAT, 0o666)
    with suppress(PermissionError):  # another user was faster
        os.fchmod(file, 0o666)
        mark.parent.chmod(0o1777)
    return file


def _cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _scan(folder: Path) -> HFCacheInfo:
    from huggingface_hub import scan_cache_dir

    return scan_cache_dir(folder)


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB"
