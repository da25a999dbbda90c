"""Many searches in one batch, against one layer at a time and against one configuration at a time.

    python benchmarks/steering.py                 # 8 layers, 10 questions, 4 steps; a few minutes on two cores

Three ways to do the same search on the same model, each with the same texts at the end:

    together        all layers step in one batch
    layer by layer  one layer after the other, its questions in one batch
    one by one      one configuration after the other, four questions at a time

What is timed is generation and everything around it; the judge is the same for all and answers from a table.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import contextmanager
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from residuum.generation import continue_prompts
from residuum.models.loading import LM
from residuum.steering.activations import encode_prompt, residual_norms
from residuum.steering.intervene import Edit, steered
from residuum.steering.methods import random_direction
from residuum.steering.search import SearchConfig, new_search

NEW_TOKENS = 32


def subject(layers: int, hidden: int) -> LM:
    """A random Llama of some size with the embedded subject's tokenizer: its texts mean nothing, its work is real."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from residuum.worlds.steering import EMBEDDED

    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED / "subject")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 32, num_key_value_heads=hidden // 32, tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=None, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    return LM.from_model(LlamaForCausalLM(config).eval(), tokenizer, name="random")


def rate(texts: list[str]) -> tuple[float, float]:
    """A judge that costs nothing: two numbers that depend on the texts."""
    seed = sum(map(ord, "".join(texts)))
    return seed % 101, 40 + seed % 61


class Sweep:
    """The search of every layer over all questions."""

    def __init__(self, lm: LM, layers: int, questions: int, steps: int) -> None:
        from residuum.worlds import moods

        asked = (moods.evaluation_questions() * questions)[:questions]
        self.lm, self.layers, self.steps = lm, layers, steps
        self.prompts = [encode_prompt(lm.tokenizer, text, chat=True) for text in asked]
        self.vectors = [random_direction(lm.anatomy.hidden_size, seed) for seed in range(layers)]
        self.base = residual_norms(lm, self.prompts[:3], range(layers))

    def write(self, settings: list[tuple[int, float]], most_rows: int | None = None) -> list[list[str]]:
        """All questions under each setting; at most so many rows at once."""
        work = [(prompt, [Edit(layer, "residual", self.vectors[layer], scale * self.base[layer])]) for layer, scale in settings for prompt in self.prompts]  # fmt: skip
        texts: list[str] = []
        size = most_rows or len(work)
        for start in range(0, len(work), size):
            part = work[start : start + size]
            said = continue_prompts(
                self.lm, [prompt for prompt, _ in part], max_new_tokens=NEW_TOKENS, around=steered(self.lm, [e for _, e in part])
            )  # fmt: skip
            texts += [c.text for c in said]
        count = len(self.prompts)
        return [texts[i : i + count] for i in range(0, len(texts), count)]

    def run(self, groups: list[list[int]], most_rows: int | None = None) -> dict[int, list[list[str]]]:
        """Search the layers of each group together; returns the texts of every step by layer."""
        found: dict[int, list[list[str]]] = {}
        for group in groups:
            searches = {layer: new_search(SearchConfig(steps=self.steps)) for layer in group}
            while active := {layer: s for layer, search in searches.items() if (s := search.propose()) is not None}:
                for layer, texts in zip(active, self.write(list(active.items()), most_rows), strict=True):
                    found.setdefault(layer, []).append(texts)
                    searches[layer].record(*rate(texts))
        return found


@contextmanager
def timed(name: str, seconds: dict[str, tuple[float, float]]):
    """Seconds on the clock and of this process: others may be at work on the machine."""
    clock, own = time.perf_counter(), time.process_time()
    yield
    seconds[name] = (time.perf_counter() - clock, time.process_time() - own)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--layers", type=int, default=8)
    options.add_argument("--questions", type=int, default=10)
    options.add_argument("--steps", type=int, default=4)
    options.add_argument("--hidden", type=int, default=128)
    options.add_argument("--json", type=Path, help="also write the numbers here")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    sweep = Sweep(subject(chosen.layers, chosen.hidden), chosen.layers, chosen.questions, chosen.steps)
    every = list(range(chosen.layers))
    sweep.write([(0, 1.0)])  # warm
    seconds: dict[str, tuple[float, float]] = {}
    with timed("together", seconds):
        together = sweep.run([every])
    with timed("layer by layer", seconds):
        by_layer = sweep.run([[layer] for layer in every])
    with timed("one by one", seconds):
        one_by_one = sweep.run([[layer] for layer in every], most_rows=4)
    same = together == by_layer == one_by_one
    clock, own = seconds["together"]
    for name, (wall, cpu) in seconds.items():
        print(f"{name:16}{wall:8.1f} s {wall / clock:5.2f}x    CPU {cpu:7.1f} s {cpu / own:5.2f}x")
    print(f"same texts: {same}")
    print(
        f"layers {chosen.layers}, questions {chosen.questions}, steps {chosen.steps}, hidden {chosen.hidden}, new tokens {NEW_TOKENS}, one thread"
    )
    if chosen.json:
        chosen.json.write_text(
            json.dumps({"seconds": seconds, "same_texts": same, "settings": vars(chosen) | {"json": None}}, indent=1)
        )
    if not same:
        raise SystemExit("the ways disagree")


if __name__ == "__main__":
    main()
