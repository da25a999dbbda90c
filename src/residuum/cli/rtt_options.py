"""The options of ``residuum rtt run``: one for every key of its TOML file, under the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from residuum.errors import UsageError


def _text(help: str, *names: str) -> typer.models.OptionInfo:
    """An option whose value is read by `residuum.rtt.config`; the names are those of the key."""
    info: typer.models.OptionInfo = typer.Option(*names, help=help)
    return info


Config = Annotated[Path | None, typer.Argument(help="TOML file with these settings; options win over it.")]
Dataset = Annotated[str | None, _text("birthdays, a folder of multiple-choice or TOFU files, or tofu.")]
Model = Annotated[str | None, _text("The model that knows the facts.")]
NaiveModel = Annotated[str | None, _text("The model that never saw them, for N.")]
Unlearned = Annotated[list[str] | None, _text("A checkpoint unlearned elsewhere, as A; may be repeated.")]
Conditions = Annotated[str | None, _text("Which of A,B,C,N.")]
DataSeed = Annotated[int | None, _text("Seed of data and unlearning.")]
Seed = Annotated[int | None, _text("Seed of retraining.")]
ForgetFiles = Annotated[list[str] | None, _text("Files to forget, in the order of their split ids; may be repeated.")]
RetainFiles = Annotated[list[str] | None, _text("Sentences to keep while unlearning; may be repeated.")]
ValRetainFiles = Annotated[list[str] | None, _text("Questions that show whether the rest is kept; may be repeated.")]
LabelVariant = Annotated[str | None, _text("Token of a letter: continuation, nospace or sum.")]
KShot = Annotated[int | None, _text("Solved questions before each prompt.")]
MaxSeqLen = Annotated[int | None, _text("Tokens of a question or sentence to keep.")]
Split = Annotated[str | None, _text("Questions with free answers: the file, such as forget10_perturbed.")]
NumTotalSplits = Annotated[int | None, _text("Free answers: into how many splits the authors are cut.")]
RowsPerAuthor = Annotated[int | None, _text("Free answers: consecutive rows of one author.")]
PromptFormat = Annotated[str | None, _text("Free answers: chat or raw.")]
Right = Annotated[str | None, _text("Free answers: the right candidate, answer or paraphrase.")]
IncludeEpoch0 = Annotated[bool | None, _text("Let max_epoch count the state before retraining.")]
BaselineMin = Annotated[
    float | None, _text("Least accuracy of the model that knows; 0: any.", "--baseline-min-forget-acc")
]
RetainTolerance = Annotated[float | None, _text("Loss of retain accuracy that is not warned about.")]
Compat = Annotated[str | None, _text("published: as the published code does it, errors included.")]
Dtype = Annotated[str | None, _text("auto, float32, bfloat16 or float16.")]
Attn = Annotated[str | None, _text("sdpa, eager or flash_attention_2.")]
Gpu = Annotated[int | None, _text("GPU number; the first one, else the CPU, when left out.")]
Devices = Annotated[str | None, _text("One process each: cuda:0,cuda:1 or cpu,cpu.")]
CheckpointSeconds = Annotated[float | None, _text("Time between two checkpoints of a training.")]
ResultsDir = Annotated[Path | None, _text("Where the result files go; evals/pipeline.")]
Runs = Annotated[Path | None, _text("Root of the run store; RESIDUUM_RUNS or runs/ when left out.")]

EvalSplitIds = Annotated[str | None, _text("Held-out splits, such as 0,2.", "--eval-split-ids", "--ft.eval-split-ids")]
NumSplits = Annotated[int | None, _text("Draw so many of them instead.", "--num-splits", "--ft.num-splits")]
EvalSeed = Annotated[int | None, _text("Seed of that draw.", "--eval-seed", "--ft.eval-seed")]
Lrs = Annotated[
    str | None, _text("Learning rates: 1e-6,4e-6, or 1e-7:5e-6:2 for every doubling below 5e-6.", "--lrs", "--ft.lrs")
]
EpochsLst = Annotated[
    str | None, _text("Numbers of epochs; one training serves all.", "--epochs-lst", "--ft.epochs-lst")
]
LossTypes = Annotated[str | None, _text("What of T carries loss.", "--loss-types", "--ft.loss-types")]
Optimizer = Annotated[str | None, _text("lion or adamw.", "--optimizer", "--ft.optimizer")]
BatchSize = Annotated[int | None, _text("Rows per step of retraining.", "--batch-size", "--ft.batch-size")]
WarmupSteps = Annotated[int | None, _text("Steps until the full rate.", "--warmup-steps", "--ft.warmup-steps")]
FreezeLayers = Annotated[str | None, _text("As --freeze, for retraining.", "--freeze-layers", "--ft.freeze-layers")]
NumSeeds = Annotated[int | None, _text("Trainings per cell, averaged.", "--num-seeds", "--ft.num-seeds")]

UnlearnTypes = Annotated[
    str | None, _text("GD, RIA (WHP), FWF, CUT (RMU), LORA.", "--unlearn-types", "--unlearn.types")
]
UnlearnLr = Annotated[str | None, _text("Learning rates of unlearning.", "--unlearn-lr", "--unlearn.lr")]
UnlearnEpochs = Annotated[str | None, _text("Epochs of unlearning.", "--unlearn-epochs", "--unlearn.epochs")]
RetainCoeff = Annotated[str | None, _text("Weights of the retain loss.", "--retain-coeff", "--unlearn.retain-coeff")]
SteeringCoeff = Annotated[
    str | None, _text("CUT: length of the target.", "--steering-coeff", "--unlearn.steering-coeff")
]
Layer = Annotated[int | None, _text("CUT: the steered block.", "--layer", "--unlearn.layer")]
Rank = Annotated[str | None, _text("Ranks of a low-rank adapter.", "--rank", "--unlearn.rank")]
Freeze = Annotated[str | None, _text("Frozen part of the depth: 0-0.5,0.75-1.", "--freeze", "--unlearn.freeze")]
UnlearnLossTypes = Annotated[
    str | None, _text("What carries loss while unlearning; mixed.", "--unlearn-loss-types", "--unlearn.loss-types")
]
UnlearnOptimizer = Annotated[str | None, _text("lion or adamw.", "--unlearn-optimizer", "--unlearn.optimizer")]
UnlearnBatchSize = Annotated[
    int | None, _text("Rows per step of unlearning.", "--unlearn-batch-size", "--unlearn.batch-size")
]
UnlearnWarmupSteps = Annotated[
    int | None, _text("Steps until the full rate.", "--unlearn-warmup-steps", "--unlearn.warmup-steps")
]


def parse_ranges(text: str | None) -> list[list[str]] | None:
    """``0-0.5,0.75-1`` as pairs."""
    return None if text is None else [part.strip().split("-") for part in text.split(",")]


def parse_devices(devices: str | None, gpu: int | None) -> str | None:
    """The devices of a sweep.

    Raises:
        UsageError: both ways to say it were used.
    """
    if devices is not None and gpu is not None:
        raise UsageError("give --gpu or --devices, not both.")
    return devices if gpu is None else str(gpu)
