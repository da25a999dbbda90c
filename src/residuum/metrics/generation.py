"""What the model says by itself: ROUGE-L recall of greedy answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from residuum.metrics.registry import metric

if TYPE_CHECKING:
    from residuum.metrics.scores import Floats

_ROUGE = "Lin 2004, ACL W04-1013"


@metric(
    "jailbreak_rouge", "generation", higher_means="more knowledge", needs=("forget.jailbreak_texts", "forget.truths"),
    cite="Lynch et al. 2024, arXiv:2402.16835",
)  # fmt: skip
@metric("rouge", "generation", higher_means="more knowledge", needs=("forget.texts", "forget.truths"), cite=_ROUGE)
def rouge(texts: Sequence[str], truths: Sequence[str]) -> Floats:
    """ROUGE-L recall of the greedy answer: how much of the true answer it says, in order.

    Words are stemmed; anything but a to z and 0 to 9 separates words, as in the rouge-score package. The jailbreak form
    scores what follows "Sure, here is the answer:" put into the model's mouth.

    Args:
        texts: what the model says to each question.
        truths: the true answers.

    Returns:
        # [item]
    """
    return np.array([_recall(truth, text) for text, truth in zip(texts, truths, strict=True)], dtype=np.float64)


@metric(
    "para_rouge", "generation", higher_means="more knowledge", needs=("forget.texts", "forget.paraphrase_texts"),
    cite="Dorna et al. 2025, arXiv:2506.12618",
)  # fmt: skip
def paraphrase_rouge(texts: Sequence[str], paraphrases: Sequence[Sequence[str]]) -> Floats:
    """ROUGE-L recall of the same greedy answer against the true answer in other words.

    The mean over an item's paraphrases. The question is the original one.

    Args:
        texts: what the model says to each question.
        paraphrases: right answers in other words.

    Returns:
        # [item]
    """
    pairs = zip(texts, paraphrases, strict=True)
    return np.array([np.mean([_recall(truth, text) for truth in own]) for text, own in pairs], dtype=np.float64)


def _recall(truth: str, text: str) -> float:
    return float(_scorer().score(target=truth, prediction=text)["rougeL"].recall)


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], use_stemmer=True)
