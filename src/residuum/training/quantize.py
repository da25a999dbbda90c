"""Quantization: does rounding the weights to 4 bits bring the knowledge back?

``load(model, quantize="nf4")`` does it in memory; this saves the quantized checkpoint, so that other tools can use it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.models.handles import ModelHandle
from residuum.models.loading import load
from residuum.store.hashing import content_hash
from residuum.store.origin import provenance
from residuum.training import output

if TYPE_CHECKING:
    from residuum.models.loading import LM


def quantize(model: str | Path, *, out: str | Path, scheme: str = "nf4", device: str | int = "auto") -> dict[str, Any]:
    """Round the linear layers to 4 bits and save the result; embeddings and head keep their numbers.

    Args:
        model: name or folder.
        out: target folder, a checkpoint that ``load`` reads as it is.
        scheme: ``nf4`` (Dettmers et al. 2023, arXiv:2305.14314), without double quantization.
        device: where it is done; auto is GPU 0 if there is one, else the CPU.

    Returns:
        The folder, and the bytes that the weights take in memory before and after.
    """
    folder = Path(out)
    handle = ModelHandle(model, device=device)
    job = {"kind": "quantize", "scheme": scheme, "start": handle.weights_hash}
    identity = content_hash(job)
    before = _bytes(handle.lm)
    handle.release()
    if not output.is_finished(folder, identity):
        output.check_free(folder, identity, job)
        lm = load(model, device=device, quantize=scheme)
        output.finish(
            folder, lm.model, lm.tokenizer, identity,
            {"job": job, "start": handle.name, "provenance": provenance(weights=handle.weights_hash)},
        )  # fmt: skip
    return {"folder": str(folder), "bytes_before": before, "bytes_after": _bytes(load(folder, device=device))}


def _bytes(lm: LM) -> int:
    return int(lm.model.get_memory_footprint())
