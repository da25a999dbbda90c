"""A model that is known before it is loaded: long work is planned, checked and resumed without reading weights."""

from __future__ import annotations

import gc
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import ModelError
from residuum.models.names import shorten
from residuum.models.weights import Checkpoint, find, tensor_fingerprint

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from residuum.models.loading import LM


class ModelHandle:
    """A model by name, path or as a loaded ``LM``; weights are read when ``lm`` is first asked for.

    Args:
        given: registry name, hub id, folder, GGUF file, or a loaded model.
        options: handed to ``load``: dtype, device, quantize, attn, revision, allow_pickle.
    """

    def __init__(self, given: str | Path | LM, **options: Any) -> None:
        self._options = options
        self._lm: LM | None = None
        self._checkpoint: Checkpoint | None = None
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._given_loaded = not isinstance(given, str | Path)
        if isinstance(given, str | Path):
            picked = {key: options[key] for key in ("revision", "allow_pickle") if key in options}
            self._checkpoint = find(given, **picked)
            self._given: str | Path = given
            self.source = self._checkpoint.source
            short = shorten(self.source)
            self.name = Path(short).name if Path(short).exists() else short
            self.weights_hash = self._checkpoint.fingerprint()
        else:
            from residuum.models.loading import check_finite

            check_finite(given)
            self._lm, self.source, self.name = given, given.source, given.name
            # Hashed now, not when it was loaded: its owner may have trained it since.
            self.weights_hash = tensor_fingerprint(given.model)

    @property
    def lm(self) -> LM:
        """The loaded model, checked for numbers that are none."""
        if self._lm is None:
            from residuum.models.loading import check_finite, load

            self._lm = load(self._given, **self._options)
            check_finite(self._lm)
        return self._lm

    def release(self) -> None:
        """Let go of the weights, unless the caller brought them."""
        if not self._given_loaded and self._lm is not None:
            self._lm = None
            gc.collect()
            import torch

            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    @property
    def identity(self) -> dict[str, Any]:
        """What decides this model's numbers: content, number format, quantization, attention, kind of device."""
        from residuum.models.loading import resolve_device, resolve_dtype

        if self._given_loaded:
            lm = self.lm
            dtype, device, quantize, attn = lm.dtype, lm.device, lm.quantize, lm.attn
        else:
            device = resolve_device(self._options.get("device", "auto"))
            dtype = resolve_dtype(self._options.get("dtype", "auto"), device)
            quantize, attn = self._options.get("quantize"), self._options.get("attn") or "default"
        return {
            "weights": self.weights_hash,
            "dtype": str(dtype).removeprefix("torch."),
            "device": device.type,
            "quantize": quantize,
            "attn": attn,
        }

    def config(self) -> PretrainedConfig:
        """The model's configuration, read without its weights."""
        from transformers import AutoConfig

        if self._lm is not None:
            return self._lm.model.config
        assert self._checkpoint is not None  # either is given
        place = self._checkpoint.base or self._checkpoint
        file = {"gguf_file": place.gguf_file} if place.gguf_file else {}
        return AutoConfig.from_pretrained(place.folder, trust_remote_code=False, **file)

    @cached_property
    def context(self) -> int | None:
        """The longest text the model was made for, in tokens; None when its configuration does not say."""
        limit = getattr(self.config().get_text_config(), "max_position_embeddings", None)
        return int(limit) if limit else None

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, read without the weights."""
        from residuum.models.loading import read_tokenizer

        if self._lm is not None:
            return self._lm.tokenizer
        if self._tokenizer is None:
            assert self._checkpoint is not None
            self._tokenizer = read_tokenizer(self._checkpoint)
        return self._tokenizer


def check_alike(full: ModelHandle, other: ModelHandle) -> None:
    """Hidden states can move between two models only if depth, width and vocabulary agree; no weights are read.

    Raises:
        ModelError: names what differs.
    """
    ours, theirs = full.config().get_text_config(), other.config().get_text_config()
    for what, field in (("number of layers", "num_hidden_layers"), ("hidden size", "hidden_size")):
        if getattr(ours, field) != getattr(theirs, field):
            raise ModelError(
                f"the {what} differs: {full.name} has {getattr(ours, field)}, {other.name} has {getattr(theirs, field)}.\n"
                "  Patching needs checkpoints of one architecture."
            )
    if full.tokenizer().get_vocab() != other.tokenizer().get_vocab():
        raise ModelError(
            f"the tokenizers of {full.name} and {other.name} differ.\n"
            "  Both models must read the same ids; save the full model's tokenizer beside the other checkpoint if they do."
        )
