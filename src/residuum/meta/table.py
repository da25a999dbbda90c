"""Table 2: how far each metric can be trusted, faithfulness and robustness side by side.

    robustness = HM(Q, R)        overall = HM(AUC, robustness)

Intervals are over models: those of the pools and the attacked ones are drawn apart, and all of a row is computed anew on
each draw.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from residuum.meta.attacked import Attacked
from residuum.meta.pools import Pools
from residuum.meta.robustness import harmonic_mean, harmonic_means, interval
from residuum.store import write_json, write_text

NUMBERS = ("auc", "Q", "R", "HM", "overall")


@dataclass(frozen=True)
class Table:
    """Both meta-evaluations of the same metrics."""

    pools: Pools
    attacked: Attacked

    def rows(self) -> list[dict[str, Any]]:
        """One row per metric, the most trustworthy first, those without a number last."""
        names = dict.fromkeys([*self.pools.metrics, *self.pools.left_out, *self.attacked.metrics])
        rows = [self._row(name) for name in names]
        return sorted(rows, key=_rank)

    def _row(self, name: str) -> dict[str, Any]:
        faithful, robust = self.pools.metrics.get(name), self.attacked.metrics.get(name)
        auc, hm = faithful.auc if faithful else None, robust.robustness if robust else None
        both = None
        if faithful and robust and len(robust.resampled):
            both = interval(harmonic_means(faithful.resampled, robust.resampled))
        return {
            "metric": name,
            "auc": auc, "auc_ci95": faithful.ci95 if faithful else None,
            "Q": robust.quantization if robust else None, "Q_ci95": robust.quantization_ci95 if robust else None,
            "R": robust.relearning if robust else None, "R_ci95": robust.relearning_ci95 if robust else None,
            "HM": hm, "HM_ci95": robust.robustness_ci95 if robust else None,
            "overall": harmonic_mean(auc, hm), "overall_ci95": both,
            "n_p": faithful.n_p if faithful else 0, "n_n": faithful.n_n if faithful else 0,
            "usable": len(self.attacked.usable.get(name, [])), "notes": self._notes(name),
        }  # fmt: skip

    def _notes(self, name: str) -> list[str]:
        notes = [self.pools.left_out[name]] if name in self.pools.left_out else []
        faithful, counts = self.pools.metrics.get(name), self.attacked.counts.get(name, {})
        if faithful and faithful.constant:
            notes.append("one value on all models of both pools: its AUC says nothing, and it has no threshold")
        if faithful and faithful.undefined:
            notes.append(f"undefined for {len(faithful.undefined)} pool models")
        if counts.get("diverged"):
            notes.append(f"relearning diverged for {counts['diverged']} usable models")
        if counts.get("lost"):
            notes.append(f"{counts['lost']} values after an attack are missing")
        if counts and not counts["usable"]:
            notes.append("no usable model")
        return notes

    def about(self) -> dict[str, Any]:
        """Counts and settings, for the page and the JSON file."""
        pools, attacked = self.pools.summary(), self.attacked.summary()
        return {
            "pools": pools["pools"], "models": attacked["models"], "utility": attacked["utility"], "form": attacked["form"],
            "common_subset": attacked["common_subset"], "diverged": attacked["diverged"], "failed": {**pools["failed"], **attacked["failed"]},
            "notes": attacked["notes"], "settings": attacked["settings"], "seed": self.pools.seed,
        }  # fmt: skip

    def save(self, folder: Path) -> Path:
        """Write ``table2.html``, ``table2.json`` and ``table2.csv``."""
        from residuum.meta.page import table_page

        rows, about = self.rows(), self.about()
        counts = {name: self.attacked.counts.get(name, {}) for name in (row["metric"] for row in rows)}
        write_json(folder / "table2.json", {"rows": rows, "counts": counts, **about})
        write_text(folder / "table2.csv", _csv(rows))
        write_text(folder / "table2.html", table_page(rows, counts, about))
        return folder


def _rank(row: dict[str, Any]) -> tuple[bool, float]:
    """An overall of 0 is a number: it stands below every other, and above a metric without one."""
    number = row["auc"] if row["overall"] is None else row["overall"]
    return row["overall"] is None, -(number or 0.0)


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = ["metric", *(f"{name}{end}" for name in NUMBERS for end in ("", "_low", "_high")), "n_p", "n_n", "usable", "notes"]  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        flat = {"metric": row["metric"], "n_p": row["n_p"], "n_n": row["n_n"], "usable": row["usable"]}
        for name in NUMBERS:
            low, high = row[f"{name}_ci95"] or (None, None)
            flat |= {name: row[name], f"{name}_low": low, f"{name}_high": high}
        writer.writerow(flat | {"notes": "; ".join(row["notes"])})
    return text.getvalue()
