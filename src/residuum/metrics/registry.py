"""Every metric by name, with direction, range, needs and source as data.

A metric is one decorated function. What it needs is written as names, in the order of its arguments:

    forget.answers            evidence of the model about a split
    retain_model:mia_loss     another metric, of a reference model
    fluency?                  an optional one: None when it cannot be had

What the function returns decides how it is averaged: an array is a value per item, a `Separation` becomes an AUC, and a
number stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from inspect import getdoc
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from residuum.errors import UnknownName, UsageError
from residuum.registry import Registry

if TYPE_CHECKING:
    from residuum.metrics.scores import Meaning

Function = TypeVar("Function", bound=Callable[..., Any])
Who = Literal["model", "retain_model", "full_model"]

_HOMES = ("memorization", "generation", "privacy", "utility", "representation", "aggregate")
_CATEGORIES = ("memorization", "generation", "privacy", "utility", "uds", "representation", "overall")


@dataclass(frozen=True)
class Need:
    """One argument of a metric."""

    what: str
    """A metric, or a piece of evidence such as ``forget.answers``."""
    who: Who = "model"
    """Whose it is."""
    optional: bool = False

    @classmethod
    def parse(cls, text: str) -> Need:
        """From ``retain_model:mia_loss`` or ``fluency?``."""
        who, _, what = text.rpartition(":")
        return cls(what.removesuffix("?"), who or "model", what.endswith("?"))  # type: ignore[arg-type]

    @property
    def role(self) -> str:
        """The split that the evidence is about."""
        return self.what.partition(".")[0]

    def __str__(self) -> str:
        return (f"{self.who}:" if self.who != "model" else "") + self.what + ("?" if self.optional else "")


@dataclass(frozen=True)
class Metric:
    """A function over evidence and what its number means."""

    name: str
    category: str
    higher_means: Meaning
    needs: tuple[Need, ...]
    range: tuple[float, float]
    cite: str
    ideal: float | None
    function: Callable[..., Any]

    @property
    def meaning(self) -> str:
        """The first sentence of the function's docstring."""
        return (getdoc(self.function) or "").split("\n\n")[0].replace("\n", " ")

    def row(self) -> dict[str, Any]:
        """One line of ``residuum ls metrics``."""
        return {
            "name": self.name, "category": self.category, "higher_means": self.higher_means, "ideal": self.ideal,
            "range": [_end(end) for end in self.range], "needs": [str(need) for need in self.needs],
            "meaning": self.meaning, "cite": self.cite,
        }  # fmt: skip


METRICS: Registry[Metric] = Registry("metric")
"""Filled by `metric`; use `all_metrics` to have all of them."""

GROUPS = {"mia": ("mia_loss", "mia_zlib", "mia_min_k", "mia_min_kpp", "mia_gradnorm")}
"""Names for several metrics at once, beside the categories."""


def metric(
    name: str,
    category: str,
    *,
    higher_means: Meaning,
    needs: str | tuple[str, ...],
    range: tuple[float, float] = (0.0, 1.0),
    cite: str,
    ideal: float | None = None,
) -> Callable[[Function], Function]:
    """Decorator that registers a function as a metric.

    Args:
        name: its key in files and tables.
        category: the folder its results go to.
        higher_means: direction; ``two-sided`` goes with ``ideal``.
        needs: its arguments, see above.
        range: smallest and largest possible value.
        cite: where it comes from.
        ideal: the target of a two-sided metric.
    """

    def add(function: Function) -> Function:
        wanted = (needs,) if isinstance(needs, str) else needs
        parsed = tuple(Need.parse(need) for need in wanted)
        METRICS.register(name)(Metric(name, category, higher_means, parsed, range, cite, ideal, function))
        return function

    return add


def all_metrics() -> Registry[Metric]:
    """The registry with every metric of residuum in it, in one order: by category, the axes last."""
    for home in _HOMES:
        import_module(f"residuum.metrics.{home}")
    METRICS.sort(_order)
    return METRICS


def _order(metric: Metric) -> tuple[bool, int]:
    place = _CATEGORIES.index(metric.category) if metric.category in _CATEGORIES else len(_CATEGORIES)
    return metric.function.__module__.endswith(".aggregate"), place


def metric_words(metrics: str | Iterable[str]) -> list[str]:
    """The names in a text with commas, or in a list."""
    words = metrics.split(",") if isinstance(metrics, str) else metrics
    return [word.strip() for word in words if word.strip()]


def select(metrics: str | Iterable[str]) -> list[Metric]:
    """The metrics that some names mean: keys, categories, ``mia`` or ``all``; a text may list several with commas.

    Raises:
        UnknownName: with the nearest names.
        UsageError: there is no name at all.
    """
    known = all_metrics()
    categories = {known[name].category for name in known}
    words = metric_words(metrics)
    if not words:
        raise UsageError(
            "no metric is named.\n  Give keys or categories with commas, or all; `residuum ls metrics` lists them."
        )
    chosen: dict[str, Metric] = {}
    for word in words:
        if word == "all":
            names: Iterable[str] = known
        elif word in GROUPS:
            names = GROUPS[word]
        elif word in known:
            names = [word]
        elif word in categories:
            names = [name for name in known if known[name].category == word]
        else:
            raise UnknownName("metric", word, [*known, *categories, *GROUPS, "all"])
        chosen |= {name: known[name] for name in names}
    return list(chosen.values())


def evidence_needs(metric: Metric, who: Who = "model") -> Iterator[Need]:
    """Everything a metric rests on, down to evidence, with whose it is; optional parts are marked so all the way."""
    for need in metric.needs:
        owner = need.who if need.who != "model" else who
        if need.what in METRICS:
            for below in evidence_needs(METRICS[need.what], owner):
                yield Need(below.what, below.who, need.optional or below.optional)
        else:
            yield Need(need.what, owner, need.optional)


def _end(end: float) -> float | str:
    return end if abs(end) != float("inf") else ("inf" if end > 0 else "-inf")
