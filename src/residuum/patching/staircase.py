"""The hook loop's scores from a tenth of its work, by never computing what a patch cannot change.

A patch in layer l changes the patched rows and those after them, in the blocks above l; nothing before, nothing below.
So the target runs once, and its keys and values are kept. For each l only the rows from the first patched to the last
evaluated one are computed again, in the blocks above l. All these runs climb together: at block k the batch holds the
runs of every l < k. The head reads the evaluated rows, and nothing else.

With L layers, T rows up to the last evaluated one and n of them patched, a source costs T L + n L (L - 1) / 2 rows of
block; the hook loop needs L + 1 forwards of T L rows and more, for it also runs what follows the entity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from residuum.data.spans import Located
from residuum.hooks import capture
from residuum.patching.climb import Own, Task, climb, evaluated_rows, span_of
from residuum.patching.engine import (
    Layers,
    PatchConfig,
    TokenScores,
    blank_scores,
    check_pair,
    read_states,
    row_table,
    token_scores,
    wanted_layers,
)
from residuum.patching.memory import Footprint, Shelf, pieces
from residuum.patching.replay import Calls, Recorder, recorded_calls, run_until

if TYPE_CHECKING:
    from residuum.models.loading import LM

LIKE_LENGTH = 0.8
"""Sequences share a pass while the shortest has at least this share of the longest's rows: little is padded."""
CALL_ROWS = 32
"""So many more rows cost as much as one more call of a block, which reads all its weights."""
HEAD_BYTES = 2**27
"""Most memory for logits at a time: the vocabulary is wide, and there are many runs."""
KEPT, HEAD = 1 / 2, 1 / 8
"""Shares of a bounded memory: for keys and values that are kept, and for logits. The rest is for the work at hand."""


class Staircase:
    """Scores patched runs of one target, whose weights must not change meanwhile.

    Args:
        target: the model that is patched.
        config: what is patched and how it is scored.
        max_memory: bytes to take beside the models: half of them to keep the target's keys and values for further
            sources (what does not fit is computed again), half for the work at hand (batches are cut to fit).
    """

    name = "staircase"

    def __init__(self, target: LM, config: PatchConfig, *, max_memory: int | None = None) -> None:
        self.target, self.config = target, config
        self.layers = config.layers_of(target.anatomy.num_layers)
        # A block's output is first read by the next block; any other patch acts within its own.
        self._first_block = min(self.layers[0] + (config.mode == "layer"), target.anatomy.num_layers - 1)
        self._max_memory = max_memory
        self._shelf: Shelf[Located, Own] = Shelf(None if max_memory is None else int(KEPT * max_memory))
        self._calls: Calls | None = None

    @property
    def kept_bytes(self) -> int:
        """Memory of the keys and values that are kept for further sources."""
        return self._shelf.used

    def unpatched(self, batch: Sequence[Located]) -> list[TokenScores]:
        """The target as it is, one result per example: [token]."""
        with self._making_room():
            return [own.scores for piece in self._pieces(batch) for own in self._own([batch[i] for i in piece])]

    def patched(self, source: LM, batch: Sequence[Located], layers: Layers = None) -> list[TokenScores]:
        """The target with the source's states in one layer at a time, one result per example: [layer, token]."""
        check_pair(source, self.target)
        wanted = wanted_layers(self.layers, layers, len(batch))
        results: list[TokenScores] = []
        with self._making_room():
            for piece in self._pieces(batch):
                members = [batch[i] for i in piece]
                states = self.source_states(source, members)
                results += self.inject(states, members, [wanted[i] for i in piece])
        return results

    @torch.inference_mode()
    def source_states(self, source: LM, batch: Sequence[Located]) -> list[Tensor]:
        """What the source hands over for each example: [layer, patched row, hidden].

        It runs up to the last evaluated row and the last layer asked for, without its head.
        """
        last = source.anatomy.blocks[self.layers[-1]]
        found: dict[int, Tensor] = {}
        for chunk in _like_lengths(batch):
            spans = [batch[i].patched_rows(self.config.scope) for i in chunk]
            ids = _ids([batch[i] for i in chunk]).to(source.device)
            forward = partial(run_until, source.model, last, input_ids=ids, use_cache=False)
            states = read_states(source, self.config, row_table(spans), forward)
            found |= {i: states[:, place, : len(spans[place])] for place, i in enumerate(chunk)}
        return [found[i] for i in range(len(batch))]

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
        tasks = [Task(*parts) for parts in zip(batch, states, self._own(batch), wanted, results, strict=True)]
        # The head reads everything at once: few large products, not many small ones.
        ended: list[tuple[Task, int, Tensor]] = []
        for group in _like_spans([task for task in tasks if task.layers], self.config):
            top = climb(self.target, self.config, cast(Calls, self._calls), group, first_block=self._first_block)
            ended += [
                (task, layer, top[i, run, evaluated_rows(task.example, self.config)])
                for i, task in enumerate(group)
                for run, layer in enumerate(task.layers)
            ]
        scores = self._scores([hidden for _, _, hidden in ended], [task.example for task, _, _ in ended])
        for (task, layer, _), score in zip(ended, scores, strict=True):
            place = self.layers.index(layer)
            task.result.log_probs[place], task.result.hits[place] = score.log_probs, score.hits
        return results

    def _pieces(self, batch: Sequence[Located]) -> Iterator[list[int]]:
        """The batch, cut so that the work at hand stays within its share of the memory."""
        length = max((example.rows.stop for example in batch), default=0)
        spans = [len(span_of(example, self.config)) for example in batch]
        takes = Footprint.of(self.target)
        costs = [takes.staircase(length, span, len(self.layers), self.target.anatomy.num_layers) for span in spans]
        return pieces(costs, self._max_memory, 1 - KEPT - HEAD)

    @contextmanager
    def _making_room(self) -> Iterator[None]:
        """When memory runs out, what is kept goes first: the caller will try again with a smaller batch."""
        try:
            yield
        except (MemoryError, RuntimeError):
            self._shelf.shrink()
            raise

    @property
    def _head_bytes(self) -> int:
        return HEAD_BYTES if self._max_memory is None else min(HEAD_BYTES, int(HEAD * self._max_memory))

    @torch.inference_mode()
    def _own(self, batch: Sequence[Located]) -> list[Own]:
        """The target's own pass over each example, unless it is still here."""
        own = self._shelf.find(batch)
        missing = [example for example in dict.fromkeys(batch) if example not in own]
        if missing:
            self._shelf.dismiss()
        for chunk in _like_lengths(missing):
            members = [missing[i] for i in chunk]
            own |= zip(members, self._own_pass(members), strict=True)
        for example in missing:
            self._shelf.put(example, own[example], own[example].nbytes)
        return [own[example] for example in batch]

    def _own_pass(self, batch: Sequence[Located]) -> list[Own]:
        """Run the target as it is, up to the last evaluated row of each example."""
        config, blocks, device = self.config, self.target.anatomy.blocks, self.target.device
        spans = [span_of(example, config) for example in batch]
        rows, ids, recorder = row_table(spans).to(device), _ids(batch).to(device), Recorder()
        begin = [blocks[layer] for layer in self.layers] if config.mode != "layer" or config.scope == "boundary" else []
        with (
            recorded_calls(blocks) as arguments,
            capture(blocks[-1:], rows=rows) as top,
            capture(begin, where="output" if config.mode == "layer" else "input", rows=rows) as states,
        ):
            run_until(self.target.model, blocks[-1], input_ids=ids, past_key_values=recorder, use_cache=True)
        if self._calls is None or self._calls.length < ids.shape[1]:
            self._calls = Calls(ids.shape[1], arguments, recorder)
        heard = [recorder.heard.pop(block) for block in range(len(blocks))][self._first_block :]
        scores = self._scores([top[0][i, evaluated_rows(example, config)] for i, example in enumerate(batch)], batch)
        return [
            Own(
                keys=torch.stack([keys[i, :, : span.start] for keys, _ in heard]),
                values=torch.stack([values[i, :, : span.start] for _, values in heard]),
                states=torch.stack([state[i, : len(span)] for state in states]) if begin else None,
                scores=scores[i],
            )
            for i, span in enumerate(spans)
        ]

    def _scores(self, hidden: Sequence[Tensor], batch: Sequence[Located]) -> list[TokenScores]:
        """Scores of the evaluated rows [token, hidden] of some examples: [token] each."""
        if not hidden:
            return []
        labels = [label for example in batch for label in example.labels]
        rows, sizes = torch.cat(list(hidden)), [len(own) for own in hidden]
        at_once = max(1, self._head_bytes // Footprint.of(self.target).logits)
        scores = [
            token_scores(self.target.anatomy.logits(rows[i : i + at_once]), labels[i : i + at_once], self.config)
            for i in range(0, len(rows), at_once)
        ]
        log_probs = torch.split(torch.cat([score.log_probs for score in scores]), sizes)
        hits = torch.split(torch.cat([score.hits for score in scores]), sizes)
        return [TokenScores(*both) for both in zip(log_probs, hits, strict=True)]


def _ids(batch: Sequence[Located]) -> Tensor:
    """Sequences up to the last evaluated row, padded on the right: [example, position].

    No row sees a later one, so the padding needs no mask; it repeats a real token, lest a model warn about padding.
    """
    width = max(example.rows.stop for example in batch)
    ids = [example.ids[: example.rows.stop] for example in batch]
    return torch.tensor([[*own, *own[-1:] * (width - len(own))] for own in ids])


def _like_lengths(batch: Sequence[Located]) -> Iterator[list[int]]:
    """Examples of which about as many rows are needed."""
    chunk: list[int] = []
    for i in sorted(range(len(batch)), key=lambda i: -batch[i].rows.stop):
        if chunk and batch[i].rows.stop < LIKE_LENGTH * batch[chunk[0]].rows.stop:
            yield chunk
            chunk = []
        chunk.append(i)
    if chunk:
        yield chunk


def _like_spans(tasks: Sequence[Task], config: PatchConfig) -> Iterator[list[Task]]:
    """Examples with spans of the same length; few that are a little shorter join, for their own calls would cost more."""

    def length(task: Task) -> int:
        return len(span_of(task.example, config))

    group: list[Task] = []
    for rows, same in groupby(sorted(tasks, key=length, reverse=True), key=length):
        joining = list(same)
        # On its way up a run is there for half of the blocks.
        padding = sum((length(group[0]) - rows) * len(task.layers) / 2 for task in joining) if group else 0
        if padding > CALL_ROWS:
            yield group
            group = []
        group += joining
    if group:
        yield group
