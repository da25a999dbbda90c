"""What does one pass for all metrics save, and what does batched generation?

A random-weight Llama of 16 layers on the lengths of TOFU's forget and held-out rows in Llama 3.2's chat format. Both
sides of every ratio compute the same numbers from the same rows, in the same process, on one thread.

    python benchmarks/evidence.py
    python benchmarks/evidence.py --hidden 256 --repeats 1
"""

from __future__ import annotations

import argparse
import os
import random
import time
import zlib
from collections.abc import Callable, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from residuum.batching import Encoded, collate
from residuum.evidence import teacher_force
from residuum.generation import generate
from residuum.metrics import memorization, privacy
from residuum.metrics.scores import auc
from residuum.models.loading import LM

LAYERS = 16
VOCAB_PER_HIDDEN = 62.6
"""Llama-3.2-1B has 128256 tokens on 2048 hidden units: so the head weighs as much beside the blocks as there."""
PEER_BATCH = 32

# fmt: off
FORGET = [
    (56, (15, 18, 17, 18, 19, 18, 16)), (57, (32, 34, 33, 35, 37, 39, 39)), (59, (35, 39, 41, 41, 37, 41, 38)),
    (57, (28, 32, 31, 33, 35, 34, 32)), (54, (23, 27, 21, 21, 21, 21, 21)), (58, (53, 56, 56, 60, 67, 65, 64)),
    (68, (53, 53, 48, 50, 48, 50, 53)), (57, (39, 39, 34, 38, 37, 39, 38)), (57, (32, 32, 29, 32, 32, 30, 33)),
    (59, (81, 77, 75, 77, 80, 79, 79)), (65, (28, 32, 32, 32, 32, 32, 33)), (61, (31, 52, 50, 56, 55, 56, 55)),
    (59, (33, 35, 35, 35, 35, 35, 35)), (52, (17, 16, 16, 16, 16, 17, 17)), (59, (34, 37, 38, 39, 38, 40, 38)),
    (58, (17, 23, 23, 22, 24, 22, 23)), (56, (41, 45, 46, 45, 47, 47, 46)), (60, (45, 54, 51, 54, 56, 51, 59)),
    (57, (39, 53, 55, 56, 54, 58, 55)), (57, (38, 56, 60, 61, 63, 72, 71)), (63, (47, 52, 54, 54, 58, 54, 56)),
    (59, (44, 43, 46, 41, 41, 44, 45)), (61, (35, 42, 37, 35, 34, 37, 35)), (59, (41, 42, 37, 38, 37, 40, 44)),
]
HOLDOUT = [
    (55, (20,)), (58, (35,)), (57, (47,)), (56, (53,)), (55, (26,)), (68, (56,)), (58, (46,)), (54, (45,)), (60, (33,)),
    (60, (51,)), (54, (29,)), (76, (57,)), (60, (50,)), (54, (38,)), (56, (56,)), (65, (42,)), (55, (46,)), (64, (35,)),
    (66, (47,)), (52, (36,)), (62, (49,)), (63, (57,)), (64, (64,)), (57, (51,)),
]
# fmt: on
"""Tokens of the prompt and of each answer: true, paraphrased, five times wrong. Drawn at random from the real rows (whose
means are 58.4 and 39.6 tokens for forget10_perturbed, 59.8 and 42.3 for holdout10)."""

Items = list[list[Encoded]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=128, help="hidden size (a multiple of 64)")
    parser.add_argument("--repeats", type=int, default=3, help="how often a time is taken; the best counts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lm = llama(arguments.hidden)
    forget, holdout = make_items(FORGET, lm.model.config.vocab_size), make_items(HOLDOUT, lm.model.config.vocab_size)
    print(
        f"Llama, {LAYERS} layers, hidden {arguments.hidden}, vocabulary {lm.model.config.vocab_size}, float32, one thread"
    )
    likelihood(lm, forget, holdout, arguments.repeats)
    generation(lm, forget, arguments.repeats)


def llama(hidden: int) -> LM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=LAYERS, vocab_size=int(VOCAB_PER_HIDDEN * hidden),
        num_attention_heads=hidden // 32, num_key_value_heads=max(1, hidden // 128), max_position_embeddings=512,
        initializer_range=0.1,
    )  # fmt: skip
    words = {"<pad>": 0, "<end>": 1} | {f"w{i}": i for i in range(2, config.vocab_size)}
    core = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>")
    return LM.from_model(LlamaForCausalLM(config), tokenizer, name="llama")


def make_items(shapes: Sequence[tuple[int, Sequence[int]]], vocab: int) -> Items:
    draw = random.Random(0)
    made = []
    for prompt, answers in shapes:
        question = [draw.randrange(2, vocab) for _ in range(prompt)]
        made.append(
            [Encoded((*question, *(draw.randrange(2, vocab) for _ in range(n - 1)), 1), prompt) for n in answers]
        )
    return made


def best_times(first: Callable[[], object], second: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Seconds of the fastest run of each, taken in turn: what disturbs one disturbs the other."""

    def once(run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    taken = [(once(first), once(second)) for _ in range(repeats)]
    return min(one for one, _ in taken), min(other for _, other in taken)


# Nine likelihood metrics


def likelihood(lm: LM, forget: Items, holdout: Items, repeats: int) -> None:
    ours, theirs = one_pass(lm, forget, holdout), pass_per_metric(lm, forget, holdout)
    worst = max(abs(ours[name] - theirs[name]) for name in ours)
    together, apart = best_times(
        lambda: one_pass(lm, forget, holdout), lambda: pass_per_metric(lm, forget, holdout), repeats
    )
    print(f"\nNine likelihood metrics ({', '.join(ours)})")
    print(f"  {len(forget)} forget items of {len(forget[0])} answers, {len(holdout)} held-out ones")
    print(f"  one pass {together:.2f} s; a pass per metric, batches of {PEER_BATCH}, {apart:.2f} s")
    print(f"  {apart / together:.1f}x   (expected: at least 4)   largest difference of a metric: {worst:.1e}")


def one_pass(lm: LM, forget: Items, holdout: Items) -> dict[str, float]:
    """As `residuum evaluate` does: every row read once, every question once."""
    found = teacher_force(lm, [row for item in forget for row in item])
    size = len(forget[0])
    items = [found[i : i + size] for i in range(0, len(found), size)]
    answers, others = [item[0] for item in items], teacher_force(lm, [item[0] for item in holdout])
    right, wrong = [item[1:2] for item in items], [item[2:] for item in items]
    texts, other_texts = ([spelled(one.labels[:-1]) for one in side] for side in (answers, others))
    return {
        "em": float(memorization.exact_memorization(answers).mean()),
        "es": float(memorization.extraction_strength(answers).mean()),
        "prob": float(memorization.probability(answers).mean()),
        "paraprob": float(memorization.paraphrase_probability(right).mean()),
        "truth_ratio": float(memorization.truth_ratio(right, wrong).mean()),
        "mia_loss": auc(privacy.loss_attack(answers, others)) or 0.0,
        "mia_zlib": auc(privacy.zlib_attack(answers, others, texts, other_texts)) or 0.0,
        "mia_min_k": auc(privacy.min_k_attack(answers, others)) or 0.0,
        "mia_min_kpp": auc(privacy.min_kpp_attack(answers, others)) or 0.0,
    }


def pass_per_metric(lm: LM, forget: Items, holdout: Items) -> dict[str, float]:
    """As open-unlearning does: every metric runs the model itself, Min-K++ twice, over unsorted batches of 32."""
    answers, others = [item[0] for item in forget], [item[0] for item in holdout]
    sides = (answers, others)

    def separation(score: Callable[[Sequence[Encoded]], list[float]]) -> float:
        scores = [score(side) for side in sides]
        return float(roc_auc_score([0] * len(scores[0]) + [1] * len(scores[1]), [*scores[0], *scores[1]]))

    def losses(rows: Sequence[Encoded]) -> list[float]:
        return [-float(np.mean(label_scores(scores, row))) for scores, row in plain_pass(lm, rows)]

    def zlib_scores(rows: Sequence[Encoded]) -> list[float]:
        lengths = [len(zlib.compress(spelled(row.labels[:-1]).encode())) for row in rows]
        return [loss / length for loss, length in zip(losses(rows), lengths, strict=True)]

    def min_k(rows: Sequence[Encoded]) -> list[float]:
        return [lowest(label_scores(scores, row)[:-1]) for scores, row in plain_pass(lm, rows)]

    def min_kpp(rows: Sequence[Encoded]) -> list[float]:
        own = [label_scores(scores, row)[:-1] for scores, row in plain_pass(lm, rows)]
        shape = [vocabulary_scores(scores[:-1]) for scores, _ in plain_pass(lm, rows)]
        return [lowest((x - mean) / np.sqrt(np.maximum(var, 1e-6))) for x, (mean, var) in zip(own, shape, strict=True)]

    hits = [s.argmax(dim=1).numpy()[:-1] == np.array(r.labels)[:-1] for s, r in plain_pass(lm, answers)]
    again = [s.argmax(dim=1).numpy()[:-1] == np.array(r.labels)[:-1] for s, r in plain_pass(lm, answers)]
    paraphrased = [item[1] for item in forget]
    right = np.exp(-np.array(losses(paraphrased)))
    wrong = np.exp(-np.mean([losses([item[place] for item in forget]) for place in range(2, 7)], axis=0))
    return {
        "em": float(np.mean([own.mean() for own in hits])),
        "es": float(np.mean([extraction(own) for own in again])),
        "prob": float(np.exp(-np.array(losses(answers))).mean()),
        "paraprob": float(np.exp(-np.array(losses(paraphrased))).mean()),
        "truth_ratio": float((right / (right + wrong + 1e-10)).mean()),
        "mia_loss": separation(losses),
        "mia_zlib": separation(zlib_scores),
        "mia_min_k": separation(min_k),
        "mia_min_kpp": separation(min_kpp),
    }


def plain_pass(lm: LM, rows: Sequence[Encoded]) -> list[tuple[torch.Tensor, Encoded]]:
    """Log-probabilities of the vocabulary at the rows that predict a label, one forward pass over all rows."""
    found = []
    for start in range(0, len(rows), PEER_BATCH):
        part = rows[start : start + PEER_BATCH]
        batch = collate(part, lm.pad_id)
        with torch.inference_mode():
            logits = lm.model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, use_cache=False).logits
            scores = torch.log_softmax(logits, dim=-1)
        found += [(scores[i, row.prompt_length - 1 : len(row) - 1], row) for i, row in enumerate(part)]
    return found


def label_scores(scores: torch.Tensor, row: Encoded) -> np.ndarray:
    return scores.gather(1, torch.tensor(row.labels)[:, None])[:, 0].double().numpy()


def vocabulary_scores(scores: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    probs = scores.exp()
    mean = (probs * scores).sum(dim=1)
    return mean.double().numpy(), ((probs * scores.square()).sum(dim=1) - mean.square()).double().numpy()


def lowest(values: np.ndarray) -> float:
    return -float(np.sort(values)[: max(1, int(0.4 * len(values)))].mean())


def extraction(hits: np.ndarray) -> float:
    for first in range(len(hits)):
        if hits[first:].all():
            break
    return 1 - first / len(hits)


def spelled(labels: Sequence[int]) -> str:
    return " ".join(f"w{label}" for label in labels)


# Generation


def generation(lm: LM, forget: Items, repeats: int, new_tokens: int = 32) -> None:
    prompts = [item[0].ids[: item[0].prompt_length] for item in forget]

    def together() -> list[str]:
        return generate(lm, prompts, max_new_tokens=new_tokens)

    def apart() -> list[str]:
        return [generate(lm, [prompt], max_new_tokens=new_tokens)[0] for prompt in prompts]

    same = together() == apart()
    batched, single = best_times(together, apart, max(1, repeats - 1))
    print(f"\nGreedy texts of {len(prompts)} prompts, {new_tokens} new tokens")
    print(f"  batched {batched:.2f} s; one by one {single:.2f} s")
    print(f"  {single / batched:.1f}x   (expected: at least 4)   equal texts: {same}")


if __name__ == "__main__":
    main()
