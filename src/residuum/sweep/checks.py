"""Options of tasks, looked at while a plan is made: a mistake shows before any model is loaded, and names its key."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from residuum.errors import UsageError, nearest
from residuum.registry import one_of

Options = Mapping[str, Any]
Wanted = Mapping[str, str]
"""Names of options and the types that they want, as the source has them."""

SETTINGS = ("format", "system_prompt", "date", "mask_mode", "compat", "fluency_model", "batch_tokens", "seed")
"""How models are asked, of evaluate and meta."""
NOT_UDS = ("dtype", "attn", "generations")
"""Options of uds that are not part of its config."""
NOT_STEERING = (
    "experiment", "vector_from_trait", "root", "judge", "judge_options", "search", "generation", "dtype", "attn",
)  # fmt: skip
"""Options of steer that are not fields of its config."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "Path": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "None": (type(None),),
}  # fmt: skip


def check_options(options: Options, wanted: Wanted, what: str) -> None:
    """Every option must exist and be of its type, as far as that is text, number, truth value or a list of them.

    Raises:
        UsageError: names the option, and the nearest one that exists.
    """
    for name, value in options.items():
        if name not in wanted:
            near = nearest(name, list(wanted))
            hint = f" Did you mean {near[0]}?" if near else f"\n  Its options: {', '.join(wanted)}."
            raise UsageError(f"{what} has no option {name} in a sweep.{hint}")
        if not _fits(value, wanted[name]):
            raise UsageError(f"{what}.{name} is of type {wanted[name]}, not {value!r}.")


def refuse_planned(options: Options, what: str, *planned: str) -> None:
    """Refuse options that the plan itself gives.

    Raises:
        UsageError: names the first.
    """
    for name in planned:
        if name in options:
            raise UsageError(f"{what}.{name} is given by the plan: its models, folders and devices.\n  Leave it out.")


def check_uds(options: Options) -> None:
    """Options of ``residuum.uds``."""
    from residuum.patching.uds import uds_config

    planned = ("full", "retain", "unlearned", "data", "device", "runs", "on_result")
    check_options(options, _keywords("residuum.patching.uds", "uds", *planned), "uds")
    _check_loading(options, "uds")
    uds_config(**{key: value for key, value in options.items() if key not in NOT_UDS})


def check_evaluate(options: Options) -> None:
    """Options of ``residuum.evaluate``."""
    from residuum.metrics.registry import metric_words, select

    planned = ("data", "retain", "full", "device", "runs")
    check_options(options, _keywords("residuum.metrics.evaluate", "evaluate", *planned), "evaluate")
    _check_loading(options, "evaluate")
    _check_settings(options)
    select(metric_words(options.get("metrics", "all")))
    if ("members" in options) != ("nonmembers" in options):
        raise UsageError("evaluate.members and evaluate.nonmembers go together: give both, or neither.")
    for name in ("members", "nonmembers"):
        place = options.get(name)
        if place is not None and not (isinstance(place, str) and Path(place).is_file()):
            raise UsageError(f"evaluate.{name} is no file: {place}.")


def check_meta(options: Options) -> None:
    """Options of the measurements behind ``residuum meta``."""
    from residuum.meta.attacks import check_attacks
    from residuum.meta.bench import Relearning
    from residuum.meta.catalogue import choose
    from residuum.training.setup import Setup

    asked = _keywords("residuum.metrics.evaluate", "evaluate")
    own = {"attacks": "Iterable[str]", "relearning": "table", "fluency": "bool"}
    shared = {key: asked[key] for key in ("metrics", "forget", "dtype", "attn", *SETTINGS)}
    check_options(options, {**own, **shared}, "meta")
    relearning = _table(options, "relearning", "meta")
    check_options(relearning, _fields(Relearning), "meta.relearning")
    Setup(**relearning).train_config(1).check()
    _check_loading(options, "meta")
    _check_settings(options)
    check_attacks(options.get("attacks", ()))
    choose(options.get("metrics", "all"))


def check_rtt(options: Options) -> None:
    """Settings of ``residuum.run_rtt``."""
    from residuum.rtt.config import read_config

    refuse_planned(options, "rtt", "unlearned", "results_dir", "devices")
    read_config(options)


def check_steer(options: Options) -> None:
    """Options of ``residuum.steer``."""
    from residuum.steering.config import EvaluateConfig
    from residuum.steering.judge.base import JudgeOptions
    from residuum.steering.judge.panel import judges
    from residuum.steering.search import SearchConfig
    from residuum.steering.settings import Generation

    own = {name: "str | None" if name == "attn" else "str" for name in NOT_STEERING}
    tables: dict[str, Any] = {"judge_options": JudgeOptions, "search": SearchConfig, "generation": Generation}
    check_options(options, {**_fields(EvaluateConfig), **own, **dict.fromkeys(tables, "table")}, "steer")
    for name, kind in tables.items():
        check_options(_table(options, name, "steer"), _fields(kind), f"steer.{name}")
    for name in ("experiment", "vector_from_trait"):
        if name not in options:
            raise UsageError(f"a steer task says its {name}.\n  Write it into the [steer] table of the plan.")
    _check_loading(options, "steer")
    one_of("steer.judge", options.get("judge", "openai"), *(judge["name"] for judge in judges()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its task says so, in its log
        steer_config(options).check()


def steer_config(options: Options) -> Any:
    """The config of an evaluation by steering."""
    from residuum.steering.config import EvaluateConfig
    from residuum.steering.search import SearchConfig
    from residuum.steering.settings import Generation

    own: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in options.items()
        if key not in NOT_STEERING
    }
    search, generation = SearchConfig(**options.get("search", {})), Generation(**options.get("generation", {}))
    return EvaluateConfig(search=search, generation=generation, **own)


def check_unlearn(method: str, options: Options) -> None:
    """Options of a method and of its training; a list is a grid, so that each of its values must do."""
    from residuum.training.methods import METHODS
    from residuum.training.setup import Setup
    from residuum.training.unlearn import configure

    refuse_planned(options, "[[unlearn]]", "device")
    wanted = {**_fields(Setup), **_fields(METHODS[method.lower()]), "format": "str"}  # TOML has no other formats
    for name, value in options.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            if name in wanted:  # what does not exist is refused below
                check_options({name: one}, wanted, f"[[unlearn]] {method}")
            _, _, setup = configure(method, {name: one})
            setup.train_config(1).check()
            _ = setup.forms  # a format by name is looked up here
            _check_loading({"dtype": setup.dtype}, f"[[unlearn]] {method}")


def _check_loading(options: Options, what: str) -> None:
    from residuum.models.loading import ATTENTIONS, DTYPES

    one_of(f"{what}.dtype", options.get("dtype", "auto"), "auto", *DTYPES)
    if options.get("attn") is not None:
        one_of(f"{what}.attn", options["attn"], *ATTENTIONS)


def _check_settings(options: Options) -> None:
    from residuum.metrics.evaluation import Settings

    Settings.of(**{key: options[key] for key in SETTINGS if key in options})


def _table(options: Options, name: str, what: str) -> Options:
    table = options.get(name, {})
    if not isinstance(table, Mapping):
        raise UsageError(f"{what}.{name} is a table of settings, not {table!r}.")
    return table


def _keywords(home: str, function: str, *planned: str) -> Wanted:
    """The keywords of a function, but for those that the plan itself gives."""
    parameters = signature(getattr(import_module(home), function)).parameters.values()
    return {p.name: p.annotation for p in parameters if p.kind is Parameter.KEYWORD_ONLY and p.name not in planned}


def _fields(kind: Any) -> Wanted:
    return {field.name: str(field.type) for field in fields(kind)}


def _fits(value: Any, wanted: str) -> bool:
    """Whether a value of a TOML file can be what an annotation says; one that says more is left to its own part."""
    for word in wanted.split(" | "):
        inside = re.fullmatch(r"(?:tuple|Iterable)\[(\w+)(?:, \.\.\.)?\]", word)
        name = inside[1] if inside else word
        if name not in _TYPES:
            return True
        items = value if inside and isinstance(value, list | tuple) else [] if inside else [value]
        if (inside is None or isinstance(value, list | tuple)) and all(_is(item, name) for item in items):
            return True
    return False


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and (name == "bool" or not isinstance(value, bool))
