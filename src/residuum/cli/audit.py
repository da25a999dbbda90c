"""``residuum audit``: one model, every question, one report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from residuum.cli.app import app, print_table
from residuum.cli.audit_steps import BUDGETS, Audit
from residuum.errors import DataError, InputError, PartlyFailed, Unavailable
from residuum.registry import one_of

if TYPE_CHECKING:
    from residuum.models.handles import ModelHandle
    from residuum.report.gates import Gate


@app.command("audit")
def audit_command(
    full: Annotated[str, typer.Option(help="The model that knows: name, hub id or folder.")],
    retain: Annotated[str, typer.Option(help="The model that never saw the forget set.")],
    unlearned: Annotated[str, typer.Option(help="The model under test.")],
    data: Annotated[
        Path, typer.Option(help="Folder of splits with TOFU's names, or an annotated forget set for UDS alone.")
    ],
    budget: Annotated[str, typer.Option(help="quick, standard, or thorough, which adds RTT.")] = "standard",
    gate: Annotated[
        str | None,
        typer.Option(help="Conditions such as 'uds>=0.8,utility_rel>=0.9'; exit code 4 when one is not met."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The report; report.html in the run store when left out.")] = None,
    runs: Annotated[Path | None, typer.Option(help="Root of the run store; RESIDUUM_RUNS or runs/.")] = None,
    forget_split: Annotated[str, typer.Option(help="forget01, forget05 or forget10.")] = "forget10",
    relearn_lr: Annotated[float | None, typer.Option(help="Peak learning rate of relearning; 2e-5.")] = None,
    rtt_lrs: Annotated[str | None, typer.Option(help="Learning rates of RTT, such as 1e-6,2e-6.")] = None,
    gpu: Annotated[int | None, typer.Option(help="GPU number; the first one, else the CPU, when left out.")] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    attn: Annotated[str | None, typer.Option(help="sdpa, eager or flash_attention_2.")] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 42,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> None:
    """Is the knowledge gone, or only hidden? UDS, metrics, quantization, relearning, steering probes, then the report.

    Finished parts are read from the run store, so a second call with a larger budget only adds.

    Examples: `residuum audit --full full --retain retain --unlearned npo --data tofu_data --gate 'uds>=0.8,utility_rel>=0.9'`,
    `residuum audit --full w/models/full --retain w/models/retain90 --unlearned out/npo --data w/data --budget quick`
    """
    from residuum.folders import runs_folder
    from residuum.models.handles import ModelHandle
    from residuum.report.build import build_report
    from residuum.report.gates import parse_gates
    from residuum.report.runs import identity

    gates = parse_gates(gate)
    one_of("--budget", budget, *BUDGETS)
    one_of("--forget-split", forget_split, "forget01", "forget05", "forget10")
    root = runs or runs_folder()
    options = {"device": "auto" if gpu is None else gpu, "dtype": dtype, "attn": attn}
    audit = Audit(full, retain, unlearned, _data(data), root, budget, options, seed, forget_split, relearn_lr, rtt_lrs)
    audit.run()
    models = {
        role: ModelHandle(given, **options)
        for role, given in (("full", full), ("retain", retain), ("model", unlearned))
    }
    checked = _record(audit, gates, models)
    report = build_report(root, out or root / "report.html", title=f"Audit of {models['model'].name}")
    _show(audit, identity(models["model"].identity), checked, report, as_json)
    if missed := [found for found in checked if not found["met"]]:
        said = "; ".join(
            f"{found['gate']} ({'not computed' if found['value'] is None else format(found['value'], '.4f')})"
            for found in missed
        )
        raise Unavailable(f"{len(missed)} of {len(checked)} gates are not met: {said}.")
    if audit.failed:
        name, reason = next(iter(audit.failed.items()))
        raise PartlyFailed(
            f"{len(audit.failed)} of {len(audit.steps)} steps failed, the rest is done; first {name}: {reason}"
        )


def _data(given: Path) -> Path:
    """The folder of splits: the one given, or ``data`` in the folder of a world."""
    if not given.exists():
        raise DataError("there is no such file or folder", path=given)
    return given / "data" if (given / "world.json").is_file() else given


def _record(audit: Audit, gates: list[Gate], models: Mapping[str, ModelHandle]) -> list[dict[str, Any]]:
    """Check the gates against the store, and file what was done."""
    from residuum.report.findings import Findings
    from residuum.report.runs import identity
    from residuum.store import Store, Task, file_hash, provenance

    findings = Findings([audit.runs])
    model = findings.find(weights=identity(models["model"].identity))
    if model is None:
        raise InputError(f"{audit.unlearned} has left no run in {audit.runs}.")
    checked = [gate.check(findings, model) for gate in gates]
    data = file_hash(audit.annotated)
    identities = {role: handle.identity for role, handle in models.items()}
    spec = {**identities, "data": data, "budget": audit.budget, "gates": [str(gate) for gate in gates]}
    value = {
        "model": models["model"].name, "budget": audit.budget, "gates": checked, "seconds": audit.seconds,
        "skipped": {**audit.skipped, **{step: why.splitlines()[0] for step, why in audit.failed.items()}},
    }  # fmt: skip
    origin = provenance(
        seed=audit.seed, data=data, weights={role: handle.weights_hash for role, handle in models.items()}
    )
    Store(audit.runs).put(Task("audit", spec), value, provenance=origin)
    return checked


def _show(audit: Audit, weights: str, checked: list[dict[str, Any]], report: Path, as_json: bool) -> None:
    """The numbers of the card, for the terminal."""
    from residuum.report.findings import Findings
    from residuum.report.verdict import verdict_of

    found = verdict_of(Findings([audit.runs]), weights)
    if as_json:
        made = {
            **found,
            "gates": checked,
            "skipped": audit.skipped,
            "failed": audit.failed,
            "seconds": audit.seconds,
            "report": str(report),
        }
        typer.echo(json.dumps(made, indent=1, ensure_ascii=False))
        return
    print_table(f"{found['model']}", found["numbers"])
    for attack, sentence in found["lines"].items():
        typer.echo(f"{attack}: {sentence}")
    for flag in found["flags"]:
        typer.echo(f"{flag['title']}: {flag['sentence']}")
    for gate in checked:
        typer.echo(f"gate {gate['gate']}: {'met' if gate['met'] else 'not met'}")
    typer.echo(f"report: {report}")
