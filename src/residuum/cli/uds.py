"""``residuum uds`` and ``residuum tau``: how much is left, and in which layers?"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from residuum.cli.app import app, print_table
from residuum.errors import InputError, StoreError, UsageError
from residuum.models.names import FULL, RETAIN

if TYPE_CHECKING:
    from residuum.patching.audit import UdsResult

Runs = Annotated[Path | None, typer.Option(help="Root of the run store; RESIDUUM_RUNS or runs/ when left out.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")]


@app.command("uds")
def uds_command(
    unlearn_model: Annotated[list[str], typer.Option(help="Model to audit: name, hub id or folder; may be repeated.")],
    full_model: Annotated[str, typer.Option(help="The model that knows.")] = FULL,
    retain_model: Annotated[str, typer.Option(help="The model that never saw the forget set.")] = RETAIN,
    data: Annotated[str | None, typer.Option(help="Annotated forget set; the published one when left out.")] = None,
    gpu: Annotated[int | None, typer.Option(help="GPU number; the first one, else the CPU, when left out.")] = None,
    metric: Annotated[str, typer.Option(help="logprob or em.")] = "logprob",
    delta_threshold: Annotated[float, typer.Option(help="tau: a layer counts when its delta is above this.")] = 0.05,
    patch_scope: Annotated[str, typer.Option(help="span or boundary.")] = "span",
    reference: Annotated[str, typer.Option(help="gt or full.")] = "gt",
    mode: Annotated[str, typer.Option(help="layer, mlp, attn or mid.")] = "layer",
    layers: Annotated[str, typer.Option(help="auto, needed, 3, 0-15, 0-15:5 or 1,4,9.")] = "auto",
    em_threshold: Annotated[float, typer.Option(help="With metric em: kept at or above this.")] = 1.0,
    em_type: Annotated[str, typer.Option(help="token or exact.")] = "token",
    em_scope: Annotated[str, typer.Option(help="entity or full.")] = "entity",
    entity_source: Annotated[str, typer.Option(help="gt or full.")] = "gt",
    reference_scope: Annotated[str, typer.Option(help="continuation or full_answer.")] = "continuation",
    join: Annotated[str, typer.Option(help="ids (as published) or retokenize.")] = "ids",
    engine: Annotated[str, typer.Option(help="auto, staircase or naive.")] = "auto",
    batch_tokens: Annotated[int, typer.Option(help="Padded tokens per batch.")] = 4096,
    max_memory: Annotated[str | None, typer.Option(help="Memory beside the models, for instance 500MB or 4GB.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    attn: Annotated[str | None, typer.Option(help="sdpa, eager or flash_attention_2.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 42,
    run_name: Annotated[str | None, typer.Option(help="Name of the run folder instead of the model's.")] = None,
    out_dir: Annotated[
        Path | None, typer.Option(help="Write here instead of a new folder under the runs root.")
    ] = None,
    s1_cache: Annotated[bool, typer.Option(help="Share stage 1 between runs.")] = True,
    compat: Annotated[
        str | None, typer.Option(help="published: as the published code does it, errors included.")
    ] = None,
    generations: Annotated[bool, typer.Option(help="Also let the models continue each prompt, for the log.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on in the latest run folder of this model.")] = False,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """How much of the forgotten knowledge is gone, and in which layers?

    1 = erased like retain, 0 = intact.

    Examples: `residuum uds --unlearn-model simnpo_lr2e5_b35_a1_d1_g0125_ep5 --gpu 0`,
    `residuum uds --unlearn-model out/npo --full-model w/models/full --retain-model w/models/retain90 --data w/data/forget10_annotated.json`
    """
    from residuum.folders import runs_folder
    from residuum.patching.output import summary
    from residuum.patching.uds import uds

    if out_dir is not None and len(unlearn_model) > 1:
        raise UsageError("--out-dir is one folder; leave it out to audit several models at once.")
    root = runs or runs_folder()
    _check_writable(out_dir or root)
    chosen_layers, bytes_allowed = parse_layers(layers), parse_bytes(max_memory)
    folders: list[Path] = []

    def save(result: UdsResult) -> None:
        """At once, so that a later model's failure costs nothing."""
        several = run_name and len(unlearn_model) > 1
        tag = f"{run_name}_{result.name}" if several else run_name or result.name
        folders.append(out_dir or _run_folder(root, tag, mode, summary(result), resume))
        result.save(folders[-1])

    results: list[UdsResult] = uds(  # type: ignore[assignment]
        full=full_model, retain=retain_model, unlearned=unlearn_model, data=data, mode=mode, scope=patch_scope,
        metric=metric, reference=reference, delta_threshold=delta_threshold, layers=chosen_layers, engine=engine,
        s1_cache=s1_cache, em_threshold=em_threshold, em_type=em_type, em_scope=em_scope, entity_source=entity_source,
        reference_scope=reference_scope, compat=compat, batch_tokens=batch_tokens, max_memory=bytes_allowed,
        seed=seed, dtype=dtype, device="auto" if gpu is None else gpu, attn=attn, generations=generations, runs=root, on_result=save,
        join=join,
    )  # fmt: skip
    if as_json:
        typer.echo(
            json.dumps([{"folder": str(f), **summary(r)} for r, f in zip(results, folders, strict=True)], indent=1)
        )
        return
    print_table("UDS (1 = erased like retain, 0 = intact)", [_row(r, f) for r, f in zip(results, folders, strict=True)])
    if len(results) == 1:
        from residuum.patching.depth import depth_profile

        print_table(
            "mean delta per layer", [_profile_row(row) for row in depth_profile(results[0].examples, seed=seed)]
        )


@app.command("tau")
def tau_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished UDS run.")],
    delta_threshold: Annotated[list[float], typer.Option(help="tau; may be repeated.")] = [0.0, 0.01, 0.02, 0.05, 0.1],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """How does UDS depend on the noise threshold? Computed from stored deltas, without a model.

    Examples: `residuum tau runs/0201_101500_tf_simnpo_layer`, `residuum tau RUN --delta-threshold 0.02 --json`
    """
    from residuum.patching.sensitivity import tau_table

    print_table(f"UDS of {run.name} by threshold", tau_table(run, delta_threshold), as_json=as_json)


def parse_layers(text: str) -> Any:
    """``auto``, ``needed``, or layer numbers: ``3``, ``0-15``, ``0-15:5``, ``1,4,9``."""
    if text == "auto":
        return None
    if text == "needed":
        return "needed"
    try:
        found: list[int] = []
        for part in text.split(","):
            span, _, step = part.partition(":")
            first, _, last = span.partition("-")
            found += range(int(first), int(last or first) + 1, int(step or 1))
    except ValueError:
        raise UsageError(f"--layers is auto, needed, 3, 0-15, 0-15:5 or 1,4,9, not {text!r}.") from None
    if not found:
        raise UsageError(f"--layers {text!r} means no layer at all.")
    return found


def parse_bytes(text: str | None) -> int | None:
    """``500MB`` or ``4GB`` as a number of bytes."""
    if text is None:
        return None
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "B": 1}
    clean = text.strip().upper()
    for unit, size in units.items():
        if clean.endswith(unit):
            try:
                return int(float(clean.removesuffix(unit)) * size)
            except (ValueError, OverflowError):
                break
    raise UsageError(f"--max-memory is a size such as 500MB or 4GB, not {text!r}.")


def _check_writable(folder: Path) -> None:
    """Make the folder now: a place that cannot be written to shows before any model is loaded."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"cannot write to {folder}: {error.strerror}.\n  Choose another folder with --out-dir."
        ) from error


def _run_folder(root: Path, name: str, mode: str, made: dict[str, Any], resume: bool) -> Path:
    """A new folder for the run; with ``resume`` the latest one of this model that the same settings began or finished."""
    from residuum.patching.output import run_tag

    tag = run_tag(name)
    if resume:
        for folder in sorted(root.glob(f"*_tf_{tag}_{mode}"), key=lambda path: path.stat().st_mtime, reverse=True):
            if not (folder / "summary.json").exists() or _same_settings(folder, made):
                return folder
    for number in range(100):
        more = f"-{number}" if number else ""
        folder = root / f"{time.strftime('%m%d_%H%M%S')}{more}_tf_{tag}_{mode}"
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:  # another process began a run of this model within the same second
            continue
    raise StoreError(f"cannot find a free run folder for {tag} under {root}.")


def _same_settings(folder: Path, made: dict[str, Any]) -> bool:
    there = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    plain = json.loads(json.dumps(made))
    return all(there.get(key) == plain[key] for key in ("settings", "models"))


def _row(result: UdsResult, folder: Path) -> dict[str, Any]:
    low, high = result.ci95 or (None, None)
    return {"model": result.name, "uds": result.uds, "low": low, "high": high, "n": result.n,
            "skipped": len(result.skipped), "run": str(folder)}  # fmt: skip


def _profile_row(row: dict[str, float | None]) -> dict[str, Any]:
    return {
        "layer": row["layer"],
        "ft_share": row["ft_share"],
        "S1": row["s1_delta"],
        "S1_95%": _interval(row, "s1"),
        "S2": row["s2_delta"],
        "S2_95%": _interval(row, "s2"),
    }


def _interval(row: dict[str, float | None], stage: str) -> str:
    low, high = row[f"{stage}_low"], row[f"{stage}_high"]
    return "-" if low is None or high is None else f"{low:.3f} to {high:.3f}"
