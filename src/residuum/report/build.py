"""Build the report: read the stores once, ask each section, write one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from residuum.report import benchmark, depth, meta, provenance, rtt, steering, tradeoff, verdict
from residuum.report.blocks import Section
from residuum.report.findings import Findings
from residuum.report.page import render
from residuum.store.atomic import write_text

SECTIONS: tuple[Callable[[Findings], Section | None], ...] = (
    verdict.section, depth.section, benchmark.section, tradeoff.section, meta.section, rtt.section, steering.section,
)  # fmt: skip
"""In the order of the page; the provenance of all of them comes last."""


def build_report(
    runs: str | Path | Sequence[str | Path],
    out: str | Path = "report.html",
    *,
    published: str | Path | None = None,
    title: str = "residuum report",
) -> Path:
    """Make one self-contained HTML file of everything that some run stores hold.

    Args:
        runs: one or more folders: roots of run stores, folders that hold a ``runs/``, or single run folders.
        out: target file.
        published: a table in the published form, to stand beside the runs.
        title: of the page.

    Returns:
        The file.

    Raises:
        InputError: a folder does not exist, or holds nothing that could be shown.
        StoreError: the file cannot be written, or a newer residuum made a store.
    """
    findings = Findings([runs] if isinstance(runs, str | Path) else list(runs), published)
    found = make_sections(findings)
    last = provenance.section(findings)
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    about = f"{len(findings.unlearned)} models under test, {len(findings.shelf.sources)} runs. Made {made}."
    return write_text(Path(out), render(title, [*found, *([last] if last else [])], about))


def make_sections(findings: Findings) -> list[Section]:
    """The sections that there are data for, without provenance.

    Raises:
        InputError: there are none.
    """
    found = [section for make in SECTIONS if (section := make(findings)) is not None]
    findings.check(len(found))
    return found
