"""The unlearning methods of the RTT paper, on the common training loop.

    L = L_forget + retain_coeff L_retain

    GD (gradient difference)          L_forget = -CE(x)         true sentences or questions
    RIA (random incorrect answer)     L_forget = +CE(x~)        a wrong answer, another one each time
    FWF (fixed wrong fact)            L_forget = +CE(x~)        a wrong answer, always the same
    CUT (RMU)                         states of x at one block go to a fixed random vector, those of the rest stay
    LORA                              GD on a low-rank adapter

The published code calls RIA "WHP". L_retain is the ordinary next-token loss, for CUT the distance to the start model's
states. The learning rate is constant after the warm-up.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from residuum.batching import Encoded
from residuum.data.jsonfiles import data_hash
from residuum.data.mcq import MCQ, load_corpus
from residuum.errors import UsageError
from residuum.rtt.config import UnlearnConfig
from residuum.rtt.facts import McqFacts
from residuum.rtt.freezing import trained_parts
from residuum.rtt.losses import TEXT_TYPES, encode_question, encode_text, padded_nll, reduce_nll, reduction_of
from residuum.store.hashing import content_hash
from residuum.training.jobs import Job, produce
from residuum.training.loop import EVERYTHING, TrainConfig
from residuum.training.lora import ADAPTER_PATTERN
from residuum.training.methods.base import Method, Needs, Side, SideName
from residuum.training.methods.rmu import RMU
from residuum.training.pairs import Pairs
from residuum.training.setup import Setup
from residuum.training.unlearn import Unlearning

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from residuum.models.loading import LM

WRONG_TEXTS = {"RIA": "whp_corpus_", "FWF": "fwf_corpus_"}
"""Prefix of the sentences that a method reads; the others read the true ones."""


@dataclass(frozen=True)
class Likelihood(Method):
    """Down or up the likelihood of the forget rows; the retain rows always up."""

    ascend: bool = False
    """GD makes the rows less likely, RIA and FWF make wrong rows more likely."""
    reduction: str = "tokens"

    cite = "Deeb and Roger 2024, arXiv:2410.08827"
    forget_needs: ClassVar[Needs] = {"answer": ("logits",)}

    def forget_loss(self, sides: Mapping[SideName, Side]) -> Tensor:
        """See ``reduce_nll``."""
        loss = reduce_nll(sides["answer"].see("logits"), sides["answer"].labels, self.reduction)  # type: ignore[arg-type]
        return -loss if self.ascend else loss


class PaddedUnlearning(Unlearning):
    """The published mean, which counts padding; see ``padded_nll``."""

    def losses(self, model: nn.Module, batch: Pairs) -> dict[str, Tensor]:
        """Forget, retain and total loss of one micro-batch."""
        where = self._how["pad_id"], self._how["device"]
        forget = padded_nll(model, batch.answer, *where) * (-1 if getattr(self.method, "ascend", False) else 1)
        retain = padded_nll(model, batch.retain, *where) if self.method.alpha else forget.new_zeros(())
        return {"forget": forget, "retain": retain, "total": forget + self.method.alpha * retain}


@dataclass(frozen=True)
class RttSetup(Setup):
    """A training with a constant learning rate after the warm-up, without clipping and weight decay."""

    warmup_steps: int = 24
    weight_decay: float = 0.0
    accumulation: int = 1

    def train_config(self, rows: int, *, trainable: str = EVERYTHING, processes: int = 1) -> TrainConfig:  # noqa: ARG002
        """The loop's settings; neither the number of rows nor that of processes decides anything."""
        return constant_config(
            epochs=self.epochs,
            lr=self.lr,
            warmup_steps=self.warmup_steps,
            optimizer=self.optimizer,
            seed=self.seed,
            trainable=trainable if self.lora_rank is None else ADAPTER_PATTERN,
            checkpoint_seconds=self.checkpoint_seconds,
        )


def constant_config(*, warmup_steps: int, optimizer: str, **settings: Any) -> TrainConfig:
    """Warm-up, then a constant rate: a run of k epochs is the beginning of any longer one."""
    return TrainConfig(
        warmup=0 if warmup_steps < 1 else float(warmup_steps),
        schedule="constant",
        optimizer=optimizer,
        betas=(0.9, 0.99) if optimizer == "lion" else (0.9, 0.999),
        weight_decay=0.0,
        max_grad_norm=None,
        **settings,
    )


class ForgetDraw:
    """The micro-batches of every epoch: forget rows in random order, beside them the next retain rows.

    Args:
        config: the method.
        facts: what is to be forgotten and kept.
        retain_texts: sentences to keep instead of those of the dataset.
        tokenizer: encodes them.
        seed: of order and wrong answers.
    """

    def __init__(
        self,
        config: UnlearnConfig,
        facts: McqFacts,
        retain_texts: Sequence[str] | None,
        tokenizer: PreTrainedTokenizerBase,
        seed: int,
    ) -> None:
        self.config, self.facts, self.tokenizer, self.seed = config, facts, tokenizer, seed
        self._known: dict[tuple[str | MCQ, str], Encoded] = {}
        self.sentences = [
            text for split in facts.splits for text in facts.statements(WRONG_TEXTS.get(config.type, "corpus_"), split)
        ] if self._reads_sentences else []  # fmt: skip
        self.retain = self._retain_rows(retain_texts) if config.retain_coeff else []

    def epoch(self, epoch: int) -> list[Pairs]:
        """The micro-batches of one epoch."""
        rng = random.Random(f"{self.seed}/unlearn/{epoch}")
        rows: list[Encoded] = []
        for kind in self.config.loss_types:
            if kind in TEXT_TYPES:
                rows += [self._encode(text, kind) for text in self.sentences]
            else:
                rows += [
                    self._encode(self._taught(item, rng), kind) for split in self.facts.splits for item in split.items
                ]
        rng.shuffle(rows)
        # The published code takes retain batches in one order, again and again.
        retain = self.retain if self.facts.compat == "published" else rng.sample(self.retain, len(self.retain))
        size = self.config.batch_size
        batches = []
        for start in range(0, len(rows), size):
            own = rows[start : start + size]
            kept = [retain[(start + i) % len(retain)] for i in range(len(own))] if retain else []
            batches.append(Pairs(tuple(own), (), tuple(kept)))
        return batches

    @property
    def _reads_sentences(self) -> bool:
        return any(kind in TEXT_TYPES for kind in self.config.loss_types)

    def _taught(self, item: MCQ, rng: random.Random) -> MCQ:
        """The question as the method tells it: with its answer, a random wrong one, or always the same wrong one."""
        if self.config.type not in WRONG_TEXTS:
            return item
        right = item.choices[item.answer]
        wrong = [i for i, choice in enumerate(item.choices) if choice != right]
        if not wrong:
            return item
        draw = rng if self.config.type == "RIA" else random.Random(f"{self.seed}/{item.question}")
        return replace(item, answer=draw.choice(wrong))

    def _retain_rows(self, texts: Sequence[str] | None) -> list[Encoded]:
        if texts is not None:
            return [self._encode(text, "CORPUS") for text in texts]
        rows: list[Encoded] = []
        for kind in self.config.loss_types:
            for split in self.facts.retain:
                if kind in TEXT_TYPES:
                    rows += [self._encode(text, "CORPUS") for text in self.facts.statements("corpus_", split)]
                else:
                    rows += [self._encode(item, kind) for item in split.items]
        return random.Random(f"{self.seed}/retain").sample(rows, len(rows))

    def _encode(self, item: str | MCQ, kind: str) -> Encoded:
        key = item, kind
        if key not in self._known:
            cut = self.facts.max_seq_len
            self._known[key] = (
                encode_text(self.tokenizer, item, kind, max_length=cut, unlearning=True)
                if isinstance(item, str)
                else encode_question(self.tokenizer, item, kind, max_length=cut)
            )
        return self._known[key]


def unlearn_job(
    config: UnlearnConfig, facts: McqFacts, *, retain_files: Sequence[str] | None, seed: int, **setup: Any
) -> Job:
    """Everything that decides the weights of an unlearned model, the start model aside; reads data, no model.

    Args:
        config: the method.
        facts: what is to be forgotten and kept.
        retain_files: sentences to keep instead of those of the dataset.
        seed: of order and wrong answers.
        **setup: dtype, device, checkpoint_seconds.

    Raises:
        UsageError: the method weighs a retain loss, and there is nothing to retain.
    """
    if config.retain_coeff and not facts.retain and retain_files is None:
        raise UsageError(
            f"{config.type} has retain_coeff {config.retain_coeff:g}, and {facts.name} has nothing to retain.\n"
            "  Give retain_files, or set retain_coeff to 0."
        )
    prefix = WRONG_TEXTS.get(config.type, "corpus_")
    sets = {"forget": facts.data_sha256, "retain": content_hash([split.digest for split in facts.retain])}
    if config.data_format != "MCQ":
        sets["sentences"] = content_hash([data_hash(facts.statements(prefix, split)) for split in facts.splits])
        if retain_files is None:
            kept = [data_hash(facts.statements("corpus_", split)) for split in facts.retain]
            sets["retain_sentences"] = content_hash(kept)
    if retain_files is not None:
        sets["retain_files"] = content_hash([data_hash(path) for path in retain_files])
    return Job(
        kind="rtt-unlearn",
        settings={"unlearning": asdict(config), "max_seq_len": facts.max_seq_len, "compat": facts.compat},
        data=sets,
        setup=RttSetup(
            lr=config.lr, epochs=config.epochs, batch_size=config.batch_size, warmup_steps=config.warmup_steps,
            optimizer=config.optimizer, seed=seed, lora_rank=config.rank, **setup,
        ),
        rows=sum(len(split.items) for split in facts.splits),
        trained=lambda parts: trained_parts(config, parts),
    )  # fmt: skip


def unlearn(
    job: Job,
    config: UnlearnConfig,
    facts: McqFacts,
    start: str | Path | LM,
    folder: Path,
    *,
    retain_files: Sequence[str] | None,
    title: str | None = None,
) -> Path:
    """Train one unlearned model and save it; a finished one is returned at once."""
    texts = None if retain_files is None else [s.text for path in retain_files for s in load_corpus(path)]

    def objective(lm: LM) -> Unlearning:
        draw = ForgetDraw(config, facts, texts, lm.tokenizer, job.setup.seed)
        padded = facts.compat == "published" and config.type != "CUT"
        kind = PaddedUnlearning if padded else Unlearning
        return kind(method_of(config), lm, draw, epochs=config.epochs)  # type: ignore[arg-type]

    return produce(job, start, folder, objective, title=title)


def method_of(config: UnlearnConfig) -> Method:
    """The loss of a method."""
    if config.type == "CUT":
        return RMU(alpha=config.retain_coeff, layer=config.layer, scoeff=config.steering_coeff)
    reductions = {reduction_of(kind, unlearning=True) for kind in config.loss_types}
    reduction = reductions.pop() if len(reductions) == 1 else "row_means"
    return Likelihood(alpha=config.retain_coeff, ascend=config.type in ("GD", "LORA"), reduction=reduction)
