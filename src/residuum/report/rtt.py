"""RTT: what comes back when someone retrains on related facts; from the summary files of ``residuum rtt`` and its units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from residuum.errors import DataError
from residuum.models.names import ALIASES
from residuum.report.blocks import (
    Block,
    Chart,
    Choice,
    Column,
    Prose,
    Section,
    Table,
    Value,
    rounded,
    shown,
    with_interval,
)
from residuum.report.findings import Findings
from residuum.report.model import Model
from residuum.report.rules import RECOVERY, Comeback
from residuum.report.shapes import MAYBE, NUMBER, misfit
from residuum.store.units import Unit

CONDITIONS = {
    "base": ("base", "forget_acc_baseline"), "A": ("A: unlearned", "forget_acc_unlearn"), "B": ("B: unlearned, retrained", "forget_acc_unlearn_rtt"),
    "C": ("C: base, retrained", "forget_acc_baseline_rtt"), "N": ("N: never knew, retrained", "forget_acc_naive_rtt"),
}  # fmt: skip
_LETTERS = {"B": 1, "C": 0, "N": 2}
"""Retrained conditions, with their colours."""
_RATES = {
    "recovery_rate": "B / C", "gap_closed": "gap closed", "recovery_above_chance": "above chance", "recovery_above_naive": "above N",
    "recovery_rate_nested": "B / C, nested choice",
}  # fmt: skip
_BEST = {str: {"acc": MAYBE, "loss_type": str, "lr": NUMBER, "epochs": int, "num_runs": int}}
_SUMMARY = {
    "model_path": str, "rtt_signature": str | None, "forget_acc_unlearn": MAYBE, "ci_low?": {str: MAYBE}, "ci_high?": {str: MAYBE},
    **{f"{name}?": NUMBER for name in ("chance", *_RATES, *(column for _, column in CONDITIONS.values()))},
    **{f"best_per_v_{letter}?": _BEST for letter in "bcn"}, "warnings?": list, "curve?": [[str, int, MAYBE, MAYBE, MAYBE]],
    "weights?": str,
}  # fmt: skip
FOLDERS = ("summary", "pipeline/summary", "evals/pipeline/summary", "*/evals/pipeline/summary")


@dataclass(frozen=True)
class Recovery:
    """One unlearned model in one sweep."""

    label: str
    row: Mapping[str, Any] = field(repr=False)
    source: str

    def value(self, field_name: str) -> Value:
        """A number of the summary with its interval."""
        low, high = ((self.row.get(end) or {}).get(field_name) for end in ("ci_low", "ci_high"))
        return Value(self.row.get(field_name), low, high, self.source)


def read_recoveries(findings: Findings) -> list[Recovery]:
    """The latest summary of every unlearned model of every sweep."""
    shelf, found = findings.shelf, {}
    for folder in shelf.glob(*FOLDERS):
        if not folder.is_dir() or not (folder.parent / "ft").is_dir():
            continue
        rows = [row for path in sorted(folder.glob("*.csv")) for row in _rows(findings, path)]
        for signature, path in dict.fromkeys((row["rtt_signature"], row["model_path"]) for row in rows):
            row = next(r for r in reversed(rows) if (r["rtt_signature"], r["model_path"]) == (signature, path))
            label = _label(row)
            if row.get("status") != "complete":
                shelf.partial(
                    label,
                    f"RTT is {str(row.get('status')).replace('_', ' ')}: {row.get('num_runs_b')} runs of B, {row.get('num_runs_c')} of C",
                )
            found[signature, path] = Recovery(label, row, _cite(findings, folder, row))
    return list(found.values())


def _rows(findings: Findings, path: Path) -> list[dict[str, Any]]:
    """The rows of one summary file; none, and a problem, when it is not one."""
    from residuum.rtt.artefacts import read_file

    try:
        rows = read_file(path)
    except DataError as error:
        findings.shelf.broken(path, str(error).replace(f"{path}:", "").strip())
        return []
    if bad := misfit(rows, [_SUMMARY], "row"):
        findings.shelf.broken(path, f"is not a summary of RTT: {bad}")
        return []
    return rows


def _cite(findings: Findings, folder: Path, row: Mapping[str, Any]) -> str:
    """File the sweep behind a row; the latest training of its model knows seed, data, versions and command."""
    sweep, model = row["rtt_signature"], row["model_path"]
    trained = findings.shelf.units("rtt-epoch", {"spec": dict})
    own = [unit for unit in trained if Path(str(_settings(unit).get("model"))).name == Path(model).name]

    def near(unit: Unit) -> tuple[bool, bool, str]:
        # A training that was done before is not done again: its origin may be another sweep, or another way to the model.
        return _settings(unit).get("rtt_signature") == sweep, _settings(unit).get("model") == model, unit.created

    unit = max(own, key=near, default=None)
    kept = (
        "rtt_signature",
        "acc_selection_rule",
        "missing",
        "dataset",
        "unlearn_type",
        "eval_split_ids",
        "grid_size",
        "label_variant",
    )
    return findings.shelf.cite(
        "rtt", _label(row), findings.shelf.place(folder), created=_when(row), settings={key: row.get(key) for key in kept},
        provenance=unit.provenance if unit else None, version=unit.version if unit else None,
    )  # fmt: skip


def _settings(unit: Unit) -> Mapping[str, Any]:
    return unit.provenance.get("settings") or {}


def section(findings: Findings) -> Section | None:
    """Bars of the conditions, recovery curves and the table by held-out split."""
    found = findings.cached(read_recoveries)
    if not found:
        return None
    blocks: list[Block] = [
        bars(found),
        Table("rtt", _COLUMNS, [_row(recovery) for recovery in found], "RTT, means over the held-out splits"),
    ]
    options: dict[str, list[Any]] = {}
    for recovery in found:
        options[_free(recovery.label, options)] = [*_about(recovery), per_split(recovery)]
    blocks.append(Choice("rtt", "model", options))
    lead = (
        "Train on some of the forgotten facts and ask for the others. If the unlearned model (B) then knows as much as the "
        "original retrained in the same way (C), nothing was removed; N never knew them."
    )
    return Section("rtt", "RTT", lead, blocks)


def of_model(findings: Findings, model: Model) -> list[Recovery]:
    """RTT of one model; files know it by the last part of the name that was given."""
    names = {model.name, Path(model.name).name, *(alias for alias, full in ALIASES.items() if full == model.name)}
    recoveries = findings.cached(read_recoveries)
    return [
        found for found in recoveries if findings.is_about(model, found.row.get("weights"), named=found.label in names)
    ]


def comebacks(findings: Findings, model: Model) -> list[Comeback]:
    """RTT's line on the card of a model."""
    lines = []
    for recovery in of_model(findings, model):
        share = recovery.row.get("recovery_above_chance")
        sentence = (
            f"A {shown(recovery.value('forget_acc_unlearn'))} to B {with_interval(recovery.value('forget_acc_unlearn_rtt'))}, against "
            f"C {shown(recovery.value('forget_acc_baseline_rtt'))}; {shown(share)} of the way from chance"
        )
        lines.append(Comeback("RTT", sentence, share is not None and share >= RECOVERY, recovery.source))
    return lines


def bars(found: list[Recovery]) -> Chart:
    """Accuracy of each condition with intervals."""
    series = []
    for colour, (label, name) in zip((6, 4, 1, 0, 2), CONDITIONS.values(), strict=True):
        values = [recovery.value(name) for recovery in found]
        if any(value.value is not None for value in values):
            series.append(
                {
                    "name": label,
                    "colour": colour,
                    "values": [[rounded(v.value), rounded(v.low), rounded(v.high)] for v in values],
                }
            )
    chance = found[0].row.get("chance")
    marks = [{"y": rounded(chance), "label": "chance"}] if chance else []
    return Chart("rtt-bars", "bars", "Accuracy on the held-out facts", {
        "groups": [recovery.label for recovery in found], "series": series, "marks": marks, "x": {"label": ""},
        "y": {"label": "accuracy", "min": 0, "max": 1},
    })  # fmt: skip


def curve(recovery: Recovery) -> Chart:
    """Accuracy against epochs of retraining with bands: at each number of epochs every split shows its best learning rate."""
    points: dict[str, list[Any]] = {letter: [] for letter in _LETTERS}
    for letter, epochs, *numbers in recovery.row.get("curve") or []:
        points.setdefault(letter, []).append([epochs, *(rounded(number) for number in numbers)])
    return Chart("recovery", "lines", f"{recovery.label}: recovery", {
        "x": {"label": "epochs of retraining"}, "y": {"label": "accuracy on held-out facts", "min": 0, "max": 1},
        "series": [{"name": CONDITIONS[letter][0], "colour": colour, "points": points[letter]} for letter, colour in _LETTERS.items() if points[letter]],
        "marks": [{"y": rounded(recovery.row["chance"]), "label": "chance"}] if recovery.row.get("chance") else [],
    })  # fmt: skip


def per_split(recovery: Recovery) -> Table:
    """The winner of every held-out split."""
    rows = []
    for letter in ("B", "C", "N"):
        found = recovery.row.get(f"best_per_v_{letter.lower()}") or {}
        for split, best in sorted(found.items(), key=lambda pair: str(pair[0]).zfill(6)):
            rows.append({
                "condition": CONDITIONS[letter][0], "split": str(split), "accuracy": Value(best["acc"], source=recovery.source),
                "loss": best["loss_type"], "lr": f"{best['lr']:g}", "epochs": best["epochs"], "runs": best["num_runs"],
            })  # fmt: skip
    columns = [Column("condition", "condition"), Column("split", "held-out split"), Column("accuracy", "accuracy"), Column("loss", "trained on"),
               Column("lr", "lr"), Column("epochs", "epochs"), Column("runs", "runs")]  # fmt: skip
    return Table("rtt-splits", columns, rows, "The best setting of each held-out split")


_COLUMNS = [
    Column("model", "model"), *(Column(name, label) for label, name in CONDITIONS.values()), *(Column(name, label) for name, label in _RATES.items()),
    Column("status", "status"),
]  # fmt: skip


def _row(recovery: Recovery) -> dict[str, Any]:
    texts = ("model", "status")
    numbers = {column.key: recovery.value(column.key) for column in _COLUMNS if column.key not in texts}
    return {
        "model": recovery.label,
        "links": [("RTT", recovery.source)],
        "status": recovery.row.get("status"),
        **numbers,
    }


def _label(row: Mapping[str, Any]) -> str:
    if row.get("unlearn_type") in ("GIVEN", None):
        return Path(str(row.get("model_path"))).name
    settings = [
        f"{short} {row[key]:g}"
        for key, short in (
            ("lr", "lr"),
            ("epochs", "ep"),
            ("retain_coeff", "rc"),
            ("steering_coeff", "sc"),
            ("lora_rank", "rank"),
        )
        if isinstance(row.get(key), int | float)
    ]
    return " ".join([str(row["unlearn_type"]), *settings])


def _when(row: Mapping[str, Any]) -> str | None:
    """The time of a row as ISO."""
    parts = str(row.get("time") or "").split("-")
    return f"{'-'.join(parts[:3])}T{':'.join(parts[3:])}" if len(parts) == 6 else None


def _about(recovery: Recovery) -> list[Block]:
    """What the numbers of one model rest on, what to mind, and its curve."""
    runs = [recovery.row.get(f"num_runs_{letter}") for letter in ("b", "c")]
    found = recovery.row.get("warnings") or []
    return [
        Prose(f"{runs[0]} trainings of B, {runs[1]} of C.", recovery.source),
        *([Prose([str(warning) for warning in found])] if found else []),
        *([curve(recovery)] if recovery.row.get("curve") else []),
    ]


def _free(label: str, taken: Mapping[str, Any]) -> str:
    number = 2
    name = label
    while name in taken:
        name, number = f"{label} ({number})", number + 1
    return name
