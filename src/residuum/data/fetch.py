"""Bring TOFU and the annotated UDS set from the hub into a folder of plain files.

Not run in our own tests beyond its refusals: they have no network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from residuum.data.tofu import IDK_FILE, fetch_idk, fetch_rows

DEFAULT_SPLITS = (
    "full", "retain90", "forget10", "holdout10", "forget10_perturbed",
    "retain_perturbed", "real_authors_perturbed", "world_facts_perturbed",
)  # fmt: skip
ANNOTATED = "jaeunglee/uds-annotated-tofu"
"""The published annotated forget set, the default data of ``residuum uds``."""


def fetch(
    out: Path,
    write: Callable[[Path, str], object],
    *,
    splits: Sequence[str] = DEFAULT_SPLITS,
    annotated: bool = True,
) -> dict[Path, int]:
    """Download each split as ``{split}.jsonl``, the IDK answers, and the annotated set; files that are there stay.

    Args:
        out: target folder.
        write: puts a text at a path, atomically.
        splits: TOFU's split names.
        annotated: also ``forget10_annotated.json``.

    Returns:
        The rows of each file.
    """
    counts: dict[Path, int] = {}
    for split in splits:
        path = out / f"{split}.jsonl"
        if not path.exists():
            rows = fetch_rows("locuslab/TOFU", split)
            write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        counts[path] = len(path.read_text(encoding="utf-8").splitlines())
    answers = out / IDK_FILE
    if not answers.exists():
        write(answers, "\n".join(fetch_idk()) + "\n")
    counts[answers] = len(answers.read_text(encoding="utf-8").splitlines())
    if annotated:
        path = out / "forget10_annotated.json"
        if not path.exists():
            write(path, json.dumps(list(fetch_rows(ANNOTATED)), indent=1, ensure_ascii=False) + "\n")
        counts[path] = len(json.loads(path.read_text(encoding="utf-8")))
    return counts
