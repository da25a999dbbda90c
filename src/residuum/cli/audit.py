"""``residuum audit``: one model, every question, one report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from residuum.cli.app import app, print_table
from residuum.errors import DataError, InputError, MissingExtra, PartlyFailed, ResiduumError, Unavailable
from residuum.registry import one_of

if TYPE_CHECKING:
    from residuum.models.handles import ModelHandle
    from residuum.report.gates import Gate

BUDGETS = ("quick", "standard", "thorough")
_AXES = ("uds", "em", "es", "prob", "rouge", "mem", "privacy", "utility_rel", "overall")
_WATCHED = ("uds", "em", "es", "prob", "rouge")
"""What is measured again after an attack."""


@dataclass
class Audit:
    """One model under test, its references, and what has been done so far."""

    full: str
    retain: str
    unlearned: str
    data: Path
    runs: Path
    budget: str
    options: dict[str, Any]
    """dtype, device, attn."""
    seed: int
    forget_split: str
    relearn_lr: float | None
    rtt_lrs: str | None
    seconds: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def steps(self) -> dict[str, Callable[[], None]]:
        """What the budget pays for, in order."""
        found = {"UDS": self.measure_depth}
        if self.data.is_dir():
            found |= {
                "evaluation": self.evaluate,
                "quantization": self.quantize,
                "relearning": self.relearn,
                "steering probes": self.probe,
            }
            found |= {"RTT": self.retrain} if self.budget == "thorough" else {}
        return found

    @property
    def annotated(self) -> Path:
        """The annotated forget set."""
        return self.data / f"{self.forget_split}_annotated.json" if self.data.is_dir() else self.data

    def run(self) -> None:
        """Do every step; one that fails is recorded and the others go on. What cannot be used at all shows in the first."""
        for name, step in self.steps.items():
            typer.echo(f"{name} ...", err=True)
            started = time.monotonic()
            try:
                step()
            except MissingExtra as error:
                self.skipped[name] = str(error).splitlines()[0]
            except ResiduumError as error:
                if name == "UDS":
                    raise
                self.failed[name] = str(error)
            self.seconds[name] = round(time.monotonic() - started, 1)

    def measure_depth(self) -> None:
        """UDS of the model and of retain, with what the models say."""
        from residuum.patching.output import run_tag
        from residuum.patching.uds import uds

        results = uds(
            full=self.full, retain=self.retain, unlearned=[self.unlearned, "retain"], data=self.annotated, seed=self.seed,
            generations=True, runs=self.runs, **self.options,
        )  # fmt: skip
        for result in results if isinstance(results, list) else [results]:
            result.save(self.runs / f"uds_{run_tag(result.name)}")

    def evaluate(self) -> None:
        """The output and representation metrics of the model, of retain and of full, as far as the data allow."""
        from residuum.metrics.evaluation import Settings
        from residuum.metrics.evaluator import Evaluator
        from residuum.metrics.splits import Splits

        splits = Splits(self.data, forget=self.forget_split)
        known = len(self.skipped)
        metrics: str | tuple[str, ...] = self._possible(_AXES if self.budget == "quick" else None, splits)
        if self.budget != "quick" and len(self.skipped) == known:
            metrics = "all"
        evaluator = Evaluator(
            splits,
            metrics,
            retain=self.retain,
            full=self.full,
            settings=Settings(seed=self.seed),
            options=self.options,
            runs=self.runs,
        )
        for model in (self.retain, self.unlearned, self.full):
            evaluator.run(model).save(self.runs / "audit")

    def quantize(self) -> None:
        """Model and retain as NF4."""
        self._attack("quantization")

    def relearn(self) -> None:
        """Model and retain after a little training on the forget set."""
        self._attack("relearning")

    def probe(self) -> None:
        """Steering probes; the quick budget has one, with few controls."""
        from residuum.steering.probes import PROBES, ProbeConfig, run_probe

        quick = self.budget == "quick"
        retained = f"retain{100 - int(self.forget_split.removeprefix('forget'))}"
        config = ProbeConfig(forget_split=self.forget_split, retain_split=retained, seed=self.seed)
        config = replace(config, controls=8, steps=3, subset=12) if quick else config
        for name in ("model_diff",) if quick else tuple(PROBES):
            run_probe(
                name, full=self.full, unlearned=self.unlearned, retain=self.retain, data=self.data, config=config,
                runs=self.runs, load_options=self.options,
            )  # fmt: skip

    def retrain(self) -> None:
        """RTT on the forget set itself, split by author."""
        from residuum.rtt.protocol import check_failures, run_rtt

        lrs = {} if self.rtt_lrs is None else {"lrs": self.rtt_lrs}
        result = run_rtt(
            dataset=str(self.data), model=self.full, naive_model=self.retain, unlearned=(self.unlearned,), ft=lrs,
            split=f"{self.forget_split}_perturbed", results_dir=self.runs / "evals" / "pipeline", runs=self.runs, seed=self.seed,
        )  # fmt: skip
        check_failures(result)

    def _attack(self, attack: str) -> None:
        from residuum.meta.attacks import check_attacks
        from residuum.meta.bench import Bench, Case, Relearning, measure_all
        from residuum.metrics.evaluation import Settings
        from residuum.metrics.splits import Splits

        check_attacks([attack])
        metrics = self._possible(_WATCHED, Splits(self.data, forget=self.forget_split))
        relearning = Relearning() if self.relearn_lr is None else Relearning(lr=self.relearn_lr)
        bench = Bench(
            str(self.data),
            self.full,
            self.retain,
            str(self.runs),
            self.forget_split,
            Settings(seed=self.seed),
            relearning=relearning,
            **self.options,
        )
        cases = [Case(model, metrics, when) for model in (self.retain, self.unlearned) for when in ("none", attack)]
        if broken := [
            record for record in measure_all(bench, cases, title=attack) if record["failed"] and not record["diverged"]
        ]:
            raise PartlyFailed("; ".join(f"{record['model']}: {record['failed']}" for record in broken))

    def _possible(self, wanted: tuple[str, ...] | None, splits: Any) -> tuple[str, ...]:
        """The metrics that the data allow; the others are noted as left out."""
        from residuum.metrics.plan import check_data
        from residuum.metrics.registry import select

        able = []
        for metric in select("all" if wanted is None else wanted):
            try:
                check_data(splits, [metric])
                able.append(metric.name)
            except DataError as error:
                self.skipped[metric.name] = str(error).splitlines()[0]
        if not able:
            raise DataError("has no split that a metric could read", path=self.data)
        # Asked for by name, fluency without its classifier would be an error; utility has it where it can be had.
        return tuple(name for name in able if name != "fluency")


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
