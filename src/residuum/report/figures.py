"""The charts of the page for papers: the same data drawn by matplotlib, one or two columns wide, colour-blind safe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from residuum.errors import MissingExtra, UnknownName, UsageError
from residuum.registry import one_of
from residuum.report.blocks import PALETTE, Chart, Choice, Section, Spec
from residuum.report.build import make_sections
from residuum.report.findings import Findings
from residuum.store.atomic import storage_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTHS = {"one": 3.3, "two": 6.9}
"""Inches: the columns of the usual two-column paper."""
FORMATS = ("pdf", "png", "svg")
_MARKERS = "os^DvPX_"
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 2)), (0, (6, 2, 1, 2)), "--", ":", (0, (8, 2)), "-.")
_STYLE = {
    "font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "axes.spines.top": False, "axes.spines.right": False,
    "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "residuum", "text.usetex": False, "text.parse_math": False,
}  # fmt: skip


def plot(
    name: str, runs: Sequence[str | Path], out: str | Path, *, columns: str = "one", of: str | None = None
) -> Path:
    """Draw one chart of the report into a file.

    Args:
        name: of the chart; an unknown one is refused with those there are.
        runs: see `residuum.report.build.build_report`.
        out: target; its ending decides the format: pdf, png or svg.
        columns: one or two.
        of: the model, metric or trait, where the page has a choice; the first by default.

    Raises:
        UnknownName: there is no such chart in these runs, or no such choice.
        UsageError: the ending of ``out`` is none of the formats.
        MissingExtra: matplotlib is not installed.
    """
    check_target(Path(out), columns)
    return draw(find_chart(make_sections(Findings(runs)), name, of), Path(out), columns=columns)


def check_target(path: Path, columns: str) -> None:
    """Refuse a format or width that there is not.

    Raises:
        UsageError: names those there are.
    """
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        endings = ", ".join(f".{ending}" for ending in FORMATS)
        raise UsageError(f"--out ends in {endings}, not in {path.suffix or 'nothing'!r}.")
    one_of("--columns", columns, *WIDTHS)


def draw(chart: Chart, path: Path, *, columns: str = "one") -> Path:
    """Draw a chart into a file.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtra("matplotlib", "report", "drawing for papers") from error
    ending, width = path.suffix.lower().removeprefix("."), WIDTHS[columns]
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        # A figure of its own, not pyplot's: no global state, no display.
        figure = Figure(figsize=(width, min(width, 4.5) * 0.72), layout="constrained")
        _DRAW[chart.kind](figure, chart.spec)
        # Without dates the same data give the same file.
        dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=300, metadata=dates.get(ending, {}))
        except OSError as error:
            raise storage_error("write", path, error) from error
    return path


def charts_of(sections: Sequence[Section]) -> dict[str, dict[str, Chart]]:
    """All charts of a page by name, and by the choice they belong to (empty where there is none)."""
    found: dict[str, dict[str, Chart]] = {}
    for section in sections:
        for block in section.blocks:
            options = block.options if isinstance(block, Choice) else {"": [block]}
            for option, blocks in options.items():
                for chart in blocks:
                    if isinstance(chart, Chart):
                        found.setdefault(chart.name, {})[option] = chart
    return found


def find_chart(sections: Sequence[Section], name: str, of: str | None) -> Chart:
    """A chart by name, and by the choice where there is one.

    Raises:
        UnknownName: with what there is.
    """
    found = charts_of(sections)
    if name not in found:
        raise UnknownName("plot", name, found, hint=f"These runs have: {', '.join(sorted(found))}.")
    options = found[name]
    if of is None:
        return next(iter(options.values()))
    if of not in options:
        raise UnknownName(f"choice of {name}", of, options, hint=f"There are: {', '.join(options)}.")
    return options[of]


def _colour(index: int | str) -> str:
    return "black" if isinstance(index, str) else PALETTE[index % len(PALETTE)]


def _order(index: int | str) -> int:
    return 0 if isinstance(index, str) else index % len(PALETTE)


def _frame(axes: Axes, spec: Spec) -> None:
    """Labels, fixed ends and marks that all charts share."""
    axes.set(xlabel=spec["x"]["label"], ylabel=spec["y"]["label"])
    if "min" in spec["y"]:
        axes.set_ylim(spec["y"]["min"] - 0.02, spec["y"]["max"] + 0.02)
    for mark in spec.get("marks", []):
        line = axes.axvline if "x" in mark else axes.axhline
        line(mark.get("x", mark.get("y")), color="black", linestyle="--", linewidth=0.8, label=mark["label"] or None)
    handles, _ = axes.get_legend_handles_labels()
    if len(handles) > 1:
        axes.legend(frameon=False, ncols=2 if len(handles) > 4 else 1)


def _lines(figure: Figure, spec: Spec) -> None:
    axes = figure.subplots()
    for series in spec["series"]:
        points = [point for point in series["points"] if point[1] is not None]
        x, y = [p[0] for p in points], [p[1] for p in points]
        style = {
            "color": _colour(series["colour"]),
            "marker": _MARKERS[_order(series["colour"])],
            "markersize": 3,
            "label": series["name"],
        }
        band = [point for point in points if point[2] is not None]
        if spec.get("points_only"):
            axes.errorbar(x, y, yerr=_errors(points), linestyle="none", linewidth=1, **style)
            continue
        axes.plot(x, y, linestyle=_DASHES[_order(series["colour"])], linewidth=1.2, **style)
        if band:
            axes.fill_between(
                [p[0] for p in band],
                [p[2] for p in band],
                [p[3] for p in band],
                color=style["color"],
                alpha=0.18,
                linewidth=0,
            )
    if spec["x"].get("log"):
        axes.set_xscale("log")
    if names := spec["x"].get("names"):
        axes.set_xticks(
            range(len(names)) if len(names) <= 12 else [],
            names if len(names) <= 12 else [],
            rotation=60,
            ha="right",
            fontsize=6,
        )
    _frame(axes, spec)


def _scatter(figure: Figure, spec: Spec) -> None:
    axes = figure.subplots()
    for series in spec["series"]:
        x, y = [p[0] for p in series["points"]], [p[1] for p in series["points"]]
        axes.scatter(
            x,
            y,
            s=16,
            color=_colour(series["colour"]),
            marker=_MARKERS[_order(series["colour"])],
            label=series["name"],
            linewidths=1,
        )
    if spec.get("front"):
        axes.plot(*zip(*spec["front"], strict=True), color="black", linewidth=0.8)
    if spec.get("diagonal"):
        axes.axline((0, 0), slope=1, color="black", linestyle="--", linewidth=0.8)
    _frame(axes, spec)


def _bars(figure: Figure, spec: Spec) -> None:
    axes = figure.subplots()
    wide = 0.84 / len(spec["series"])
    for place, series in enumerate(spec["series"]):
        there = [(group, *value) for group, value in enumerate(series["values"]) if value[0] is not None]
        x = [group - 0.42 + (place + 0.5) * wide for group, *_ in there]
        errors = _errors([(0, *value) for _, *value in there])
        axes.bar(
            x,
            [value for _, value, *_ in there],
            wide * 0.94,
            yerr=errors,
            color=_colour(series["colour"]),
            label=series["name"],
            error_kw={"linewidth": 0.8},
        )
    axes.set_xticks(
        range(len(spec["groups"])),
        spec["groups"],
        rotation=20 if len(spec["groups"]) > 2 else 0,
        ha="right" if len(spec["groups"]) > 2 else "center",
    )
    _frame(axes, spec)


def _histogram(figure: Figure, spec: Spec) -> None:
    edges, series = spec["edges"], spec["series"]
    if spec.get("rows"):
        rows = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
        for axes, own in zip(rows, series, strict=True):
            axes.stairs(own["counts"], edges, fill=True, color=_colour(own["colour"]))
            axes.set_yticks([])
            axes.set_ylabel(own["name"], rotation=0, ha="right", va="center", fontsize=7)
        rows[-1].set_xlabel(spec["x"]["label"])
        return
    axes = figure.subplots()
    for own in series:
        axes.stairs(
            own["counts"],
            edges,
            fill=True,
            color=_colour(own["colour"]),
            alpha=0.65 if len(series) > 1 else 1.0,
            label=own["name"],
        )
    _frame(axes, spec)


def _heat(figure: Figure, spec: Spec) -> None:
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    axes = figure.subplots()
    scale = LinearSegmentedColormap.from_list("erased", [PALETTE[1], "#f7f7f7", PALETTE[0]])
    axes.set_facecolor("0.85")
    values = np.array(spec["values"], dtype=float)
    image = axes.imshow(
        values, aspect="auto", origin="lower", cmap=scale, vmin=spec["min"], vmax=spec["max"], interpolation="nearest"
    )
    for set_ticks, names, most in ((axes.set_xticks, spec["x"]["names"], 8), (axes.set_yticks, spec["y"]["names"], 16)):
        places = range(0, len(names), -(-len(names) // most) or 1)
        set_ticks(list(places), [names[i] for i in places])
    axes.set(xlabel=spec["x"]["label"], ylabel=spec["y"]["label"])
    figure.colorbar(image, ax=axes, label=spec["legend"])


_DRAW = {"lines": _lines, "scatter": _scatter, "bars": _bars, "histogram": _histogram, "heat": _heat}


def _errors(points: Sequence[Sequence[Any]]) -> list[list[float]]:
    """Distances from the values to the ends of their intervals; 0 where there is none."""
    return [
        [max(0.0, p[1] - p[2]) if p[2] is not None else 0.0 for p in points],
        [max(0.0, p[3] - p[1]) if p[3] is not None else 0.0 for p in points],
    ]
