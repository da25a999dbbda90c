"""Whether a text is language: the probability that a gibberish classifier finds it clean."""

from __future__ import annotations

from collections.abc import Sequence

from residuum.errors import ModelError

CLASSIFIER = "madhurjindal/autonlp-Gibberish-Detector-492513457"
"""The published choice; class 0 is clean text."""
_LENGTH, _BATCH = 32, 32


def clean_probability(texts: Sequence[str], classifier: str = CLASSIFIER) -> list[float]:
    """Probability of class 0 for each text, of which the first 32 tokens are read.

    Args:
        texts: generated answers.
        classifier: hub id or folder of a sequence classifier (safetensors).

    Raises:
        ModelError: it cannot be loaded.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from residuum.progress import hush_transformers

    hush_transformers()
    try:
        tokenizer = AutoTokenizer.from_pretrained(classifier, trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_pretrained(
            classifier, trust_remote_code=False, use_safetensors=True
        ).eval()
    # The hub libraries raise errors of half a dozen packages; to the user all of them mean the same.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"the fluency classifier {classifier} cannot be loaded: {reason}") from error
    found: list[float] = []
    for start in range(0, len(texts), _BATCH):
        batch = tokenizer(
            list(texts[start : start + _BATCH]), padding=True, truncation=True, max_length=_LENGTH, return_tensors="pt"
        )
        with torch.inference_mode():
            found += model(**batch).logits.softmax(dim=-1)[:, 0].tolist()
    return found
