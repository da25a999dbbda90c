"""What does each unlearning method cost beside plain fine-tuning on the same forget and retain rows?

A random-weight Llama on the embedded world's own questions; steps of all objectives take turns in one process on one
thread. Times are CPU seconds, which other processes disturb least, and ratios are medians over the rounds. The pass
that reads the reference beforehand is counted, spread over the epochs. Takes about two minutes.

    python benchmarks/training.py
    python benchmarks/training.py --hidden 256 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from residuum.data.prompts import ChatFormat
from residuum.data.tofu import QA
from residuum.models.loading import LM
from residuum.training.finetune import Finetune
from residuum.training.looking import StartModel
from residuum.training.losses import sequence_nll
from residuum.training.methods import METHODS, make_method
from residuum.training.pairs import Item, PairDraw, Pairs, alternate_items, idk_items
from residuum.training.unlearn import Unlearning
from residuum.worlds.authors import make_world
from residuum.worlds.pools import IDK_LINES
from residuum.worlds.tokenizer import train_tokenizer

EPOCHS = 10
LIMITS = {"npo": 1.2, "idkdpo": 1.8, "altpo": 1.8}
"""Largest cost beside fine-tuning, the pass over the reference included."""


class WithLiveReference(Unlearning):
    """The same objective without precomputing: the start model reads every micro-batch again."""

    def __init__(self, method: Any, lm: LM, draw: PairDraw) -> None:
        super().__init__(method, lm, draw, epochs=0)
        self.start = StartModel(lm)

    def losses(self, model: nn.Module, batch: Pairs) -> dict[str, Tensor]:
        """Read the reference, then do as before."""
        sides = self._sides("reference_nll")
        rows = {side: getattr(batch, side) for side in sides}
        for side, seen in self.start.look(rows, logits=True, block=None, **self._how).items():
            assert seen.logits is not None
            self._reference_nll |= zip(rows[side], sequence_nll(seen.logits, seen.labels)[0].tolist(), strict=True)
        return super().losses(model, batch)


def build(hidden: int, layers: int) -> tuple[LM, list[QA], list[QA]]:
    world = make_world(0, 40, 10, 12)
    texts = [f"{row['question']} {row['answer']}" for rows in world.splits().values() for row in rows]
    tokenizer = train_tokenizer(texts, 1280)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=hidden * 8 // 3, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256, tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    lm = LM.from_model(LlamaForCausalLM(config), tokenizer, name="bench")
    splits = world.splits()
    forget, retain = ([QA(str(r["question"]), str(r["answer"])) for r in splits[s]] for s in ("forget10", "retain90"))
    return lm, forget, retain


def items_for(method: str, forget: list[QA]) -> list[Item]:
    kind = METHODS[method].preferred
    if kind == "idk":
        return idk_items(forget, IDK_LINES)
    if kind == "alternate":  # somebody else's answer is as long as one's own
        others = [*forget[10:], *forget[:10]]
        return alternate_items(
            forget,
            [
                {"question": a.question, "answer": a.answer, "alternate": b.answer}
                for a, b in zip(forget, others, strict=True)
            ],
        )
    return [Item(row.question, row.answer) for row in forget]


def cpu_seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    result = work()
    return time.process_time() - begun, result


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--hidden", type=int, default=96)
    options.add_argument("--layers", type=int, default=8)
    options.add_argument("--rounds", type=int, default=9)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    lm, forget, retain = build(chosen.hidden, chosen.layers)
    optimizer = torch.optim.AdamW(lm.model.parameters(), lr=1e-8, fused=True)
    plain = Finetune(lambda _: [], lm.pad_id)

    runs: dict[str, tuple[Any, PairDraw, float, int]] = {}
    for name in METHODS:
        draw = PairDraw(items_for(name, forget), retain, lm.tokenizer, (ChatFormat(),), batch_size=10, seed=0)
        method = make_method(name, {"alpha": 1.0, **({"layer": chosen.layers // 2} if name == "rmu" else {})})
        for epoch in range(EPOCHS):
            draw.epoch(epoch)  # encode everything, so that only models are timed
        prepare, objective = cpu_seconds(lambda m=method, d=draw: Unlearning(m, lm, d, epochs=EPOCHS))
        runs[name] = objective, draw, prepare / (EPOCHS * len(draw.epoch(0))), len(objective._reference_nll)
        if name in LIMITS:
            runs[f"{name}, reference live"] = WithLiveReference(method, lm, draw), draw, 0.0, 0
    lm.model.train()

    def step(losses: Callable[[], dict[str, Tensor]]) -> float:
        def work() -> None:
            losses()["total"].backward()
            optimizer.step()
            optimizer.zero_grad()

        return cpu_seconds(work)[0]

    ratios: dict[str, list[float]] = {name: [] for name in runs}
    base: list[float] = []
    for turn in range(chosen.rounds + 1):
        for name, (objective, draw, prepare, _) in runs.items():
            for batch in draw.epoch(turn)[:2]:
                mine = step(lambda o=objective, b=batch: o.losses(lm.model, b))
                theirs = step(lambda b=batch: plain.losses(lm.model, [*b.answer, *b.retain]))
                if turn:  # the first round warms up
                    ratios[name].append((mine + prepare) / theirs)
                    base.append(theirs)
    size = sum(p.numel() * p.element_size() for p in lm.model.parameters())
    print(f"fine-tuning: {1 / statistics.median(base):.2f} steps/s of 10 forget and 10 retain rows\n")
    print(f"{'method':24} {'cost':>6} {'steps/s':>8} {'limit':>6}  reference")
    failed = False
    for name, values in ratios.items():
        cost, limit = statistics.median(values), LIMITS.get(name)
        numbers = runs[name][3]
        kept = f"{numbers} numbers, {4 * numbers / 1024:.1f} kB" if numbers else f"a copy, {size / 2**20:.1f} MB" if runs[name][0]._start or "live" in name else "none"  # fmt: skip
        speed = 1 / (cost * statistics.median(base))
        failed |= limit is not None and cost > limit
        print(f"{name:24} {cost:6.2f} {speed:8.2f} {limit or '':>6}  {kept}")
    if failed:
        sys.exit("a method costs more than its limit")


if __name__ == "__main__":
    main()
