"""Meta-evaluation: which metric can be trusted; from the folders of ``residuum meta``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from residuum.report.blocks import Block, Chart, Choice, Column, Prose, Section, Table, Value, rounded, shown
from residuum.report.findings import Findings
from residuum.report.shapes import ENDS, MAYBE, ORIGIN, Shape

NUMBERS = ("auc", "Q", "R", "HM", "overall")
_TIPS = {
    "auc": "faithfulness: tells models that know from models that do not", "Q": "robustness to quantization",
    "R": "robustness to relearning", "HM": "harmonic mean of Q and R", "overall": "harmonic mean of AUC and HM",
}  # fmt: skip
BINS = 20
_ABOUT = {"provenance?": ORIGIN, "settings?": dict}
_POOLS = {**_ABOUT, "metrics": {str: {
    "higher_means": str, "threshold": MAYBE, "auc": MAYBE, "ci95": ENDS, "n_p": int, "n_n": int,
}}}  # fmt: skip
_MEMBERS = [{"pool": str, "metrics": {str: MAYBE}}]
_ATTACKS = {**_ABOUT, "metrics": {str: {"higher_means": str}}, "notes?": list}
_ATTACKED = [{"model": str, "role": str, "before": {str: MAYBE}, "after": {str: (type(None), {str: MAYBE})}}]
_ROW = {
    "metric": str,
    "notes?": [str],
    **{f"{name}?": MAYBE for name in NUMBERS},
    **{f"{name}_ci95?": ENDS for name in NUMBERS},
}


def section(findings: Findings) -> Section | None:
    """Table 2, histograms of both pools, values before and after the attacks."""
    found = findings.cached(read_meta)
    rows, pools, attacked = found["rows"], found["pools"], found["attacked"]
    if not rows and not pools and not attacked:
        return None
    blocks: list[Block] = []
    if rows:
        columns = [Column("metric", "metric"), *(Column(name, name.upper() if name == "auc" else name, good="high", tip=_TIPS[name]) for name in NUMBERS),
                   Column("pools", "P / N"), Column("usable", "models used"), Column("notes", "notes")]  # fmt: skip
        blocks.append(Table("table2", columns, rows, "How far each metric can be trusted; 95 % intervals over models"))
    for name, label, draw in (("pools", "pools by", pool_histogram), ("attacked", "before and after by", robustness)):
        options = {
            metric: [Prose("The numbers of this chart:", found["sources"][name, metric]), draw(found, metric)]
            for metric in found[name]
        }
        blocks += [Choice("robustness" if name == "attacked" else name, label, options)] if options else []
    blocks += [Prose(note) for note in found["notes"]]
    lead = (
        "A metric is faithful when it separates models that know the forget set (P) from those that do not (N), and robust when "
        "its verdict survives quantization and relearning."
    )
    return Section("meta", "Meta-evaluation", lead, blocks)


def read_meta(findings: Findings) -> dict[str, Any]:
    """Rows of Table 2, and values by metric: of the pools, and before and after attacks."""
    shelf = findings.shelf
    found: dict[str, Any] = {
        "rows": [],
        "pools": {},
        "attacked": {},
        "notes": [],
        "directions": {},
        "thresholds": {},
        "sources": {},
    }
    for path, summary, models in _read(findings, "faithfulness", "pools", _POOLS, _MEMBERS):
        _read_pools(found, summary, models, _cite(findings, path, "meta faithfulness", summary))
    for path, summary, models in _read(findings, "meta_eval", "attacks", _ATTACKS, _ATTACKED):
        source = _cite(findings, path, "meta robustness", summary)
        _read_attacked(found, summary, models, source)
        table = path.with_name("table2.json")
        rows = (shelf.json(table, {"rows": [_ROW]}) or {}).get("rows", []) if table.is_file() else []
        found["rows"] += [_row(row, source) for row in rows]
    if not found["rows"]:
        found["rows"] = found.pop("alone", [])
    return found


def _read(
    findings: Findings, folder: str, key: str, shape: Shape, models: Shape
) -> Iterator[tuple[Path, Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Summary and models of every folder of one kind, known by its name or, when it was given itself, by a key."""
    shelf = findings.shelf
    for path in shelf.glob(f"{folder}/summary.json", f"*/{folder}/summary.json", "summary.json"):
        summary = shelf.json(path, dict)
        if summary is None or (path.parent.name != folder and key not in summary):
            continue
        whole, rows = shelf.json(path, shape), shelf.json(path.with_name("results.json"), models)
        if whole is not None and rows is not None:
            yield path, whole, rows


def _read_pools(
    found: dict[str, Any], summary: Mapping[str, Any], models: list[Mapping[str, Any]], source: str
) -> None:
    for metric, record in summary["metrics"].items():
        found["directions"][metric], found["thresholds"][metric] = record["higher_means"], record["threshold"]
        found["pools"][metric] = {
            pool: [m["metrics"][metric] for m in models if m["pool"] == pool and not m.get("failed") and m["metrics"].get(metric) is not None]
            for pool in ("P", "N")
        }  # fmt: skip
        found[f"auc:{metric}"], found["sources"]["pools", metric] = record["auc"], source
        row = {
            "metric": metric,
            "auc": record["auc"],
            "auc_ci95": record["ci95"],
            "n_p": record["n_p"],
            "n_n": record["n_n"],
        }
        found.setdefault("alone", []).append(_row(row, source))


def _read_attacked(
    found: dict[str, Any], summary: Mapping[str, Any], models: list[Mapping[str, Any]], source: str
) -> None:
    for metric, record in summary["metrics"].items():
        found["directions"].setdefault(metric, record["higher_means"])
        groups: dict[str, list[Any]] = {}
        for model in models:
            for attack, values in model["after"].items():
                before, after = model["before"].get(metric), (values or {}).get(metric)
                if before is not None and after is not None:
                    label = f"retain, {attack}" if model["role"] == "retain" else attack
                    groups.setdefault(label, []).append((before, after, model["model"]))
        if groups:
            found["attacked"][metric], found["sources"]["attacked", metric] = groups, source
    found["notes"] += [str(note) for note in summary.get("notes") or []]


def _cite(findings: Findings, path: Path, kind: str, summary: Mapping[str, Any]) -> str:
    return findings.shelf.cite(
        kind, "all metrics", findings.shelf.place(path.parent), provenance=summary.get("provenance") or {"seed": summary.get("seed")},
        settings=summary.get("settings") or {},
    )  # fmt: skip


def _row(row: Mapping[str, Any], source: str | None) -> dict[str, Any]:
    numbers = {}
    for name in NUMBERS:
        low, high = row.get(f"{name}_ci95") or (None, None)
        numbers[name] = Value(row.get(name), low, high, source)
    return {
        "metric": row["metric"], "links": [("run", source)] if source else [], **numbers,
        "pools": f"{row.get('n_p', 0)} / {row.get('n_n', 0)}", "usable": row.get("usable"), "notes": "; ".join(row.get("notes") or []),
    }  # fmt: skip


def pool_histogram(found: Mapping[str, Any], metric: str) -> Chart:
    """Values of both pools, in knowledge direction, with the threshold."""
    turned = found["directions"][metric] == "less knowledge"
    values = {pool: [1.0 - v if turned else v for v in found["pools"][metric][pool]] for pool in ("N", "P")}
    both = [v for own in values.values() for v in own]
    # Values that are equal up to rounding have no range to cut into bins.
    spread, middle = (np.ptp(both), float(np.mean(both))) if both else (0.0, 0.5)
    edges = (
        np.histogram_bin_edges(both, bins=BINS) if spread > 1e-9 else np.linspace(middle - 0.5, middle + 0.5, BINS + 1)
    )
    names = {"N": f"N: does not know ({len(values['N'])})", "P": f"P: knows ({len(values['P'])})"}
    series = [
        {"name": names[pool], "colour": colour, "counts": [int(n) for n in np.histogram(values[pool], edges)[0]]}
        for pool, colour in (("N", 0), ("P", 1))
    ]
    threshold = found["thresholds"].get(metric)
    marks = [{"x": rounded(threshold), "label": "threshold"}] if threshold is not None else []
    return Chart("pools", "histogram", f"{metric}: AUC {shown(found[f'auc:{metric}'])}", {
        "edges": [rounded(float(edge), 6) for edge in edges], "x": {"label": f"{'1 - ' if turned else ''}{metric}"},
        "y": {"label": "models"}, "series": series, "marks": marks,
    })  # fmt: skip


def robustness(found: Mapping[str, Any], metric: str) -> Chart:
    """A metric before against after each attack; on the diagonal nothing changed."""
    turned = found["directions"].get(metric) == "less knowledge"
    series = []
    for colour, (label, triples) in enumerate(found["attacked"][metric].items()):
        points = [
            [*(rounded(1.0 - v if turned else v) for v in (before, after)), model, None, None, None, None]
            for before, after, model in triples
        ]
        series.append({"name": label, "colour": colour, "points": points})
    name = f"{'1 - ' if turned else ''}{metric}"
    return Chart("robustness", "scatter", f"{metric} before and after the attacks", {
        "x": {"label": f"{name} before"}, "y": {"label": f"{name} after"}, "series": series, "front": [], "diagonal": True,
    })  # fmt: skip
