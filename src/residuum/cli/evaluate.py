"""``residuum evaluate``: what do the output metrics say, and the representation metrics beside them?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from residuum.cli.app import app, print_table
from residuum.data.prompts import ChatFormat
from residuum.errors import UsageError

if TYPE_CHECKING:
    from residuum.metrics.evaluation import Evaluation


@app.command("evaluate")
def evaluate_command(
    model: Annotated[list[str], typer.Option(help="Model to evaluate: name, hub id or folder; may be repeated.")],
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of splits with TOFU's names, or tofu for the hub.")
    ] = None,
    retain_model: Annotated[str | None, typer.Option(help="The model that never saw the forget set.")] = None,
    full_model: Annotated[str | None, typer.Option(help="The model that knows.")] = None,
    metrics: Annotated[
        str, typer.Option(help="all, or keys, categories and mia with commas: residuum ls metrics.")
    ] = "all",
    members: Annotated[
        Path | None, typer.Option(help="File of training rows, for attacks on data of your own.")
    ] = None,
    nonmembers: Annotated[Path | None, typer.Option(help="File of rows that were never trained on.")] = None,
    forget_split: Annotated[str, typer.Option(help="forget01, forget05 or forget10.")] = "forget10",
    format: Annotated[str, typer.Option(help="chat, or raw for a tokenizer without a chat template.")] = "chat",
    system_prompt: Annotated[str, typer.Option(help='Of the chat; "" for none.')] = ChatFormat.system_prompt,
    date: Annotated[str, typer.Option(help="What Llama 3's template calls today.")] = str(ChatFormat.date),
    mask_mode: Annotated[str, typer.Option(help="length, or pad_id as open-unlearning has it.")] = "length",
    compat: Annotated[
        str | None, typer.Option(help="published: UDS as the published code does it, errors included.")
    ] = None,
    fluency_model: Annotated[
        str | None, typer.Option(help="Gibberish classifier; the published one when left out.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(help="Padded tokens per batch.")] = 4096,
    gpu: Annotated[int | None, typer.Option(help="GPU number; the first one, else the CPU, when left out.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    attn: Annotated[str | None, typer.Option(help="sdpa, eager or flash_attention_2.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 42,
    set_name: Annotated[str, typer.Option("--set", help="Results go to {runs}/{set}/{category}/{model}.")] = "default",
    runs: Annotated[Path | None, typer.Option(help="Root of the run store; RESIDUUM_RUNS or runs/.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """What do the metrics say: memorization, generation, privacy, utility, representation?

    One pass over each split serves all metrics, and what is finished is not computed again.

    Examples: `residuum evaluate --model npo --data-dir tofu --retain-model retain --full-model full --set ep5`,
    `residuum evaluate --model out/npo --metrics mia --members a.jsonl --nonmembers b.jsonl`
    """
    from residuum.evidence.fluency import CLASSIFIER
    from residuum.folders import runs_folder
    from residuum.metrics.evaluate import Evaluator, Settings
    from residuum.metrics.splits import Splits
    from residuum.models.weights import find

    root = runs or runs_folder()
    if Path(set_name).name != set_name or set_name in ("", ".", "..", "units", "claims"):
        raise UsageError(f"--set is the name of a folder below {root}, not {set_name!r}.")
    settings = Settings.of(
        format=format, system_prompt=system_prompt, date=date or None, mask_mode=mask_mode, compat=compat,
        fluency_model=fluency_model or CLASSIFIER, batch_tokens=batch_tokens, seed=seed,
    )  # fmt: skip
    bench = Evaluator(
        Splits(data_dir, forget=forget_split, members=members, nonmembers=nonmembers), metrics, retain=retain_model,
        full=full_model, settings=settings, options={"dtype": dtype, "device": "auto" if gpu is None else gpu, "attn": attn},
        runs=root,
    )  # fmt: skip
    for name in model:
        find(name)  # a name that does not exist is said before the others have taken their time
    found = []
    for name in model:
        evaluation = bench.run(name)
        evaluation.save(root / set_name)
        found.append(evaluation)
        if not as_json:
            _print(evaluation)
    if as_json:
        typer.echo(json.dumps([_record(evaluation) for evaluation in found], indent=1))
    else:
        typer.echo(f"written to {root / set_name}")


def _record(evaluation: Evaluation) -> dict[str, Any]:
    return {**evaluation.record, "metrics": {name: score.record() for name, score in evaluation.items()}}


def _print(evaluation: Evaluation) -> None:
    from residuum.metrics.registry import METRICS

    rows = [
        {
            "metric": name,
            "value": score.value,
            "95_%_interval": "-" if score.ci95 is None else f"{score.ci95[0]:.3f} to {score.ci95[1]:.3f}",
            "n": score.n,
            "undefined": score.n_undefined,
            "higher_means": score.higher_means + ("" if score.ideal is None else f", ideal {score.ideal:g}"),
            "category": METRICS[name].category,
        }
        for name, score in evaluation.items()
    ]
    print_table(evaluation.name, rows)
    for name, score in evaluation.items():
        for note in score.notes:
            typer.echo(f"{name}: {note}")
