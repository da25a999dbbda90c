"""``residuum steer probe``: does one direction bring back what a model should have forgotten?"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from residuum.cli import steer_options as o
from residuum.cli.app import print_table


@o.steer.command("probe")
def probe_command(
    probe: Annotated[str, typer.Option(help="Comma-separated, or all: residuum ls probes.")],
    full: Annotated[str, typer.Option(help="The original model, which knows: name, hub id or folder.")],
    unlearned: Annotated[str, typer.Option(help="The model under test.")],
    retain: Annotated[str, typer.Option(help="A model trained without the forget set.")],
    data: Annotated[str, typer.Option(help="Folder with TOFU's split names, or tofu.")],
    score: Annotated[str, typer.Option(help="recall, rouge or mcq.")] = "recall",
    layers: Annotated[str, typer.Option(help="16, 5-20, 5,10,15, 30%-60% or all.")] = "all",
    controls: Annotated[int, typer.Option(help="Random directions.")] = 20,
    search_steps: Annotated[int, typer.Option(help="Coefficients tried per layer.")] = 5,
    subset: Annotated[int | None, typer.Option(help="Rows of each half at most; all when left out.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 40,
    samples: Annotated[int, typer.Option(help="Drawn answers per question (anon).")] = 10,
    seed: Annotated[int, typer.Option(help="Of drawn answers and random directions.")] = 0,
    chat: Annotated[
        bool | None, typer.Option("--chat/--no-chat", help="Chat template; when there is one, if left out.")
    ] = None,
    forget_split: Annotated[str, typer.Option(help="Split that was unlearned.")] = "forget10",
    retain_split: Annotated[str, typer.Option(help="Split that was kept.")] = "retain90",
    runs: o.Runs = None,
    gpu: o.Gpu = None,
    dtype: o.Dtype = "auto",
    attn: o.Attn = None,
    as_json: o.AsJson = False,
) -> None:
    """Steer an unlearned model towards what it should have forgotten; held against random directions and retain.

    Examples: `residuum steer probe --probe idk_ablation --full f --unlearned u --retain r --data data`,
    `residuum steer probe --probe all --full f --unlearned u --retain r --data data --json`
    """
    from residuum.models.handles import ModelHandle
    from residuum.steering.probes import PROBES, ProbeConfig, run_probe

    names = tuple(PROBES) if probe == "all" else o.split_words(probe, "--probe")
    for name in names:
        PROBES[name]
    config = ProbeConfig(
        score=score, layers=layers, controls=controls, steps=search_steps, subset=subset, max_new_tokens=max_new_tokens,
        samples=samples, seed=seed, chat=chat, forget_split=forget_split, retain_split=retain_split,
    )  # fmt: skip
    config.check()
    options = o.load_options(gpu, dtype, attn)
    original, tested, never = (ModelHandle(given, **options) for given in (full, unlearned, retain))
    found = [
        run_probe(name, full=original, unlearned=tested, retain=never, data=data, config=config, runs=runs)
        for name in names
    ]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    print_table(f"What a direction brings back in {tested.name}", [_row(made) for made in found])
    for made in found:
        typer.echo(f"{made['probe']}: {made['finding']}.")
    typer.echo("Success proves that knowledge is left; failure proves nothing.")


def _row(made: dict[str, Any]) -> dict[str, Any]:
    chosen, accuracy = made["chosen"], made["accuracy"]
    low, high = made["recovery_ci95"] or (None, None)
    return {
        "probe": made["probe"], "layer": "-" if chosen is None else str(chosen["layer"]),
        "original": accuracy["original"], "unlearned": accuracy["unlearned"], "steered": accuracy["steered"],
        "retain_model": accuracy["retain_model"], "recovery": made["recovery"], "low": low, "high": high,
        "random_p95": made["random"]["p95"], "on_retain": made["retain_recovery"],
        "kept": "yes" if made["retain_accuracy"]["kept"] else "no",
    }  # fmt: skip
