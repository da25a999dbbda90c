"""What both patching engines share: settings, results, and where a mode reads and writes.

An engine answers one question: how well does the target still predict the entity when, in one layer, the rows that
predict it hold another model's states? ``naive`` runs the published loop, ``staircase`` gets the same numbers from a
tenth of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from residuum.batching import cached_rows
from residuum.data.spans import Located
from residuum.errors import ModelError, UsageError
from residuum.hooks import Where, capture

if TYPE_CHECKING:
    from residuum.models.anatomy import Anatomy
    from residuum.models.loading import LM

Layers = Sequence[int] | Sequence[Sequence[int]] | None
"""Layers to patch: the same for every example, a list for each, or all that are configured."""


@dataclass(frozen=True)
class PatchConfig:
    """What is patched and how it is scored."""

    mode: Literal["layer", "mlp", "attn", "mid"] = "layer"
    """Patch the block's output, the output of its mlp or of its attention, or the residual between the two."""
    scope: Literal["span", "boundary"] = "span"
    """Patch every row that predicts the entity, or only the last row of the prompt."""
    layers: tuple[int, ...] | None = None
    """Layers to score, ascending; None for all. Row j of a result belongs to the j-th of them."""
    last_layer: Literal["raw", "post_norm"] = "raw"
    """Source states of the last layer: as the block puts them out, or after the source's final norm (as published:
    the target then norms them again). Only for mode ``layer``."""
    mid: Literal["residual", "mlp_input"] = "residual"
    """Mode ``mid`` replaces the residual stream after attention, or (as published) only what the mlp reads of it."""
    score_dtype: Literal["float32", "logits"] = "float32"
    """Log-softmax in float32, or (as published) in whatever type the logits have."""

    def __post_init__(self) -> None:
        if self.last_layer == "post_norm" and self.mode != "layer":
            raise UsageError(f'last_layer="post_norm" belongs to mode "layer", not to "{self.mode}".')
        if self.layers is not None and not (self.layers and sorted(set(self.layers)) == list(self.layers)):
            raise UsageError(f"layers must be at least one, ascending and each once, not {list(self.layers)}.")

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """The layers to score in a model of ``num_layers`` blocks."""
        layers = tuple(range(num_layers)) if self.layers is None else self.layers
        if not 0 <= layers[0] <= layers[-1] < num_layers:
            raise UsageError(f"layers {list(layers)}: the model has layers 0 to {num_layers - 1}.")
        return layers


@dataclass(frozen=True)
class TokenScores:
    """How one example's evaluated tokens fare, on the CPU: [layer, token], or [token] for the unpatched target."""

    log_probs: Tensor
    """Log-probability of each label; NaN in layers that were not asked for."""
    hits: Tensor
    """Whether the label is the most likely token; False in layers that were not asked for."""


class Engine(Protocol):
    """Scores patched runs of one target."""

    target: LM
    config: PatchConfig

    @property
    def name(self) -> str:
        """What it is called, for the record."""

    def unpatched(self, batch: Sequence[Located]) -> list[TokenScores]:
        """The target as it is, one result per example: [token]."""

    def patched(self, source: LM, batch: Sequence[Located], layers: Layers = None) -> list[TokenScores]:
        """The target with the source's states in one layer at a time, one result per example: [layer, token].

        Args:
            source: the model whose states are put in; of the target's depth and width.
            batch: examples, of any lengths.
            layers: a part of the configured layers, the same for all examples or a list for each.
        """


def site(parts: Anatomy, config: PatchConfig, layer: int) -> nn.Module:
    """The module whose activation a mode patches; `where` says which side of it."""
    if config.mode == "layer":
        return parts.blocks[layer]
    if config.mode == "mlp":
        return parts.mlp(layer)
    if config.mode == "attn":
        return parts.attention(layer)
    if config.mid == "residual":
        return parts.attention_contribution(layer)
    if parts.parallel:
        raise ModelError(
            f'mid="mlp_input": the mlp of "{parts.family}" reads the block\'s input, not the residual after attention.\n'
            '  Use mid="residual", or mode "attn" or "mlp".'
        )
    return parts.mlp_norm(layer)


def where(config: PatchConfig) -> Where:
    """The side of the `site` that is patched."""
    return "input" if config.mode == "mid" and config.mid == "mlp_input" else "output"


def shifts_residual(config: PatchConfig) -> bool:
    """Whether the residual stream itself is patched, though no module puts it out: mode ``mid``, as `written`."""
    return config.mode == "mid" and config.mid == "residual"


def read_states(lm: LM, config: PatchConfig, rows: Tensor, run: Callable[[], object]) -> Tensor:
    """The states that a source hands over.

    Args:
        lm: the source.
        config: the mode decides where they are read.
        rows: token rows, [example, row].
        run: runs the source, at least up to the last configured layer.

    Returns:
        [layer, example, row, hidden], over the configured layers.
    """
    parts = lm.anatomy
    layers = config.layers_of(parts.num_layers)
    with ExitStack() as stack:
        found = stack.enter_context(capture([site(parts, config, n) for n in layers], where=where(config), rows=rows))
        if shifts_residual(config):
            inputs = stack.enter_context(capture([parts.blocks[n] for n in layers], where="input", rows=rows))
        run()
    states = torch.stack(list(found))
    if shifts_residual(config):
        states = torch.stack(list(inputs)) + cast(float, parts.residual_scale) * states
    if config.last_layer == "post_norm" and layers[-1] == parts.num_layers - 1:
        states[-1] = parts.final_norm(states[-1])
    return states


def written(parts: Anatomy, config: PatchConfig, states: Tensor, inputs: Tensor | None) -> Tensor:
    """What is written at the `site` so that the target holds the source's states there.

    The residual after attention, ``mid = input + scale * attention``, is put in its place through the only part of the
    sum that a hook can set: ``attention := (mid of the source - input of the target) / scale``.

    Args:
        parts: of the target.
        config: the mode.
        states: the source's, [..., hidden].
        inputs: the target's unpatched block inputs at the same rows; only needed when `shifts_residual`.
    """
    if inputs is None or not shifts_residual(config):
        return states
    return (states.to(inputs) - inputs) / cast(float, parts.residual_scale)


def token_scores(logits: Tensor, labels: Sequence[int], config: PatchConfig) -> TokenScores:
    """How well some rows predict their labels: [token].

    Args:
        logits: [token, vocab]
        labels: one for each row.
        config: says in which type the log-softmax is taken.
    """
    wanted = torch.tensor(labels, device=logits.device)
    log_probs, hits = [], []
    for rows, own in cached_rows(logits, wanted):
        exact = rows.float() if config.score_dtype == "float32" else rows
        log_probs.append(exact.log_softmax(-1).gather(-1, own[:, None])[:, 0])
        hits.append(rows.argmax(-1) == own)
    return TokenScores(torch.cat(log_probs).cpu(), torch.cat(hits).cpu())


def blank_scores(example: Located, target: LM, config: PatchConfig) -> TokenScores:
    """A result to be filled in layer by layer: [layer, token], nothing computed yet."""
    shape = len(config.layers_of(target.anatomy.num_layers)), len(example.rows)
    dtype = torch.float32 if config.score_dtype == "float32" else target.dtype
    return TokenScores(torch.full(shape, torch.nan, dtype=dtype), torch.zeros(shape, dtype=torch.bool))


def row_table(ranges: Sequence[range]) -> Tensor:
    """Ragged row numbers as one table [example, row]; shorter ones repeat their last row."""
    width = max(map(len, ranges))
    return torch.tensor([[*rows, *[rows[-1]] * (width - len(rows))] for rows in ranges])


def wanted_layers(configured: Sequence[int], layers: Layers, count: int) -> list[list[int]]:
    """The layers to patch in each of ``count`` examples, ascending.

    Raises:
        UsageError: one of them is not configured, or the lists are not one per example.
    """
    if layers is None:
        return [list(configured)] * count
    shared = all(isinstance(layer, int) for layer in layers)
    each = cast(Sequence[Sequence[int]], [layers] * count if shared else layers)
    wanted = [sorted(set(own)) for own in each]
    if len(wanted) != count:
        raise UsageError(f"{count} examples need one list of layers each, not {len(wanted)}.")
    if strange := {layer for own in wanted for layer in own} - set(configured):
        raise UsageError(f"layers {sorted(strange)} are not among the configured ones, {list(configured)}.")
    return wanted


def check_pair(source: LM, target: LM) -> None:
    """States can only move between models of the same depth and width.

    Raises:
        ModelError: they differ.
    """
    for what, ours, theirs in (
        ("layers", target.anatomy.num_layers, source.anatomy.num_layers),
        ("hidden size", target.anatomy.hidden_size, source.anatomy.hidden_size),
    ):
        if ours != theirs:
            raise ModelError(f"{source.name} has {what} {theirs}, {target.name} has {ours}: they cannot be patched.")
