"""The hub's cache under a limit: hundreds of checkpoints pass through a disk that holds a few."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import InputError

if TYPE_CHECKING:
    from huggingface_hub import HFCacheInfo


@contextmanager
def using(*places: str | None) -> Iterator[None]:
    """Keep models in the cache while this block reads them, whoever wants their room; a mark dies with its process.

    Args:
        places: hub ids; paths have nothing to do with the cache.
    """
    with ExitStack() as marks:
        for place in {place for place in places if place is not None and not Path(place).exists()}:
            with suppress(OSError):  # nobody removes anything from a cache that cannot be written
                marks.enter_context(_locked(place, fcntl.LOCK_SH))
        yield


def make_room(place: str, limit: int, *, evict: bool) -> None:
    """See that one more model fits under the limit; what is on this disk already needs no room.

    The size of a model that is not here yet is taken to be that of the largest one that is: the models of a sweep are
    of one architecture.

    Args:
        place: hub id, or a path, which is nothing to do with the cache.
        limit: bytes that the cache may take.
        evict: delete the least recently used snapshots until it fits, but none that somebody is `using`.

    Raises:
        InputError: it does not fit.
    """
    from residuum.store.locks import claim

    if Path(place).exists():
        return
    folder = _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with claim(folder / ".residuum-room", "making room in the hub's cache"), ExitStack() as marks:
        cache = _scan(folder)
        models = {repo.repo_id: repo for repo in cache.repos if repo.repo_type == "model"}
        if place in models:
            return
        need = max((repo.size_on_disk for repo in models.values()), default=0)
        used = cache.size_on_disk
        old = sorted(models.values(), key=lambda repo: repo.last_accessed)
        gone: list[Any] = []
        while evict and old and used + need > limit:
            repo = old.pop(0)
            with suppress(BlockingIOError):  # somebody reads it
                marks.enter_context(_locked(repo.repo_id, fcntl.LOCK_EX | fcntl.LOCK_NB))
                gone.append(repo)
                used -= repo.size_on_disk
        if used + need > limit:
            raise InputError(
                f"there is no room for {place}: the hub's cache in {folder} takes {_size(used)}, one more model about"
                f" {_size(need)}, and --max-disk is {_size(limit)}.\n  "
                + ("Raise it: all other models are in use." if evict else "Raise it, or let the least recently used ones go with --evict.")
            )  # fmt: skip
        if gone:
            revisions = [revision.commit_hash for repo in gone for revision in repo.revisions]
            cache.delete_revisions(*revisions).execute()
            print(f"removed from the hub's cache: {', '.join(repo.repo_id for repo in gone)}")


def cached_models() -> set[str]:
    """Hub ids of the models in the cache."""
    folder = _cache_folder()
    return {repo.repo_id for repo in _scan(folder).repos if repo.repo_type == "model"} if folder.is_dir() else set()


@contextmanager
def _locked(place: str, how: int) -> Iterator[None]:
    mark = _cache_folder() / ".locks" / "residuum" / hashlib.sha256(place.encode()).hexdigest()[:32]
    mark.parent.mkdir(parents=True, exist_ok=True)
    with mark.open("a") as file:
        fcntl.flock(file, how)
        yield


def _cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _scan(folder: Path) -> HFCacheInfo:
    from huggingface_hub import scan_cache_dir

    return scan_cache_dir(folder)


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB"
