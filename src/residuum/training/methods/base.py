"""What an unlearning method is: a frozen config, what it has to see, and a loss.

    L = gamma L_forget + alpha L_retain

A method never runs a model. It lists what it needs to see of each side of a micro-batch (``needs``) and gets it as
tensors (``Side``); the objective in ``training/unlearn.py`` runs the models. A new method is one file: a dataclass
that derives from ``Method``, is registered by name and says what its forget loss is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor

from residuum.errors import UsageError
from residuum.registry import Registry, one_of
from residuum.training.loop import EVERYTHING
from residuum.training.losses import mean_kl, mean_nll

if TYPE_CHECKING:
    from residuum.models.anatomy import Anatomy

SideName = Literal["answer", "preferred", "retain"]
"""A forget question with its own answer; the same question with the answer wished for; a retain row."""

Need = Literal["logits", "states", "reference_nll", "reference_logits", "reference_states"]
"""What can be seen of a side; the reference is the frozen start model."""

Needs = Mapping[SideName, tuple[Need, ...]]

Preferred = Literal["idk", "alternate"] | None
"""Where the answers wished for come from: "I don't know" lines, or alternates of a model."""


@dataclass(frozen=True)
class Side:
    """One side of a micro-batch; what the method does not need is None."""

    labels: Tensor  # [row, position], not shifted, -100 where nothing is scored
    logits: Tensor | None = None  # [row, position, vocab]
    states: Tensor | None = None  # [row, position, hidden], the output of the method's block
    reference_nll: Tensor | None = None  # [row], S(x) under the start model
    reference_logits: Tensor | None = None  # [row, position, vocab]
    reference_states: Tensor | None = None  # [row, position, hidden]

    def see(self, need: Need) -> Tensor:
        """A tensor that the method has listed in ``needs``."""
        tensor: Tensor | None = getattr(self, need)
        if tensor is None:
            raise LookupError(f"a method reads {need} without listing it in its needs")
        return tensor


@dataclass(frozen=True)
class Method(ABC):
    """Settings that all methods share."""

    alpha: float = 1.0
    """Weight of the retain term; 0 leaves it out."""
    gamma: float = 1.0
    """Weight of the forget term."""
    retain_loss: str = "nll"
    """nll: mean cross-entropy of the retain answers. kl: KL(start model || model) on their label rows."""
    compat: str | None = None
    """published: the losses as the published code computes them, errors included."""

    cite: ClassVar[str]
    """Where the method comes from."""
    default_lr: ClassVar[float] = 1e-5
    """Learning rate on TOFU."""
    preferred: ClassVar[Preferred] = None
    """Which other answers to the forget questions the method wants to hear."""
    forget_needs: ClassVar[Needs]
    """What the forget loss reads."""
    retain_needs: ClassVar[Mapping[str, tuple[Need, ...]]] = {"nll": ("logits",), "kl": ("logits", "reference_logits")}
    """What each retain loss reads."""
    positive: ClassVar[tuple[str, ...]] = ()
    """Settings that must be above zero."""

    def __post_init__(self) -> None:
        one_of("retain_loss", self.retain_loss, *self.retain_needs)
        if self.compat is not None:
            one_of("compat", self.compat, "published")
        for field in fields(self):
            value, above_zero = getattr(self, field.name), field.name in self.positive
            if field.type not in ("int", "float"):
                continue
            if not (
                isinstance(value, int | float) and math.isfinite(value) and (value > 0 if above_zero else value >= 0)
            ):
                raise UsageError(
                    f"{field.name} must be {'above zero' if above_zero else 'zero or more'}, not {value!r}."
                )

    @property
    def needs(self) -> dict[SideName, tuple[Need, ...]]:
        """What has to be seen of each side of a micro-batch."""
        sides = dict(self.forget_needs)
        if self.alpha:
            sides["retain"] = self.retain_needs[self.retain_loss]
        return sides

    @property
    def block(self) -> int | None:
        """The decoder block whose output is seen as ``states``."""
        return None

    def trained(self, parts: Anatomy) -> str:  # noqa: ARG002
        """Regular expression for the names of the parameters that are trained."""
        return EVERYTHING

    def check_model(self, parts: Anatomy) -> None:  # noqa: B027  most methods fit every model
        """Raise a ``UsageError`` when the settings do not fit the model."""

    def losses(self, sides: Mapping[SideName, Side]) -> dict[str, Tensor]:
        """The forget and the retain term, unweighted, and their weighted total."""
        forget = self.forget_loss(sides)
        if not self.alpha:
            return {"forget": forget, "total": self.gamma * forget}
        retain = self.retain_term(sides["retain"])
        return {"forget": forget, "retain": retain, "total": self.gamma * forget + self.alpha * retain}

    @abstractmethod
    def forget_loss(self, sides: Mapping[SideName, Side]) -> Tensor:
        """The forget term of one micro-batch."""

    def retain_term(self, retain: Side) -> Tensor:
        """The retain term of one micro-batch."""
        if self.retain_loss == "kl":
            return mean_kl(retain.see("logits"), retain.labels, retain.see("reference_logits"), compat=self.compat)
        return mean_nll(retain.see("logits"), retain.labels)


METHODS: Registry[type[Method]] = Registry("method")
"""The unlearning methods by name."""


def make_method(name: str, hyper: Mapping[str, Any]) -> Method:
    """A method with its settings.

    Raises:
        UnknownName: there is no such method.
        UsageError: the method has no such setting, or not with this value.
    """
    kind = METHODS[name.lower()]
    defaults = settings_of(kind)
    if strange := [option for option in hyper if option not in defaults]:
        raise UsageError(f"{name} has no option {strange[0]}.\n  It has: {', '.join(defaults)}.")
    whole = {field.name for field in fields(kind) if field.type == "int"}
    if broken := [option for option in whole & hyper.keys() if hyper[option] != int(hyper[option])]:
        raise UsageError(f"{broken[0]} must be a whole number, not {hyper[broken[0]]}.")
    values: dict[str, Any] = {option: int(hyper[option]) if option in whole else hyper[option] for option in hyper}
    return kind(**values)


def settings_of(kind: type[Method]) -> dict[str, Any]:
    """The settings of a method with their defaults."""
    return {field.name: field.default for field in fields(kind)}


def methods() -> list[dict[str, Any]]:
    """All methods as plain data: name, description, hyper-parameters with defaults, citation."""
    return [
        {
            "name": name,
            "description": (kind.__doc__ or "").partition("\n")[0].rstrip("."),
            "hyper_parameters": {"lr": kind.default_lr, **settings_of(kind)},
            "preferred_answers": kind.preferred,
            "cite": kind.cite,
        }
        for name, kind in sorted(METHODS.items())
    ]
