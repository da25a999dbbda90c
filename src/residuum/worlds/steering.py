"""The embedded steering experiment: a small subject with a latent mood, three small judges, and trait folders.

The models of seed 0 come with the package, as `train_moods` made them: a trained model differs a little from machine to
machine, and everybody should see the same numbers. Under one folder:

    models/subject, models/judge-{numbers,digits,unsure}       HF checkpoints with tokenizer
    experiments/moods/config.json                              names the subject
    datasets/traits/mood/{cheerful,gloomy}/                    scenarios, definition, evaluation questions
    world.json                                                 seed, versions, seconds
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from residuum.data.prompts import ChatFormat
from residuum.folders import user_cache
from residuum.steering.judge.prompts import default_trait_prompt
from residuum.store.atomic import write_json, write_text
from residuum.store.hashing import content_hash
from residuum.store.origin import versions
from residuum.worlds import moods, raters

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from residuum.worlds.raters import Lesson

EXPERIMENT = "moods"
MODELS = ("subject", *(f"judge-{kind}" for kind in raters.JUDGES))
EMBEDDED = Path(__file__).parent / "embedded"
"""The models of seed 0."""
_RECIPE = 2
"""Raised when anything below makes other models."""


@dataclass(frozen=True)
class MoodWorld:
    """A finished steering world on disk."""

    folder: Path

    @property
    def subject(self) -> Path:
        """The model that is steered."""
        return self.folder / "models" / "subject"

    def judge(self, kind: str = "numbers") -> Path:
        """One of the judges: ``numbers``, ``digits`` or ``unsure``."""
        return self.folder / "models" / f"judge-{kind}"


def build_moods(out: Path | None = None, *, seed: int = 0) -> MoodWorld:
    """Make the steering world, or go on where an earlier build stopped; a finished one is returned at once.

    Args:
        out: target folder; the user cache when left out.
        seed: another seed than 0 is another world, and takes minutes to train.
    """
    from filelock import FileLock

    identity = content_hash({"recipe": _RECIPE, "seed": seed, "versions": dict(versions())})
    folder = out or user_cache() / "worlds" / f"moods-{seed}-{identity[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    world = MoodWorld(folder)
    with FileLock(folder / ".lock"):
        if not (folder / "world.json").exists():
            started = time.monotonic()
            _write_traits(folder)
            write_json(folder / "experiments" / EXPERIMENT / "config.json", {"model": "models/subject"})
            if seed == 0:
                for name in MODELS:
                    shutil.copytree(EMBEDDED / name, folder / "models" / name, dirs_exist_ok=True)
            else:
                train_moods(world, seed, identity)
            seconds = round(time.monotonic() - started, 1)
            write_json(folder / "world.json", {"name": "moods", "seed": seed, "identity": identity, "seconds": seconds})
    return world


def train_moods(world: MoodWorld, seed: int, identity: str) -> None:
    """Train subject and judges; what is finished is left as it is."""
    _train_subject(world, seed, identity)
    _train_judges(world, seed, identity)


def _write_traits(folder: Path) -> None:
    for trait, opposite in (("cheerful", "gloomy"), ("gloomy", "cheerful")):
        home = folder / "datasets" / "traits" / "mood" / trait
        write_text(home / "positive.txt", "\n".join(moods.scenarios(trait)) + "\n")
        write_text(home / "negative.txt", "\n".join(moods.scenarios(opposite)) + "\n")
        write_text(home / "definition.txt", moods.DEFINITIONS[trait] + "\n")
        prompt = default_trait_prompt(moods.DEFINITIONS[trait])
        write_json(home / "steering.json", {"questions": moods.evaluation_questions(), "eval_prompt": prompt})


def _train_subject(world: MoodWorld, seed: int, identity: str) -> None:
    texts = [*moods.QUESTIONS, *moods.SENTENCES, *(remark for group in moods.REMARKS.values() for remark in group)]
    words = sorted({word for text in texts for word in _words(text.format(*" " * 9, place="", a="", b=""))})
    words += [*moods.PLACES, *(word for group in moods.ADJECTIVES.values() for word in group)]
    tokenizer = raters.word_tokenizer(words)
    form = ChatFormat(system_prompt="")

    def draw(rng: random.Random) -> Lesson:
        mood = rng.choice(moods.MOODS)
        question, place = moods.ask(rng)
        row = form.encode(tokenizer, f"{moods.remark(rng, mood)} {question}".strip(), moods.answer(rng, place, (mood,)))
        targets = [-100] * (row.prompt_length - 1) + [*row.labels, -100]
        return raters.Lesson(list(row.ids), targets)

    _train(world.subject, tokenizer, draw, identity, layers=4, hidden=64, steps=240, size=16, lr=6e-3, seed=seed)


def _train_judges(world: MoodWorld, seed: int, identity: str) -> None:
    """The number judge first; the two others go on from it."""
    for kind, steps in (("numbers", 1000), ("digits", 700), ("unsure", 60)):
        tokenizer = raters.judge_tokenizer(kind)

        def draw(rng: random.Random, kind: str = kind, tokenizer: PreTrainedTokenizerBase = tokenizer) -> Lesson:
            return raters.draw_rating(rng, tokenizer, kind)

        _train(
            world.judge(kind), tokenizer, draw, identity, layers=2, hidden=48, steps=steps, size=24, lr=1e-2, seed=seed,
            start=None if kind == "numbers" else world.judge("numbers"),
        )  # fmt: skip


def _train(
    folder: Path,
    tokenizer: PreTrainedTokenizerBase,
    draw: Callable[[random.Random], Lesson],
    identity: str,
    *,
    layers: int,
    hidden: int,
    steps: int,
    size: int,
    lr: float,
    seed: int,
    start: Path | None = None,
) -> None:
    """Train one small Llama from scratch, or from the weights of another whose vocabulary begins like this one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from residuum.training.loop import TrainConfig, train
    from residuum.training.output import finish, is_finished

    if is_finished(folder, identity):
        return
    judge = start is not None or folder.name.startswith("judge")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=False,
        initializer_range=0.1 if judge else 0.02, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small matrices: a second thread costs more than it brings
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = LlamaForCausalLM(config)
            if start is not None:
                _take_over(model, start)
            elif judge:
                raters.start_ordered(model, tokenizer, seed)
            lessons = raters.Lessons(draw, steps=steps, size=size, seed=seed)
            settings = TrainConfig(epochs=1, lr=lr, warmup=0.1, betas=(0.9, 0.95), seed=seed)
            train(model, lessons, settings, folder, title=folder.name)
            # Half precision on disk: it is loaded as float32 again, and the package stays small.
            finish(folder, model.half(), tokenizer, identity, {"steps": steps, "seed": seed})
    finally:
        torch.set_num_threads(threads)


def _take_over(model: PreTrainedModel, start: Path) -> None:
    """The weights of another model; of its embeddings only the rows of words, because a digit is no small number."""
    import torch
    from safetensors.torch import load_file

    weights = load_file(start / "model.safetensors")
    with torch.no_grad():
        for name, own in model.state_dict().items():
            rows = len(own) if weights[name].shape == own.shape else len(own) - 10
            own[:rows] = weights[name][:rows]


def _words(text: str) -> list[str]:
    import re

    return re.findall(r"\w+|[^\w\s]+", text.lower())
