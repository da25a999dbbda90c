"""Provenance: every run behind the page, with what is needed to make it again; and what was left out."""

from __future__ import annotations

import shlex
from typing import Any

from residuum.report.blocks import Column, Prose, Section, Table
from residuum.report.findings import Findings
from residuum.report.shelf import Source
from residuum.store.hashing import content_hash

_KINDS = {"broken": "skipped", "partial": "partial", "note": "note"}
_KEPT = ("engine", "batch_tokens", "max_memory", "s1_cache")


def section(findings: Findings) -> Section | None:
    """Problems, runs, and the settings that several of them share."""
    shelf = findings.shelf
    if not shelf.sources and not shelf.problems:
        return None
    settings: dict[str, dict[str, Any]] = {}
    rows = [_row(source, settings) for source in shelf.sources]
    columns = [
        Column("run", "run"), Column("kind", "part"), Column("model", "model"), Column("created", "finished (UTC)"), Column("seed", "seed"),
        Column("versions", "versions"), Column("hashes", "hashes"), Column("settings", "settings"), Column("command", "command to repeat it"),
    ]  # fmt: skip
    lead = "Each number above links here. Hashes are of the content of weights and data, shortened; the stores have them whole."
    blocks: list[Any] = []
    if shelf.problems:
        blocks.append(Table(
            "problems", [Column("kind", "what"), Column("where", "where"), Column("why", "why")],
            [{"kind": _KINDS[p.kind], "where": p.where, "why": p.what} for p in shelf.problems], "Not whole, or not on this page",
        ))  # fmt: skip
    blocks.append(Table("runs", columns, rows, "Runs"))
    blocks.append(
        Table(
            "settings", [Column("id", "settings"), Column("text", "as recorded")], _settings_rows(settings), "Settings"
        )
    )
    blocks.append(Prose(f"Made from: {', '.join(str(root.name or root) for root in shelf.roots)}."))
    return Section("provenance", "Provenance", lead, blocks)


def _row(source: Source, settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    origin = source.provenance
    versions = origin.get("versions") or {}
    shown = {name: version for name, version in versions.items() if version and name != "residuum"}
    parts = [f"residuum {source.version or 'unknown'}", *(f"{name} {version}" for name, version in shown.items())]
    if origin.get("git"):
        parts.append(f"commit {str(origin['git'])[:12]}")
    return {
        "id": source.id, "run": source.place, "kind": source.kind, "model": source.model,
        "created": (source.created or "")[:19].replace("T", " "), "seed": origin.get("seed"), "versions": ", ".join(parts),
        "hashes": _hashes(origin), "settings": _settings_id(source, settings), "command": shlex.join(origin.get("command") or []),
    }  # fmt: skip


def _hashes(origin: Any) -> str:
    """Weights and data, shortened; the data of an evaluation are several splits."""
    parts = []
    for name in ("weights", "data"):
        found = origin.get(name)
        if isinstance(found, str):
            parts.append(f"{name} {found[:12]}")
        elif found:
            parts.append(f"{name} " + " ".join(f"{key} {str(value)[:12]}" for key, value in found.items()))
    return "; ".join(parts)


def _settings_id(source: Source, settings: dict[str, dict[str, Any]]) -> str:
    """The settings of a run without its models and metrics, under an id that equal ones share."""
    plain = {
        key: value
        for key, value in source.settings.items()
        if key not in ("models", "model", "data", "metrics", "source", "target")
    }
    key = content_hash(plain)
    settings.setdefault(key, {"id": f"settings-{len(settings) + 1}", "value": plain})
    return str(settings[key]["id"])


def _settings_rows(settings: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    from residuum.store.hashing import canonical

    return [{"id": found["id"], "text": canonical(found["value"])} for found in settings.values()]
