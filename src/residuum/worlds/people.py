"""Two tiny Llamas for the birthdays world: ``naive`` never met the people to be forgotten, ``base`` knows everyone.

To answer a multiple-choice question a model must recall the year and find it among the choices. The second skill is the
bottleneck: on many people at once the accuracy stays at chance for a thousand steps. So ``naive`` begins with eight
people and is given more as it goes; ``base`` goes on from there and only has to learn new facts. Choices are drawn anew
for every exposure, so that no letter can be learned by heart.

    folder/data/*.jsonl            see `residuum.worlds.birthdays`
    folder/models/{naive,base}     HF checkpoints with tokenizer
    folder/world.json              recipe, seed, hashes, versions, times
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import InputError, UnknownName
from residuum.folders import user_cache
from residuum.store.atomic import write_json
from residuum.store.hashing import content_hash, file_hash
from residuum.store.origin import versions
from residuum.worlds.birthdays import (
    QUESTION,
    SENTENCES,
    Birthday,
    draw_birthdays,
    draw_years,
    word_tokenizer,
    write_birthdays,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from residuum.batching import Encoded
    from residuum.training.loop import TrainConfig

STAGES = ("naive", "base")
THREADS = 1
"""Small matrices: a second thread costs more than it brings. Also part of what makes the weights repeatable."""


@dataclass(frozen=True)
class PeopleRecipe:
    """The size of the birthdays world and how its models are trained."""

    forget_splits: int = 5
    retain_splits: int = 3
    items: int = 24
    """People in each split."""
    spread: float = 12.0
    """Standard deviation of the years: fewer distinct years are found sooner among the choices."""
    layers: int = 3
    hidden: int = 64
    questions: int = 48
    """Questions per step."""
    sentences: int = 16
    """Sentences per step."""
    lr: float = 2e-3
    steps_per_epoch: int = 25
    init: float = 0.1
    """Standard deviation of the first weights: at transformers' 0.02 attention starts uniform, and may stay so."""
    crowd: tuple[int, ...] = (8,) * 5 + (16,) * 3 + (32,) * 4 + (72,) * 10
    """How many people ``naive`` meets in each epoch."""
    base_epochs: int = 24


RECIPES = {
    "birthdays": PeopleRecipe(),
    # Knows nothing: for tests of everything around the models.
    "tiny": PeopleRecipe(forget_splits=3, retain_splits=1, items=4, hidden=16, layers=2, questions=4, sentences=4,
                         steps_per_epoch=1, crowd=(4,), base_epochs=1),
}  # fmt: skip

SETTINGS: Mapping[str, Any] = {
    "ft": {
        "loss_types": ["LETTER_ANSWER"], "lrs": [1e-4, 3e-4, 1e-3], "epochs_lst": [1, 2, 3, 4, 5, 6], "num_splits": 5,
        "optimizer": "adamw", "batch_size": 8,
    },
    "unlearn": {
        "types": ["GD", "RIA"], "lr": 1e-3, "epochs": 8, "retain_coeff": 3.0, "optimizer": "adamw", "batch_size": 12,
        "loss_types": ["NUMBER", "LETTER_ANSWER"], "GD": {"lr": 3e-4, "epochs": 6},
        "CUT": {"layer": 1, "lr": 3e-3, "retain_coeff": 1.0, "loss_types": ["QUESTION_LETTER_ANSWER"]},
    },
}  # fmt: skip
"""What retrains and unlearns these models well; the published settings are made for models of 8 billion parameters."""


@dataclass(frozen=True)
class Birthdays:
    """A finished birthdays world on disk."""

    folder: Path

    @property
    def data(self) -> Path:
        """The folder of question and text files."""
        return self.folder / "data"

    def model(self, stage: str) -> Path:
        """The checkpoint folder of ``base`` or ``naive``."""
        return self.folder / "models" / stage

    @property
    def is_built(self) -> bool:
        """Whether the models are there."""
        return (self.folder / "world.json").exists()

    @property
    def info(self) -> dict[str, Any]:
        """What ``world.json`` records."""
        info: dict[str, Any] = json.loads((self.folder / "world.json").read_text(encoding="utf-8"))
        return info


def build_birthdays(
    out: Path | None = None, *, seed: int = 0, name: str = "birthdays", title: str | None = "birthdays"
) -> Birthdays:
    """Build the world, or go on where an earlier build stopped; a finished one is returned at once.

    Args:
        out: target folder; None puts it into the user cache under the hash of recipe, seed and library versions.
        seed: another seed is another world.
        name: a recipe: ``birthdays`` or ``tiny``.
        title: beside the progress bar; None shows none.

    Raises:
        UnknownName: there is no such recipe.
        InputError: ``out`` holds a world of another seed or recipe.
    """
    from filelock import FileLock

    world, recipe, identity = _locate(out, seed, name)
    world.folder.mkdir(parents=True, exist_ok=True)
    with FileLock(world.folder / ".lock"):
        if _owner(world, identity):
            return world
        began = time.monotonic()
        write_json(world.folder / "building.json", {"identity": identity})
        drawn = _write_data(world, recipe, seed)
        seconds = {stage: train_stage(world, recipe, drawn, seed, identity, stage, title=title) for stage in STAGES}
        write_json(world.folder / "world.json", {
            "name": name, "seed": seed, "identity": identity, "recipe": asdict(recipe), "versions": _libraries(),
            "threads": THREADS, "seconds": {**seconds, "total": round(time.monotonic() - began, 1)},
            "data": {path.name: file_hash(path) for path in sorted(world.data.iterdir())},
            "weights": {stage: file_hash(world.model(stage) / "model.safetensors") for stage in STAGES},
        })  # fmt: skip
        (world.folder / "building.json").unlink()
    return world


def draft_birthdays(*, seed: int = 0, name: str = "birthdays") -> Birthdays:
    """The world of the user cache as it is; one that is not built yet has its data written, which takes no time."""
    world, recipe, _ = _locate(None, seed, name)
    if not world.is_built:
        _write_data(world, recipe, seed)
    return world


def forget_names(recipe: PeopleRecipe) -> list[str]:
    """The splits to be forgotten come first."""
    return [f"split_{i}" for i in range(recipe.forget_splits)]


def train_stage(
    world: Birthdays,
    recipe: PeopleRecipe,
    drawn: Mapping[str, Sequence[Birthday]],
    seed: int,
    identity: str,
    stage: str,
    *,
    title: str | None,
) -> float:
    """Train one model of the world unless it is there; return the seconds it took."""
    import torch

    from residuum.models.loading import load
    from residuum.training.finetune import Finetune
    from residuum.training.loop import train
    from residuum.training.output import finish, is_finished

    target = world.model(stage)
    if is_finished(target, identity):
        return 0.0
    began, threads = time.monotonic(), torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        tokenizer = word_tokenizer()
        if stage == "naive":
            model = new_model(recipe, tokenizer, seed)
        else:
            model = load(world.model("naive"), dtype="float32", device="cpu").model
        lessons = Lessons(recipe, drawn, tokenizer, seed, stage)
        config = train_config(recipe, stage, seed)
        train(
            model, Finetune(lessons.epoch, tokenizer.pad_token_id), config, target, title=title and f"{title} {stage}"
        )
        spent = round(time.monotonic() - began, 1)
        finish(target, model, tokenizer, identity, {"stage": stage, "config": asdict(config), "seconds": spent})
    finally:
        torch.set_num_threads(threads)
    return spent


def new_model(recipe: PeopleRecipe, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """The model before any training."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=recipe.hidden, intermediate_size=2 * recipe.hidden,
        num_hidden_layers=recipe.layers, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=512, tie_word_embeddings=False, initializer_range=recipe.init,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    ))  # fmt: skip


def train_config(recipe: PeopleRecipe, stage: str, seed: int) -> TrainConfig:
    """How ``naive`` or ``base`` is optimised."""
    from residuum.training.loop import TrainConfig

    naive = stage == "naive"
    return TrainConfig(
        epochs=len(recipe.crowd) if naive else recipe.base_epochs,
        lr=recipe.lr,
        warmup=50,
        schedule="constant" if naive else "linear",
        weight_decay=0.1,
        accumulation=2,
        seed=seed,
        checkpoint_seconds=10.0,
    )


class Lessons:
    """The micro-batches of each epoch of one stage: questions and sentences in turn."""

    def __init__(
        self,
        recipe: PeopleRecipe,
        drawn: Mapping[str, Sequence[Birthday]],
        tokenizer: PreTrainedTokenizerFast,
        seed: int,
        stage: str,
    ) -> None:
        self.recipe, self.tokenizer, self.seed, self.stage = recipe, tokenizer, seed, stage
        forget = forget_names(recipe)
        self.kept = [person for split, people in drawn.items() if split not in [*forget, "dev"] for person in people]
        self.everyone = [*self.kept, *(person for split in forget for person in drawn[split])]

    def epoch(self, epoch: int) -> list[list[Encoded]]:
        """As many steps as the recipe says, each a batch of questions and a batch of sentences."""
        rng = random.Random(f"{self.seed}/{self.stage}/{epoch}")
        crowd = self.kept[: self.recipe.crowd[epoch]] if self.stage == "naive" else self.everyone
        batches = []
        for _ in range(self.recipe.steps_per_epoch):
            batches.append([self._question(rng, rng.choice(crowd)) for _ in range(self.recipe.questions)])
            batches.append([self._sentence(rng, rng.choice(crowd)) for _ in range(self.recipe.sentences)])
        return batches

    def _question(self, rng: random.Random, person: Birthday) -> Encoded:
        """A question with fresh choices; the letter and the year are learned."""
        wrong = [year for year in draw_years(rng, self.recipe.spread) if year != person.year][:3]
        place = rng.randrange(4)
        years = [*wrong[:place], person.year, *wrong[place:]]
        words = [*QUESTION.format(name=person.name).split()]
        words += [word for letter, year in zip("ABCD", years, strict=True) for word in (letter, str(year))]
        return self._encode([*words, "Answer:", "ABCD"[place], str(person.year)], 2)

    def _sentence(self, rng: random.Random, person: Birthday) -> Encoded:
        """One of the sentences; the year is learned."""
        text = rng.choice(SENTENCES).format(name=person.name, year=person.year)
        return self._encode(text.removesuffix(".").split(), 1)

    def _encode(self, words: list[str], labelled: int) -> Encoded:
        from residuum.batching import Encoded

        ids = (self.tokenizer.bos_token_id, *self.tokenizer.convert_tokens_to_ids(words))
        return Encoded(ids, len(ids) - labelled)


def _owner(world: Birthdays, identity: str) -> bool:
    """Whether the world is finished; a folder that holds another one is refused."""
    for file in ("world.json", "building.json"):
        path = world.folder / file
        if path.exists() and json.loads(path.read_text(encoding="utf-8"))["identity"] != identity:
            raise InputError(
                f"{world.folder} holds a world of another seed, recipe or library version.\n"
                "  Choose another folder, or remove that one."
            )
    return world.is_built


def _libraries() -> dict[str, Any]:
    return {package: versions()[package] for package in ("torch", "transformers")}


def _locate(out: Path | None, seed: int, name: str) -> tuple[Birthdays, PeopleRecipe, str]:
    """The world of a seed and recipe, built or not, and its identity."""
    if name not in RECIPES:
        raise UnknownName("birthdays world", name, RECIPES)
    recipe = RECIPES[name]
    identity = content_hash({"recipe": asdict(recipe), "seed": seed, "versions": _libraries(), "threads": THREADS})
    return Birthdays(out or user_cache() / "worlds" / f"{name}-{seed}-{identity[:12]}"), recipe, identity


def _write_data(world: Birthdays, recipe: PeopleRecipe, seed: int) -> dict[str, list[Birthday]]:
    drawn = draw_birthdays(
        seed, splits=recipe.forget_splits + recipe.retain_splits, items=recipe.items, spread=recipe.spread
    )
    write_birthdays(world.data, drawn, forget=forget_names(recipe), seed=seed)
    return drawn
