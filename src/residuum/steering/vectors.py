"""Vectors on disk: one safetensors file per layer, one ``metadata.json`` per method.

    {extraction}/{model}/vectors/{position}/{component}/{method}/layer{N}.safetensors

Two older layouts are read too: the same tree with ``.pt`` files, and ``{extraction}/vectors/{method}_layer{N}.pt`` with
the component, unless it is the residual stream, in front of the method. Pickles are opened for tensors only.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import DataError, UsageError
from residuum.steering.components import COMPONENTS
from residuum.steering.traits import SteeringWarning
from residuum.store.atomic import write_bytes, write_json

if TYPE_CHECKING:
    from torch import Tensor

METADATA = "metadata.json"
_LAYER_FILE = re.compile(r"layer(\d+)\.(?:safetensors|pt)")
_OLD_FILE = re.compile(rf"(?:({'|'.join(COMPONENTS)})_)?(.+)_layer(\d+)\.(?:safetensors|pt)")


@dataclass(frozen=True, eq=False)
class Vector:
    """A direction at one layer. A coefficient multiplies ``values`` as they are."""

    layer: int
    method: str
    component: str
    values: Tensor
    """float32 [hidden]"""
    raw_norm: float
    """Length before it was scaled to one, or its length."""
    position: str | None = None
    source: str = ""
    """``experiment/category/trait`` it was made for."""

    @property
    def norm(self) -> float:
        """Length of what a coefficient multiplies."""
        return float(self.values.norm())

    @property
    def sha256(self) -> str:
        """Content of the values."""
        return hashlib.sha256(self.values.contiguous().numpy().tobytes()).hexdigest()

    def raw(self) -> Tensor:
        """The direction at its natural length, [hidden]."""
        return self.values * (self.raw_norm / self.norm)


@dataclass(frozen=True)
class VectorSet:
    """The vectors of one method on disk, not read yet."""

    variant: str | None
    """Folder of the model they come from; None in the oldest layout."""
    position: str | None
    component: str
    method: str
    files: Mapping[int, Path]
    """By layer."""
    metadata: Mapping[str, Any]

    @property
    def num_layers(self) -> int:
        """Decoder blocks of the model they come from, as far as is known."""
        return int(self.metadata.get("num_layers") or max(self.files) + 1)

    def read(self, layer: int, *, source: str = "") -> Vector | None:
        """One vector; None with a warning when it is all zero.

        Raises:
            DataError: it is not a finite vector, or not the one its metadata speak of.
        """
        import torch

        path = self.files[layer]
        values = _read_tensor(path)
        if values.ndim != 1:
            raise DataError(f"holds a tensor of shape {list(values.shape)}, not a vector", path=path)
        values = values.float()
        if not torch.isfinite(values).all():
            raise DataError("holds NaN or infinity", path=path)
        if not values.any():
            warnings.warn(f"{path} is all zero and left out.", SteeringWarning, stacklevel=2)
            return None
        layers = self.metadata.get("layers")
        known = layers.get(str(layer)) if isinstance(layers, dict) else None
        known = known if isinstance(known, dict) else {}  # other tools list their layers
        raw_norm = float(known.get("raw_norm") or values.norm())
        vector = Vector(layer, self.method, self.component, values, raw_norm, self.position, source)
        if known.get("sha256", vector.sha256) != vector.sha256:
            raise DataError(
                f"does not match its hash in {METADATA}",
                path=path,
                hint="Extract again: residuum steer extract --force.",
            )
        return vector


def write_vectors(folder: Path, vectors: Sequence[Vector], metadata: Mapping[str, Any]) -> Path:
    """Write the vectors of one method, metadata last.

    Args:
        folder: ``.../vectors/{position}/{component}/{method}``.
        vectors: one per layer.
        metadata: what is known of all of them; ``layers`` may hold more about each.
    """
    from safetensors.torch import save

    about = {int(layer): dict(known) for layer, known in metadata.get("layers", {}).items()}
    for vector in vectors:
        write_bytes(folder / f"layer{vector.layer}.safetensors", save({"vector": vector.values.contiguous()}))
        about.setdefault(vector.layer, {}).update(norm=vector.norm, raw_norm=vector.raw_norm, sha256=vector.sha256)
    layers = {str(layer): about[layer] for layer in sorted(about)}
    return write_json(folder / METADATA, {**metadata, "layers": layers})


def find_vectors(
    extraction: Path,
    method: str,
    component: str,
    *,
    position: str | None = None,
    variant: str | None = None,
    prefer: str | None = None,
) -> VectorSet:
    """The one set of vectors that fits.

    Args:
        extraction: folder of the trait in its experiment.
        method: how they were extracted.
        component: where.
        position: of the tokens they were read from; needed only when several are there.
        variant: model they come from; needed only when several are there.
        prefer: model to take when there are several and none is asked for.

    Raises:
        DataError: there is no folder or no vector; lists what is there.
        UsageError: several sets fit.
    """
    sets = list(vector_sets(extraction))
    if not sets:
        raise DataError("there are no vectors", path=extraction, hint="Make them: residuum steer extract.")
    fit = [s for s in sets if s.method == method and s.component == component]
    if not fit:
        raise DataError(
            f"there are no vectors of method {method} for {component}", path=extraction,
            hint="There are: " + ", ".join(sorted({f"{s.method} ({s.component})" for s in sets})) + ".",
        )  # fmt: skip
    if position is not None:
        fit = _narrow(fit, "position", position, extraction)
    if variant is not None:
        fit = _narrow(fit, "variant", variant, extraction)
    if len(fit) > 1 and any(s.variant == prefer for s in fit):
        fit = [s for s in fit if s.variant == prefer]
    if len(fit) > 1:
        there = ", ".join(f"{s.variant} {s.position}" for s in fit)
        raise UsageError(
            f"several sets of {method} vectors are in {extraction}: {there}.\n"
            "  Choose with --vector-model and --vector-position."
        )
    return fit[0]


def vector_sets(extraction: Path) -> Iterator[VectorSet]:
    """All sets of vectors of a trait, in any layout."""
    for folder in sorted(extraction.glob("*/vectors/*/*/*")):
        files = {int(m[1]): path for path in folder.iterdir() if (m := _LAYER_FILE.fullmatch(path.name))}
        if files:
            metadata = read_metadata(folder / METADATA)
            variant, component, method = folder.parts[-5], folder.parts[-2], folder.parts[-1]
            yield VectorSet(variant, metadata.get("position", folder.parts[-3]), component, method, files, metadata)
    old: dict[tuple[str, str], dict[int, Path]] = {}
    for path in sorted((extraction / "vectors").glob("*_layer*")):
        if match := _OLD_FILE.fullmatch(path.name):
            component, method, layer = match.groups()
            old.setdefault((component or "residual", method), {})[int(layer)] = path
    for (component, method), files in old.items():
        yield VectorSet(None, None, component, method, files, {})


def incremental(vector: Vector, before: Vector | None) -> Vector:
    """``v_l - v_(l-1)`` from the raw vectors: what layer l adds to what earlier layers carry along; layer 0 stays."""
    if before is None:
        return vector
    values = vector.raw() - before.raw()
    return Vector(
        vector.layer, vector.method, vector.component, values, float(values.norm()), vector.position, vector.source
    )


def _narrow(sets: list[VectorSet], field: str, value: str, extraction: Path) -> list[VectorSet]:
    fit = [s for s in sets if getattr(s, field) == value]
    if not fit:
        there = ", ".join(sorted({str(getattr(s, field)) for s in sets}))
        raise DataError(f"there are no vectors with {field} {value}", path=extraction, hint=f"There are: {there}.")
    return fit


def read_metadata(path: Path) -> dict[str, Any]:
    """What a metadata file says; nothing when there is none."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        raise DataError("is not JSON", path=path, hint="Extract again: residuum steer extract --force.") from None
    return content if isinstance(content, dict) else {}


def read_quality(path: Path) -> dict[str, Any]:
    """The ``rows`` of a quality table, and of which extraction; empty when there is none, with a warning when it is damaged."""
    if not path.exists():
        return {"rows": []}
    try:
        table = json.loads(path.read_bytes())
    except ValueError:
        table = None
    if _is_quality(table):
        return dict(table)
    warnings.warn(f"{path} is no table of quality and left out.", SteeringWarning, stacklevel=3)
    return {"rows": []}


def _is_quality(table: Any) -> bool:
    rows = table.get("rows") if isinstance(table, dict) else None
    return isinstance(rows, list) and all(
        isinstance(row, dict)
        and {"method", "component", "layer", "combined"} <= row.keys()
        and isinstance(row["layer"], int)
        and isinstance(row["combined"], float | int | None)
        for row in rows
    )


def _read_tensor(path: Path) -> Tensor:
    import torch

    try:
        if path.suffix == ".pt":
            loaded = torch.load(path, map_location="cpu", weights_only=True)
        else:
            from safetensors.torch import load_file

            loaded = load_file(path)["vector"]
    except Exception as error:  # torch and safetensors raise half a dozen kinds for one thing
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"cannot be read as a vector: {reason}", path=path) from error
    if not isinstance(loaded, torch.Tensor):
        raise DataError(f"holds a {type(loaded).__name__}, not a tensor", path=path)
    return loaded
