"""A finished checkpoint: an ordinary HF folder plus ``manifest.json``, which is written last and says how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.progress import hush_transformers
from residuum.store.atomic import write_json
from residuum.training import checkpoints

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MANIFEST = "manifest.json"


def is_finished(folder: Path, identity: str) -> bool:
    """Whether ``folder`` holds a whole checkpoint made under this very identity."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(manifest.get("identity") == identity)


def finish(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    identity: str,
    manifest: Mapping[str, Any],
) -> None:
    """Save the model where any HF tool finds it, then the manifest, then drop the intermediate checkpoints."""
    hush_transformers()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_json(folder / MANIFEST, {"identity": identity, **manifest})
    checkpoints.discard(folder)
