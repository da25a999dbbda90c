"""What ``residuum steer`` prints for people: a line per run, and what came out in the end."""

from __future__ import annotations

from typing import Any

import typer

from residuum.cli.app import print_table


def show_step(step: dict[str, Any]) -> None:
    """One line per finished run, on stderr."""
    parts = [f"{step['label']:>10}"]
    if step.get("step"):
        parts.append(f"step {step['step']}")
    if step.get("coefficients"):
        relative = [r for r in step.get("relative") or [] if r is not None]
        parts.append(
            f"c {','.join(f'{c:.4g}' for c in step['coefficients'])} ({','.join(f'{r:.2f}' for r in relative)}x)"
        )
    if step["status"] == "ok":
        parts.append(f"trait {step['trait_mean']:.1f}  coherence {step['coherence_mean']:.1f}")
    else:
        parts.append(step["status"])
    if "coherent" in step:
        parts.append("up" if step["coherent"] else "down")
    typer.echo("  ".join(parts) + (" *" if step.get("starred") else ""), err=True)


def show_result(result: dict[str, Any]) -> None:
    """Layers, baseline, the best run and what it is held against."""
    rows = []
    for layer in result["layers"]:
        if layer["best"] is None:
            continue
        step = layer["steps"][layer["best"]]
        row = {"layer": layer["label"], **_numbers_of(step), "coherent": "yes" if layer["threshold_met"] else "no"}
        if "reported" in layer:
            row["held-out trait"] = layer["reported"]["trait_mean"]
        rows.append(row)
    print_table(f"{result['trait']} steered in {result['experiment']}", rows)
    baseline, best, controls = result["baseline"], result["best"], result["controls"]
    typer.echo(
        f"baseline     trait {baseline['trait_mean']:.1f}, coherence {baseline.get('coherence_mean', 0):.1f}, n {baseline['n']}"
    )
    if best is not None:
        low, high = best["delta_ci95"] or (None, None)
        interval = "" if low is None else f" (95 % {low:+.1f} to {high:+.1f})"
        where = f"layers {', '.join(map(str, best['layers']))}, coefficients {', '.join(f'{c:.4g}' for c in best['coefficients'])}"
        typer.echo(
            f"best         {where}: trait {_score(best['trait_mean'])}, coherence {_score(best.get('coherence_mean'))}"
        )
        told = "held-out questions" if best["held_out"] else "the questions it was chosen on"
        if best["delta"] is None:
            typer.echo(f"effect       unknown: the judge rated too few answers to {told}")
        else:
            typer.echo(
                f"effect       {best['delta']:+.1f}{interval} on {told}; {best['anti_steered']:.0%} of them moved down"
            )
    if controls and controls["n"]:
        typer.echo(
            f"random       trait {controls['trait_mean']:.1f} over {controls['n']} vectors; beyond random {_score(best['beyond_random'], '+.1f')}"
        )
    if result["best_classification_layer"] is not None:
        typer.echo(
            f"classifying  layer {result['best_classification_layer']} tells the sides apart best; that need not be the one that steers best"
        )
    for row in result["cross"]:
        typer.echo(
            f"also         {row['judged_trait']}: {_score(row['baseline'])} to {_score(row['trait_mean'])} ({_score(row['delta'], '+.1f')})"
        )
    for note in result["notes"]:
        typer.echo(f"note         {note}")
    typer.echo(f"{result['runs']} runs in {result['results']}")


def _score(value: float | None, form: str = ".1f") -> str:
    """A score, or that there is none: a judge may fail on anything."""
    return "none" if value is None else format(value, form)


def _numbers_of(step: dict[str, Any]) -> dict[str, Any]:
    relative = [r for r in step["relative"] or [] if r is not None]
    return {
        "coefficient": ", ".join(f"{c:.4g}" for c in step["coefficients"]),
        "relative": ", ".join(f"{r:.2f}" for r in relative),
        "trait": step["trait_mean"],
        "coherence": step.get("coherence_mean"),
        "n": step["n"],
    }


def show_list(title: str, lines: list[str], most: int = 10) -> None:
    """A few lines, and how many more there are."""
    if not lines:
        return
    typer.echo(f"{title}: {len(lines)}")
    for line in lines[:most]:
        typer.echo(f"  {line}")
    if len(lines) > most:
        typer.echo(f"  and {len(lines) - most} more")
