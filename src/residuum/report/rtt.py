"""RTT: what comes back when someone retrains on related facts; from the summary and run files of `residuum rtt`."""

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

CONDITIONS = {
    "base": ("base", "forget_acc_baseline"), "A": ("A: unlearned", "forget_acc_unlearn"), "B": ("B: unlearned, retrained", "forget_acc_unlearn_rtt"),
    "C": ("C: base, retrained", "forget_acc_baseline_rtt"), "N": ("N: never knew, retrained", "forget_acc_naive_rtt"),
}  # fmt: skip
_LETTERS = {"unlearn+rtt": ("B", 1), "baseline+rtt": ("C", 0), "naive+rtt": ("N", 2)}
FOLDERS = ("summary", "pipeline/summary", "evals/pipeline/summary", "*/evals/pipeline/summary")


@dataclass(frozen=True)
class Recovery:
    """One unlearned model in one sweep."""

    label: str
    row: Mapping[str, Any] = field(repr=False)
    runs: list[dict[str, Any]] = field(repr=False)
    """Trainings of B of this model, and of C and N of its sweep."""
    source: str

    def value(self, field_name: str) -> Value:
        """A number of the summary with its interval."""
        low, high = ((self.row.get(end) or {}).get(field_name) for end in ("ci_low", "ci_high"))
        return Value(self.row.get(field_name), low, high, self.source)


def read_recoveries(findings: Findings) -> list[Recovery]:
    """The latest summary of every unlearned model of every sweep."""
    from residuum.rtt.artefacts import read_rows

    shelf, found = findings.shelf, {}
    for folder in shelf.glob(*FOLDERS):
        if not folder.is_dir() or not (folder.parent / "ft").is_dir():
            continue
        try:
            rows, runs = read_rows(folder), read_rows(folder.parent / "ft")
        except DataError as error:
            shelf.broken(folder, str(error))
            continue
        latest = {(row.get("rtt_signature"), row.get("model_path")): row for row in rows if "forget_acc_unlearn" in row}
        for (signature, path), row in latest.items():
            own = [
                r
                for r in runs
                if r.get("rtt_signature") == signature
                and (r["rtt_condition"] != "unlearn+rtt" or r["rtt_start_model_path"] == path)
            ]
            label = _label(row)
            keep = (
                "rtt_signature",
                "acc_selection_rule",
                "missing",
                "dataset",
                "unlearn_type",
                "eval_split_ids",
                "grid_size",
                "label_variant",
            )
            source = shelf.cite(
                "rtt", label, shelf.place(folder), created=_when(row), settings={key: row.get(key) for key in keep}
            )
            if row.get("status") != "complete":
                shelf.partial(
                    label,
                    f"RTT is {str(row.get('status')).replace('_', ' ')}: {row.get('num_runs_b')} runs of B, {row.get('num_runs_c')} of C",
                )
            found[signature, path] = Recovery(label, row, own, source)
    return list(found.values())


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
        options[_free(recovery.label, options)] = [curve(recovery), per_split(recovery), *_warnings(recovery)]
    blocks.append(Choice("rtt", "model", options))
    lead = (
        "Train on some of the forgotten facts and ask for the others. If the unlearned model (B) then knows as much as the "
        "original retrained in the same way (C), nothing was removed; N never knew them."
    )
    return Section("rtt", "RTT", lead, blocks)


def of_model(findings: Findings, model: Model) -> list[Recovery]:
    """RTT of one model; the files of RTT know it by the last part of the name that was given."""
    name = model.name.partition(" [")[0]
    names = {name, Path(name).name, *(alias for alias, full in ALIASES.items() if full == name)}
    return [found for found in findings.cached(read_recoveries) if found.label in names]


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
    """Accuracy against epochs of retraining: at each number of epochs every split shows its best learning rate."""
    best: dict[str, dict[int, dict[int, float]]] = {}
    for run in recovery.runs:
        letter = _LETTERS.get(run["rtt_condition"], ("",))[0]
        for epoch, accuracy in (run.get("forget_accs_local") or {}).items():
            if letter and accuracy is not None:
                at = best.setdefault(letter, {}).setdefault(int(epoch), {})
                split = int(run["rtt_eval_split_id"])
                at[split] = max(at.get(split, 0.0), float(accuracy))
    series = []
    for letter, colour in _LETTERS.values():
        points = [
            [epoch, rounded(sum(by.values()) / len(by)), None, None]
            for epoch, by in sorted(best.get(letter, {}).items())
        ]
        if points:
            series.append({"name": CONDITIONS[letter][0], "colour": colour, "points": points})
    return Chart("recovery", "lines", f"{recovery.label}: recovery", {
        "x": {"label": "epochs of retraining"}, "y": {"label": "accuracy on held-out facts", "min": 0, "max": 1}, "series": series,
        "marks": [{"y": rounded(recovery.row["chance"]), "label": "chance"}] if recovery.row.get("chance") else [],
    })  # fmt: skip


def per_split(recovery: Recovery) -> Table:
    """The winner of every held-out split."""
    rows = []
    for letter in ("B", "C", "N"):
        for split, best in sorted(
            (recovery.row.get(f"best_per_v_{letter.lower()}") or {}).items(), key=lambda pair: int(pair[0])
        ):
            rows.append({
                "condition": CONDITIONS[letter][0], "split": split, "accuracy": Value(best["acc"], source=recovery.source),
                "loss": best["loss_type"], "lr": f"{best['lr']:g}", "epochs": best["epochs"], "runs": best["num_runs"],
            })  # fmt: skip
    columns = [Column("condition", "condition"), Column("split", "held-out split"), Column("accuracy", "accuracy"), Column("loss", "trained on"),
               Column("lr", "lr"), Column("epochs", "epochs"), Column("runs", "runs")]  # fmt: skip
    return Table("rtt-splits", columns, rows, "The best setting of each held-out split")


_COLUMNS = [
    Column("model", "model"), *(Column(name, label) for label, name in CONDITIONS.values()), Column("recovery_rate", "B / C"),
    Column("gap_closed", "gap closed"), Column("recovery_above_chance", "above chance"), Column("recovery_above_naive", "above N"),
    Column("recovery_rate_nested", "B / C, nested choice"), Column("status", "status"),
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


def _warnings(recovery: Recovery) -> list[Prose]:
    found = recovery.row.get("warnings") or []
    return [Prose([str(warning) for warning in found])] if found else []


def _free(label: str, taken: Mapping[str, Any]) -> str:
    number = 2
    name = label
    while name in taken:
        name, number = f"{label} ({number})", number + 1
    return name
