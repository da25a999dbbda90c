"""The settings of an RTT sweep: frozen, typed, read from a TOML file, keyword arguments or both.

    dataset = "birthdays"
    [ft]
    lrs = [1e-4, 3e-4]
    [unlearn]
    types = ["GD", "RIA"]
    lr = 1e-3
    [unlearn.GD]          # only for GD
    retain_coeff = 3

A key that does not exist is an error. Of ``unlearn``, any number may be a list: every combination is one A.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from residuum.errors import UsageError
from residuum.registry import one_of
from residuum.rtt.settings import Ranges, check_known, fill, log_range, sequence

UNLEARN_TYPES = ("GD", "RIA", "FWF", "CUT", "LORA")
ALIASES = {"WHP": "RIA", "RMU": "CUT"}
"""Names of the published code and of the paper for one method."""
CONDITIONS = ("A", "B", "C", "N")
OPTIMIZERS = ("lion", "adamw")


@dataclass(frozen=True)
class FtConfig:
    """Retraining on T."""

    loss_types: tuple[str, ...] = ()
    """Empty: the default of the dataset."""
    lrs: tuple[float, ...] = tuple(log_range(1e-7, 5e-6, 2))
    """Learning rates to sweep."""
    epochs_lst: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    """Numbers of epochs to sweep; one training serves them all."""
    eval_split_ids: tuple[int, ...] | None = None
    """Held-out splits, one V run each; None draws ``num_splits`` of them."""
    num_splits: int = 2
    eval_seed: int | None = None
    """Of that draw; None takes ``data_seed``."""
    optimizer: str = "lion"
    batch_size: int = 4
    warmup_steps: int = 24
    freeze_layers: Ranges | None = None
    """Fractions of the depth, [from, to), that are not trained; embeddings and head are then frozen too."""
    num_seeds: int = 1
    """Trainings per cell; their accuracies are averaged before the best cell is chosen."""


@dataclass(frozen=True)
class UnlearnConfig:
    """One unlearned model."""

    type: str = "RIA"
    """GD, RIA (published as WHP), FWF, CUT (RMU) or LORA."""
    lr: float = 4e-7
    epochs: int = 5
    retain_coeff: float = 1.0
    """Weight of the retain loss."""
    steering_coeff: float = 20.0
    """Length of CUT's control vector."""
    layer: int = 7
    """Block that CUT steers; the MLP outputs of this block and the two below it are trained."""
    rank: int | None = None
    """Train a low-rank adapter instead of the weights."""
    freeze: Ranges | None = None
    """As ``ft.freeze_layers``."""
    loss_types: tuple[str, ...] = ("CORPUS",)
    """Which tokens of what carry loss: CORPUS and NUMBER read sentences, the others questions; several are mixed."""
    optimizer: str = "lion"
    batch_size: int = 4
    warmup_steps: int = 24

    @property
    def data_format(self) -> str:
        """CORPUS, MCQ or MIXED: what the loss types read."""
        from residuum.rtt.losses import TEXT_TYPES

        sentences = [kind in TEXT_TYPES for kind in self.loss_types]
        return "CORPUS" if all(sentences) else "MIXED" if any(sentences) else "MCQ"


TYPE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "CUT": {"lr": 5e-5, "retain_coeff": 1200.0, "optimizer": "adamw"},
    "LORA": {"rank": 8},
}
"""Where a method's defaults differ."""

_SWEPT = ("lr", "epochs", "retain_coeff", "steering_coeff", "rank")


@dataclass(frozen=True)
class RttConfig:
    """A whole sweep."""

    dataset: str = "birthdays"
    """birthdays (made on the spot), a folder of multiple-choice files, a folder of TOFU's files, or tofu (the hub)."""
    model: Any = None
    """The model that knows: name, hub id or folder; the embedded one for birthdays."""
    naive_model: Any = None
    """The model that never saw the facts, for N."""
    unlearned: tuple[Any, ...] = ()
    """Checkpoints unlearned elsewhere, put in as A."""
    ft: FtConfig = field(default_factory=FtConfig)
    unlearn: tuple[UnlearnConfig, ...] = ()
    conditions: tuple[str, ...] = CONDITIONS
    acc_selection_rule: str = "final_epoch"
    include_epoch0: bool = False
    missing: str = "intersect"
    results_dir: Path = Path("evals/pipeline")
    data_seed: int = 4
    seed: int = 0
    """Order of T, and everything else random."""
    forget_files: tuple[str, ...] | None = None
    retain_files: tuple[str, ...] | None = None
    """Sentences to keep while unlearning; by default those of the dataset's retain splits."""
    val_retain_files: tuple[str, ...] | None = None
    """Questions that show whether the rest is kept."""
    label_variant: str = "continuation"
    k_shot: int = 0
    max_seq_len: int = 512
    split: str | None = None
    """TOFU only: the perturbed file."""
    num_total_splits: int = 5
    """TOFU only: K."""
    rows_per_author: int | None = None
    """TOFU only: consecutive rows of one author."""
    prompt_format: str = "chat"
    """TOFU only: chat or raw."""
    right: str = "answer"
    """TOFU only: the right candidate is the answer or its paraphrase."""
    baseline_min_forget_acc: float = 0.3
    """Below this accuracy of the model on all splits there is nothing to unlearn; 0 turns the check off."""
    retain_tolerance: float = 0.05
    """A larger loss of retain accuracy through unlearning is warned about."""
    compat: str | None = None
    """published: as the published code does it, errors included."""
    dtype: str = "auto"
    devices: tuple[str, ...] = ("auto",)
    """One process each."""
    attn: str | None = None
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        from residuum.rtt.selection import RULES
        from residuum.rtt.summary import MISSING

        one_of("acc_selection_rule", self.acc_selection_rule, *RULES)
        one_of("missing", self.missing, *MISSING)
        for condition in self.conditions:
            one_of("conditions", condition, *CONDITIONS)
        if self.compat is not None:
            one_of("compat", self.compat, "published")
        parts: list[FtConfig | UnlearnConfig] = [self.ft, *self.unlearn]
        for part in parts:
            one_of("optimizer", part.optimizer, *OPTIMIZERS)
            _positive("batch_size", part.batch_size)
        for lr in (*self.ft.lrs, *(part.lr for part in self.unlearn)):
            _positive("a learning rate", lr)
        for epochs in (*self.ft.epochs_lst, *(part.epochs for part in self.unlearn)):
            _positive("a number of epochs", epochs)
        if not self.ft.lrs or not self.ft.epochs_lst:
            raise UsageError("the grid is empty: ft.lrs and ft.epochs_lst need at least one value each.")
        _positive("num_seeds", self.ft.num_seeds)


def read_config(settings: Mapping[str, Any]) -> RttConfig:
    """A sweep from nested settings, as a TOML file or keyword arguments give them.

    Raises:
        UsageError: a key does not exist, or a value cannot be read; names the nearest key.
    """
    given = dict(settings)
    ft = fill(FtConfig, given.pop("ft", None) or {}, "ft.")
    table = dict(given.pop("unlearn", None) or {})
    if "unlearn_types" in given:  # the option's own name
        table["types"] = given.pop("unlearn_types")
    unlearn = _unlearn_configs(table)
    config: RttConfig = fill(RttConfig, given, "")
    return replace(config, ft=ft, unlearn=tuple(unlearn))


def _unlearn_configs(table: Mapping[str, Any]) -> list[UnlearnConfig]:
    types = [_type(name) for name in sequence(table.get("types", ()), str)]
    special = {_type(name): value for name, value in table.items() if isinstance(value, Mapping)}
    common = {key: value for key, value in table.items() if key != "types" and not isinstance(value, Mapping)}
    check_known(UnlearnConfig, common, "unlearn.")
    configs = []
    for kind in types:
        settings = {**TYPE_DEFAULTS.get(kind, {}), **common, **special.get(kind, {})}
        swept = {
            key: value if isinstance(value, list | tuple) else [value]
            for key, value in settings.items()
            if key in _SWEPT
        }
        for values in product(*swept.values()):
            chosen = {**settings, **dict(zip(swept, values, strict=True)), "type": kind}
            configs.append(fill(UnlearnConfig, chosen, f"unlearn.{kind}."))
    return configs


def _type(name: str) -> str:
    upper = name.strip().upper()
    return str(one_of("unlearn.types", ALIASES.get(upper, upper), *UNLEARN_TYPES))


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise UsageError(f"{name} must be a positive number, not {value}.")
