"""What ``residuum meta`` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from residuum.cli.app import print_table

if TYPE_CHECKING:
    from residuum.meta.attacked import Attacked
    from residuum.meta.pools import Pools
    from residuum.meta.table import Table


def show_pools(pools: Pools, folder: Path, as_json: bool) -> None:
    """Print AUCs, comparisons and what was left out."""
    if as_json:
        typer.echo(json.dumps(pools.summary(), indent=1))
        return
    ranked = sorted(pools.metrics.values(), key=lambda found: -found.auc)
    rows = [
        {
            "metric": found.metric, "AUC": found.auc, "95_%_interval": _ends(found.ci95), "P": f"{found.p_mean:.3f} ± {found.p_std:.3f}",
            "N": f"{found.n_mean:.3f} ± {found.n_std:.3f}", "threshold": found.threshold, "accuracy": found.accuracy,
            "models": f"{found.n_p} + {found.n_n}",
            "note": "constant: says nothing" if found.constant else f"undefined for {', '.join(found.undefined)}" if found.undefined else "",
        }
        for found in ranked
    ]  # fmt: skip
    print_table("Faithfulness: does a metric tell models that know (P) from models that do not (N)?", rows)
    if pools.comparisons:
        shown = [
            {"compared": f"{pair['first']} - {pair['second']}", "AUC_difference": pair["difference"], "95_%_interval": _ends(pair["ci95"]), "first_better": pair["first_better"]}
            for pair in pools.comparisons
        ]  # fmt: skip
        print_table("Pair by pair, on the same resampled models", shown)
    for name, reason in pools.left_out.items():
        typer.echo(f"{name} is left out: {reason}")
    if not (folder / "histograms").is_dir():
        typer.echo("no histograms: matplotlib is not installed (pip install residuum[report])")
    typer.echo(f"written to {folder}")


def show_attacked(attacked: Attacked, folder: Path, as_json: bool) -> None:
    """Print Q, R and the counts behind them."""
    if as_json:
        typer.echo(json.dumps(attacked.summary(), indent=1))
        return
    rows = [
        {
            "metric": name, "Q": found.quantization, "Q_95_%": _ends(found.quantization_ci95), "R": found.relearning,
            "R_95_%": _ends(found.relearning_ci95), "HM": found.robustness, "HM_95_%": _ends(found.robustness_ci95), **attacked.counts[name],
        }
        for name, found in attacked.metrics.items()
    ]  # fmt: skip
    print_table(f"Robustness, {attacked.rules.form}: does a metric keep its verdict under attack?", rows)
    _say_attacked(attacked)
    typer.echo(f"written to {folder}")


def show_table(table: Table, folder: Path, as_json: bool) -> None:
    """Print Table 2."""
    rows = table.rows()
    if as_json:
        typer.echo(json.dumps({"rows": rows, **table.about()}, indent=1))
        return
    shown = [
        {
            "metric": row["metric"],
            **{key: part for name in ("auc", "Q", "R", "HM", "overall") for key, part in ((name, row[name]), (f"{name}_95_%", _ends(row[f"{name}_ci95"])))},
            "usable": row["usable"], "note": "; ".join(row["notes"]),
        }
        for row in rows
    ]  # fmt: skip
    print_table("Which metric can be trusted? (intervals over models)", shown)
    _say_attacked(table.attacked)
    typer.echo(f"written to {folder / 'table2.html'}")


def _say_attacked(attacked: Attacked) -> None:
    about = attacked.summary()
    if about["utility"]["pass"] is not None:
        typer.echo("utility of at least {floor} of the full model's: {pass} of {of}".format(**about["utility"]))
    for model in attacked.models:
        if weights := model.get("quantized_weights"):
            plain, small = weights["bytes_plain"] / 2**20, weights["bytes_nf4"] / 2**20
            layers = ", ".join(f"{count} {kind}" for kind, count in weights["linear_layers"].items())
            typer.echo(f"NF4 weights, for instance {model['model']}: {plain:.2f} MB to {small:.2f} MB; {layers}")
            break
    for note in attacked.notes:
        typer.echo(note)


def _ends(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.3f} to {ends[1]:.3f}"
