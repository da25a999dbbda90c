"""Unlearning: from a model that knows to one that should not, by one of the registered methods.

    folder = unlearn("npo", model="full", forget="forget10.jsonl", retain="retain90.jsonl", beta=0.1, lr=1e-5)

The start model is also the reference. Where a method only needs S(x) of known rows (NPO and the DPO family), it is read
once before training and one number per row is kept; otherwise (UNDIAL, RMU, the KL retain term) a frozen copy stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from residuum.batching import Encoded
from residuum.data.tofu import QA, data_hash
from residuum.errors import UsageError
from residuum.models import names
from residuum.training.jobs import Job, produce
from residuum.training.looking import StartModel, gather_nll, look, reference_nll
from residuum.training.loop import EVERYTHING
from residuum.training.methods import METHODS, Method, make_method
from residuum.training.methods.base import Need, SideName, settings_of
from residuum.training.pairs import (
    Item,
    PairDraw,
    Pairs,
    Rows,
    alternate_items,
    check_apart,
    idk_items,
    load_idk_lines,
    load_rows,
)
from residuum.training.setup import Setup, split_options

if TYPE_CHECKING:
    from residuum.models.loading import LM


class Unlearning:
    """The objective of a method over drawn pairs.

    Args:
        method: the loss and what it needs to see.
        lm: the model at the start; also the reference.
        draw: the micro-batches.
        epochs: how many epochs of them will be asked for.
        precision: of the forward passes.
    """

    def __init__(self, method: Method, lm: LM, draw: PairDraw, *, epochs: int, precision: str = "float32") -> None:
        method.check_model(lm.anatomy)
        self.method, self.batches = method, draw.epoch
        self._block = None if method.block is None else lm.anatomy.blocks[method.block]
        published = method.compat is not None
        self._how: dict[str, Any] = {
            "pad_id": lm.pad_id, "device": lm.device, "cut": not published and self._block is None, "mask": published,
        }  # fmt: skip
        compared = self._sides("reference_logits", "reference_states")
        self._start = StartModel(lm) if compared else None
        known = self._sides("reference_nll")
        batches = (pairs for epoch in range(epochs if known else 0) for pairs in draw.epoch(epoch))
        rows = (row for pairs in batches for side in known for row in getattr(pairs, side))
        self._reference_nll = reference_nll(lm, rows, precision=precision)

    def losses(self, model: nn.Module, batch: Pairs) -> dict[str, Tensor]:
        """Forget, retain and total loss of one micro-batch."""
        rows: dict[SideName, Sequence[Encoded]] = {side: getattr(batch, side) for side in self.method.needs}
        block = self._block if self._sides("states") else None
        sides = look(model, rows, logits=bool(self._sides("logits")), block=block, **self._how)
        for side in self._sides("reference_nll"):
            known = gather_nll(self._reference_nll, rows[side], self._how["device"])
            sides[side] = replace(sides[side], reference_nll=known)
        if self._start is not None:
            compared = {side: rows[side] for side in self._sides("reference_logits", "reference_states")}
            logits, states = bool(self._sides("reference_logits")), bool(self._sides("reference_states"))
            start = self._start.look(compared, logits=logits, block=self.method.block if states else None, **self._how)
            for side, seen in start.items():
                sides[side] = replace(sides[side], reference_logits=seen.logits, reference_states=seen.states)
        return self.method.losses(sides)

    def _sides(self, *needs: Need) -> list[SideName]:
        """The sides of which the method needs any of these."""
        return [side for side, listed in self.method.needs.items() if set(needs) & set(listed)]


def unlearn(
    method: str | Method,
    *,
    model: str | Path | LM,
    forget: Rows,
    retain: Rows,
    out: str | Path | None = None,
    idk: str | Path | Sequence[str] | None = None,
    alternates: str | Path | Sequence[Mapping[str, Any]] | None = None,
    title: str | None = "",
    **hyper: Any,
) -> Path:
    """Unlearn and save a checkpoint that any HF tool can load; a finished one is returned at once.

    Args:
        method: a name (``residuum ls methods``) or a configured method.
        model: the start model, which knows the forget set: name, folder or loaded model (which stays as it is).
        forget: file or rows of questions and answers to forget.
        retain: file or rows to keep; for each forget row one is drawn in every epoch.
        out: target folder; without it ``models/`` and the name that the registry's grammar gives.
        idk: "I don't know" lines for IdkNLL and IdkDPO: a text file or strings; by default ``idontknow.txt`` beside
            the forget file, else TOFU's from the hub.
        alternates: for AltPO: what ``residuum data alternates`` wrote.
        title: beside the progress bar; None shows no bar.
        **hyper: settings of the method (alpha, beta, gamma, delta, layer, scoeff, retain_loss, compat, ...) and of the
            training (the fields of ``Setup``: lr, epochs, seed, batch_size, format, lora_rank, ...).

    Returns:
        The folder: weights, tokenizer, ``losses.jsonl`` and ``manifest.json``.

    Raises:
        UnknownName: there is no such method or model.
        UsageError: a setting that makes no sense or that the method does not have.
        DataError: empty sets, or rows that are in both.
        Diverged: the loss left the finite numbers; the last checkpoint stays.
    """
    name, chosen, setup = configure(method, hyper)
    forget_rows, retain_rows = load_rows(forget, "forget"), load_rows(retain, "retain")
    check_apart(forget_rows, retain_rows)
    items = _items(chosen, forget_rows, forget, idk, alternates)
    folder = Path(out) if out is not None else Path("models") / default_name(name, chosen, setup)

    def objective(lm: LM) -> Unlearning:
        draw = PairDraw(items, retain_rows, lm.tokenizer, setup.forms, batch_size=setup.batch_size, seed=setup.seed)
        return Unlearning(chosen, lm, draw, epochs=setup.epochs, precision=setup.precision)

    job = Job(
        kind="unlearn",
        settings={"method": name, **asdict(chosen)},
        data={"forget": data_hash(items), "retain": data_hash(retain_rows)},
        setup=setup,
        rows=len(items),
        trained=chosen.trained,
    )
    return produce(job, model, folder, objective, title=name if title == "" else title)


def configure(method: str | Method, options: dict[str, Any]) -> tuple[str, Method, Setup]:
    """Name, method and setup that some options mean; options of neither are refused."""
    kind = METHODS[method.lower()] if isinstance(method, str) else type(method)
    name = next(known for known, entry in METHODS.items() if entry is kind)
    of_setup, of_method = split_options(options, settings_of(kind), name)
    chosen = make_method(name, of_method) if isinstance(method, str) else replace(method, **of_method)
    setup = Setup(**{"lr": kind.default_lr, **of_setup})
    if setup.lora_rank is not None and getattr(chosen, "trainable", EVERYTHING) != EVERYTHING:
        raise UsageError("a low-rank adapter trains only itself: give either lora_rank or trainable.")
    return name, chosen, setup


def default_name(name: str, method: Method, setup: Setup) -> str:
    """The folder name that the registry's grammar gives: method and hyper-parameters."""
    values = {**asdict(method), "lr": setup.lr, "epoch": setup.epochs}
    wanted = [field.name for label, listed in names.METHODS.items() if label.lower() == name for field in listed]
    return names.short_name(name, {field: values[field] for field in wanted})


def _items(
    method: Method,
    rows: Sequence[QA],
    source: Rows,
    idk: str | Path | Sequence[str] | None,
    alternates: str | Path | Sequence[Mapping[str, Any]] | None,
) -> list[Item]:
    """What is to be forgotten, with the answers that the method wants to hear instead."""
    if method.preferred == "idk":
        return idk_items(rows, load_idk_lines(idk, source))
    if method.preferred == "alternate":
        if alternates is None:
            raise UsageError(
                "AltPO needs alternate answers.\n  Make them with `residuum data alternates --model FULL --data FORGET"
                " --out FILE` and pass --alternates FILE."
            )
        return alternate_items(rows, alternates)
    return [Item(row.question, row.answer) for row in rows]
