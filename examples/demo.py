"""The whole story on the embedded world: who knows what, eight ways to unlearn it, and what is left inside.

    python examples/demo.py                        # into demo/, seed 0
    python examples/demo.py --out demo1 --seed 1   # the same settings on another world

Everything that is finished stays in the folder; started again, it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import residuum
from residuum.cli.app import print_table, show_warning
from residuum.meta.attacks import run_robustness
from residuum.meta.embedded import world_bench, world_faithfulness
from residuum.meta.table import Table
from residuum.metrics.evaluate import Evaluation, Evaluator, Settings
from residuum.metrics.splits import Splits
from residuum.patching.depth import depth_profile
from residuum.steering.config import EvaluateConfig
from residuum.steering.experiments import Experiment
from residuum.steering.extract import extract
from residuum.steering.judge.base import JudgeOptions
from residuum.steering.probes import ProbeConfig, run_probe
from residuum.steering.settings import Generation
from residuum.worlds.build import World
from residuum.worlds.knowledge import knowledge_table
from residuum.worlds.steering import EXPERIMENT, build_moods
from residuum.worlds.unlearned import unlearn_world, unlearned_table


def audit(world: World, models: dict[str, Path], runs: Path) -> list[residuum.UdsResult]:
    """UDS of retain and of every unlearned model; the run folders stay under ``runs``."""
    results = residuum.uds(
        full=world.model("full"), retain=world.model("retain90"), unlearned=["retain", *models.values()],
        data=world.annotated, runs=runs,
    )  # fmt: skip
    for result in results:
        result.save(runs / f"uds_{result.name}")
    return results


def measure(world: World, models: dict[str, Path], runs: Path) -> dict[str, Evaluation]:
    """All metrics of retain and of every unlearned model; files under ``runs/demo``, UDS taken from the store."""
    evaluator = Evaluator(
        Splits(world.data), retain=world.model("retain90"), full=world.model("full"), settings=Settings(), runs=runs
    )
    found = {}
    for name, path in {"retain90": world.model("retain90"), **models}.items():
        found[name] = evaluator.run(path)
        found[name].save(runs / "demo")
    return found


def axes(evaluation: Evaluation) -> dict[str, Any]:
    """The axes beside UDS, each with its interval."""
    row: dict[str, Any] = {}
    for key in ("uds", "mem", "privacy", "utility_rel"):
        score = evaluation[key]
        row[key] = score.value
        row[f"{key}_95%"] = "" if score.ci95 is None else f"{score.ci95[0]:.2f}-{score.ci95[1]:.2f}"
    return row


def steer(out: Path) -> list[dict[str, Any]]:
    """One steering evaluation of the embedded subject: a vector for cheerfulness, judged on questions it was not chosen on."""
    lab, trait = build_moods(out / "moods"), "mood/cheerful"
    extract(Experiment(lab.folder, EXPERIMENT), trait)
    made = residuum.steer(
        EXPERIMENT, f"{EXPERIMENT}/{trait}", root=lab.folder, runs=out / "runs", judge="hf",
        judge_options=JudgeOptions(model=str(lab.judge())),
        config=EvaluateConfig(holdout=0.5, generation=Generation(max_new_tokens=24)),
    )  # fmt: skip
    parts = {"baseline": made["baseline"], "steered": made["best"], "random vectors": made["controls"]}
    return [
        {"answers": name, "trait": row["trait_mean"], "coherence": row["coherence_mean"]} for name, row in parts.items()
    ]


def probe(world: World, models: dict[str, Path], runs: Path) -> list[dict[str, Any]]:
    """One probe on every unlearned model: does taking out what unlearning put in bring answers back?"""
    rows = []
    for name, path in models.items():
        made = run_probe(
            "junk_ablation", full=world.model("full"), unlearned=path, retain=world.model("retain90"), data=world.data,
            runs=runs, config=ProbeConfig(layers="50%-100%", max_new_tokens=20, controls=10),
        )  # fmt: skip
        known = {key: made["accuracy"][key] for key in ("unlearned", "steered", "retain_model")}
        rows.append(
            {"model": name, **known, "recovery": made["recovery"], "finding": made["finding"].partition(":")[0]}
        )
    return rows


def trust(world: World, models: dict[str, Path], runs: Path) -> list[dict[str, Any]]:
    """Which metric to trust: four models that know against four that do not, and the unlearned ones attacked."""
    bench, metrics = world_bench(world, runs=runs), "uds,em,es,prob,truth_ratio,rouge,mia_loss"
    pools = world_faithfulness(world, bench, size=4, metrics=metrics)
    pools.save(runs / "faithfulness")
    attacked, logs = run_robustness(
        bench,
        [str(path) for path in models.values()],
        metrics=metrics,
        thresholds=pools.thresholds,
        fluency=False,
        workers=2,
    )
    attacked.save(runs / "meta_eval", logs)
    table = Table(pools, attacked)
    table.save(runs / "meta_eval")
    return [{key: row[key] for key in ("metric", "auc", "Q", "R", "overall", "usable")} for row in table.rows()]


def retrain(world: World, models: dict[str, Path], out: Path) -> list[dict[str, Any]]:
    """RTT of two models: train on some of the forgotten authors and ask for the others."""
    result = residuum.run_rtt(
        dataset=str(world.data), model=world.model("full"), naive_model=world.model("retain90"),
        unlearned=(models["npo"], models["rmu"]), results_dir=out / "evals" / "pipeline", runs=out / "runs",
        ft={"lrs": (3e-5, 1e-4), "epochs_lst": (1, 2, 3), "warmup_steps": 4},
    )  # fmt: skip
    named = {"A": "unlearned", "B": "b", "C": "c", "N": "n"}
    rows = []
    for finding in result.findings:
        values = {letter: getattr(finding.summary, name) for letter, name in named.items()}
        accuracies = {letter: value if letter == "A" else value.accuracy for letter, value in values.items()}
        rows.append({"model": finding.start.label, **accuracies, "gap_closed": finding.summary.gap_closed})
    return rows


def main() -> None:
    """Build, unlearn, audit, and print what came out."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--out", type=Path, default=Path("demo"))
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    started = time.monotonic()
    torch.set_num_threads(1)
    warnings.showwarning = show_warning

    world = residuum.build_world(chosen.out / "world", seed=chosen.seed)
    print_table("What the models know (em: answer tokens predicted; prob: of the whole answer)", knowledge_table(world))

    models = unlearn_world(world)
    results = audit(world, models, chosen.out / "runs")
    measured = measure(world, models, chosen.out / "runs")
    known = {row["model"]: row for row in unlearned_table(world, models)}
    rows = [{**known[name], **axes(evaluation)} for name, evaluation in measured.items()]
    print_table("What is left (UDS: 1 = erased like retain, 0 = intact; axes: 1 is best)", rows)

    profile = [
        {"layer": row["layer"], "ft_share": row["ft_share"], "S1_delta": row["s1_delta"], "low": row["s1_low"], "high": row["s1_high"]}
        for row in depth_profile(results[0].examples)
    ]  # fmt: skip
    print_table("Where the knowledge sits (retain into full, mean loss of log-probability)", profile)
    print_table(
        "Does a direction bring it back? (share of the answers' own words; junk_ablation)",
        probe(world, models, chosen.out / "runs"),
    )
    print_table("Does a direction control behaviour? (a toy subject and judge, scores 0 to 100)", steer(chosen.out))
    print_table("Does training on related facts bring it back? (RTT, accuracy)", retrain(world, models, chosen.out))
    print_table(
        "Which metric can be trusted? (four models a pool: wide intervals)", trust(world, models, chosen.out / "runs")
    )
    print(f"Run folders with pictures: {chosen.out / 'runs'}. It took {time.monotonic() - started:.0f} s.")
    print(f"Report: {residuum.build_report(chosen.out, out=chosen.out / 'report.html')}")


if __name__ == "__main__":
    main()
