"""Loading a model: from a name, a hub id, a folder or a GGUF file to an `LM` that every part works with.

No remote code is ever run, and no pickle is read unless asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from residuum.errors import InputError, MissingExtra, ModelError, NotFinite, UnknownName, UsageError
from residuum.models.anatomy import Anatomy
from residuum.models.anatomy import anatomy as find_anatomy
from residuum.models.names import shorten
from residuum.models.weights import Checkpoint, find, tensor_fingerprint, weights_fingerprint
from residuum.progress import hush_transformers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "ATTENTIONS",
    "DTYPES",
    "LM",
    "check_finite",
    "load",
    "resolve_device",
    "resolve_dtype",
    "weights_fingerprint",
]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ATTENTIONS = ("sdpa", "eager", "flash_attention_2")
QUANTIZATIONS = ("nf4",)


@dataclass(eq=False)
class LM:
    """A loaded model with its tokenizer, its parts and where it came from."""

    name: str
    """Short name: for tables and folders."""
    source: str
    """Hub id or absolute path; ``memory`` for a model made in this process."""
    model: PreTrainedModel = field(repr=False)
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    anatomy: Anatomy = field(repr=False)
    weights_hash: str
    """Content hash of the weight files, or of the tensors for a model made in this process."""
    revision: str | None
    """Commit hash on the hub."""
    dtype: torch.dtype
    device: torch.device
    attn: str
    """Attention implementation in use."""
    quantize: str | None
    pad_is_eos: bool
    """True when the tokenizer had no pad token and EOS stands in."""

    @classmethod
    def from_model(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str,
        anatomy: Mapping[str, Any] | None = None,
    ) -> LM:
        """Wraps a model made in this process; its weights are hashed as they are now."""
        digest = tensor_fingerprint(model)
        return _assemble(model, tokenizer, name=name, source="memory", weights_hash=digest, override=anatomy)

    @property
    def pad_id(self) -> int:
        """Id of the pad token."""
        return int(self.tokenizer.pad_token_id)

    def provenance(self) -> dict[str, Any]:
        """What a result must say about the model it was made with; ready for JSON."""
        import transformers

        return {
            "name": self.name,
            "source": self.source,
            "revision": self.revision,
            "weights_hash": self.weights_hash,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "attn": self.attn,
            "quantize": self.quantize,
            "family": self.anatomy.family,
            "pad_is_eos": self.pad_is_eos,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }


def load(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | int | torch.device = "auto",
    quantize: str | None = None,
    attn: str | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    anatomy: Mapping[str, Any] | None = None,
) -> LM:
    """Loads a model with its tokenizer, ready for evaluation.

    Args:
        name_or_path: registry name or alias, hub id, folder (checkpoint or PEFT adapter, which is merged), GGUF file
            (dequantized).
        dtype: ``auto`` is float32 on CPU and bfloat16 on CUDA.
        device: ``auto`` is GPU 0 if there is one, else the CPU; a number is that GPU.
        quantize: ``nf4`` for 4-bit weights of the linear layers (bitsandbytes); embeddings and head keep ``dtype``.
        attn: ``sdpa``, ``eager`` or ``flash_attention_2``; by default what the architecture prefers.
        revision: branch, tag or commit of a hub model.
        allow_pickle: accept PyTorch ``.bin`` files when there are no safetensors. Unpickling can run code.
        anatomy: for a family that is not known: where its parts are, as fields of ``models.anatomy.Family``.

    Raises:
        InputError: for an unknown name, a missing device, or a checkpoint that cannot be used.
        MissingExtra: when bitsandbytes, peft or gguf is needed and not installed.
    """
    hush_transformers()
    place = resolve_device(device)
    number = resolve_dtype(dtype, place)
    _check_choice("attention", attn, ATTENTIONS)
    _check_choice("quantization", quantize, QUANTIZATIONS)
    checkpoint = find(name_or_path, revision=revision, allow_pickle=allow_pickle)
    _check_extras(checkpoint, quantize)
    tokenizer = read_tokenizer(checkpoint)
    model = _read_model(checkpoint, dtype=number, device=place, quantize=quantize, attn=attn)
    return _assemble(
        model,
        tokenizer,
        name=_name(checkpoint),
        source=checkpoint.source,
        weights_hash=checkpoint.fingerprint(),
        revision=checkpoint.revision,
        override=anatomy,
    )


def resolve_device(device: str | int | torch.device) -> torch.device:
    """The device that ``auto``, ``cpu``, ``cuda``, ``cuda:1`` or a GPU number means; it must exist."""
    count = torch.cuda.device_count()
    if device == "auto":
        return torch.device("cuda:0" if count else "cpu")
    if isinstance(device, str) and device.isdecimal():
        device = int(device)
    try:
        place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError:
        raise UsageError(f'no device "{device}".\n  Give auto, cpu, cuda:N or the number N of a GPU.') from None
    if place.type == "cpu":
        return place
    if place.type != "cuda":
        raise UsageError(f'the device "{device}" is not supported.\n  Give auto, cpu, cuda:N or the number N of a GPU.')
    index = place.index or 0
    if not 0 <= index < count:
        here = ", ".join(f"{n} ({torch.cuda.get_device_name(n)})" for n in range(count)) or "none"
        raise InputError(f"GPU {index} does not exist. GPUs here: {here}.\n  Without --gpu, GPU 0 or the CPU is used.")
    return torch.device("cuda", index)


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The floating-point type that ``auto`` or a name means on this device."""
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    name = str(dtype).removeprefix("torch.")
    _check_choice("dtype", name, DTYPES)
    return DTYPES[name]


def check_finite(lm: LM) -> None:
    """Reads every weight once.

    Raises:
        NotFinite: naming the first tensor that holds NaN or infinity.
    """
    for name, tensor in lm.model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise NotFinite(
                f"{lm.name}: the tensor {name} holds NaN or infinity.\n"
                "  The file is damaged, or the training that made it diverged."
            )


def _assemble(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    name: str,
    source: str,
    weights_hash: str,
    revision: str | None = None,
    override: Mapping[str, Any] | None = None,
) -> LM:
    return LM(
        name=name,
        source=source,
        model=model.eval(),
        tokenizer=tokenizer,
        anatomy=find_anatomy(model, override),
        weights_hash=weights_hash,
        revision=revision,
        dtype=model.dtype,
        device=model.device,
        attn=str(model.config._attn_implementation),
        quantize=_quantization(model),
        pad_is_eos=_ensure_pad(tokenizer, name),
    )


def _name(checkpoint: Checkpoint) -> str:
    if checkpoint.revision:
        return shorten(checkpoint.source).rpartition("/")[2]
    return checkpoint.files[0].stem if checkpoint.gguf_file else checkpoint.folder.name


def _check_choice(kind: str, value: str | None, known: Collection[str]) -> None:
    if value is not None and value not in known:
        raise UnknownName(kind, value, known, hint=f"Known: {', '.join(known)}.")


def _check_extras(checkpoint: Checkpoint, quantize: str | None) -> None:
    needed = {
        "gguf": ("gguf", "a GGUF file", checkpoint.gguf_file),
        "peft": ("lora", "a PEFT adapter", checkpoint.base),
        "bitsandbytes": ("quant", "4-bit quantization", quantize),
    }
    for package, (extra, what, wanted) in needed.items():
        if wanted and find_spec(package) is None:
            raise MissingExtra(package, extra, what)
    if quantize and (checkpoint.gguf_file or checkpoint.base):
        raise UsageError(
            f"{checkpoint.source}: only a whole checkpoint can be quantized, not a GGUF file or an adapter.\n"
            "  Load it without quantize, save model and tokenizer into a folder, and give that."
        )


def read_tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    with _reading(checkpoint.source, "tokenizer"):
        return AutoTokenizer.from_pretrained(
            checkpoint.tokenizer_folder, gguf_file=checkpoint.gguf_file, trust_remote_code=False
        )


def _read_model(
    checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, quantize: str | None, attn: str | None
) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    if checkpoint.base:
        base = _read_model(checkpoint.base, dtype=dtype, device=device, quantize=quantize, attn=attn)
        return _merge_adapter(base, checkpoint, device)
    options = {
        "gguf_file": checkpoint.gguf_file,
        "attn_implementation": attn,
        "quantization_config": _quantization_config(checkpoint, quantize, device),
    }
    with _reading(checkpoint.source, "model"):
        model, report = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            dtype=dtype,
            device_map={"": str(device)},
            use_safetensors=checkpoint.files[0].suffix != ".bin",
            trust_remote_code=False,
            output_loading_info=True,
            # To transformers, None is a wish too: it would take a quantized checkpoint for a plain one.
            **{option: value for option, value in options.items() if value is not None},
        )
    # transformers fills what a file lacks with random numbers and a warning; a result must not rest on those.
    if absent := sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]])):
        raise ModelError(
            f"{checkpoint.source}: config.json asks for {len(absent)} weights that the files do not have in that shape,"
            f" first {absent[0]}."
        )
    if quantize:
        _check_four_bit(model, checkpoint.source)
    return model


@contextmanager
def _reading(source: str, what: str) -> Iterator[None]:
    """Turns whatever a library raises on a bad file into a `ModelError`; running out of memory stays what it is."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ModelError(f"{source}: the {what} cannot be read. {reason}") from error


def _quantization_config(checkpoint: Checkpoint, quantize: str | None, device: torch.device) -> Any:
    import transformers

    if checkpoint.gguf_file:
        # Newer versions may keep GGUF blocks packed, which can be neither trained nor saved.
        return transformers.GgufConfig(dequantize=True) if hasattr(transformers, "GgufConfig") else None
    if quantize is None:
        return None
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantize,
        bnb_4bit_compute_dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
        bnb_4bit_use_double_quant=False,
    )


def _check_four_bit(model: PreTrainedModel, source: str) -> None:
    from bitsandbytes.nn import Linear4bit

    if isinstance(model.get_output_embeddings(), Linear4bit):
        raise ModelError(f"{source}: the head was quantized too.")
    if not any(isinstance(module, Linear4bit) and module.weight.dtype == torch.uint8 for module in model.modules()):
        raise ModelError(f"{source}: no layer of this architecture could be quantized.")


def _quantization(model: PreTrainedModel) -> str | None:
    """How the weights are held: asked for now, or already so in the checkpoint."""
    config = getattr(model.config, "quantization_config", None)
    if config is None:
        return None
    if getattr(config, "load_in_4bit", False):
        return str(config.bnb_4bit_quant_type)
    method = config.quant_method
    return str(getattr(method, "value", method))


def _merge_adapter(base: PreTrainedModel, checkpoint: Checkpoint, device: torch.device) -> PreTrainedModel:
    from peft import PeftModel

    with _reading(checkpoint.source, "adapter"), warnings.catch_warnings():
        # An adapter that does not fit is only a warning in peft, and the model would be its base unchanged.
        warnings.filterwarnings("error", message="Found missing adapter keys")
        wrapped = PeftModel.from_pretrained(base, checkpoint.folder, torch_device=str(device))
        return wrapped.merge_and_unload()


def _ensure_pad(tokenizer: PreTrainedTokenizerBase, name: str) -> bool:
    """Gives the tokenizer EOS for a pad token if it has none; says whether it did."""
    if tokenizer.pad_token_id is not None:
        return False
    if tokenizer.eos_token_id is None:
        raise ModelError(f"{name}: the tokenizer has neither a pad nor an EOS token.")
    tokenizer.pad_token = tokenizer.eos_token
    return True
