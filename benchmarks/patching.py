"""How much work does the staircase save, and does it keep within its memory?

Random-weight Llamas of 16 layers on the lengths of the TOFU examples that UDS is measured on; every ratio compares two
ways to the same numbers, on the same examples, in the same process, on one thread. Takes a few minutes.

    python benchmarks/patching.py
    python benchmarks/patching.py --hidden 512 --repeats 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from residuum.batching import Encoded, collate, token_budget_batches
from residuum.data.examples import Example
from residuum.data.spans import Located
from residuum.models.loading import LM, load
from residuum.patching.engine import PatchConfig
from residuum.patching.naive import Naive
from residuum.patching.selfcheck import disagreement
from residuum.patching.staircase import Staircase

LAYERS = 16
VOCAB_PER_HIDDEN = 62.6
"""Llama-3.2-1B has 128256 tokens on 2048 hidden units: so the head weighs as much beside the blocks as there."""
MAX_TOKENS = 4096

# fmt: off
SHAPES = [
    (42, 9, 0, 8), (42, 5, 0, 4), (54, 29, 0, 7), (37, 15, 0, 1), (39, 29, 0, 7), (38, 13, 0, 7), (63, 20, 0, 6),
    (47, 14, 0, 2), (36, 24, 0, 5), (22, 35, 0, 6), (31, 16, 0, 4), (34, 18, 0, 2), (31, 4, 0, 3), (24, 46, 0, 1),
    (52, 23, 0, 4), (32, 16, 0, 7), (80, 24, 0, 9), (53, 14, 0, 2), (51, 6, 0, 2), (33, 21, 0, 3), (25, 35, 0, 15),
    (25, 2, 0, 1), (25, 35, 0, 1), (41, 18, 0, 4), (36, 27, 0, 4), (23, 20, 0, 10), (37, 21, 0, 10), (36, 38, 0, 7),
    (26, 22, 0, 10), (51, 8, 0, 7), (40, 10, 0, 9), (29, 17, 0, 6),
]
# fmt: on
"""Tokens of prompt and reference, first entity token, entity tokens: 32 of the 367 examples under Llama 3.2's tokenizer,
chosen so that they stand for all (mean length 58.4 of 58.4, rows up to the entity's end 43.0 of 42.9, entity tokens
5.44 of 5.43, their root mean square 6.36 of 6.35). In 364 of the 367 the entity begins with the reference."""


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    if arguments.memory_child is not None:
        measure_memory(arguments.hidden, arguments.memory_child or None)
        return
    target, retain, unlearned = (llama(arguments.hidden, seed) for seed in range(3))
    examples = make_examples(target.model.config.vocab_size, copies=1)
    describe(target, examples)
    speed(target, retain, unlearned, examples, arguments.repeats)
    apart(target, examples)
    memory(arguments.hidden)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256, help="hidden size (a multiple of 64)")
    parser.add_argument("--repeats", type=int, default=3, help="how often a time is taken; the best counts")
    parser.add_argument("--memory-child", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def llama(hidden: int, seed: int) -> LM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=LAYERS, vocab_size=int(VOCAB_PER_HIDDEN * hidden),
        num_attention_heads=hidden // 32, num_key_value_heads=hidden // 128, max_position_embeddings=512,
    )  # fmt: skip
    vocabulary = Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="<pad>")
    return LM.from_model(LlamaForCausalLM(config), tokenizer, name=f"llama-{seed}")


def make_examples(vocab: int, *, copies: int) -> list[Located]:
    draw = random.Random(0)
    made = []
    for idx, (prompt, reference, first, length) in enumerate(SHAPES * copies):
        ids = [draw.randrange(1, vocab) for _ in range(prompt + reference)]
        example = Example(idx, question="", answer="", prefix="", entity="")
        made.append(Located(example, "", "", "", tuple(ids[:prompt]), tuple(ids[prompt:]), (first, first + length)))
    return made


def batches(examples: Sequence[Located]) -> list[list[Located]]:
    groups = token_budget_batches([len(example.ids) for example in examples], MAX_TOKENS)
    return [[examples[i] for i in group] for group in groups]


def best_time(run: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some runs: the others were disturbed."""

    def once() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return min(once() for _ in range(repeats))


# Work, counted


class Flops:
    """Multiply-adds of matrices, times two; everything else is small beside them."""

    def __init__(self, lm: LM) -> None:
        self.row = 2 * sum(weight.numel() for weight in lm.anatomy.blocks[0].parameters() if weight.ndim == 2)
        self.pair = 4 * lm.anatomy.hidden_size  # a query row and a key row, in one block
        self.head = 2 * lm.model.config.vocab_size * lm.anatomy.hidden_size

    def blocks(self, rows: int, keys: float) -> float:
        """So many rows through one block, each seeing so many keys."""
        return rows * (self.row + keys * self.pair)

    def forward(self, length: int, read: int) -> float:
        return LAYERS * self.blocks(length, length) + read * self.head

    def hook_loop(self, example: Located, sources: int) -> float:
        length = len(example.ids)
        return (1 + sources * (LAYERS + 1)) * self.forward(length, length)

    def source(self, example: Located) -> float:
        """One more source in the staircase: its pass, its runs, their heads."""
        needed, span = example.rows.stop, len(example.rows)
        runs = LAYERS * (LAYERS - 1) // 2 * self.blocks(span, needed)
        return self.forward(needed, 0) + runs + LAYERS * span * self.head

    def staircase(self, example: Located, sources: int) -> float:
        return self.forward(example.rows.stop, len(example.rows)) + sources * self.source(example)


# Measurements


def describe(lm: LM, examples: Sequence[Located]) -> None:
    config, count = lm.model.config, len(examples)
    print(f"Llama, {LAYERS} layers, hidden {config.hidden_size}, vocabulary {config.vocab_size}, float32, one thread")
    print(
        f"{count} examples: {sum(len(e.ids) for e in examples) / count:.1f} tokens, "
        f"{sum(e.rows.stop for e in examples) / count:.1f} up to the last evaluated row, "
        f"{sum(len(e.rows) for e in examples) / count:.1f} evaluated\n"
    )


def speed(target: LM, retain: LM, unlearned: LM, examples: list[Located], repeats: int) -> None:
    """Two stages, and one more unlearned model, against the hook loop and a plain forward."""
    config, flops, grouped = PatchConfig(), Flops(target), batches(examples)
    naive = Naive(target, config)

    def both_stages(engine: Naive | Staircase, groups: Sequence[Sequence[Located]]) -> list[torch.Tensor]:
        scores = []
        for group in groups:
            engine.unpatched(group)
            scores += [score.log_probs for source in (retain, unlearned) for score in engine.patched(source, group)]
        return scores

    def plain_forward() -> None:
        for group in grouped:
            padded = collate([Encoded(e.ids, len(e.prompt_ids)) for e in group], unlearned.pad_id)
            with torch.inference_mode():
                unlearned.model(input_ids=padded.input_ids, attention_mask=padded.attention_mask, use_cache=False)

    warm = Staircase(target, config)
    found, expected = both_stages(warm, [examples]), both_stages(naive, [examples])
    worst = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
    print(f"largest difference of a log-probability between the engines: {worst:.1e}\n")

    stairs = best_time(lambda: both_stages(Staircase(target, config), grouped), repeats)
    more = best_time(lambda: [warm.patched(unlearned, group) for group in grouped], repeats)
    plain = best_time(plain_forward, repeats)
    alone = best_time(lambda: both_stages(naive, [[example] for example in examples]), max(1, repeats - 1))
    together = best_time(lambda: both_stages(naive, [examples[i : i + 32] for i in range(0, len(examples), 32)]), max(1, repeats - 1))

    peak = gemm_peak()
    work = sum(flops.staircase(example, 2) for example in examples)
    loop = sum(flops.hook_loop(example, 2) for example in examples)
    another = sum(flops.source(example) for example in examples)
    once = sum(flops.forward(len(example.ids), len(example.ids)) for example in examples)
    print("UDS, both stages (S1 and S2)      seconds   GEMM peak")
    for name, seconds, amount in (
        ("  hook loop, one example a batch", alone, loop),
        ("  hook loop, 32 a batch", together, loop),
        ("  staircase", stairs, work),
    ):
        print(f"{name:<34}{seconds:>7.2f}{amount / seconds / peak:>12.0%}")
    print(f"  staircase against one example a batch: {alone / stairs:.1f}x   (expected: at least 10)")
    print(f"  staircase against 32 a batch:          {together / stairs:.1f}x   (expected: at least 10)")
    print(f"  ratio of the operations, counted:      {loop / work:.1f}x   (without padding on either side)\n")
    print("One more unlearned model, the target's keys and values kept, all layers scored")
    print(f"  {more:.2f} s; a plain forward of it over the same batches {plain:.2f} s")
    print(f"  {more / plain:.2f} plain forwards   (expected: at most 1.6; operations, counted: {another / once:.2f})")
    print(f"  {another / more / peak:.0%} of the GEMM peak ({peak / 1e9:.0f} GFLOP/s)\n")


def gemm_peak() -> float:
    """Operations per second of one large matrix product."""
    size = 1024
    matrix = torch.randn(size, size)
    return 2 * size**3 / best_time(lambda: matrix @ matrix, 20)


def apart(target: LM, examples: Sequence[Located]) -> None:
    """What comes once before the work: reading a checkpoint, and the check that the staircase suits it."""
    shortest = min(examples, key=lambda example: len(example.ids))
    check = best_time(lambda: disagreement(target, PatchConfig(), shortest), 3)
    with tempfile.TemporaryDirectory() as folder:
        target.model.save_pretrained(folder)
        target.tokenizer.save_pretrained(folder)
        reading = best_time(lambda: load(folder), 3)
    print(f"Not in these times: the self-check {check:.2f} s (once for an architecture), loading a model {reading:.2f} s\n")


# Memory


def memory(hidden: int) -> None:
    """Peak memory beside the models at two bounds and without one, each in a process of its own."""
    print("Memory beside the models, MB (128 examples, two sources one after the other)")
    print("  bound     peak     kept    seconds of the second source")
    for bound in (64, 160, 0):
        command = [sys.executable, __file__, "--hidden", str(hidden), "--memory-child", str(bound << 20)]
        seen = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        within = "" if not bound else "within" if seen["peak"] <= bound << 20 else "OVER"
        print(f"{bound or 'none':>7}{seen['peak'] / 2**20:>9.0f}{seen['kept'] / 2**20:>9.0f}{seen['seconds']:>11.2f}    {within}")


def measure_memory(hidden: int, bound: int | None) -> None:
    """Run in a fresh process: peak resident memory above what models and libraries hold already."""
    target, source = llama(hidden, 0), llama(hidden, 1)
    examples = make_examples(target.model.config.vocab_size, copies=4)
    Staircase(target, PatchConfig()).patched(source, examples[:1])  # the libraries' own buffers
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the models
    engine = Staircase(target, PatchConfig(), max_memory=bound)
    for group in batches(examples):
        engine.patched(source, group)
    start = time.perf_counter()
    for group in batches(examples):
        engine.patched(source, group)
    seconds = time.perf_counter() - start
    print(json.dumps({"peak": resident("VmHWM") - before, "kept": engine.kept_bytes, "seconds": seconds}))


def resident(field: str) -> int:
    """A memory figure of this process in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) << 10


if __name__ == "__main__":
    main()
