"""One probe on one model: settings are chosen on one half of the forget set, the result comes from the other.

A setting counts only while retain accuracy stays within two points of what it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor

from residuum.data.tofu import QA
from residuum.steering.intervene import Edit
from residuum.steering.probes.directions import Probe, Sight, unit
from residuum.steering.probes.measures import Answers, Measure
from residuum.steering.search import Search, SearchConfig, best_step, new_search

if TYPE_CHECKING:
    from residuum.models.loading import LM

KEPT = 0.02
"""Retain accuracy that a setting may cost."""
COHERENT = 100 * (1 - KEPT)


@dataclass(frozen=True)
class Choice:
    """A setting: where, and how much."""

    layer: int
    coefficient: float
    """Of the direction as it is; 1 for an ablation."""
    scale: float
    """The same as a multiple of the natural unit; 1 for an ablation."""


@dataclass(frozen=True)
class Attack:
    """A probe ready to be used on a model."""

    sight: Sight
    probe: Probe
    measure: Measure
    layers: Sequence[int]
    steps: int = 5

    @property
    def lm(self) -> LM:
        """The attacked model."""
        return self.sight.model.lm

    @cached_property
    def directions(self) -> Tensor:
        """One per layer, [layer, hidden]."""
        return self.probe.find(self.sight)

    @cached_property
    def usable(self) -> list[int]:
        """Layers whose direction is one: two equal models differ nowhere."""
        return [layer for layer in self.layers if float(self.directions[layer].norm()) > 0]

    def edits(self, layer: int, coefficient: float, direction: Tensor | None = None) -> list[Edit]:
        """The probe at one layer, or another direction in its place."""
        vector = self.directions[layer] if direction is None else direction
        if self.probe.operator == "add":
            return [Edit(layer, "residual", vector, coefficient)]
        # Later layers would write it again.
        return [Edit(later, "residual", vector, 1.0, "ablate") for later in range(layer, self.lm.anatomy.num_layers)]

    def ask(self, rows: Sequence[QA], settings: Sequence[Sequence[Edit]]) -> list[Answers]:
        """The same rows under several settings, in one batch."""
        work = [(qa, edits) for edits in settings for qa in rows]
        found = self.measure(self.lm, [qa for qa, _ in work], [edits for _, edits in work])
        return found.cut([len(rows)] * len(settings))

    def run(self) -> dict[str, Any]:
        """Choose, then report; ready for JSON."""
        data = self.sight.data
        before = self._both(data.forget.select, data.retain.select, [[]])[0]
        tried = self._search(before) if self.usable else []
        chosen = _best(tried)
        plain = self._both(data.forget.report, data.retain.report, [[]])[0]
        after = plain
        if chosen is not None:
            edits = self.edits(chosen["layer"], chosen["coefficient"])
            after = self._both(data.forget.report, data.retain.report, [edits])[0]
        return {
            "before": _told(plain), "after": _told(after), "chosen": chosen, "tried": tried,
            "texts": [
                {"question": qa.question, "truth": qa.answer, "before": b, "after": a}
                for qa, b, a in zip(data.forget.report, plain[0].texts, after[0].texts, strict=False)
            ],
        }  # fmt: skip

    def _both(
        self, forget: Sequence[QA], retain: Sequence[QA], settings: Sequence[Sequence[Edit]]
    ) -> list[tuple[Answers, Answers]]:
        """Forget and retain rows under each setting, all in one batch."""
        rows = [*forget, *retain]
        parts = [found.cut([len(forget), len(retain)]) for found in self.ask(rows, settings)]
        return [(part[0], part[1]) for part in parts]

    def _search(self, before: tuple[Answers, Answers]) -> list[dict[str, Any]]:
        """All layers step together; retain accuracy takes the place of coherence."""
        config = SearchConfig(search="bracket", steps=1 if self.probe.operator == "ablate" else self.steps,
                              start=1.0 if self.probe.natural or self.probe.operator == "ablate" else 0.25,
                              min_coherence=COHERENT)  # fmt: skip
        searches: dict[int, Search] = {layer: new_search(config) for layer in self.usable}
        tried: dict[int, list[dict[str, Any]]] = {layer: [] for layer in self.usable}
        while proposed := {n: scale for n, search in searches.items() if (scale := search.propose()) is not None}:
            choices = [self._choice(layer, scale) for layer, scale in proposed.items()]
            settings = [self.edits(choice.layer, choice.coefficient) for choice in choices]
            found = self._both(self.sight.data.forget.select, self.sight.data.retain.select, settings)
            for choice, (forget, retain) in zip(choices, found, strict=True):
                lost = max(0.0, before[1].mean - retain.mean)
                searches[choice.layer].record(100 * forget.mean, 100 * (1 - lost))
                tried[choice.layer].append({
                    "layer": choice.layer, "scale": choice.scale, "coefficient": choice.coefficient,
                    "forget": forget.mean, "retain": retain.mean,
                })  # fmt: skip
        rows = []
        for layer, search in searches.items():
            best, kept = best_step(search.steps, config)
            rows.append({**tried[layer][best], "kept": kept})
        return rows

    def _choice(self, layer: int, scale: float) -> Choice:
        if self.probe.operator == "ablate":
            return Choice(layer, 1.0, 1.0)
        length = 1.0 if self.probe.natural else self._norms[layer] / float(self.directions[layer].norm())
        return Choice(layer, self.probe.sign * scale * length, self.probe.sign * scale)

    @cached_property
    def _norms(self) -> list[float]:
        """Mean length of the states of the attacked model, by layer."""
        states = self.sight.states(self.sight.model, self.sight.data.retain.select)
        return [float(norm) for norm in states.norm(dim=2).mean(0)]

    def random_scores(self, chosen: dict[str, Any], directions: Sequence[Tensor]) -> list[list[float]]:
        """Scores of the report half when other directions, of the same length, take the place of the probe's."""
        length = float(self.directions[chosen["layer"]].norm())
        settings = [self.edits(chosen["layer"], chosen["coefficient"], unit(d) * length) for d in directions]
        return [found.scores for found in self.ask(self.sight.data.forget.report, settings)]


def _best(tried: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Most of the forget set among those that keep retain accuracy; the first of equals. None when none does."""
    kept = [row for row in tried if row["kept"]]
    return max(kept, key=lambda row: row["forget"]) if kept else None


def _told(found: tuple[Answers, Answers]) -> dict[str, Any]:
    forget, retain = found
    return {"forget": forget.mean, "retain": retain.mean, "scores": forget.scores, "idk_rate": forget.idk_rate}
