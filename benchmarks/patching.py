"""How much work does the staircase save, and does it keep within its memory?

Random-weight Llamas of 16 layers on the lengths of the TOFU examples that UDS is measured on; every ratio compares two
ways to the same numbers, on the same examples, in the same process, on one thread. Times are CPU seconds, which other
processes disturb least. Takes about six minutes, half of them for the hook loop.

    python benchmarks/patching.py
    python benchmarks/patching.py --hidden 512
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
from typing import TypeVar

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
from residuum.progress import hush_transformers

T = TypeVar("T")

LAYERS = 16
VOCAB_PER_HIDDEN = 62.6
"""Llama-3.2-1B has 128256 tokens on 2048 hidden units: so the head weighs as much beside the blocks as there."""
MAX_TOKENS = 2048
"""Per batch. Four times the examples are then padded as much (by 13 %) as all 367 are in batches of 4096 tokens."""

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
    hush_transformers()
    if arguments.memory_child is not None:
        measure_memory(arguments.hidden, arguments.memory_child or None)
        return
    target, retain, unlearned = (llama(arguments.hidden, seed) for seed in range(3))
    vocab = target.model.config.vocab_size
    examples = make_examples(vocab, copies=1)
    describe(target, examples)
    against_the_hook_loop(target, (retain, unlearned), examples, arguments.repeats)
    against_a_forward(target, unlearned, make_examples(vocab, copies=4), arguments.repeats)
    apart(target, examples)
    memory(arguments.hidden)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256, help="hidden size (a multiple of 64)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of all but the hook loop; the best counts")
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


def timed(run: Callable[[], T], repeats: int = 1) -> tuple[T, float]:
    """What a function returns, and the CPU seconds of the fastest of some runs: the others were disturbed."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        result = run()
        best = min(best, time.process_time() - start)
    return result, best


# Work, counted


class Flops:
    """Multiply-adds of matrices, times two; everything else is small beside them."""

    def __init__(self, lm: LM) -> None:
        self.row: int = 2 * sum(weight.numel() for weight in lm.anatomy.blocks[0].parameters() if weight.ndim == 2)
        self.pair = 4 * lm.anatomy.hidden_size  # a query row and a key row, in one block
        self.head: int = 2 * lm.model.config.vocab_size * lm.anatomy.hidden_size

    def blocks(self, rows: int, keys: float) -> float:
        """So many rows through one block, each seeing so many keys."""
        return rows * (self.row + keys * self.pair)

    def forward(self, length: int, read: int) -> float:
        """A sequence through all blocks, and so many of its rows through the head."""
        return LAYERS * self.blocks(length, length) + read * self.head

    def hook_loop(self, example: Located, sources: int) -> float:
        """The target, and for each source one forward of it and one of the target for each layer."""
        length = len(example.ids)
        return (1 + sources * (LAYERS + 1)) * self.forward(length, length)

    def source(self, example: Located) -> float:
        """One more source in the staircase: its pass, its runs, their heads."""
        needed, span = example.rows.stop, len(example.rows)
        runs = LAYERS * (LAYERS - 1) // 2 * self.blocks(span, needed)
        return self.forward(needed, 0) + runs + LAYERS * span * self.head

    def staircase(self, example: Located, sources: int) -> float:
        """The target's own pass and all sources."""
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


def both_stages(
    engine: Naive | Staircase, groups: Sequence[Sequence[Located]], sources: Sequence[LM]
) -> dict[int, torch.Tensor]:
    """Log-probabilities [source, layer, token] by example."""
    scores: dict[int, torch.Tensor] = {}
    for group in groups:
        engine.unpatched(group)
        of_sources = [engine.patched(source, group) for source in sources]
        scores |= {e.idx: torch.stack([of[i].log_probs for of in of_sources]) for i, e in enumerate(group)}
    return scores


def against_the_hook_loop(target: LM, sources: Sequence[LM], examples: list[Located], repeats: int) -> None:
    """S1 and S2 over the same examples; the hook loop takes them as they come, as published."""
    config, flops, peak = PatchConfig(), Flops(target), gemm_peak()
    naive = Naive(target, config)
    both_stages(naive, [examples[:1]], sources)  # libraries warm up
    found, stairs = timed(lambda: both_stages(Staircase(target, config), batches(examples), sources), repeats)
    expected, alone = timed(lambda: both_stages(naive, [[example] for example in examples], sources))
    _, together = timed(lambda: both_stages(naive, [examples], sources))
    worst = max(float((found[idx] - expected[idx]).abs().max()) for idx in expected)
    loop = sum(flops.hook_loop(example, len(sources)) for example in examples)
    work = sum(flops.staircase(example, len(sources)) for example in examples)
    print(f"UDS, both stages, {len(examples)} examples    seconds   GEMM peak ({peak / 1e9:.0f} GFLOP/s)")
    for name, seconds, amount in (
        ("hook loop, batch 1", alone, loop),
        (f"hook loop, batch {len(examples)}", together, loop),
        ("staircase", stairs, work),
    ):
        print(f"  {name:<32}{seconds:>7.2f}{amount / seconds / peak:>12.0%}")
    print(f"  staircase against batch 1:   {alone / stairs:>5.1f}x   (expected: at least 10)")
    print(f"  staircase against batch {len(examples)}:  {together / stairs:>5.1f}x   (expected: at least 10)")
    print(f"  operations, counted:         {loop / work:>5.1f}x   (without padding on either side)")
    print(f"  largest difference of a log-probability: {worst:.1e}\n")


def against_a_forward(target: LM, unlearned: LM, examples: list[Located], repeats: int) -> None:
    """One more unlearned model, all layers scored, against a plain forward of it over the same batches."""
    flops, grouped = Flops(target), batches(examples)
    engine = Staircase(target, PatchConfig())
    for group in grouped:
        engine.unpatched(group)

    def plain_forward() -> None:
        for group in grouped:
            padded = collate([Encoded(e.ids, len(e.prompt_ids)) for e in group], unlearned.pad_id)
            with torch.inference_mode():
                unlearned.model(input_ids=padded.input_ids, attention_mask=padded.attention_mask, use_cache=False)

    def one_more() -> None:
        for group in grouped:
            engine.patched(unlearned, group)

    # In turn, so that a machine that slows down meanwhile slows down both.
    turns = [(timed(plain_forward)[1], timed(one_more)[1]) for _ in range(repeats)]
    plain, more = (min(times) for times in zip(*turns, strict=True))
    once = sum(flops.forward(len(example.ids), len(example.ids)) for example in examples)
    another = sum(flops.source(example) for example in examples)
    print(f"One more unlearned model, keys and values of the target kept, {len(examples)} examples")
    print(f"  {more:.2f} s; a plain forward of it over the same batches {plain:.2f} s")
    print(f"  {more / plain:.2f} plain forwards   (expected: at most 1.6; operations, counted: {another / once:.2f})")
    print(
        f"  {another / more / gemm_peak():.0%} of the GEMM peak; the plain forward {once / plain / gemm_peak():.0%}\n"
    )


def gemm_peak() -> float:
    """Operations per second of one large matrix product."""
    size = 1024
    matrix = torch.randn(size, size)
    return 2 * size**3 / timed(lambda: matrix @ matrix, 20)[1]


def apart(target: LM, examples: Sequence[Located]) -> None:
    """What comes once before the work: reading a checkpoint, and the check that the staircase suits it."""
    shortest = min(examples, key=lambda example: len(example.ids))
    _, check = timed(lambda: disagreement(target, PatchConfig(), shortest), 3)
    with tempfile.TemporaryDirectory() as folder:
        target.model.save_pretrained(folder)
        target.tokenizer.save_pretrained(folder)
        _, reading = timed(lambda: load(folder), 3)
    print(
        f"Not in these times: the self-check {check:.2f} s (once for an architecture), loading a model {reading:.2f} s\n"
    )


# Memory


def memory(hidden: int) -> None:
    """Peak memory beside the models at two bounds and without one, each in a process of its own."""
    print("Memory beside the models, MB (64 examples, two sources one after the other)")
    print("  bound     peak     kept    seconds of the second source")
    for bound in (32, 96, 0):
        command = [sys.executable, __file__, "--hidden", str(hidden), "--memory-child", str(bound << 20)]
        seen = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        within = "" if not bound else "within" if seen["peak"] <= bound << 20 else "OVER"
        print(
            f"{bound or 'none':>7}{seen['peak'] / 2**20:>9.0f}{seen['kept'] / 2**20:>9.0f}{seen['seconds']:>11.2f}    {within}"
        )


def measure_memory(hidden: int, bound: int | None) -> None:
    """Run in a fresh process: peak resident memory above what models and libraries hold already."""
    target, source = llama(hidden, 0), llama(hidden, 1)
    examples = make_examples(target.model.config.vocab_size, copies=2)
    Staircase(target, PatchConfig()).patched(source, examples[:1])  # the libraries' own buffers
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the models
    engine = Staircase(target, PatchConfig(), max_memory=bound)
    for group in batches(examples):
        engine.patched(source, group)
    _, seconds = timed(lambda: [engine.patched(source, group) for group in batches(examples)])
    print(json.dumps({"peak": resident("VmHWM") - before, "kept": engine.kept_bytes, "seconds": seconds}))


def resident(field: str) -> int:
    """A memory figure of this process in bytes (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) << 10


if __name__ == "__main__":
    main()
