"""The folder of one UDS run, field by field as the published code writes it, plus intervals, profile and provenance.

results.json           one object per example
results_detailed.jsonl the same, one a line
summary.json           the model's numbers and settings
layer_details.csv      one row per example and layer
skipped_examples.json  rows that could not be evaluated, with the reason
profile.json           mean deltas per layer with intervals
run.log                for reading
*.png                  profile, heat map and histogram, when matplotlib is installed
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.patching.depth import ExampleDepth, depth_profile, over_erased_share
from residuum.store import write_json, write_text

if TYPE_CHECKING:
    from residuum.data.spans import Skip
    from residuum.patching.audit import UdsResult

CSV_COLUMNS = (
    "idx", "question", "entity_text", "entity_source", "reference_source", "reference_text", "layer", "p_score", "s1_score",
    "s2_score", "s1_delta", "s2_delta", "delta_gap", "ratio_s2_over_s1", "ratio_s2_over_s1_clipped", "s1_status",
    "s2_status", "s1_em", "s2_em", "uds",
)  # fmt: skip


def run_tag(name: str) -> str:
    """A model or run name as part of a folder name (spec 1.13)."""
    return re.sub(r"[^A-Za-z0-9._-]+", "__", name).strip("._-") or "run"


def save_run(result: UdsResult, folder: Path) -> Path:
    """Write every file of the run; ``summary.json`` comes last, so its presence means the run is whole."""
    records = [example_record(result, i) for i in range(len(result.examples))]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_json(folder / "results.json", records)
    write_text(folder / "results_detailed.jsonl", lines)
    write_text(folder / "layer_details.csv", _layer_table(records))
    write_json(folder / "skipped_examples.json", [skip_record(skip) for skip in result.skipped])
    write_json(folder / "profile.json", depth_profile(result.examples, seed=result.config.seed))
    write_text(folder / "run.log", _log(result, records))
    if find_spec("matplotlib"):
        from residuum.patching.plots import save_plots

        save_plots(result.examples, folder, title=result.name)
    write_json(folder / "summary.json", summary(result))
    return folder


def summary(result: UdsResult) -> dict[str, Any]:
    """The model's numbers and settings."""
    rules, patch, config = result.config.rules, result.config.patch, result.config
    models = result.models
    evaluable = len(result.examples)
    return {
        "total_examples": evaluable + len(result.skipped),
        "elapsed_sec": round(result.seconds, 3),
        "sec_per_evaluable": round(result.seconds / evaluable, 5) if evaluable else None,
        "metric": rules.metric,
        "delta_threshold": rules.delta_threshold,
        "em_threshold": rules.em_threshold,
        "em_type": rules.em_type,
        "em_scope": config.em_scope,
        "entity_source": config.entity_source,
        "reference": config.reference,
        "reference_scope": config.reference_scope,
        "patch_scope": patch.scope,
        "mode": patch.mode,
        "unlearn_model": models["unlearned"]["name"],
        "source_model_id": models["unlearned"]["source"],
        "full_model": models["full"]["source"],
        "retain_model": models["retain"]["source"],
        "device_map": models["full"]["device"],
        "dtype": models["full"]["dtype"],
        "avg_uds": result.uds,
        "avg_udr": result.uds,
        "higher_means": "less knowledge",
        "n_scored": result.n,
        "n_without_ft_layers": sum(example.uds is None for example in result.examples),
        "ci95": result.ci95,
        "over_erased_share": over_erased_share(result.examples),
        "gk_count": sum(bool(_is_known_to_retain(result, e)) for e in result.examples)
        if rules.metric == "em"
        else None,
        "skipped_count": len(result.skipped),
        "skipped_indices": [skip.idx for skip in result.skipped],
        "skipped_reasons": dict(Counter(skip.reason for skip in result.skipped)),
        "detailed_files": {
            "detailed_jsonl": "results_detailed.jsonl",
            "layer_csv": "layer_details.csv",
            "skipped_json": "skipped_examples.json",
        },
        "engine": result.engine,
        "settings": asdict(config),
        "models": models,
        "provenance": result.provenance,
    }


def example_record(result: UdsResult, place: int) -> dict[str, Any]:
    """One object of results.json."""
    example, spot = result.examples[place], result.located[place]
    source = spot.example
    texts = {f"{short}_gen": _text(result, role, place) for short, role in _ROLES}
    layers = [_layer_record(result, example, i) for i in range(len(example.layers))]
    return {
        "idx": example.idx,
        "question": source.question,
        "prefix": source.prefix,
        "entity": source.entity,
        "gt_entity": source.gt_entity or source.entity,
        "entity_text": spot.entity_text,
        "entity_source": result.config.entity_source,
        "prompt": spot.prompt,
        "reference_source": result.config.reference,
        "reference_text": spot.reference_text,
        **texts,
        "s1_lost": sum(row["s1_status"] == "LOST" for row in layers),
        "s2_lost": sum(row["s2_status"] == "LOST" for row in layers),
        "ft_layers": example.ft_layers,
        "erased_layers": example.erased_layers,
        "uds": example.uds,
        "udr": example.udr,
        "is_gk": _is_known_to_retain(result, example),
        "retain_em_full": example.retain_em,
        "full_score": example.full_score,
        "p_score": example.full_score,
        "eval_scope": result.config.em_scope,
        "eval_span": list(spot.entity_span),
        # Where the whole reference is evaluated, the entity is not looked for.
        "entity_span": list(spot.entity_span) if result.config.em_scope == "entity" else None,
        "layer_records": layers,
        "s1_scores": example.s1_scores,
        "s2_scores": example.s2_scores,
        "s1_deltas": example.s1_deltas,
        "s2_deltas": example.s2_deltas,
        "s1_details": [_detail(row, "s1") for row in layers],
        "s2_details": [_detail(row, "s2") for row in layers],
    }


_ROLES = (("full", "full"), ("retain", "retain"), ("unlearn", "unlearned"))


def skip_record(skip: Skip) -> dict[str, Any]:
    """One object of skipped_examples.json; texts are not generated for rows that are not scored."""
    return {**skip.record(), **{f"{short}_gen": None for short, _ in _ROLES}}


def _text(result: UdsResult, role: str, place: int) -> str | None:
    texts = result.generations.get(role)
    return texts[place] if texts else None


def _is_known_to_retain(result: UdsResult, example: ExampleDepth) -> bool | None:
    return None if example.retain_em is None else example.retain_em >= result.config.rules.em_threshold


def _layer_record(result: UdsResult, example: ExampleDepth, i: int) -> dict[str, Any]:
    rules = result.config.rules
    first, second = example.s1_scores[i], example.s2_scores[i]
    row: dict[str, Any] = {"layer": example.layers[i], "p_score": example.full_score}
    if example.s1_deltas is None or example.s2_deltas is None:
        lost = [None if em is None else "LOST" if em < rules.em_threshold else "KEPT" for em in (first, second)]
        return row | {
            "s1_score": None, "s2_score": None, "s1_delta": None, "s2_delta": None, "s1_status": lost[0], "s2_status": lost[1],
            "delta_gap": None, "ratio_s2_over_s1": None, "ratio_s2_over_s1_clipped": None, "s1_em": first, "s2_em": second,
        }  # fmt: skip
    worth, lacking = example.s1_deltas[i], example.s2_deltas[i]
    ratio = lacking / worth if lacking is not None and abs(worth) > 1e-12 else None
    return row | {
        "s1_score": first,
        "s2_score": second,
        "s1_delta": worth,
        "s2_delta": lacking,
        "s1_status": _status(worth, rules.delta_threshold),
        "s2_status": _status(lacking, rules.delta_threshold),
        "delta_gap": None if lacking is None else lacking - worth,
        "ratio_s2_over_s1": ratio,
        "ratio_s2_over_s1_clipped": None if ratio is None else min(max(ratio, 0.0), 1.0),
        "s1_em": None,
        "s2_em": None,
    }


def _status(delta: float | None, tau: float) -> str | None:
    return None if delta is None else "LOST" if delta > tau else "KEPT"


def _detail(row: dict[str, Any], stage: str) -> dict[str, Any]:
    if row["s1_em"] is not None:  # metric em
        return {"layer": row["layer"], "em": row[f"{stage}_em"], "status": row[f"{stage}_status"]}
    keys = ("score", "delta", "status")
    return {"layer": row["layer"], **{key: row[f"{stage}_{key}"] for key in keys}}


def _layer_table(records: Sequence[dict[str, Any]]) -> str:
    table = io.StringIO()
    writer = csv.DictWriter(table, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerows({**record, **layer} for layer in record["layer_records"])
    return table.getvalue()


def _log(result: UdsResult, records: Sequence[dict[str, Any]]) -> str:
    """The run for a reader: settings, one block per example, the sum."""
    interval = "" if result.ci95 is None else f"  95 % interval {result.ci95[0]:.4f} to {result.ci95[1]:.4f}"
    models = {role: f"{m['name']} ({m['source']}, {m['weights'][:12]})" for role, m in result.models.items()}
    lines = [f"{role:10} {text}" for role, text in models.items()]
    lines += [f"settings   {json.dumps(asdict(result.config))}", ""]
    for record in records:
        depth = "none: no layer above the threshold" if record["uds"] is None else f"{record['uds']:.4f}"
        lines += [
            f"[{record['idx']}] {record['question']}",
            f"  prompt    ...{record['prompt'][-60:]!r}",
            f"  reference {record['reference_text']!r}  entity {record['entity_text']!r}",
            *(f"  {short:9} {record[f'{short}_gen']!r}" for short, _ in _ROLES if record[f"{short}_gen"] is not None),
            f"  full score {record['full_score']:.4f}  UDS {depth}",
            f"  FT layers {record['ft_layers']}  erased {record['erased_layers']}",
        ]
        lines += [_layer_line(row) for row in record["layer_records"]] + [""]
    lines += [f"[{skip.idx}] skipped: {skip.reason} (entity {skip.entity_text!r})" for skip in result.skipped]
    lines += ["", f"UDS {result.uds:.4f} over {result.n} of {len(records) + len(result.skipped)} examples{interval}"]
    lines += ["1 = erased like retain, 0 = intact; higher is better.", ""]
    return "\n".join(lines)


def _layer_line(row: dict[str, Any]) -> str:
    if row["s1_em"] is not None:
        return f"    L{row['layer']:<3} S1 em {row['s1_em']:.3f} {row['s1_status']}  S2 em {row['s2_em']} {row['s2_status']}"
    second = "not computed" if row["s2_delta"] is None else f"{row['s2_delta']:+.4f} {row['s2_status']}"
    return f"    L{row['layer']:<3} S1 delta {row['s1_delta']:+.4f} {row['s1_status']}  S2 delta {second}"
