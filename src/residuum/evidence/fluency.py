"""Whether a text is language: the probability that a gibberish classifier finds it clean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from residuum.errors import ModelError

CLASSIFIER = "madhurjindal/autonlp-Gibberish-Detector-492513457"
"""The published choice; class 0 is clean text."""

_LENGTH, _BATCH = 32, 32
_FILES = ["*.json", "*.txt", "*.safetensors"]


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
        folder = _find(classifier)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, trust_remote_code=False, use_safetensors=True
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


def classifier_identity(classifier: str) -> str:
    """The hub id, or for a folder its content: another classifier may be put there.

    Raises:
        ModelError: the folder holds no usable checkpoint.
    """
    from residuum.models.weights import find

    return find(Path(classifier)).fingerprint() if Path(classifier).is_dir() else classifier


def _find(classifier: str) -> Path:
    """The folder of the classifier: given, in the hub's cache, or fetched now."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if Path(classifier).is_dir():
        return Path(classifier)
    try:
        return Path(snapshot_download(classifier, allow_patterns=_FILES, local_files_only=True))
    except LocalEntryNotFoundError:
        # Ask once: the download itself would try again for most of a minute before it says that there is no network.
        HfApi().model_info(classifier, timeout=5)
        return Path(snapshot_download(classifier, allow_patterns=_FILES))
