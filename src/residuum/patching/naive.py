"""The published algorithm, plainly: for every layer, one whole forward of the target with a hook in it.

Any family of models; and the oracle that the staircase is compared with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from residuum.batching import Encoded, collate
from residuum.data.spans import Located
from residuum.hooks import capture, replace_rows
from residuum.patching.engine import (
    Layers,
    PatchConfig,
    TokenScores,
    blank_scores,
    check_pair,
    read_states,
    row_table,
    shifts_residual,
    site,
    token_scores,
    wanted_layers,
    where,
    written,
)
from residuum.patching.memory import Footprint, pieces

if TYPE_CHECKING:
    from residuum.models.loading import LM


class Naive:
    """The hook loop: one forward of the source and one of the target for each layer.

    Args:
        target: the model that is patched.
        config: what is patched and how it is scored.
        max_memory: bytes to take beside the models; batches are cut to fit.
    """

    name = "naive"

    def __init__(self, target: LM, config: PatchConfig, *, max_memory: int | None = None) -> None:
        self.target, self.config = target, config
        self.layers = config.layers_of(target.anatomy.num_layers)
        self._max_memory = max_memory

    def unpatched(self, batch: Sequence[Located]) -> list[TokenScores]:
        """The target as it is, one result per example: [token]."""
        return [score for piece in self._pieces(batch) for score in self._scores([batch[i] for i in piece])]

    def patched(self, source: LM, batch: Sequence[Located], layers: Layers = None) -> list[TokenScores]:
        """The target with the source's states in one layer at a time, one result per example: [layer, token]."""
        check_pair(source, self.target)
        wanted = wanted_layers(self.layers, layers, len(batch))
        results: list[TokenScores] = []
        for piece in self._pieces(batch):
            members = [batch[i] for i in piece]
            results += self.inject(self.source_states(source, members), members, [wanted[i] for i in piece])
        return results

    @torch.inference_mode()
    def source_states(self, source: LM, batch: Sequence[Located]) -> list[Tensor]:
        """What the source hands over for each example: [layer, patched row, hidden]."""
        spans = [example.patched_rows(self.config.scope) for example in batch]
        states = read_states(source, self.config, row_table(spans), lambda: _forward(source, batch))
        return [states[:, i, : len(span)] for i, span in enumerate(spans)]

    @torch.inference_mode()
    def inject(self, states: Sequence[Tensor], batch: Sequence[Located], layers: Layers = None) -> list[TokenScores]:
        """Put given states into the target.

        Args:
            states: for each example [layer, patched row, hidden].
            batch: the examples.
            layers: as in `patched`.
        """
        wanted = wanted_layers(self.layers, layers, len(batch))
        results = [blank_scores(example, self.target, self.config) for example in batch]
        for place, layer in enumerate(self.layers):
            members = [i for i, own in enumerate(wanted) if layer in own]
            if not members:
                continue
            scores = self._patched_at(layer, [states[i][place] for i in members], [batch[i] for i in members])
            for i, score in zip(members, scores, strict=True):
                results[i].log_probs[place], results[i].hits[place] = score.log_probs, score.hits
        return results

    def _patched_at(self, layer: int, states: Sequence[Tensor], batch: Sequence[Located]) -> list[TokenScores]:
        """One forward, with the states [patched row, hidden] of each example put in at one layer."""
        parts, spans = self.target.anatomy, [example.patched_rows(self.config.scope) for example in batch]
        rows = (
            torch.tensor([i for i, span in enumerate(spans) for _ in span]),
            torch.tensor([row for span in spans for row in span]),
        )
        inputs = None
        if shifts_residual(self.config):
            with capture([parts.blocks[layer]], where="input") as captured:
                _forward(self.target, batch)
            inputs = captured[0][rows]
        values = written(parts, self.config, torch.cat(list(states)), inputs)
        with replace_rows(site(parts, self.config, layer), rows, values, where=where(self.config)):
            return self._scores(batch)

    @torch.inference_mode()
    def _scores(self, batch: Sequence[Located]) -> list[TokenScores]:
        """What the target, patched or not, makes of the evaluated tokens: [token] each."""
        return [
            token_scores(logits[list(example.rows)], example.labels, self.config)
            for logits, example in zip(_forward(self.target, batch), batch, strict=True)
        ]

    def _pieces(self, batch: Sequence[Located]) -> Iterator[list[int]]:
        takes, length = Footprint.of(self.target), max((len(example.ids) for example in batch), default=0)
        return pieces([takes.hook_loop(length, len(e.rows), len(self.layers)) for e in batch], self._max_memory)


def _forward(lm: LM, batch: Sequence[Located]) -> Tensor:
    """Logits of whole sequences, padded on the right and masked by length: [example, position, vocab]."""
    encoded = [Encoded(example.ids, len(example.prompt_ids)) for example in batch]
    padded = collate(encoded, lm.pad_id, lm.device)
    logits: Tensor = lm.model(input_ids=padded.input_ids, attention_mask=padded.attention_mask, use_cache=False).logits
    return logits
