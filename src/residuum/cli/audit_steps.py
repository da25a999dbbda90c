"""What an audit does, step by step; ``residuum audit`` reads the options and shows what came out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import typer

from residuum.errors import DataError, MissingExtra, PartlyFailed, ResiduumError

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
            # Two checkpoints of one name are two models.
            result.save(self.runs / f"uds_{run_tag(result.name)}_{result.models['unlearned']['weights'][:8]}")

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

    @property
    def probes(self) -> tuple[str, ...]:
        """The steering probes; one that draws its answers does ten times the work of the others, and waits for thorough."""
        from residuum.steering.probes import PROBES

        if self.budget == "quick":
            return ("model_diff",)
        return tuple(name for name, probe in PROBES.items() if self.budget == "thorough" or not probe.sampled)

    def probe(self) -> None:
        """Steering probes; in the quick budget with few controls."""
        from residuum.steering.probes import ProbeConfig, run_probe

        retained = f"retain{100 - int(self.forget_split.removeprefix('forget'))}"
        config = ProbeConfig(forget_split=self.forget_split, retain_split=retained, seed=self.seed)
        config = replace(config, controls=8, steps=3, subset=12) if self.budget == "quick" else config
        for name in self.probes:
            run_probe(
                name, full=self.full, unlearned=self.unlearned, retain=self.retain, data=self.data, config=config,
                runs=self.runs, load_options=self.options,
            )  # fmt: skip

    def retrain(self) -> None:
        """RTT on the forget set itself, split by author."""
        from residuum.rtt.protocol import check_failures, run_rtt

        lrs = {} if self.rtt_lrs is None else {"lrs": self.rtt_lrs}
        device = self.options["device"]
        result = run_rtt(
            dataset=str(self.data), model=self.full, naive_model=self.retain, unlearned=(self.unlearned,), ft=lrs,
            dtype=self.options["dtype"], attn=self.options["attn"], devices=(f"cuda:{device}" if isinstance(device, int) else device,),
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
