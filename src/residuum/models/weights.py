"""A checkpoint on disk: where its files are, whether they can be used, and what their content is called.

Everything is checked here before a weight is read, so that a wrong folder fails in a moment and not after minutes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import InputError, ModelError, UsageError
from residuum.folders import user_cache
from residuum.models.names import resolve

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.tiktoken"]
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
_NO_MEANING = {
    "_name_or_path", "_model_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache",
    "base_model_name_or_path", "inference_mode", "peft_version",
}  # fmt: skip
"""Config fields that say who wrote the file and how it is run, not what the model computes."""
_PICKLE_HINT = "if you trust where they come from, pass allow_pickle=True to residuum.load."
_MEMO_FROM = 32 * 2**20
"""Smaller files are hashed every time: only a larger one takes longer than the clock tick in which a change can hide."""


@dataclass(frozen=True)
class Checkpoint:
    """The files of one model."""

    source: str
    """Hub id, or the absolute path."""
    folder: Path
    """Where the files are."""
    files: tuple[Path, ...]
    """The weight files, sorted by name."""
    config: dict[str, Any]
    """The model's or the adapter's config; empty for a GGUF file, which carries its own."""
    revision: str | None = None
    """Commit hash of a hub snapshot."""
    base: Checkpoint | None = None
    """The model under an adapter."""

    @property
    def gguf_file(self) -> str | None:
        """Name of the GGUF file, if it is one."""
        return self.files[0].name if self.files[0].suffix == ".gguf" else None

    @property
    def tokenizer_folder(self) -> Path:
        """Where the tokenizer is: an adapter without one uses that of its model."""
        return self.base.tokenizer_folder if self.base and not _has_tokenizer(self.folder) else self.folder

    def fingerprint(self) -> str:
        """SHA-256 over the content of the weight files and the config fields that change what is computed."""
        parts = [*map(_hash_file, self.files), _meaning(self.config)]
        if self.base:
            parts.append(self.base.fingerprint())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def find(name_or_path: str | Path, *, revision: str | None = None, allow_pickle: bool = False) -> Checkpoint:
    """Finds and checks the files of a model; fetches them when they are on the hub and not in its cache.

    Args:
        name_or_path: registry name, hub id, folder (checkpoint or PEFT adapter) or GGUF file. A ``Path`` is never
            taken for a name.
        revision: branch, tag or commit of a hub model.
        allow_pickle: accept PyTorch ``.bin`` files when there are no safetensors.

    Raises:
        UnknownName: a name that is not registered.
        ModelError: something is missing; the message says what.
    """
    source = str(name_or_path) if isinstance(name_or_path, Path) else resolve(name_or_path)
    path = Path(source)
    if path.exists():
        if revision is not None:
            raise UsageError(f"{source} is on disk, where there are no revisions.\n  Leave revision out.")
        return _inspect(path.resolve(), str(path.resolve()), allow_pickle=allow_pickle)
    if not _HUB_ID.fullmatch(source):
        raise ModelError(f"{source}: no such file or folder.")
    folder = _fetch(source, revision, _HUB_FILES)
    if allow_pickle and not _weight_files(folder, allow_pickle=False):
        folder = _fetch(source, revision, [*_HUB_FILES, "pytorch_model*.bin", "adapter_model.bin"])
    return replace(_inspect(folder, source, allow_pickle=allow_pickle), revision=folder.name)


def weights_fingerprint(source: str | Path, *, revision: str | None = None, allow_pickle: bool = False) -> str:
    """Name of a model's weights by their content, known before the model is loaded.

    Large files are hashed once; their hash is kept in the user cache under path, size and times of change.
    """
    return find(source, revision=revision, allow_pickle=allow_pickle).fingerprint()


def tensor_fingerprint(model: PreTrainedModel) -> str:
    """SHA-256 over a model in memory: its config, and names, types, shapes and bytes of its tensors.

    It differs from the fingerprint of a folder with the same weights, which is taken from the files.
    """
    import torch

    digest = hashlib.sha256(_meaning(model.config.to_dict()).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def _inspect(path: Path, source: str, *, allow_pickle: bool) -> Checkpoint:
    if path.is_file():
        _check_gguf(path)
        return Checkpoint(source=source, folder=path.parent, files=(path,), config={})
    is_adapter = (path / "adapter_config.json").is_file()
    config_file = path / ("adapter_config.json" if is_adapter else "config.json")
    if not config_file.is_file():
        raise ModelError(f"{source}: no config.json, so this is not a checkpoint.{_subfolders(path)}")
    config = _read_json(config_file)
    files = _weight_files(path, allow_pickle=allow_pickle)
    if not files:
        raise ModelError(f"{source}: {_why_no_weights(path)}")
    for file in files:
        if not file.is_file():
            raise ModelError(f"{source}: the weight file {file.name} is missing, though the index lists it.")
    base = _find_base(source, config, allow_pickle=allow_pickle) if is_adapter else None
    if base is None and not _has_tokenizer(path):
        raise ModelError(f"{source}: no tokenizer (none of {', '.join(_TOKENIZERS)}).\n  Save it into the same folder.")
    return Checkpoint(source=source, folder=path, files=files, config=config, base=base)


def _check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        magic = file.read(4)
    if path.suffix != ".gguf" or magic != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file.\n  Other checkpoints are given as their folder.")


def _subfolders(path: Path) -> str:
    """A hint for the frequent mistake of giving the folder above."""
    inside = sorted(config.parent.name for config in path.glob("*/config.json"))
    return f"\n  There is one in {', '.join(inside)}." if inside else ""


def _weight_files(folder: Path, *, allow_pickle: bool) -> tuple[Path, ...]:
    """Safetensors, whole or in shards; pickles only if allowed and there is nothing better."""
    names = ["adapter_model.safetensors"] if (folder / "adapter_config.json").is_file() else ["model.safetensors"]
    if allow_pickle:
        names += ["adapter_model.bin"] if names[0].startswith("adapter") else ["pytorch_model.bin"]
    for name in names:
        if (folder / name).is_file():
            return (folder / name,)
        if (index := folder / f"{name}.index.json").is_file():
            return tuple(folder / shard for shard in sorted(set(_read_json(index).get("weight_map", {}).values())))
    return ()


def _why_no_weights(folder: Path) -> str:
    if any(folder.glob("pytorch_model*.bin")) or (folder / "adapter_model.bin").is_file():
        return f"the weights are pickled (.bin), and unpickling can run any code.\n  {_PICKLE_HINT}"
    # Of a hub model the pickled files were not fetched, so they may exist.
    return f"no weights in safetensors files.\n  If it has .bin files: {_PICKLE_HINT}"


def _find_base(source: str, config: dict[str, Any], *, allow_pickle: bool) -> Checkpoint:
    name = config.get("base_model_name_or_path")
    if not name or source in (name, str(Path(name).resolve())):
        raise ModelError(f"{source} is an adapter, but its adapter_config.json does not say of which model.")
    try:
        return find(name, revision=config.get("revision"), allow_pickle=allow_pickle)
    except InputError as error:
        raise ModelError(f"{source} is an adapter, and its model cannot be used: {error}") from None


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _TOKENIZERS)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: not readable as JSON ({error}).") from None
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected a JSON object.")
    return content


def _fetch(repo: str, revision: str | None, patterns: list[str]) -> Path:
    """The snapshot folder of a hub model, named by its commit."""
    from huggingface_hub import errors, is_offline_mode, snapshot_download

    try:
        # Subfolders hold other formats of the same weights.
        return Path(snapshot_download(repo, revision=revision, allow_patterns=patterns, ignore_patterns=["*/*"]))
    except errors.GatedRepoError:
        problem = "the hub asks for a licence to be accepted.\n  Accept it on the model's page, then `hf auth login`."
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        problem = "no such folder here and no such model on the hub (or it is private and you are not logged in)."
    except errors.RevisionNotFoundError:
        problem = f"the hub has no revision {revision!r} of it."
    except errors.LocalEntryNotFoundError:
        why = "HF_HUB_OFFLINE is set" if is_offline_mode() else "the hub cannot be reached"
        problem = (
            f"no such folder here, not complete in the local hub cache, and {why}.\n  Give a folder, or go online."
        )
    except Exception as error:  # Timeouts, proxies, full disks: many types from several libraries.
        problem = f"the hub did not deliver it: {type(error).__name__}: {error}"
    raise ModelError(f"{repo}: {problem}")


def _meaning(config: dict[str, Any]) -> str:
    return json.dumps({key: config[key] for key in config if key not in _NO_MEANING}, sort_keys=True, default=str)


def _hash_file(path: Path) -> str:
    stat = path.stat()
    if stat.st_size < _MEMO_FROM:
        return _sha256(path)
    # Checkpoints of one architecture all have one size, and tools can set mtime back: ctime tells them apart.
    identity = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
    memo = user_cache() / "weights" / hashlib.sha256(identity.encode()).hexdigest()
    with suppress(OSError):
        return memo.read_text(encoding="ascii")
    digest = _sha256(path)
    with suppress(OSError):  # A cache that cannot be written costs time, nothing else.
        memo.parent.mkdir(parents=True, exist_ok=True)
        unfinished = memo.with_suffix(f".{os.getpid()}")
        unfinished.write_text(digest, encoding="ascii")
        unfinished.replace(memo)
    return digest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
