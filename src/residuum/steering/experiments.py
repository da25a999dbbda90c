"""Where an experiment keeps its things, and names that cannot lead out of it.

Under the root, by default the current folder:

    {root}/experiments/{experiment}/config.json                        model, chat template, system prompt
    {root}/experiments/{experiment}/extraction/{category}/{trait}/     responses and vectors
    {root}/experiments/{experiment}/steering/{category}/{trait}/       results.json, a view of the run store
    {root}/datasets/traits/{category}/{trait}/                         scenarios, definition, evaluation questions
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residuum.data.jsonfiles import read_text
from residuum.errors import DataError, UsageError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Config:
    """What ``config.json`` of an experiment says; everything may be left out."""

    model: str | None = None
    """Name, hub id or folder of the steered model; a relative folder is taken from the root."""
    use_chat_template: bool | None = None
    """None: when the tokenizer has one."""
    system_prompt: str = ""
    """Empty: no system message."""


@dataclass(frozen=True)
class Experiment:
    """A named folder bound to a model."""

    root: Path
    name: str

    def __post_init__(self) -> None:
        _check(self.name, "experiment")

    @property
    def folder(self) -> Path:
        """Where everything about it is."""
        return self.root / "experiments" / self.name

    def extraction(self, trait: str) -> Path:
        """Where the vectors of a trait are."""
        return self.folder / "extraction" / checked_trait(trait)

    def steering(self, trait: str) -> Path:
        """Where the results of a trait are shown."""
        return self.folder / "steering" / checked_trait(trait)

    def config(self) -> Config:
        """The settings; empty when there is no file.

        Raises:
            DataError: the file is not an object of known types.
        """
        path = self.folder / "config.json"
        if not path.exists():
            return Config()
        try:
            fields = json.loads(read_text(path))
        except ValueError as error:
            raise DataError(f"is not JSON: {error}", path=path) from None
        if not isinstance(fields, dict):
            raise DataError("must be an object with model, use_chat_template and system_prompt", path=path)
        wanted: dict[str, tuple[type, ...]] = {
            "model": (str,), "use_chat_template": (bool,), "system_prompt": (str,),
        }  # fmt: skip
        found: dict[str, Any] = {}
        for field, kinds in wanted.items():
            if (value := fields.get(field)) is not None:
                if not isinstance(value, kinds):
                    raise DataError(f"must be a {kinds[0].__name__}, not {value!r}", path=path, field=field)
                found[field] = value
        model = found.get("model")
        if model is not None and not Path(model).is_absolute() and (self.root / model).exists():
            found["model"] = str(self.root / model)
        return Config(**found)

    def model(self, given: str | None) -> str:
        """The model to steer: the one given, else the one of the config.

        Raises:
            UsageError: there is neither.
        """
        model = given or self.config().model
        if model is None:
            raise UsageError(
                f"no model is known for the experiment {self.name}.\n"
                f'  Give --model, or write {self.folder / "config.json"} with {{"model": ...}}.'
            )
        return model


def dataset_folder(root: Path, trait: str) -> Path:
    """Where scenarios and evaluation questions of a trait are."""
    return root / "datasets" / "traits" / checked_trait(trait)


def checked_trait(trait: str) -> str:
    """A trait's name, ``category/name``.

    Raises:
        UsageError: it has no category, or could lead out of its folder.
    """
    parts = trait.split("/")
    if len(parts) < 2:
        raise UsageError(f"a trait is category/name, not {trait!r}.")
    for part in parts:
        _check(part, "trait", trait)
    return trait


def split_source(text: str) -> tuple[str, str]:
    """``experiment/category/trait`` as experiment and trait.

    Raises:
        UsageError: a part is missing, or could lead out of its folder.
    """
    experiment, _, trait = text.partition("/")
    if "/" not in trait:
        raise UsageError(f"--vector-from-trait is experiment/category/trait, not {text!r}.")
    _check(experiment, "experiment")
    return experiment, checked_trait(trait)


def folder_name(text: str) -> str:
    """A text as the name of a folder: everything unusual becomes a dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "model"


def _check(part: str, kind: str, whole: str | None = None) -> None:
    if not _NAME.fullmatch(part) or part.endswith("."):
        raise UsageError(
            f"{whole or part!r} is no name of a {kind}: letters, digits, _, - and . are, starting with none of - and ."
        )
