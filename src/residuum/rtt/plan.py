"""The plan of a sweep: every evaluation, unlearning and training it needs, named before anything is loaded.

A plan is a pure function of settings, data and the content of the start checkpoints. What has a unit in the run store
is done; a dry run prints what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import UsageError
from residuum.models.handles import ModelHandle
from residuum.rtt.config import RttConfig, UnlearnConfig
from residuum.rtt.facts import Facts, McqFacts, Split
from residuum.rtt.freezing import check_depth
from residuum.rtt.signature import VERSION, run_id, signature
from residuum.rtt.splits import resolve_eval_split_ids, train_split_ids
from residuum.store.hashing import content_hash
from residuum.store.units import Task

if TYPE_CHECKING:
    from residuum.store import Store
    from residuum.training.jobs import Job

BASE, UNLEARNED, NAIVE = "baseline+rtt", "unlearn+rtt", "naive+rtt"
"""How result rows name C, B and N."""
LETTER = {BASE: "C", UNLEARNED: "B", NAIVE: "N"}


@dataclass(frozen=True)
class Start:
    """A model that is evaluated as it is and retrained from."""

    condition: str
    """What its retrained offspring is called."""
    label: str
    """For tables."""
    path: str
    """Checkpoint: name, hub id or folder."""
    identity: Mapping[str, Any] = field(repr=False)
    """What decides its numbers; known before it exists."""
    unlearning: UnlearnConfig | None = None
    """How it is made, if it is made here."""
    job: Job | None = field(default=None, repr=False)

    @property
    def digest(self) -> str:
        """Stands for the weights in a run's id."""
        return content_hash(self.identity)


@dataclass(frozen=True)
class RunSpec:
    """One training: from a start, on T, for all numbers of epochs at once."""

    run_id: str
    start: Start
    held_out: int
    loss_type: str
    lr: float
    seed: int
    train: str = field(repr=False)
    """Content hash of what is trained on."""


@dataclass(frozen=True)
class Plan:
    """All that a sweep consists of."""

    config: RttConfig
    facts: Facts
    handles: Mapping[str, ModelHandle] = field(repr=False)
    """The checkpoints that exist already, by path."""
    signature: str
    eval_split_ids: tuple[int, ...]
    loss_types: tuple[str, ...]
    starts: tuple[Start, ...]
    """Base first, then the unlearned ones, then naive."""
    runs: tuple[RunSpec, ...]

    @property
    def epochs(self) -> int:
        """Epochs of every training: the most that is asked for."""
        return max(self.config.ft.epochs_lst)

    @property
    def grid_size(self) -> int:
        """Cells of every V run."""
        ft = self.config.ft
        return len(self.loss_types) * len(set(ft.lrs)) * len(set(ft.epochs_lst))

    @property
    def base(self) -> Start:
        """The model that knows."""
        return self.starts[0]

    @property
    def unlearned(self) -> list[Start]:
        """The models called A."""
        return [start for start in self.starts if start.condition == UNLEARNED]

    def splits_of(self, start: Start) -> list[Split]:
        """What a start is evaluated on before retraining: V; the base on all splits, for the check that it knows."""
        ids = range(len(self.facts.splits)) if start is self.base else self.eval_split_ids
        return [*(self.facts.splits[i] for i in ids), *self.facts.retain]

    def accuracy_task(self, start: Start, split: Split) -> Task:
        """The accuracy of a start on a split."""
        return Task("rtt-accuracy", {"model": start.identity, "items": split.digest, "measure": self.facts.measure})

    def epoch_task(self, run: RunSpec, epoch: int) -> Task:
        """The accuracy on V after so many epochs of a run; no part of it depends on the grid around it."""
        ft = self.config.ft
        return Task("rtt-epoch", {
            "model": run.start.identity, "epoch": epoch, "lr": run.lr, "loss_type": run.loss_type, "seed": run.seed,
            "train": run.train, "items": self.facts.splits[run.held_out].digest,
            "measure": self.facts.measure, "optimizer": ft.optimizer, "batch_size": ft.batch_size,
            "warmup_steps": ft.warmup_steps, "max_seq_len": self.config.max_seq_len, "compat": self.config.compat,
            "freeze_layers": None if ft.freeze_layers is None else [list(pair) for pair in ft.freeze_layers],
        })  # fmt: skip

    def is_done(self, store: Store, run: RunSpec) -> bool:
        """Whether every epoch of a run is in the store."""
        return all(store.has(self.epoch_task(run, epoch)) for epoch in range(1, self.epochs + 1))

    def is_evaluated(self, store: Store, start: Start) -> bool:
        """Whether a start has been measured on all its splits."""
        return all(store.has(self.accuracy_task(start, split)) for split in self.splits_of(start))

    @cached_property
    def steps(self) -> Mapping[tuple[int, str], int]:
        """Steps of one epoch of retraining, by held-out split and loss type."""
        count = len(self.facts.splits)
        return {
            (v, kind): ceil(self.facts.training_count(train_split_ids(v, count), kind) / self.config.ft.batch_size)
            for v in self.eval_split_ids
            for kind in self.loss_types
        }

    def cautions(self) -> list[str]:
        """What makes this sweep a poor one, said before anything is done."""
        warmup, most = self.config.ft.warmup_steps, max(self.steps.values()) * self.epochs
        if not self.runs or most > warmup:
            return []
        return [
            f"retraining takes {most} steps at most and its warm-up {warmup}: no run gets beyond the warm-up, and B may be"
            " little more than A.\n  Set ft.warmup_steps (--warmup-steps) lower, or give more epochs."
        ]

    def cost(self, store: Store) -> list[dict[str, Any]]:
        """What each start costs, and how much of it is in the store: one row each."""
        rows = []
        for start in self.starts:
            own = [run for run in self.runs if run.start is start]
            left = [run for run in own if not self.is_done(store, run)]
            rows.append({
                "condition": LETTER[start.condition],
                "start": start.label,
                "evaluated": self.is_evaluated(store, start),
                "runs": len(own),
                "cached": len(own) - len(left),
                "epochs": len(own) * self.epochs,
                "epochs_one_by_one": len(own) * sum(set(self.config.ft.epochs_lst)),
                "epochs_left": len(left) * self.epochs,
                "steps_left": sum(self.steps[run.held_out, run.loss_type] for run in left) * self.epochs,
            })  # fmt: skip
        return rows


def make_plan(config: RttConfig, facts: Facts) -> Plan:
    """Resolve splits, starts, signature and runs; reads no weights.

    Raises:
        UsageError: the settings do not fit together or do not fit the data.
    """
    count = len(facts.splits)
    train_split_ids(0, count)  # one split alone cannot be retrained on
    ft = config.ft
    held_out = resolve_eval_split_ids(
        facts.name, count, eval_split_ids=ft.eval_split_ids, num_splits=ft.num_splits, eval_seed=ft.eval_seed,
        data_seed=config.data_seed,
    )  # fmt: skip
    if not held_out:
        raise UsageError("no split is held out: ft.num_splits is 0.")
    loss_types = _loss_types(ft.loss_types, facts)
    if config.model is None:
        raise UsageError("RTT needs the model that knows the facts: give --model.")
    handles: dict[str, ModelHandle] = {}
    options = {"dtype": config.dtype, "attn": config.attn}

    def given(model: Any, condition: str) -> Start:
        handle = ModelHandle(model, device=config.devices[0], **options)
        path = str(model) if isinstance(model, str | Path) else handle.name
        handles[path] = handle
        return Start(condition, handle.name, path, handle.identity)

    base = given(config.model, BASE)
    check_depth(config, handles[base.path].config().get_text_config().num_hidden_layers)
    starts = [base]
    if "A" in config.conditions or "B" in config.conditions:
        starts += [made_here(config, facts, unlearning, handles[base.path]) for unlearning in config.unlearn]
        brought = [given(model, UNLEARNED) for model in config.unlearned]
        starts += {start.path: start for start in brought}.values()
    if "N" in config.conditions and config.naive_model is not None:
        starts.append(given(config.naive_model, NAIVE))

    sweep = signature({
        "version": VERSION, "dataset": facts.name, "data_sha256": facts.data_sha256, "num_total_splits": count,
        "eval_split_ids": held_out, "loss_types": loss_types, "lrs": ft.lrs, "epochs_lst": ft.epochs_lst,
        "data_format": "MCQ" if isinstance(facts, McqFacts) else "QA",
        "freeze_layers": None if ft.freeze_layers is None else [list(pair) for pair in ft.freeze_layers],
        "optimizer": ft.optimizer, "batch_size": ft.batch_size, "warmup_steps": ft.warmup_steps,
        "max_seq_len": config.max_seq_len, "seed": config.seed, "adapter": None,
        "base_model": f"{handles[base.path].name}@{handles[base.path].weights_hash[:12]}",
        **_unusual(config, facts),
    })  # fmt: skip
    taught = {
        (v, kind): facts.training_digest(train_split_ids(v, count), kind) for v in held_out for kind in loss_types
    }
    runs = [
        RunSpec(
            run_id(sweep, start.condition, start.digest, v, loss_type=kind, lr=lr, seed=seed),
            start, v, kind, lr, seed, taught[v, kind],
        )
        for start in starts
        if LETTER[start.condition] in config.conditions
        for v in held_out
        for kind in loss_types
        for lr in sorted(set(ft.lrs))
        for seed in range(config.seed, config.seed + ft.num_seeds)
    ]  # fmt: skip
    return Plan(config, facts, handles, sweep, tuple(held_out), loss_types, tuple(starts), tuple(runs))


def _unusual(config: RttConfig, facts: Facts) -> dict[str, Any]:
    """What else decides a number, where it is not as usual: it makes another sweep of this one."""
    usual = RttConfig()
    names = ("compat", "label_variant", "k_shot") if isinstance(facts, McqFacts) else ("prompt_format", "right")
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(usual, name)}


def made_here(config: RttConfig, facts: Facts, unlearning: UnlearnConfig, base: ModelHandle) -> Start:
    """An unlearned model that this sweep makes: known by how it is made."""
    from residuum.rtt.methods import unlearn_job

    if not isinstance(facts, McqFacts):
        raise UsageError(
            f"{unlearning.type} unlearns multiple-choice facts; {facts.name} has free answers.\n"
            "  Make the model with `residuum unlearn` and give it with --unlearned."
        )
    job = unlearn_job(
        unlearning, facts, retain_files=config.retain_files, seed=config.data_seed, dtype=config.dtype,
        device=config.devices[0], checkpoint_seconds=config.checkpoint_seconds,
    )  # fmt: skip
    known = {**base.identity, **job.identity(base.weights_hash)}
    folder = config.results_dir / "models" / unlearning.type / facts.name / _folder_name(unlearning, base.name, known)
    return Start(UNLEARNED, _label(unlearning), str(folder), {"unlearned": content_hash(known)}, unlearning, job)


def _folder_name(unlearning: UnlearnConfig, model: str, known: Mapping[str, Any]) -> str:
    rank = f"rank{unlearning.rank}-" if unlearning.rank is not None else ""
    return (
        f"{rank}sc{unlearning.steering_coeff:g}-{model.replace('/', '_')}-rc{unlearning.retain_coeff:g}"
        f"-lr{unlearning.lr:g}-epochs{unlearning.epochs}-{content_hash(known)[:8]}"
    )


def _label(unlearning: UnlearnConfig) -> str:
    default, told = asdict(UnlearnConfig()), ("lr", "epochs", "retain_coeff", "steering_coeff", "rank")
    parts = [f"{name} {getattr(unlearning, name):g}" for name in told[:3]]
    parts += [
        f"{name} {getattr(unlearning, name):g}" for name in told[3:] if getattr(unlearning, name) != default[name]
    ]
    return f"{unlearning.type} ({', '.join(parts)})"


def _loss_types(wanted: Sequence[str], facts: Facts) -> tuple[str, ...]:
    from residuum.registry import one_of

    chosen = [one_of("loss_types", kind.upper(), *facts.loss_types) for kind in wanted] or [facts.loss_types[0]]
    return tuple(dict.fromkeys(chosen))
