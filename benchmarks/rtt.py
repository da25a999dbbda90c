"""RTT over a list of epochs: one training that is asked after every epoch, against one training per cell of the grid.

Ours is the engine as it runs in a sweep, its units on disk included. The other side is as bare as it can be: for every
(V run, learning rate, number of epochs) a training from fresh weights and one evaluation at its end. Both use the same
loop, and the scores of every item must agree bit for bit. Facts are birthdays without a retain set, the model is a small
Llama with random weights: what it knows costs no time. Times are CPU seconds. Takes about a minute on one core.

    python benchmarks/rtt.py
    python benchmarks/rtt.py --hidden 128 --items 48
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from residuum.models.loading import LM
from residuum.rtt.config import read_config
from residuum.rtt.engine import Engine
from residuum.rtt.facts import McqFacts, load_mcq_facts
from residuum.rtt.losses import Retraining
from residuum.rtt.methods import constant_config
from residuum.rtt.plan import Plan, RunSpec, make_plan
from residuum.rtt.splits import train_split_ids
from residuum.store import Store
from residuum.training.loop import train
from residuum.worlds.birthdays import draw_birthdays, word_tokenizer, write_birthdays

LEAST = 3.0
"""How many times faster the one training must be."""
EPOCHS = (1, 2, 3, 4, 5, 6)
FORGET = [f"split_{i}" for i in range(5)]

Scores = dict[tuple[str, int], NDArray[np.float32]]
"""Scores of the held-out items, [item, choice], by run id and number of epochs."""


def build(hidden: int, items: int, folder: Path) -> tuple[LM, McqFacts]:
    """Five splits of birthdays, all to be forgotten, and a model of three blocks."""
    write_birthdays(folder, draw_birthdays(0, splits=5, items=items), forget=FORGET, seed=0)
    tokenizer = word_tokenizer()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=512, tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return LM.from_model(LlamaForCausalLM(config), tokenizer, name="bench"), load_mcq_facts(folder)


def run_both(plan: Plan, lm: LM, store: Store, folder: Path) -> tuple[Scores, Scores, float, float]:
    """Every run by the engine, then cell by cell: in turns, so that whatever else the machine does slows both.

    Returns:
        Scores of the engine and of the cells, and the seconds of each.
    """
    fresh = {name: weight.clone() for name, weight in lm.model.state_dict().items()}
    engine, apart, ours, theirs = Engine(plan, store), Scores(), 0.0, 0.0
    began = time.process_time()
    engine.evaluate(plan.base)
    ours += time.process_time() - began
    for run in plan.runs:
        began = time.process_time()
        engine.retrain(run)
        half = time.process_time()
        for epochs in EPOCHS:
            lm.model.load_state_dict(fresh)
            train_cell(plan, run, lm, epochs, folder / f"{run.run_id}-{epochs}")
            apart[run.run_id, epochs] = plan.facts.score(lm, plan.facts.splits[run.held_out]).scores
        ours, theirs = ours + half - began, theirs + time.process_time() - half
    tasks = {(run.run_id, epoch): plan.epoch_task(run, epoch) for run in plan.runs for epoch in EPOCHS}
    units = {key: store.get(task) for key, task in tasks.items()}
    return {key: unit.arrays()["scores"] for key, unit in units.items() if unit is not None}, apart, ours, theirs


def train_cell(plan: Plan, run: RunSpec, lm: LM, epochs: int, folder: Path) -> None:
    """Retrain on T for so many epochs."""
    ft = plan.config.ft
    rows = plan.facts.training_rows(lm.tokenizer, train_split_ids(run.held_out, len(plan.facts.splits)), run.loss_type)
    objective = Retraining(
        rows, loss_type=run.loss_type, batch_size=ft.batch_size, seed=run.seed, pad_id=lm.pad_id, device=lm.device
    )
    config = constant_config(
        epochs=epochs, lr=run.lr, warmup_steps=ft.warmup_steps, optimizer=ft.optimizer, seed=run.seed
    )
    train(lm.model, objective, config, folder, title=None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--items", type=int, default=32, help="facts per split")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        lm, facts = build(options.hidden, options.items, folder / "data")
        ft = {
            "lrs": [1e-4, 1e-3],
            "epochs_lst": EPOCHS,
            "eval_split_ids": [0, 1],
            "optimizer": "adamw",
            "batch_size": 8,
        }
        plan = make_plan(
            read_config({"dataset": str(folder / "data"), "model": lm, "conditions": "C", "ft": ft}), facts
        )
        fresh = {name: weight.clone() for name, weight in lm.model.state_dict().items()}
        train_cell(plan, plan.runs[0], lm, 1, folder / "warm-up")
        lm.model.load_state_dict(fresh)
        together, apart, ours, theirs = run_both(plan, lm, Store(folder / "runs"), folder / "work")
    same = together.keys() == apart.keys() and all(np.array_equal(together[key], apart[key]) for key in apart)
    print(f"{len(plan.runs)} runs, epochs {list(EPOCHS)}, {len(apart)} cells")
    print(f"one training per run   {ours:7.1f} s")
    print(f"one training per cell  {theirs:7.1f} s   {theirs / ours:.2f} times as long")
    print(f"scores {'bit-identical' if same else 'DIFFER'}")
    return 0 if same and theirs / ours >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
