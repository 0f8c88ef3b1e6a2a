"""Figures of studies: the panels that a study asks for, drawn from its tables in the style of ``curve``.

Lines, bars and cells are means over pairs of networks, bands are the 95 % intervals over networks by which claims are
decided, and faint dots are the pairs themselves if they are few. Rows that were not measured are named as such.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import EngFormatter

from suture.common.errors import DataError
from suture.extend import (
    FEW,
    THRESHOLD,
    WIDEST,
    WIDTH,
    Chart,
    Maps,
    Measure,
    Picture,
    draw_lines,
    guess_height,
    name_cuts,
    shortened,
    slot,
    styled,
    tell,
    with_minus,
)
from suture_papers.base.cells import Tables
from suture_papers.base.study import Study
from suture_papers.reports.legends import legend_above
from suture_papers.reports.panels import NOT_MEASURED, arrange_panels

_WIDE = 12  #: cuts, or letters of a bar's name times four, after which a panel has the page's width
_LETTERS = 16  #: an inch, of the sentence beneath
_MANY = 1e5  #: from which numbers of an axis are written with k, M, G
_SMALL = 8  #: points: what stands beneath, and beside bars
_TITLE: dict[str, Any] = {"loc": "left", "size": 8, "weight": "bold", "parse_math": False}


def figure(study: Study, tables: Tables) -> Figure:
    """Draw a study's panels: lines and bars two in a row, or alone if they are wide; heat maps two or three in a row.

    A panel of which nothing was measured is only named, if another was. Raises ``DataError`` if the study has none.
    """
    if not study.panels:
        raise DataError(f"{study.id} has no figure; its tables are {', '.join(study.tables)}")
    arranged = list(zip(study.panels, arrange_panels(study.panels, tables), strict=True))
    measured = [(panel, chart) for panel, chart in arranged if _is_measured(chart)]
    missing = [panel.title for panel, chart in arranged if measured and not _is_measured(chart)]
    return _draw([_titled(chart, panel.title) for panel, chart in measured or arranged], missing)


def panel_for_page(chart: Chart) -> Figure:
    """Draw a panel by itself, without the title that a page has above it."""
    return _draw([replace(chart, title="")], [], for_page=True)


def _draw(charts: Sequence[Chart], missing: Sequence[str], for_page: bool = False) -> Figure:
    """Draw panels and caption them below.

    The page is laid out twice, first to see how much names and legends take.
    """
    rows = list(_rows(charts))
    width = max(map(_width, charts))
    several = {kind: max((len(r) for r in rows if r[0].kind == kind), default=1) for kind in ("curve", "bars")}
    maps = max((_per_row(row[0]) for row in rows if row[0].kind == "matrix" and len(row) == 1), default=1)
    heights = [
        guess_height(row[0], maps if len(row) == 1 else 1, width / len(row)) if row[0].kind == "matrix" else 4.0
        for row in rows
    ]
    with styled():
        for _ in range(2):
            page = Picture(figsize=(width, sum(heights)), layout="constrained")
            parts = page.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
            filled = [_fill(part, row, width, several, maps) for part, row in zip(parts, rows, strict=True)]
            _share_axes(rows, filled)
            if said := "\n".join(wrap(_said(charts, missing), int(_LETTERS * width))):
                parts[-1].supxlabel(said, size=_SMALL, color="0.35", x=0.995, ha="right")
            page.draw_without_rendering()
            heights = [
                height + max(_lacking(chart, drawn) for chart, drawn in zip(row, made, strict=True))
                for height, row, made in zip(heights, rows, filled, strict=True)
            ]
        for drawn in (one for made in filled for one in made):
            if isinstance(drawn, Maps):
                drawn.write(for_page)
    return page


def _titled(chart: Chart, title: str) -> Chart:
    """Return a chart without a title that says no more than the name of its only line."""
    (measure,) = chart.measures
    groups = list(chart.columns) if chart.kind == "bars" else [line.name for line in measure.lines]
    return replace(chart, title="" if groups == [title] else title)


def _is_measured(chart: Chart) -> bool:
    """Return whether a panel shows any number."""
    return any(np.isfinite(line.value).any() for measure in chart.measures for line in measure.lines)


def _said(charts: Sequence[Chart], missing: Sequence[str]) -> str:
    """Describe lines and bands, the number of pairs, and the missing panels."""
    lines = [line for chart in charts for measure in chart.measures for line in measure.lines]
    found: set[int] = set()
    for chart in charts:
        there = [np.isfinite(one.seeds) for measure in chart.measures for one in measure.lines if one.seeds is not None]
        # each bar has pairs of its own, and all points of a line the same ones
        found |= {int(n) for one in there for n in (one.sum(0) if chart.kind == "bars" else [one.any(1).sum()])}
    counts = sorted(found - {0})
    if not counts:
        return ""
    several = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    kinds = {chart.kind for chart in charts}
    said = ["of one pair" if counts[-1] == 1 else f"means over {several} pairs"]
    if counts[-1] > 1 and ("bars" in kinds or ("curve" in kinds and any(1 < count <= FEW for count in counts))):
        said.append("dots: each of them" + (", and their range" if "bars" in kinds else ""))
    if "curve" in kinds and counts[-1] > 1:
        said.append("bands: 95 % intervals over networks")
    if any(sum(own.kind == kind and own.measures[0].unit == "pp" for own in charts) > 1 for kind in ("curve", "bars")):
        said.append("each panel has its own scale")  # as _share_axes leaves penalties
    if any(line.is_open.any() for line in lines):
        mark = "a ring" if kinds == {"matrix"} else "hollow"
        said.append(f"{mark}: {'not converged' if counts[-1] == 1 else 'not all converged'}")
    if "matrix" in kinds:
        said.append("below the white line the sender is cut at least as deep as the receiver")
    if missing:
        said.append(f"{NOT_MEASURED}: {', '.join(missing)}")
    return "; ".join(said)


# --- rows of panels ---------------------------------------------------------------------------------------------------


def _rows(charts: Sequence[Chart]) -> Iterator[list[Chart]]:
    """Yield panels in rows of one or two of a kind; a lone one that is not wide has a row to itself."""
    waiting: list[Chart] = []
    for chart in charts:
        pair = waiting and not _wide(chart) and waiting[0].kind == chart.kind
        if waiting and not pair:
            yield waiting
        waiting = [*waiting, chart] if pair else [chart]
        if pair or _wide(chart):
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _wide(chart: Chart) -> bool:
    """Return whether a panel needs a row of its own."""
    if chart.kind == "bars":
        return max(map(len, chart.columns)) > 4 * _WIDE
    return len(chart.columns) > _WIDE or (chart.kind == "matrix" and len(chart.measures[0].lines) > 1)


def _per_row(chart: Chart) -> int:
    """Return the heat maps of a panel beside each other."""
    count = len(chart.measures[0].lines)
    return 2 if count == 4 else min(count, 3)


def _width(chart: Chart) -> float:
    """Return the inches of a page for a panel: more for heat maps of many cells."""
    cells = _per_row(chart) * (0.9 + 0.2 * len(chart.columns)) if chart.kind == "matrix" else 0.0
    return min(WIDEST, max(WIDTH, cells))


def _fill(part: SubFigure, row: Sequence[Chart], width: float, several: Mapping[str, int], maps: int) -> list[Any]:
    """Draw a row, and return its axes or heat maps; a panel alone is as wide as its like in other rows.

    ``several`` says of each kind of panel how many are beside each other.
    """
    if row[0].kind == "matrix":
        beside = part.subfigures(1, len(row), squeeze=False)[0]
        for one, chart in zip(beside, row, strict=True):
            one.suptitle(chart.title, size=8, weight="bold", x=0.01, ha="left", parse_math=False)
        return [Maps(one, chart, maps if len(row) == 1 else 1) for one, chart in zip(beside, row, strict=True)]
    columns = several[row[0].kind] if not _wide(row[0]) else len(row)
    drawn = list(part.subplots(1, columns, squeeze=False)[0])
    for axes in drawn[len(row) :]:
        axes.set_visible(False)
    for axes, chart in zip(drawn, row, strict=False):
        (_bars if chart.kind == "bars" else _lines)(axes, chart, width / columns)
    return drawn[: len(row)]


def _share_axes(rows: Sequence[Sequence[Chart]], filled: Sequence[Sequence[Any]]) -> None:
    """Give panels in per cent the same limits, bars whatever they are called; penalties may show a detail."""
    alike: dict[tuple[str, str], list[Axes]] = {}
    for chart, drawn in (
        (c, d) for row, made in zip(rows, filled, strict=True) for c, d in zip(row, made, strict=True)
    ):
        if chart.kind != "matrix" and chart.columns and chart.measures[0].unit == "%":
            of = "" if chart.kind == "bars" else chart.measures[0].label
            alike.setdefault((chart.kind, of), []).append(drawn)
    for (kind, _), panels in alike.items():
        which = "x" if kind == "bars" else "y"
        ends = [getattr(axes, f"get_{which}lim")() for axes in panels]
        for axes in panels:
            getattr(axes, f"set_{which}lim")(min(low for low, _ in ends), max(high for _, high in ends))


def _lacking(chart: Chart, drawn: Any) -> float:
    """Return the inches that a row lacks, or has too many, for a panel, once it is laid out."""
    if isinstance(drawn, Maps):
        return drawn.missing_height()
    wanted = 0.3 * len(chart.columns) + 0.1 if chart.kind == "bars" else 1.7 if chart.columns else 0.6
    return wanted - slot(drawn)[1]


# --- lines and bars ---------------------------------------------------------------------------------------------------


def _lines(axes: Axes, chart: Chart, width: float) -> None:
    (measure,) = chart.measures
    names = {THRESHOLD: _threshold(measure)}
    entries = [
        (artist, names.get(name, shortened(name, 54))) for artist, name in draw_lines(axes, measure, chart.columns)
    ]
    axes.margins(x=0.03, y=0.08)
    axes.autoscale_view()
    low, high = axes.get_ylim()
    if measure.unit == "%":  # per cent end at 0 and 100
        axes.set_ylim((0.0, 102.0) if high - low > 55 else (max(low, 0.0), min(high, 101.0)))
    if max(abs(low), abs(high)) >= _MANY:
        axes.yaxis.set_major_formatter(EngFormatter())
    name_cuts(axes, chart.columns, width - 0.3)
    axes.set_xlabel(chart.axes[0])
    if not chart.columns:
        axes.text(0.5, 0.5, NOT_MEASURED, transform=axes.transAxes, ha="center", va="center", color="0.5")
        axes.set(xticks=[], yticks=[])
    if len(entries) == 1 and not chart.title and chart.columns:
        axes.set_title(entries[0][1], loc="left", size=8, parse_math=False)
    else:
        bold = {"title_fontproperties": {"size": 8, "weight": "bold"}, "title_fontsize": None, "alignment": "left"}
        legend_above(axes, entries, width - 0.6, chart.title, **bold, handlelength=1.7, labelspacing=0.3)


def _threshold(measure: Measure) -> str:
    """Return the claim's threshold, with the unit that the axis has."""
    if THRESHOLD not in measure.levels:
        return ""
    return with_minus(f"{THRESHOLD}: {measure.levels[THRESHOLD]:g} {measure.unit}".rstrip())


def _bars(axes: Axes, chart: Chart, width: float) -> None:
    """Draw a bar a group, from the top, with its seeds as dots and its mean in figures."""
    (measure,) = chart.measures
    (line,) = measure.lines
    seeds = line.seeds if line.seeds is not None else line.value[None]
    ends = [float(end) for end in (np.nanmin(seeds), np.nanmax(seeds))] if np.isfinite(seeds).any() else [0.0, 1.0]
    largest, span = ends[1], max(ends[1], 0.0) - min(ends[0], 0.0) or 1.0
    size = np.nanmax(np.abs(line.value), initial=1e-2)
    digits = max(0, 2 - int(np.floor(np.log10(size))))  # three figures of the largest
    for i, (mean, colour) in enumerate(zip(line.value, (look[0] for look in line.looks), strict=True)):
        if not np.isfinite(mean):
            axes.text(0, i, f" {NOT_MEASURED}", size=_SMALL, color="0.5", va="center")
            continue
        each = seeds[np.isfinite(seeds[:, i]), i]
        hollow: dict[str, Any] = {"facecolor": "white", "edgecolor": colour, "linewidth": 1}
        filled: dict[str, Any] = {"color": colour, "alpha": 0.55, "linewidth": 0}
        axes.barh(i, mean, height=0.62, zorder=2, **(hollow if line.is_open[i] else filled))
        axes.plot([each.min(), each.max()], [i, i], color="black", linewidth=0.8, zorder=3)
        dots: dict[str, Any] = {"marker": "o", "markersize": 2.4, "linestyle": "none", "markeredgewidth": 0}
        axes.plot(each, [i] * len(each), color="black", zorder=4, **dots)
        text = with_minus(f"{mean:z.{digits}f}")
        axes.text(max(each.max(), 0) + 0.015 * span, i, f" {text}", size=_SMALL, va="center")
        said = f"{chart.columns[i]}: {measure.say(line, i)}"
        tell(axes, [(min(mean, 0.0), i - 0.31)], [said], size=(abs(mean), 0.62))
    names = ["\n".join(wrap(shortened(name.removesuffix(f": {NOT_MEASURED}"), 60), 32)) for name in chart.columns]
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    if THRESHOLD in measure.levels:
        axes.axvline(measure.levels[THRESHOLD], color="black", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    axes.set_xlim(right=max(largest, 0.0) + 0.14 * span)
    if not (seeds < 0).any():
        axes.set_xlim(left=0.0)
    if not np.isfinite(line.value).any():
        axes.set_xticks([])
    dashed = f"; dashed: {_threshold(measure)}" if THRESHOLD in measure.levels else ""
    axes.set_xlabel(measure.label + dashed, parse_math=False)
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    axes.set_title(chart.title, **_TITLE)
