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
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from residuum.errors import UsageError
from residuum.registry import one_of
from residuum.rtt.settings import Ranges, check_known, fill, log_range, sequence, table

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

    def plain(self) -> dict[str, Any]:
        """As JSON, for result rows; loaded models by their names."""
        return {name: _plain(value) for name, value in asdict(replace(self, **self._named())).items()}

    def _named(self) -> dict[str, Any]:
        def name(model: Any) -> Any:
            return model if model is None or isinstance(model, str | Path) else str(getattr(model, "name", model))

        return {
            "model": name(self.model), "naive_model": name(self.naive_model),
            "unlearned": tuple(name(model) for model in self.unlearned),
        }  # fmt: skip

    def __post_init__(self) -> None:
        from residuum.rtt.accuracy import VARIANTS
        from residuum.rtt.selection import RULES
        from residuum.rtt.summary import MISSING

        one_of("acc_selection_rule", self.acc_selection_rule, *RULES)
        one_of("missing", self.missing, *MISSING)
        one_of("label_variant", self.label_variant, *VARIANTS)
        for condition in self.conditions:
            one_of("conditions", condition, *CONDITIONS)
        if self.compat is not None:
            one_of("compat", self.compat, "published")
        for name in ("conditions", "devices"):
            if not getattr(self, name):
                raise UsageError(f"{name} is empty: give at least one.")
        parts: list[FtConfig | UnlearnConfig] = [self.ft, *self.unlearn]
        for part in parts:
            one_of("optimizer", part.optimizer, *OPTIMIZERS)
            _positive("batch_size", part.batch_size)
            _not_negative("warmup_steps", part.warmup_steps)
        for lr in (*self.ft.lrs, *(part.lr for part in self.unlearn)):
            _positive("a learning rate", lr)
        for epochs in (*self.ft.epochs_lst, *(part.epochs for part in self.unlearn)):
            _positive("a number of epochs", epochs)
        if not self.ft.lrs or not self.ft.epochs_lst:
            raise UsageError("the grid is empty: ft.lrs and ft.epochs_lst need at least one value each.")
        for name in ("max_seq_len", "num_total_splits"):
            _positive(name, getattr(self, name))
        if self.rows_per_author is not None:
            _positive("rows_per_author", self.rows_per_author)
        for name in ("k_shot", "baseline_min_forget_acc", "retain_tolerance", "checkpoint_seconds"):
            _not_negative(name, getattr(self, name))
        _not_negative("ft.num_splits", self.ft.num_splits)
        _positive("num_seeds", self.ft.num_seeds)
        _check_ranges("ft.freeze_layers", self.ft.freeze_layers)
        for made in self.unlearn:
            _check_unlearning(made)


def read_config(settings: Mapping[str, Any]) -> RttConfig:
    """A sweep from nested settings, as a TOML file or keyword arguments give them.

    Raises:
        UsageError: a key does not exist, or a value cannot be read; names the nearest key.
    """
    given = dict(settings)
    ft = fill(FtConfig, table("ft", given.pop("ft", None)), "ft.")
    making = dict(table("unlearn", given.pop("unlearn", None)))
    if "unlearn_types" in given:  # the option's own name
        making["types"] = given.pop("unlearn_types")
    unlearn = _unlearn_configs(making)
    config: RttConfig = fill(RttConfig, given, "")
    return replace(config, ft=ft, unlearn=tuple(unlearn))


def _unlearn_configs(given: Mapping[str, Any]) -> list[UnlearnConfig]:
    types = [_type(name) for name in sequence(given.get("types", ()), str)]
    special = {_type(name): value for name, value in given.items() if isinstance(value, Mapping)}
    common = {key: value for key, value in given.items() if key != "types" and not isinstance(value, Mapping)}
    for name, part in (("unlearn.", common), *((f"unlearn.{kind}.", part) for kind, part in special.items())):
        check_known(UnlearnConfig, part, name)
        if "type" in part:
            raise UsageError(f"there is no setting {name}type. Did you mean unlearn.types?")
    configs = []
    for kind in types:
        settings = {**TYPE_DEFAULTS.get(kind, {}), **common, **special.get(kind, {})}
        swept = {key: _values(f"unlearn.{key}", value) for key, value in settings.items() if key in _SWEPT}
        for values in product(*swept.values()):
            chosen = {**settings, **dict(zip(swept, values, strict=True)), "type": kind}
            made: UnlearnConfig = fill(UnlearnConfig, chosen, f"unlearn.{kind}.")
            configs.append(replace(made, loss_types=tuple(part.upper() for part in made.loss_types)))
    return configs


def _values(name: str, value: Any) -> list[Any]:
    """Everything that one setting is to be, from a list, one value, ``a,b`` or a log range."""
    try:
        return sequence(value, float if isinstance(value, str) and ":" in value else lambda part: part)
    except ValueError:
        raise UsageError(f"{name} cannot be {value!r}.") from None


def _type(name: str) -> str:
    upper = name.strip().upper()
    return str(one_of("unlearn.types", ALIASES.get(upper, upper), *UNLEARN_TYPES))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _positive(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise UsageError(f"{name} must be a positive number, not {value}.")


def _not_negative(name: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise UsageError(f"{name} must be a number and not negative, not {value}.")


def _check_ranges(name: str, ranges: Ranges | None) -> None:
    for low, high in ranges or ():
        if not 0 <= low < high <= 1:
            raise UsageError(f"{name} holds ranges of the depth such as 0-0.5, within 0 and 1, not {low:g}-{high:g}.")


def _check_unlearning(made: UnlearnConfig) -> None:
    from residuum.rtt.losses import LOSS_TYPES

    if not made.loss_types:
        raise UsageError("unlearn.loss_types is empty: give at least one.")
    for kind in made.loss_types:
        one_of("unlearn.loss_types", kind, *LOSS_TYPES)
    _not_negative("retain_coeff", made.retain_coeff)
    _not_negative("unlearn.layer", made.layer)
    _positive("steering_coeff", made.steering_coeff)
    _check_ranges("unlearn.freeze", made.freeze)
    if made.rank is not None:
        _positive("rank", made.rank)
    if made.freeze and (made.type == "CUT" or made.rank is not None):
        what = "CUT trains the MLP outputs of three blocks" if made.type == "CUT" else "an adapter freezes all weights"
        raise UsageError(f"{what}: unlearn.freeze cannot be had with it.")
