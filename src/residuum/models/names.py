"""The grammar of model names: 398 published checkpoints from one small table.

A published unlearned model has two spellings, and both are made of a method and its hyper-parameters:

    simnpo_lr2e5_b35_a1_d1_g0125_ep5                                                        short name
    open-unlearning/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_SimNPO_lr2e-05_b3.5_...     hub id

``METHODS`` is the table. Everything else here follows from it: the list of all models, the way from one
spelling to the other, and the subsets that the meta-evaluation uses. Checkpoints that we train ourselves are
named by the same grammar, with values that need not be on the published grid.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from itertools import product
from pathlib import Path
from typing import Literal

from residuum.errors import InputError, UnknownName, UsageError

HUB_PREFIX = "open-unlearning/unlearn_tofu_Llama-3.2-1B-Instruct_forget10_"


@dataclass(frozen=True)
class Field:
    """One hyper-parameter inside a name."""

    name: str
    """The hyper-parameter."""
    word: str
    """What stands before the value in a hub id."""
    letter: str
    """What stands before the value in a short name."""
    grid: tuple[float, ...]
    """The published values."""
    dot: Literal["none", "leading", "last"] = "none"
    """Where a short value lost its dot: nowhere, after a leading zero (``0125``), before the last digit (``35``)."""

    def to_id(self, value: float) -> str:
        """The field in a hub id: 0.1 is ``beta0.1``, a learning rate is Python's own ``lr1e-05``."""
        return self.word + (repr(float(value)) if self.name == "lr" else _text(value))

    def to_short(self, value: float) -> str:
        """The field in a short name: without the dot where reading it puts the dot back, else with it.

        A learning rate is its mantissa and the positive exponent: 1e-05 is ``1e5``, 0.0003 is ``3e4``.
        """
        if self.name == "lr":
            return short_lr(value)
        text = _text(value)
        bare = text.replace(".", "")
        if self._with_dot(bare) == text:
            return self.letter + bare
        return self.letter + (text if "." in text else text + ".0")

    def read_id(self, text: str) -> float:
        """The value of a field of a hub id; ``ValueError`` when it is another field or no number."""
        value = _after(text, self.word)
        return float(_number(value)) if self.name == "lr" else _number(value)

    def read_short(self, text: str) -> float:
        """The value of a field of a short name; ``ValueError`` when it is another field or no number."""
        value = _after(text, self.letter)
        if self.name == "lr":
            mantissa, exponent = value.split("e")
            return float(f"{mantissa}e{-int(exponent)}")
        return _number(value if "." in value else self._with_dot(value))

    def _with_dot(self, digits: str) -> str:
        if not digits.isdecimal() or len(digits) == 1 or self.dot == "none":
            return digits
        if self.dot == "last":
            return f"{digits[:-1]}.{digits[-1]}"
        return f"0.{digits[1:]}" if digits[0] == "0" else digits


def short_lr(value: float) -> str:
    """A learning rate as short names spell it: 1e-05 is ``lr1e5``."""
    mantissa, exponent = f"{Decimal(repr(float(value))).normalize():e}".split("e")
    return f"lr{mantissa}e{-int(exponent)}"


_LR = Field("lr", "lr", "lr", (1e-05, 2e-05, 5e-05))
_ALPHA = Field("alpha", "alpha", "a", (1, 2, 5))
_EPOCH = Field("epoch", "epoch", "ep", (5, 10))
_PREFERENCE = (_LR, Field("beta", "beta", "b", (0.05, 0.1, 0.5), "leading"), _ALPHA, _EPOCH)
_LIKELIHOOD = (
    Field("lr", "lr", "lr", (1e-05, 2e-05, 3e-05, 4e-05, 5e-05)),
    Field("alpha", "alpha", "a", (1, 2, 5, 10)),
    _EPOCH,
)

METHODS: dict[str, tuple[Field, ...]] = {
    "SimNPO": (
        _LR,
        Field("beta", "b", "b", (3.5, 4.5), "last"),
        Field("alpha", "a", "a", (1,)),
        Field("delta", "d", "d", (0, 1)),
        Field("gamma", "g", "g", (0.125, 0.25), "leading"),
        Field("epoch", "ep", "ep", (5, 10)),
    ),
    "NPO": _PREFERENCE,
    "IdkNLL": _LIKELIHOOD,
    "IdkDPO": _PREFERENCE,
    "GradDiff": _LIKELIHOOD,
    "AltPO": _PREFERENCE,
    "RMU": (
        _LR,
        Field("layer", "layer", "l", (5, 10, 15)),
        Field("scoeff", "scoeff", "s", (1, 10, 100)),
        _EPOCH,
    ),
    "UNDIAL": (
        Field("lr", "lr", "lr", (1e-05, 0.0001, 0.0003)),
        Field("beta", "beta", "b", (3, 10, 30)),
        _ALPHA,
        _EPOCH,
    ),
}
"""The published methods and their fields, in the order in which they are listed."""

_SPELLING = {label.lower(): label for label in METHODS}


@dataclass(frozen=True)
class ModelName:
    """A method and its hyper-parameters: what both spellings of a name mean.

    Args:
        method: the method in lower case, as in short names.
        values: one number per field of the method, in the order of ``METHODS``.
    """

    method: str
    values: tuple[float, ...]

    @property
    def label(self) -> str:
        """The method as papers and hub ids spell it."""
        return _SPELLING[self.method]

    @property
    def hyper(self) -> dict[str, float]:
        """The hyper-parameters by name."""
        return {field.name: value for field, value in zip(METHODS[self.label], self.values, strict=True)}

    @property
    def short(self) -> str:
        """The short name."""
        fields = zip(METHODS[self.label], self.values, strict=True)
        return "_".join([self.method, *(field.to_short(value) for field, value in fields)])

    @property
    def hub_id(self) -> str:
        """The hub id; a model is published under it only if ``all_models`` has it."""
        fields = zip(METHODS[self.label], self.values, strict=True)
        return HUB_PREFIX + "_".join([self.label, *(field.to_id(value) for field, value in fields)])


def parse(name: str) -> ModelName:
    """Reads an alias, a short name or a hub id, with values on or off the published grid.

    Raises:
        UnknownName: when the name is none of these.
    """
    found = try_parse(name)
    if found is None:
        raise _unknown(name)
    return found


def try_parse(name: str) -> ModelName | None:
    """Like `parse`; None for a name of another kind, without looking for the nearest, which takes a tenth of a second."""
    spelled = ALIASES.get(name, name)
    is_id = spelled.startswith(HUB_PREFIX)
    method, *texts = spelled.removeprefix(HUB_PREFIX).split("_")
    try:
        fields = METHODS[method if is_id else _SPELLING[method]]
        values = tuple(f.read_id(t) if is_id else f.read_short(t) for f, t in zip(fields, texts, strict=True))
    except (KeyError, ValueError):
        return None
    return ModelName(method.lower(), values)


def method_key(method: str) -> str:
    """A published method as short names spell it; an unknown one is refused with the nearest."""
    if method.lower() not in _SPELLING:
        raise UnknownName("method", method, METHODS)
    return method.lower()


def short_name(method: str, hyper: Mapping[str, float]) -> str:
    """The short name of a checkpoint, with values on or off the published grid.

    ``short_name("npo", {"lr": 5e-4, "beta": 0.1, "alpha": 2.5, "epoch": 5})`` is ``npo_lr5e4_b01_a2.5_ep5``.

    Args:
        method: a published method, in any case.
        hyper: a number for each field of the method.
    """
    fields = METHODS[_SPELLING[method_key(method)]]
    wanted = [field.name for field in fields]
    if set(hyper) != set(wanted) or not all(math.isfinite(value) for value in hyper.values()):
        raise InputError(f"a name for {method} takes one number each for {', '.join(wanted)}, not {dict(hyper)}.")
    return ModelName(method.lower(), tuple(hyper[name] for name in wanted)).short


@cache
def _published() -> dict[str, str]:
    models: dict[str, str] = {}
    for label in METHODS:
        names = [ModelName(label.lower(), values) for values in product(*(field.grid for field in METHODS[label]))]
        models |= sorted((name.short, name.hub_id) for name in names)
    return models


def all_models() -> dict[str, str]:
    """The 398 published unlearned models, short name to hub id, in listing order."""
    return dict(_published())


FULL = "open-unlearning/tofu_Llama-3.2-1B-Instruct_full"
RETAIN = "open-unlearning/tofu_Llama-3.2-1B-Instruct_retain90"

ALIASES: dict[str, str] = {
    "simnpo": "simnpo_lr2e5_b35_a1_d1_g0125_ep10",
    "npo": "npo_lr5e5_b05_a1_ep10",
    "idknll": "idknll_lr3e5_a1_ep5",
    "idkdpo": "idkdpo_lr2e5_b05_a1_ep5",
    "graddiff": "graddiff_lr1e5_a5_ep10",
    "altpo": "altpo_lr5e5_b05_a2_ep10",
    "rmu": "rmu_lr1e5_l5_s100_ep10",
    "undial": "undial_lr1e5_b3_a1_ep10",
    "full": FULL,
    "retain": RETAIN,
}
"""Words for models in frequent use: a short name, or the hub id of a model without one."""


def resolve(name: str) -> str:
    """The hub id of a short name or alias; a path or any other hub id as it is.

    A registry name wins over a folder of the same name in the current folder; write ``./name`` for that one.

    Raises:
        UnknownName: for a name without a slash that is neither registered nor a file or folder.
        UsageError: it is longer than any path can be.
    """
    if max(map(len, os.fsencode(name).split(b"/"))) > 255 or len(name) > 4095:
        raise UsageError(f"a model of {len(name)} characters is no name, hub id or path: {name[:60]}...")
    target = ALIASES.get(name, name)
    target = _published().get(target, target)
    if target and ("/" in target or Path(target).exists()):
        return target
    raise _unknown(name)


def shorten(source: str) -> str:
    """The way back from ``resolve``: the short name of a hub id, ``full`` or ``retain``, else ``source`` itself."""
    return _short_names().get(source, source)


@cache
def _short_names() -> dict[str, str]:
    return {hub_id: short for short, hub_id in _published().items()} | {FULL: "full", RETAIN: "retain"}


@dataclass(frozen=True)
class Preset:
    """What belongs together in one TOFU setting."""

    base: str
    """Hub id of the model before TOFU."""
    full: str
    """Hub id of the model that knows every author."""
    retain: str
    """Hub id of the model that never saw the forget authors."""
    forget_split: str
    forget_perturbed_split: str
    retain_split: str
    holdout_split: str


def _preset(model: str, forget: int) -> Preset:
    tofu = f"open-unlearning/tofu_{model}-Instruct_"
    retain = f"retain{100 - forget}"
    return Preset(
        base=f"meta-llama/{model}-Instruct",
        full=tofu + "full",
        retain=tofu + retain,
        forget_split=f"forget{forget:02}",
        forget_perturbed_split=f"forget{forget:02}_perturbed",
        retain_split=retain,
        holdout_split=f"holdout{forget:02}",
    )


PRESETS: dict[str, Preset] = {
    f"forget{forget:02}-{size}": _preset(model, forget)
    for size, model in (("1b", "Llama-3.2-1B"), ("3b", "Llama-3.2-3B"), ("8b", "Llama-3.1-8B"))
    for forget in (1, 5, 10)
}
"""The TOFU settings by share and size, for instance ``forget10-1b``."""


def _pool(sign: str, variants: tuple[str, str, str]) -> tuple[str, ...]:
    return tuple(
        f"open-unlearning/{sign}_tofu_Llama-3.2-1B-Instruct_{variant}_lr{lr}e-05_wd0.01_epoch{epoch}"
        for lr in (1, 2, 3, 4, 5)
        for epoch in (5, 10)
        for variant in variants
    )


POOL_P = _pool("pos", ("full", "retain90_forget10_bio", "retain90_forget10_para"))
"""Hub ids of the 30 models that know the forget set."""
POOL_N = _pool("neg", ("retain90", "retain90_forget10_pert", "retain90_celeb10_bio"))
"""Hub ids of the 30 models that do not."""


_BETA_01: dict[str, tuple[float, ...]] = {"beta": (0.1,)}
_COMMON_GRID = {"lr": _LR.grid, "alpha": _ALPHA.grid}
_ROBUSTNESS: dict[str, dict[str, tuple[float, ...]]] = {
    "simnpo": {"delta": (1,)},
    "npo": _BETA_01,
    "idknll": _COMMON_GRID,
    "idkdpo": _BETA_01,
    "graddiff": _COMMON_GRID,
    "altpo": _BETA_01,
    "rmu": {"scoeff": (10,)},
    "undial": {"beta": (10,)},
}
_STRONG_RETAIN: dict[str, tuple[float, ...]] = {"alpha": (5,)}
_NO_ALPHA_5: dict[str, dict[str, tuple[float, ...]]] = {"simnpo": {"beta": (3.5,), "gamma": (0.125,)}, "rmu": {}}


def subset_150() -> list[str]:
    """Short names of the 150 models of the robustness evaluation, in listing order."""
    return [name for name in _published() if _agrees(name, _ROBUSTNESS[parse(name).method])]


def alpha5() -> list[str]:
    """Short names of the 30 models with retain weight 5 after 5 epochs; SimNPO and RMU have no such weight."""
    five_epochs = [name for name in subset_150() if _agrees(name, {"epoch": (5,)})]
    return [name for name in five_epochs if _agrees(name, _NO_ALPHA_5.get(parse(name).method, _STRONG_RETAIN))]


def _agrees(name: str, choice: Mapping[str, tuple[float, ...]]) -> bool:
    hyper = parse(name).hyper
    return all(hyper[field] in values for field, values in choice.items())


def _unknown(name: str) -> UnknownName:
    hint = "A hub id is written owner/name; a folder or a GGUF file must exist."
    return UnknownName("model", name, [*ALIASES, *_published()], hint=hint)


def _after(text: str, word: str) -> str:
    if not text.startswith(word):
        raise ValueError(text)
    return text.removeprefix(word)


def _number(text: str) -> float:
    """A whole number as an int, so that it prints without a dot."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return int(value) if value.is_integer() else value


def _text(value: float) -> str:
    return repr(_number(repr(value)))
