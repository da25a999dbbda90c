"""One page about a trait: heat maps of layer and coefficient, trait against coherence, texts before and after.

The page stands alone: pictures are SVG inside it, and everything that a model or a user wrote is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from residuum.errors import DataError
from residuum.steering.results import Results
from residuum.steering.search import SearchConfig, Step, best_step
from residuum.steering.settings import context_id
from residuum.store import Unit, write_text

CELL = 46
"""Pixels of a heat map's cell."""
SHOWN = 10
"""Answers shown before and after."""
_LOW, _MIDDLE, _HIGH = (178, 60, 72), (244, 241, 232), (40, 110, 142)
Run = Mapping[str, Any]


def write_report(results: Results, out: Path | None = None) -> Path:
    """Write the page of a trait.

    Args:
        results: the trait.
        out: target; ``report.html`` beside results.json when left out.

    Raises:
        DataError: there are no results.
    """
    view = results.read()
    if view is None:
        raise DataError(
            "there are no results of this trait", path=results.path, hint="Make some: residuum steer evaluate."
        )
    page = _template().render(
        trait=results.trait, experiment=results.experiment.name, prompts=view.get("prompts_file"),
        sections=_sections(view, results.units()), cross=view.get("cross", []),
    )  # fmt: skip
    return write_text(out or results.path.with_name("report.html"), page)


def _sections(view: Mapping[str, Any], units: Sequence[Unit]) -> list[dict[str, Any]]:
    """Runs that can be compared: one context, one kind of vector; the latest first."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in view["runs"]:
        groups.setdefault((run.get("context_id") or "", _kind(run)), []).append(run)
    by_id = {unit.task.key[:16]: unit for unit in units}
    baselines = {context_id(u.task.spec["context"]): u for u in units if u.task.spec["run"] is None}
    sections = []
    for (context, kind), runs in groups.items():
        scored = [run for run in runs if _scores(run) is not None]
        best = _best(scored)
        baseline = view.get("baselines", {}).get(context) or (view.get("baseline") if not context else None)
        sections.append({
            "context": context, "kind": kind, "runs": runs, "baseline": baseline, "best": best,
            "judge": runs[0].get("judge"), "model": runs[0].get("model"), "split": runs[0].get("split"),
            "trait_map": _heat_map(scored, "trait_mean"), "coherence_map": _heat_map(scored, "coherence_mean"),
            "scatter": _scatter(scored, baseline), "controls": _controls(view, best),
            "texts": _texts(baselines.get(context), by_id.get((best or {}).get("run_id", ""))),
            "latest": max(str(run.get("timestamp") or "") for run in runs),
        })  # fmt: skip
    return sorted(sections, key=lambda section: str(section["latest"]), reverse=True)


def _kind(run: Run) -> str:
    config = run["config"]
    parts = [
        "/".join(dict.fromkeys(config["methods"])),
        config.get("component", "residual"),
        config.get("operator", "add"),
    ]
    parts += [f"positions {config['positions']}"] if config.get("positions", "all") != "all" else []
    parts += ["incremental"] if config.get("incremental") else []
    parts += ["several layers at once"] if len(config["layers"]) > 1 else []
    return ", ".join(parts)


def _scores(run: Run) -> tuple[float, float] | None:
    trait, coherence = run["result"].get("trait_mean"), run["result"].get("coherence_mean")
    return None if trait is None or coherence is None else (trait, coherence)


def _best(runs: Sequence[Run]) -> dict[str, Any] | None:
    steps = [Step(0.0, *scores) for run in runs if (scores := _scores(run)) is not None]
    if not steps:
        return None
    negative = all(min(run["config"]["coefficients"], default=0.0) < 0 for run in runs)
    index, met = best_step(steps, SearchConfig(direction="negative" if negative else "positive"))
    return {**runs[index], "threshold_met": met}


def _controls(view: Mapping[str, Any], best: Mapping[str, Any] | None) -> list[Run]:
    return [] if best is None else [c for c in view.get("controls", []) if c.get("control_of") == best.get("run_id")]


def _texts(baseline: Unit | None, run: Unit | None) -> list[dict[str, Any]]:
    """The first answers of the baseline beside those of a run."""
    if baseline is None or run is None:
        return []
    before = {(item["question_id"], item["rollout"]): item for item in baseline.value["items"]}
    pairs = [(before.get((item["question_id"], item["rollout"])), item) for item in run.value["items"]]
    return [{"question": item["question"], "before": old, "after": item} for old, item in pairs if old][:SHOWN]


def _heat_map(runs: Sequence[Run], field: str) -> dict[str, Any]:
    """Cells of a grid: layers down, coefficients (as multiples of the activation's length, if known) across."""
    layers = sorted({tuple(run["config"]["layers"]) for run in runs})
    columns = sorted({_strength(run) for run in runs})
    cells = []
    for run in runs:
        value = float(run["result"][field])
        cells.append({
            "x": columns.index(_strength(run)) * CELL, "y": layers.index(tuple(run["config"]["layers"])) * CELL,
            "value": f"{value:.0f}", "fill": _color(value), "dark": abs(value - 50) > 32,
            "title": f"L{'_'.join(map(str, run['config']['layers']))}, coefficient {', '.join(f'{c:g}' for c in run['config']['coefficients'])}: {value:.1f}",
        })  # fmt: skip
    relative = all(_relative(run) is not None for run in runs)
    return {
        "cells": cells, "size": CELL, "width": CELL * len(columns), "height": CELL * len(layers),
        "rows": [(i * CELL, ", ".join(map(str, layer))) for i, layer in enumerate(layers)],
        "columns": [(i * CELL, f"{c:.3g}" + ("×" if relative else "")) for i, c in enumerate(columns)],
        "axis": "coefficient × |vector| / |activation|" if relative else "coefficient",
    }  # fmt: skip


def _strength(run: Run) -> float:
    relative = _relative(run)
    coefficients = run["config"]["coefficients"]
    return round(relative if relative is not None else sum(coefficients) / max(1, len(coefficients)), 2)


def _relative(run: Run) -> float | None:
    known = run.get("relative_coefficient")
    if not isinstance(known, list) or not known or any(value is None for value in known):
        return None
    return float(sum(known))


def _color(value: float) -> str:
    """Red at 0, pale at 50, blue at 100."""
    share = min(1.0, max(0.0, value / 100))
    start, end, way = (_LOW, _MIDDLE, share * 2) if share < 0.5 else (_MIDDLE, _HIGH, share * 2 - 1)
    mixed = (round(a + (b - a) * way) for a, b in zip(start, end, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _scatter(runs: Sequence[Run], baseline: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Points of trait against coherence, in a square of 300 pixels."""
    points = []
    for run in runs:
        trait, coherence = _scores(run) or (0.0, 0.0)
        label = f"L{'_'.join(map(str, run['config']['layers']))} c{', '.join(f'{c:g}' for c in run['config']['coefficients'])}"
        points.append({
            "x": 3 * coherence, "y": 300 - 3 * trait, "kind": "run", "title": f"{label}: {trait:.1f}, {coherence:.1f}",
        })  # fmt: skip
    if baseline and baseline.get("trait_mean") is not None and baseline.get("coherence_mean") is not None:
        points.append({
            "x": 3 * baseline["coherence_mean"], "y": 300 - 3 * baseline["trait_mean"], "kind": "baseline",
            "title": f"baseline: {baseline['trait_mean']:.1f}, {baseline['coherence_mean']:.1f}",
        })  # fmt: skip
    return points


def _template() -> Any:
    from jinja2 import Environment

    return Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(_PAGE)


_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ trait }} in {{ experiment }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; border-top: 1px solid #ccc; padding-top: 1rem; }
h3 { font-size: 1rem; } .note { color: #666; } svg { overflow: visible; font-size: 12px; }
.pictures { display: flex; flex-wrap: wrap; gap: 3.5rem; } figure { margin: 0 0 1rem; overflow-x: auto; max-width: 100%; } figcaption { margin-bottom: .5rem; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-bottom: 1px solid #ddd; }
td.number { text-align: right; white-space: nowrap; } td.text { width: 38%; white-space: pre-wrap; overflow-wrap: anywhere; }
</style></head><body>
<h1>{{ trait }}, steered in {{ experiment }}</h1>
<p class="note">Questions: {{ prompts or "unknown" }}. Scores run from 0 to 100. A trait score means little where coherence is below 50.</p>
{% macro heat(map, title) %}
<figure><figcaption>{{ title }}</figcaption>
<svg width="{{ map.width + 60 }}" height="{{ map.height + 60 }}" role="img" aria-label="{{ title }} by layer and coefficient"><g transform="translate(50,5)">
{% for cell in map.cells %}<g><title>{{ cell.title }}</title><rect x="{{ cell.x }}" y="{{ cell.y }}" width="{{ map.size - 2 }}" height="{{ map.size - 2 }}" fill="{{ cell.fill }}"/><text x="{{ cell.x + map.size / 2 - 1 }}" y="{{ cell.y + map.size / 2 + 4 }}" text-anchor="middle" fill="{{ '#fff' if cell.dark else '#222' }}">{{ cell.value }}</text></g>
{% endfor %}
{% for y, name in map.rows %}<text x="-8" y="{{ y + map.size / 2 + 4 }}" text-anchor="end">{{ name }}</text>
{% endfor %}
{% for x, name in map.columns %}<text x="{{ x + map.size / 2 }}" y="{{ map.height + 16 }}" text-anchor="middle">{{ name }}</text>
{% endfor %}
<text x="0" y="{{ map.height + 40 }}" fill="#666">layer down; {{ map.axis }} across</text></g></svg></figure>
{% endmacro %}
{% for s in sections %}
<h2>{{ s.kind }}{% if s.split %} ({{ s.split }} questions){% endif %}</h2>
<p class="note">model {{ s.model or "unknown" }}, judge {% if s.judge %}{{ s.judge.provider }} {{ s.judge.model }} ({{ s.judge.scoring }}){% else %}unknown{% endif %}, {{ s.runs | length }} runs{% if s.context %}, context {{ s.context }}{% endif %}</p>
<p>{% if s.baseline %}Baseline: trait {{ "%.1f" | format(s.baseline.trait_mean or 0) }}, coherence {{ "%.1f" | format(s.baseline.coherence_mean or 0) }}, n {{ s.baseline.n }}. {% else %}No baseline. {% endif %}
{% if s.best %}Best: layers {{ s.best.config.layers | join(", ") }}, coefficients {{ s.best.config.coefficients | join(", ") }}: trait {{ "%.1f" | format(s.best.result.trait_mean) }}{% if s.best.result.ci95 %} (95 % {{ "%.1f" | format(s.best.result.ci95[0]) }} to {{ "%.1f" | format(s.best.result.ci95[1]) }}){% endif %}, coherence {{ "%.1f" | format(s.best.result.coherence_mean) }}{% if not s.best.threshold_met %}; <strong>no run keeps a coherence of 70</strong>{% endif %}.{% endif %}
{% if s.controls %}Random vectors of equal length: trait {% for c in s.controls %}{{ "%.1f" | format(c.result.trait_mean or 0) }}{{ ", " if not loop.last }}{% endfor %}.{% endif %}</p>
<div class="pictures">
{{ heat(s.trait_map, "Trait") }}
{{ heat(s.coherence_map, "Coherence") }}
<figure><figcaption>Trait against coherence</figcaption>
<svg width="360" height="350" role="img" aria-label="Trait against coherence"><g transform="translate(40,5)">
<rect width="300" height="300" fill="none" stroke="#bbb"/><line x1="210" x2="210" y1="0" y2="300" stroke="#bbb" stroke-dasharray="4"/>
{% for p in s.scatter %}<circle cx="{{ p.x }}" cy="{{ p.y }}" r="{{ 6 if p.kind == 'baseline' else 4 }}" fill="{{ '#222' if p.kind == 'baseline' else '#286e8e' }}" fill-opacity=".7"><title>{{ p.title }}</title></circle>
{% endfor %}
<text x="0" y="318">0</text><text x="210" y="318" text-anchor="middle">70</text><text x="300" y="318" text-anchor="end">100</text><text x="0" y="340" fill="#666">coherence across, trait up; black is the baseline</text></g></svg></figure>
</div>
{% if s.texts %}
<h3>Answers before and after</h3>
<table><tr><th>question</th><th>before</th><th>after</th></tr>
{% for t in s.texts %}<tr><td>{{ t.question }}</td><td class="text">{{ t.before.response }}
<span class="note">trait {{ "%.0f" | format(t.before.trait.score) if t.before.trait.score is not none else "-" }}, coherence {{ "%.0f" | format(t.before.coherence.score) if t.before.coherence.score is not none else "-" }}</span></td><td class="text">{{ t.after.response }}
<span class="note">trait {{ "%.0f" | format(t.after.trait.score) if t.after.trait.score is not none else "-" }}, coherence {{ "%.0f" | format(t.after.coherence.score) if t.after.coherence.score is not none else "-" }}</span></td></tr>
{% endfor %}</table>
{% endif %}
{% endfor %}
{% if cross %}
<h2>The same answers, judged on other traits</h2>
<table><tr><th>run</th><th>judged on</th><th>before</th><th>after</th><th>difference</th></tr>
{% for row in cross %}<tr><td>{{ row.run_id }}</td><td>{{ row.judged_trait }}</td><td class="number">{{ row.baseline.trait_mean }}</td><td class="number">{{ row.result.trait_mean }}</td><td class="number">{{ row.delta }}</td></tr>
{% endfor %}</table>
{% endif %}
</body></html>
"""
