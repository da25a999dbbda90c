"""Extraction: from scenarios that show a trait and its opposite to one vector per layer, with its quality.

Scenarios, responses, activations at a position, a direction per method, component and layer, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from residuum.errors import DataError, UsageError
from residuum.models.handles import ModelHandle
from residuum.registry import one_of
from residuum.steering.activations import mean_activations
from residuum.steering.components import COMPONENTS, component_module
from residuum.steering.experiments import Experiment, folder_name
from residuum.steering.methods import METHODS
from residuum.steering.positions import Position
from residuum.steering.quality import combined_scores, pair_agreement, quality
from residuum.steering.responses import Response, respond, write_responses
from residuum.steering.traits import load_scenarios
from residuum.steering.vectors import METADATA, Vector, read_metadata, read_quality, write_vectors
from residuum.store.atomic import write_json
from residuum.store.hashing import content_hash
from residuum.store.origin import provenance

if TYPE_CHECKING:
    from residuum.models.loading import LM


@dataclass(frozen=True)
class ExtractConfig:
    """How vectors are made."""

    methods: tuple[str, ...] = ("mean_diff", "probe", "random_baseline")
    """Names in `METHODS`."""
    components: tuple[str, ...] = ("residual",)
    """Where activations are read."""
    position: str = "response[:5]"
    """Tokens that are averaged."""
    layers: tuple[int, ...] | None = None
    """None: all."""
    max_new_tokens: int | None = None
    """Length of the responses; None: what the position needs."""
    rollouts: int = 1
    """Responses per scenario."""
    temperature: float = 0.0
    """0 is greedy."""
    val_split: float = 0.2
    """Share of scenarios held out for the quality metrics; the last ones, the same on both sides."""
    normalize: bool = False
    """Store vectors of length one; their natural length is kept beside them."""
    seed: int = 42
    """Of sampling, the gradient method and random vectors."""

    def check(self) -> Position:
        """Refuse what makes no sense.

        Raises:
            UsageError: names the setting.
        """
        for method in self.methods:
            METHODS[method]
        for component in self.components:
            one_of("--component", component, *COMPONENTS)
        position = Position.parse(self.position)
        if self.max_new_tokens is not None and self.max_new_tokens < position.new_tokens:
            raise UsageError(f"{self.position} needs {position.new_tokens} new tokens, not {self.max_new_tokens}.")
        if not 0 <= self.val_split < 1:
            raise UsageError(f"--val-split is a share between 0 and 1, not {self.val_split}.")
        if self.rollouts < 1:
            raise UsageError(f"--rollouts is at least 1, not {self.rollouts}.")
        if self.temperature < 0:
            raise UsageError(f"--temperature is not negative, as {self.temperature} is.")
        return position


def extract(
    experiment: Experiment,
    trait: str,
    *,
    model: str | Path | LM | None = None,
    config: ExtractConfig | None = None,
    chat: bool | None = None,
    force: bool = False,
    load_options: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Extract the vectors of a trait; a finished extraction of the same content is only read.

    Args:
        experiment: where they go.
        trait: ``category/name``.
        model: what they are extracted from; the experiment's model when left out.
        config: how.
        chat: whether the chat template is used; None: when the tokenizer has one and the experiment does not object.
        force: extract again.
        load_options: dtype, device, attn, ... of ``load``.

    Returns:
        One row of quality metrics per method, component and layer.
    """
    config = config or ExtractConfig()
    position = config.check()
    scenarios = load_scenarios(experiment, trait)
    handle = ModelHandle(model or experiment.model(None), **(load_options or {}))
    settings = experiment.config()
    use_chat = settings.use_chat_template if chat is None else chat
    if use_chat is None:
        use_chat = bool(handle.tokenizer().chat_template)
    about = {
        "trait": trait,
        "model": handle.name,
        "source": handle.source,
        "weights": handle.identity,
        "position": position.text,
        "chat_template": use_chat,
        "system_prompt": settings.system_prompt,
        "scenarios": scenarios.hash,
        "config": asdict(config),
    }
    home = experiment.extraction(trait) / folder_name(handle.name)
    identity = content_hash(about)
    if not force and (rows := _finished(home, position, config, identity)) is not None:
        return rows
    responses = respond(
        handle.lm,
        scenarios,
        length=position.new_tokens if config.max_new_tokens is None else config.max_new_tokens,
        rollouts=config.rollouts,
        temperature=config.temperature,
        seed=config.seed,
        chat=use_chat,
        system_prompt=settings.system_prompt,
    )
    write_responses(home / "responses", responses, about)
    activations = _Activations.read(handle.lm, responses, config, position)
    rows = []
    for component in config.components:
        for method in config.methods:
            folder = home / "vectors" / position.folder / component / method
            rows += _write_method(
                folder, handle, activations, method, component, config, {**about, "identity": identity}
            )
    combined_scores(rows)
    write_json(home / "vectors" / position.folder / "quality.json", {"identity": identity, "rows": rows})
    return rows


class _Activations:
    """Mean activations of all usable responses, and which of them are held out."""

    def __init__(
        self,
        states: Tensor,
        responses: Sequence[tuple[int, Response]],
        layers: list[int],
        components: Sequence[str],
        held: set[int],
    ) -> None:
        self.states, self.layers, self.components = states, layers, list(components)
        self.sides = torch.tensor([side for side, _ in responses])
        self.held = torch.tensor([response.scenario in held for _, response in responses])
        self.scenarios = [response.scenario for _, response in responses]

    @classmethod
    def read(
        cls, lm: LM, sides: Sequence[Sequence[Response]], config: ExtractConfig, position: Position
    ) -> _Activations:
        """One pass over every response whose position is not empty."""
        layers = list(config.layers) if config.layers is not None else list(range(lm.anatomy.num_layers))
        if bad := [layer for layer in layers if not 0 <= layer < lm.anatomy.num_layers]:
            raise UsageError(f"layer {bad[0]} does not exist; {lm.name} has layers 0 to {lm.anatomy.num_layers - 1}.")
        used = [
            (side, response)
            for side, found in enumerate(sides)
            for response in found
            if len(position.resolve(response.prompt_length, len(response.ids)))
        ]
        for side, name in enumerate(("positive", "negative")):
            if not any(s == side for s, _ in used):
                raise DataError(f"no {name} response has a token at {position.text}")
        spans = [position.resolve(response.prompt_length, len(response.ids)) for _, response in used]
        modules = [
            component_module(lm.anatomy, component, layer) for component in config.components for layer in layers
        ]
        states = mean_activations(lm, [response.ids for _, response in used], spans, modules)
        count = 1 + max(response.scenario for found in sides for response in found)
        # By scenario, the same on both sides: rollouts of one, or the two halves of a pair, never straddle the split.
        held = set(range(count - int(count * config.val_split), count))
        return cls(
            states.reshape(len(used), len(config.components), len(layers), -1), used, layers, config.components, held
        )

    def rows(self, side: int, component: str, layer: int, *, held: bool) -> Tensor:
        """Activations of one side at one layer, [row, hidden]."""
        pick = (self.sides == side) & (self.held == held)
        return self.states[pick, self.components.index(component), self.layers.index(layer)]

    def norm(self, component: str, layer: int) -> float:
        """Mean length of the averaged activations."""
        states = self.states[:, self.components.index(component), self.layers.index(layer)]
        return round(float(states.norm(dim=1).mean()), 2)

    def count(self, side: int, *, held: bool) -> int:
        """Rows of one side."""
        return int(((self.sides == side) & (self.held == held)).sum())


def _write_method(
    folder: Path,
    handle: ModelHandle,
    activations: _Activations,
    method: str,
    component: str,
    config: ExtractConfig,
    about: Mapping[str, Any],
) -> list[dict[str, Any]]:
    vectors, layers, rows = [], {}, []
    for layer in activations.layers:
        positive, negative = (activations.rows(side, component, layer, held=False) for side in (0, 1))
        held_positive, held_negative = (activations.rows(side, component, layer, held=True) for side in (0, 1))
        found = METHODS[method](positive, negative, seed=config.seed + layer)
        raw_norm = float(found.values.norm())
        values = found.values / raw_norm if config.normalize and raw_norm else found.values
        vector = Vector(layer, method, component, values, raw_norm, about["position"])
        vectors.append(vector)
        unit = values / (values.norm() or 1.0)
        middle = (positive.mean(0) + negative.mean(0)) / 2
        layers[str(layer)] = {
            "baseline": float(middle @ unit),
            "bias": found.bias,
            "activation_norm": activations.norm(component, layer),
        }
        train = quality(values, positive, negative)
        metrics = quality(values, held_positive, held_negative)
        rows.append({
            "method": method, "component": component, "layer": layer, **metrics,
            "train_accuracy": train["accuracy"], "pair_agreement": pair_agreement(positive, negative),
            "train_separation": train["separation"],
        })  # fmt: skip
    counts = {
        f"n_{split}_{name}": activations.count(side, held=split == "val")
        for split in ("train", "val")
        for side, name in enumerate(("pos", "neg"))
    }
    text = handle.config().get_text_config()
    write_vectors(folder, vectors, {
        **about, "method": method, "component": component, "normalized": config.normalize, **counts,
        "num_layers": text.num_hidden_layers, "hidden_size": text.hidden_size, "family": text.model_type,
        "tokenizer": content_hash(handle.tokenizer().get_vocab()), "layers": layers,
        "provenance": provenance(seed=config.seed, weights=handle.weights_hash, data=about["scenarios"]),
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
    })  # fmt: skip
    return rows


def _finished(home: Path, position: Position, config: ExtractConfig, identity: str) -> list[dict[str, Any]] | None:
    """The quality table of an extraction of the same content, if all its vectors are there."""
    base = home / "vectors" / position.folder
    table = read_quality(base / "quality.json")
    whole = all(
        read_metadata(base / component / method / METADATA).get("identity") == identity
        for component in config.components
        for method in config.methods
    )
    return table["rows"] if whole and table.get("identity") == identity else None
