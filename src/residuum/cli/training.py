"""``residuum finetune | unlearn | relearn | quantize``: make the models that the other parts examine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from residuum.cli.app import app, print_table
from residuum.errors import PartlyFailed, UsageError

Model = Annotated[str, typer.Option(help="Start model: name, hub id or folder.")]
Gpu = Annotated[int | None, typer.Option(help="GPU number; the first one, else the CPU, when left out.")]
Dtype = Annotated[str, typer.Option(help="Number format of the weights: auto, float32, bfloat16 or float16.")]
Precision = Annotated[str, typer.Option(help="float32, or bfloat16 to compute under autocast.")]
Optimizer = Annotated[str, typer.Option(help="adamw, lion, paged_adamw_32bit or adamw_8bit.")]
Format = Annotated[
    str, typer.Option("--format", help="chat (the tokenizer's template) or raw (Question: ... Answer: ...).")
]
LoraRank = Annotated[int | None, typer.Option(help="Train a low-rank adapter of this rank, merged at the end.")]
GradientCheckpointing = Annotated[bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.")]
BatchSize = Annotated[int, typer.Option(help="Rows per micro-batch.")]
Accumulation = Annotated[int, typer.Option(help="Micro-batches per optimizer step.")]
CheckpointSeconds = Annotated[float, typer.Option(help="Time between two checkpoints of a run.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command("finetune")
def finetune_command(
    model: Model,
    data: Annotated[Path, typer.Option(help="Questions and answers to learn, JSON or JSON lines.")],
    out: Annotated[Path, typer.Option(help="Target folder.")],
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 1e-5,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 5,
    weight_decay: Annotated[float, typer.Option(help="Decay of matrices.")] = 0.01,
    warmup_epochs: Annotated[float, typer.Option(help="Length of the warm-up.")] = 1.0,
    batch_size: BatchSize = 8,
    accumulation: Accumulation = 4,
    seed: Annotated[int, typer.Option(help="Seeds order and draws.")] = 0,
    prompt_format: Format = "chat",
    lora_rank: LoraRank = None,
    gradient_checkpointing: GradientCheckpointing = False,
    optimizer: Optimizer = "adamw",
    precision: Precision = "float32",
    dtype: Dtype = "auto",
    gpu: Gpu = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Teach a model questions and answers; only the answers are learned.

    Defaults are those of TOFU's full and retain models. Killed and started again, it goes on where it was.

    Examples: `residuum finetune --model meta-llama/Llama-3.2-1B-Instruct --data data/full.jsonl --out models/full`,
    `residuum finetune --model w/models/base --data w/data/retain90.jsonl --lr 1e-3 --epochs 3 --out models/mine`
    """
    from residuum.training.finetune import finetune

    folder = finetune(
        model=model, data=data, out=out, lr=lr, epochs=epochs, weight_decay=weight_decay, warmup_epochs=warmup_epochs,
        batch_size=batch_size, accumulation=accumulation, seed=seed, format=prompt_format, lora_rank=lora_rank,
        gradient_checkpointing=gradient_checkpointing, optimizer=optimizer, precision=precision, dtype=dtype,
        device=_device(gpu), checkpoint_seconds=checkpoint_seconds,
    )  # fmt: skip
    _report([folder], as_json)


@app.command("relearn")
def relearn_command(
    model: Model,
    data: Annotated[Path, typer.Option(help="What the model was made to forget.")],
    out: Annotated[Path, typer.Option(help="Target folder.")],
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-5,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 1,
    batch_size: BatchSize = 8,
    accumulation: Accumulation = 4,
    seed: Annotated[int, typer.Option(help="Seeds order and draws.")] = 42,
    prompt_format: Format = "chat",
    lora_rank: LoraRank = None,
    gradient_checkpointing: GradientCheckpointing = False,
    optimizer: Optimizer = "adamw",
    precision: Precision = "float32",
    dtype: Dtype = "auto",
    gpu: Gpu = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Does a little training on the forget set bring the knowledge back?

    Defaults are those of the published robustness evaluation: no warm-up, no weight decay, linear decay.

    Examples: `residuum relearn --model models/npo_lr1e5_b01_a1_ep10 --data data/forget10.jsonl --out models/npo_relearned`,
    `residuum relearn --model w/models/retain90 --data w/data/forget10.jsonl --lr 2e-4 --out models/retain_relearned`
    """
    from residuum.training.relearn import relearn

    folder = relearn(
        model=model, data=data, out=out, lr=lr, epochs=epochs, batch_size=batch_size, accumulation=accumulation,
        seed=seed, format=prompt_format, lora_rank=lora_rank, gradient_checkpointing=gradient_checkpointing,
        optimizer=optimizer, precision=precision, dtype=dtype, device=_device(gpu), checkpoint_seconds=checkpoint_seconds,
    )  # fmt: skip
    _report([folder], as_json)


@app.command("unlearn")
def unlearn_command(
    method: Annotated[str, typer.Option(help="One of `residuum ls methods`.")],
    model: Model,
    forget: Annotated[Path, typer.Option(help="Questions and answers to forget.")],
    retain: Annotated[Path, typer.Option(help="Questions and answers to keep.")],
    out: Annotated[
        Path | None,
        typer.Option(help="Target folder (with --sweep its parent); models/ and the grammar's name when left out."),
    ] = None,
    lr: Annotated[str | None, typer.Option(help="Peak learning rate; 1e-5, for undial 1e-4.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Weight of the retain term.")] = None,
    beta: Annotated[str | None, typer.Option(help="Inverse temperature; for undial the logit penalty.")] = None,
    gamma: Annotated[str | None, typer.Option(help="Weight of the forget term.")] = None,
    delta: Annotated[str | None, typer.Option(help="SimNPO's margin.")] = None,
    layer: Annotated[str | None, typer.Option(help="RMU's block.")] = None,
    scoeff: Annotated[str | None, typer.Option(help="RMU's steering coefficient.")] = None,
    epochs: Annotated[str, typer.Option(help="Passes over the forget set.")] = "10",
    sweep: Annotated[bool, typer.Option("--sweep", help="Options above take comma lists; run the whole grid.")] = False,
    trainable: Annotated[str | None, typer.Option(help="RMU: regular expression for the trained parameters.")] = None,
    retain_loss: Annotated[str | None, typer.Option(help="nll or kl; for rmu also embed_diff.")] = None,
    idk: Annotated[Path | None, typer.Option(help="I-don't-know lines; idontknow.txt beside the forget file.")] = None,
    alternates: Annotated[Path | None, typer.Option(help="AltPO: what `residuum data alternates` wrote.")] = None,
    seed: Annotated[int, typer.Option(help="Seeds order, pairing and draws.")] = 0,
    weight_decay: Annotated[float, typer.Option(help="Decay of matrices.")] = 0.01,
    warmup_epochs: Annotated[float, typer.Option(help="Length of the warm-up.")] = 1.0,
    batch_size: BatchSize = 8,
    accumulation: Accumulation = 4,
    prompt_format: Format = "chat",
    lora_rank: LoraRank = None,
    gradient_checkpointing: GradientCheckpointing = False,
    optimizer: Optimizer = "adamw",
    precision: Precision = "float32",
    compat: Annotated[str | None, typer.Option(help="published: losses as published, errors included.")] = None,
    dtype: Dtype = "auto",
    gpu: Gpu = None,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Make a model forget: eight methods, one loop, a checkpoint that any HF tool can load.

    Killed and started again, a run goes on where it was and ends with the same weights; a finished one is skipped.

    Examples: `residuum unlearn --method npo --model full --forget data/forget10.jsonl --retain data/retain90.jsonl`,
    `residuum unlearn --method rmu --model w/models/full --forget w/data/forget10.jsonl --retain w/data/retain90.jsonl --layer 4 --lr 1e-4,1e-3 --scoeff 5,10 --sweep --out models`
    """
    from residuum.training.sweep import sweep as run_sweep
    from residuum.training.unlearn import unlearn

    varied = {
        "lr": lr, "alpha": alpha, "beta": beta, "gamma": gamma, "delta": delta, "layer": layer, "scoeff": scoeff,
        "epochs": epochs,
    }  # fmt: skip
    choices = {option: _numbers(option, text) for option, text in varied.items() if text is not None}
    chosen = {"trainable": trainable, "retain_loss": retain_loss, "compat": compat}
    fixed: dict[str, Any] = {option: value for option, value in chosen.items() if value is not None} | {
        "seed": seed, "weight_decay": weight_decay, "warmup_epochs": warmup_epochs, "batch_size": batch_size,
        "accumulation": accumulation, "format": prompt_format, "lora_rank": lora_rank, "precision": precision,
        "gradient_checkpointing": gradient_checkpointing, "optimizer": optimizer, "dtype": dtype,
        "device": _device(gpu), "checkpoint_seconds": checkpoint_seconds,
    }  # fmt: skip
    common: dict[str, Any] = {"model": model, "forget": forget, "retain": retain, "idk": idk, "alternates": alternates}
    if sweep:
        members = list(run_sweep(method, choices, out=out or Path("models"), fixed=fixed, **common))
        _report([member.folder for member in members if member.error is None], as_json)
        if failed := [f"{member.name}: {member.error}" for member in members if member.error is not None]:
            raise PartlyFailed(f"{len(failed)} of {len(members)} members failed.\n  " + "\n  ".join(failed))
        return
    if lists := [option for option, values in choices.items() if len(values) > 1]:
        raise UsageError(f"--{lists[0]} has several values.\n  Add --sweep to run all of them.")
    single: dict[str, Any] = {option: values[0] for option, values in choices.items()}
    _report([unlearn(method, out=out, **common, **fixed, **single)], as_json)


@app.command("quantize")
def quantize_command(
    model: Model,
    out: Annotated[Path, typer.Option(help="Target folder.")],
    gpu: Gpu = None,
    as_json: AsJson = False,
) -> None:
    """Does rounding to 4 bits bring the knowledge back? Saves the model with NF4 weights (needs the extra quant).

    Examples: `residuum quantize --model models/npo_lr1e5_b01_a1_ep10 --out models/npo_nf4`, `residuum quantize --model npo --out npo_nf4 --json`
    """
    from residuum.training.quantize import quantize

    made = quantize(model, out=out, device=_device(gpu))
    if as_json:
        typer.echo(json.dumps(made))
    else:
        before, after = (made[key] / 2**20 for key in ("bytes_before", "bytes_after"))
        typer.echo(f"{made['folder']}: {before:.1f} MB of weights before, {after:.1f} MB after")


def _device(gpu: int | None) -> str | int:
    return "auto" if gpu is None else gpu


def _numbers(option: str, text: str) -> list[float]:
    """The values of a comma list; whole numbers as such, so that names spell them without a dot."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--{option} takes a number, or several separated by commas, not {text!r}.") from None
    return [int(value) if value.is_integer() else value for value in values]


def _report(folders: list[Path], as_json: bool) -> None:
    if os.environ.get("RANK", "0") == "0":  # of the processes of a distributed run, one speaks
        print_table("trained", [_row(folder) for folder in folders], as_json=as_json)


def _row(folder: Path) -> dict[str, Any]:
    """What the manifest says about a finished run, in short."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    last = manifest["losses"]["last"]
    return {
        "name": folder.name,
        "folder": str(folder),
        "steps": manifest["losses"]["steps"],
        **{f"last_{part}": last[part] for part in ("forget", "retain", "total") if part in last},
        "seconds": sum(manifest["seconds"].values()),
    }
