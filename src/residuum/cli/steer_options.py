"""What the commands of ``residuum steer`` share: the group, options, and how texts become settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from residuum.cli.app import app, group
from residuum.errors import UsageError

if TYPE_CHECKING:
    from residuum.steering.judge.base import JudgeOptions
    from residuum.steering.results import Results

steer = group("Steering vectors: extract, evaluate with a judge, and probe unlearned models with them.")
app.add_typer(steer, name="steer")

Root = Annotated[Path, typer.Option(help="Folder that holds experiments/ and datasets/.")]
ExperimentName = Annotated[str, typer.Option("--experiment", help="Experiment where results are saved.")]
Trait = Annotated[str, typer.Option(help="category/name.")]
Model = Annotated[str | None, typer.Option(help="Model: name, hub id or folder; the experiment's when left out.")]
Runs = Annotated[Path | None, typer.Option(help="Root of the run store; RESIDUUM_RUNS or runs/ when left out.")]
Gpu = Annotated[int | None, typer.Option(help="GPU number; the first one, else the CPU, when left out.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Attn = Annotated[str | None, typer.Option(help="sdpa, eager or flash_attention_2.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Judge = Annotated[str, typer.Option(help="openai, gemini, openai-compatible, hf or replay.")]
JudgeModel = Annotated[str | None, typer.Option(help="The judge's name at its provider, or a checkpoint for hf.")]
JudgeBaseUrl = Annotated[str | None, typer.Option(help="Address of an OpenAI-compatible server.")]
JudgeScoring = Annotated[str, typer.Option(help="auto, single, trie (hf), letters or text.")]
JudgeLog = Annotated[Path | None, typer.Option(help="Record readings here; with --judge replay, read them.")]
JudgeCache = Annotated[bool, typer.Option("--judge-cache/--no-judge-cache", help="Ask the same thing only once.")]
MaxJudgeCalls = Annotated[int | None, typer.Option(help="Stop after so many calls.")]
JudgeConcurrency = Annotated[int, typer.Option(help="Calls at once.")]
PromptsFile = Annotated[Path | None, typer.Option(help="Evaluation questions; the trait's own when left out.")]


def results_of(root: Path, experiment: str, trait: str, runs: Path | None) -> Results:
    """The results of a trait."""
    from residuum.folders import runs_folder
    from residuum.steering.experiments import Experiment, checked_trait
    from residuum.steering.results import Results
    from residuum.store import Store

    return Results(Experiment(root, experiment), checked_trait(trait), Store(runs or runs_folder()))


def judge_options(
    model: str | None, base_url: str | None, scoring: str, log: Path | None, concurrency: int, calls: int | None, gpu: int | None
) -> JudgeOptions:  # fmt: skip
    """What was said about the judge, checked."""
    from residuum.registry import one_of
    from residuum.steering.judge.base import JudgeOptions
    from residuum.steering.judge.scoring import SCORINGS

    one_of("--judge-scoring", scoring, "auto", *SCORINGS)
    if concurrency < 1:
        raise UsageError(f"--judge-concurrency is at least 1, not {concurrency}.")
    if calls is not None and calls < 0:
        raise UsageError(f"--max-judge-calls is not negative, as {calls} is.")
    return JudgeOptions(
        model=model, base_url=base_url, scoring=scoring, concurrency=concurrency, max_calls=calls, log=log,
        device="auto" if gpu is None else gpu,
    )  # fmt: skip


def load_options(gpu: int | None, dtype: str, attn: str | None) -> dict[str, Any]:
    """How models are loaded."""
    return {"device": "auto" if gpu is None else gpu, "dtype": dtype, "attn": attn}


def split_words(text: str, option: str) -> tuple[str, ...]:
    """Comma-separated words."""
    words = tuple(word.strip() for word in text.split(","))
    if not all(words):
        raise UsageError(f"{option} {text!r} has an empty part.")
    return words


def split_numbers(text: str | None) -> tuple[float, ...] | None:
    """Comma-separated numbers; None when nothing is given."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--coefficients are comma-separated numbers, not {text!r}.") from None


def batch_count(text: str) -> int | None:
    """``auto`` or a number."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--batch-layers is auto or a number, not {text!r}.") from None
