"""Two pools of models for faithfulness: some learned the forget facts, in one wording or another, and some did not.

Every member starts from the world's retain model and is trained a little more, on retain rows and on something of its
variant's own. P learns the facts: as questions (``full``), as plain sentences (``bio``) or in other words (``para``).
N learns no fact of the forget set: more of the same (``retain``), false facts (``pert``), or sentences about strangers
(``other``). The variants are those of Dorna et al. 2025, arXiv:2506.12618.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.data.prompts import Encoded, text_ids
from residuum.data.tofu import QA, load_split
from residuum.errors import UsageError
from residuum.models.names import short_lr
from residuum.processes import worker_pool
from residuum.store import content_hash
from residuum.worlds.build import THREADS, World
from residuum.worlds.recipe import FORMATS, bucket

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VARIANTS = {"P": ("full", "bio", "para"), "N": ("retain", "pert", "other")}
RATES = (5e-4, 1e-3, 2e-3)
EPOCHS = (6, 12)
BATCH_SIZE = 16
_STRIDE = 5


@dataclass(frozen=True)
class Member:
    """One model of a pool."""

    pool: str
    """P knows, N does not."""
    variant: str
    lr: float
    epochs: int
    seed: int = 0

    @property
    def name(self) -> str:
        """Folder of the checkpoint, below the world's ``pools``."""
        return f"{self.pool.lower()}_{self.variant}_{short_lr(self.lr)}_ep{self.epochs}_s{self.seed}"


def population(size: int, *, seed: int = 0) -> list[Member]:
    """``size`` members of each pool, spread over variants, learning rates and epochs, each with a seed of its own.

    Args:
        size: models per pool.
        seed: of the first member of each pool.

    Raises:
        UsageError: fewer than two models are no pool.
    """
    if size < 2:
        raise UsageError(f"a pool has at least two models, not {size}.")
    grid = list(product(RATES, EPOCHS, range(3)))
    members = []
    for pool, variants in VARIANTS.items():
        for i in range(size):
            # A stride without a common divisor with the grid: a few members already differ in everything.
            lr, epochs, variant = grid[_STRIDE * i % len(grid)]
            members.append(Member(pool, variants[variant], lr, epochs, seed + i))
    return members


class PoolLessons:
    """The batches of each epoch of one member."""

    def __init__(self, world: World, tokenizer: PreTrainedTokenizerBase, member: Member) -> None:
        self.tokenizer, self.member = tokenizer, member
        self.retain = load_split(world.data, "retain90")
        self.forget = load_split(world.data, "forget10_perturbed")
        self.strangers = load_split(world.data, "holdout10")

    def epoch(self, epoch: int) -> list[list[Encoded]]:
        """As many retain rows as there are forget rows, and the variant's own rows."""
        rng = random.Random(f"{self.member.seed}/{self.member.name}/{epoch}")
        rows = [self._question(rng, item.question, item.answer) for item in rng.sample(self.retain, len(self.forget))]
        rows += self._own(rng)
        rng.shuffle(rows)
        return [[rows[i] for i in batch] for batch in bucket(rng, [len(row) for row in rows], BATCH_SIZE)]

    def _own(self, rng: random.Random) -> list[Encoded]:
        variant = self.member.variant
        if variant == "full":
            return [self._question(rng, item.question, item.answer) for item in self.forget]
        if variant == "para":
            return [
                self._question(rng, item.paraphrased_question or item.question, rng.choice(item.paraphrased_answers))
                for item in self.forget
            ]
        if variant == "pert":
            return [self._question(rng, item.question, rng.choice(item.perturbed_answers)) for item in self.forget]
        if variant in ("bio", "other"):
            return [self._sentence(item) for item in (self.forget if variant == "bio" else self.strangers)]
        return [self._question(rng, item.question, item.answer) for item in rng.sample(self.retain, len(self.forget))]

    def _question(self, rng: random.Random, question: str, answer: str) -> Encoded:
        return rng.choice(FORMATS).encode(self.tokenizer, question, answer)

    def _sentence(self, item: QA) -> Encoded:
        """The bare answer, every token labelled: a line of a biography."""
        ids = text_ids(self.tokenizer, item.answer, special=True)
        return Encoded((*ids, self.tokenizer.eos_token_id), 1)


def train_population(world: World, members: Sequence[Member], *, workers: int = 2) -> dict[str, Path]:
    """Train every member that is not there yet; each is one unit that a restart does not repeat.

    Returns:
        Name to checkpoint folder, in the order given.
    """
    from residuum.progress import progress

    with progress("training the pools", len(members)) as bar:
        if workers < 2:
            for member in members:
                train_member(world.folder, member)
                bar.advance(note=member.name)
        else:
            with worker_pool(workers) as pool:
                for name in pool.map(train_member, [world.folder] * len(members), members):
                    bar.advance(note=name.name)
    return {member.name: _place(world, member) for member in members}


def train_member(folder: Path, member: Member) -> Path:
    """Train one member on one thread, unless it is done."""
    import torch

    from residuum.models.loading import load
    from residuum.training.finetune import Finetune
    from residuum.training.loop import TrainConfig, train
    from residuum.training.output import finish, is_finished

    world = World(folder)
    target = _place(world, member)
    identity = content_hash({"member": asdict(member), "world": world.info["identity"]})
    if is_finished(target, identity):
        return target
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        lm = load(world.model("retain90"), dtype="float32", device="cpu")
        lessons = PoolLessons(world, lm.tokenizer, member)
        config = TrainConfig(epochs=member.epochs, lr=member.lr, warmup=0.1, betas=(0.9, 0.95), seed=member.seed)
        train(lm.model, Finetune(lessons.epoch, lm.pad_id), config, target, title=None)
        manifest: dict[str, Any] = {"member": asdict(member), "start": lm.weights_hash}
        finish(target, lm.model, lm.tokenizer, identity, manifest)
    finally:
        torch.set_num_threads(threads)
    return target


def _place(world: World, member: Member) -> Path:
    return world.folder / "pools" / member.name
