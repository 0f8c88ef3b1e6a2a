"""Figures of studies: the panels that a study asks for, drawn from its tables in the style of ``figures``.

The unit is the network seed: lines, bars and cells are means over the seeds of the networks, bands are the range of the
seeds, and faint dots are the seeds themselves if there are at most ``FEW``. Fractions are drawn in per cent. Rows
that were not measured are named as such, and nothing is drawn for them.
"""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from suture.common.errors import DataError
from suture.report.figures.curve import WIDEST, WIDTH, Entries, styled
from suture.report.figures.study_bars import Group, found, groups_of, map_of, places_of
from suture.report.figures.study_maps import Map, draw_maps
from suture.report.style import shortened
from suture.studies.base.quantities import Tables
from suture.studies.base.study import Panel, Study

FEW = 5  #: seeds that are drawn one by one
_ABSENT = "not measured"
_GREY = "0.5"
_WIDE = 12  #: cuts, or letters of a bar's name times four, after which a panel has the page's width
_MANY = 1e5  #: from which numbers of an axis are written with k, M, G
_LETTER = 4.3  #: points: the width of a letter of 7.5 points, on average


def figure(study: Study, tables: Tables) -> Figure:
    """Draw a study's panels: lines and bars two in a row, or alone if they are wide, and heat maps in threes;
    heat maps that are alone in their panels two in a row.

    Raises ``DataError`` if the study has no panels.
    """
    if not study.panels:
        raise DataError(f"{study.id} has no figure; its tables are {', '.join(study.tables)}")
    with styled():
        rows = list(_rows([_Drawn(panel, tables) for panel in study.panels]))
        width = max((row[0].map_width if row[0].maps else WIDTH) for row in rows)
        heights = [max(drawn.height(width / len(row)) for drawn in row) for row in rows]
        page = Figure(figsize=(width, sum(heights)), layout="constrained")
        stacked = page.subfigures(len(rows), 1, height_ratios=heights, squeeze=False)[:, 0]
        for part, row in zip(stacked, rows, strict=True):
            _fill(part, row, width)
        if said := _seeds(study.panels, tables):
            stacked[-1].supxlabel(said, size=6.5, color="0.35", x=0.995, ha="right")
    return page


def _seeds(panels: Sequence[Panel], tables: Tables) -> str:
    """Say what lines and bands are, and of how many pairs of networks."""
    groups = [found(where, panel.column, tables) for panel in panels for _, where in panel.lines]
    counts = sorted({int(rows["network_seed"].nunique()) for rows in groups if len(rows)})
    if not counts:
        return ""
    several = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    kinds = {panel.kind for panel in panels}
    said = ["of one network seed" if counts[-1] == 1 else f"means over {several} network seeds"]
    if kinds & {"lines", "bars"} and counts[-1] > 1:
        said.append("dots: each of them")
    if "lines" in kinds and counts[-1] > 1:
        said.append("bands: their range, no interval")
    if "map" in kinds:
        said.append("below the white line the sender is cut at least as deep as the receiver")
    return "; ".join(said)


class _Drawn:
    """A panel with what was measured of it."""

    def __init__(self, panel: Panel, tables: Tables) -> None:
        self.panel = panel
        self.maps = [map_of(name, where, panel, tables) for name, where in panel.lines] if panel.kind == "map" else []
        self.groups = groups_of(panel, tables) if panel.kind != "map" else []
        self.places = places_of(self.groups)
        percent = any(g.percent for g in self.groups) or any(m.percent for m in self.maps)
        label = panel.label.replace("[", "(").replace("]", ")")
        self.label = f"{label} (%)" if percent and "(" not in label else label

    @property
    def title(self) -> str:
        """Its title, if that says more than the name of its only line."""
        return "" if [group.name for group in self.groups] == [self.panel.title] else self.panel.title

    @property
    def wide(self) -> bool:
        """Say whether it needs a row of its own."""
        if self.panel.kind == "bars":
            return max(len(group.name) for group in self.groups) > 4 * _WIDE
        return len(self.maps) > 1 or self.across > _WIDE or len(self.places) > _WIDE

    @property
    def per_row(self) -> int:
        """Heat maps beside each other."""
        return 2 if len(self.maps) == 4 else min(len(self.maps), 3)

    @property
    def map_width(self) -> float:
        """Return the inches of a page for its heat maps: wider if there are many cells."""
        return min(WIDEST, max(WIDTH, self.per_row * (0.9 + 0.2 * self.across)))

    @property
    def across(self) -> int:
        """Return the columns of its widest heat map."""
        return max((map_.values.shape[1] for map_ in self.maps), default=0)

    def height(self, width: float) -> float:
        """Return the inches that it needs, ``width`` inches wide."""
        if self.maps:
            side = (width - 0.6) / self.per_row
            tall = max((_aspect(map_) for map_ in self.maps), default=1.0)
            title = 0.25 if self.panel.title else 0.0
            return title + -(-len(self.maps) // self.per_row) * (min(3.4, max(1.0, (side - 0.8) * tall)) + 1.0)
        if self.panel.kind == "bars":
            return 0.75 + 0.3 * len(self.groups) + (0.2 if self.panel.title else 0.0)
        names = max((len(shortened(place, 24)) for place in self.places), default=0)
        if not self.places:
            return 1.2 + 0.17 * self.legend_lines(width)
        return 2.35 + 0.17 * self.legend_lines(width) + 0.045 * names

    def legend_lines(self, width: float) -> int:
        """Return the lines of its legend with its title."""
        entries = len(self.groups) + (self.panel.level is not None) + self.panel.baseline
        return -(-entries // self.columns(width)) + bool(self.title)

    def columns(self, width: float) -> int:
        """Return the columns of its legend."""
        longest = max(len(shortened(group.name)) + (14 if not group.there else 0) for group in self.groups)
        return max(1, min(4, int(72 * (width - 0.6) // (_LETTER * max(longest, 12) + 34))))


def _aspect(map_: Map) -> float:
    rows, columns = map_.values.shape
    return float(rows / max(columns, 1)) if rows else 0.3


def _rows(panels: Sequence[_Drawn]) -> Iterator[list[_Drawn]]:
    """Panels in rows of one or two; a lone one that is not wide has the row to itself."""
    waiting: list[_Drawn] = []
    for drawn in panels:
        if drawn.wide:
            if waiting:
                yield waiting
            waiting = []
            yield [drawn]
        elif waiting and waiting[0].panel.kind == drawn.panel.kind:
            yield [*waiting, drawn]
            waiting = []
        else:
            if waiting:
                yield waiting
            waiting = [drawn]
    if waiting:
        yield waiting


def _fill(part: SubFigure, row: Sequence[_Drawn], width: float) -> None:
    if row[0].maps:
        for beside, drawn in zip(part.subfigures(1, len(row), squeeze=False)[0], row, strict=True):
            draw_maps(beside, drawn.maps, drawn.label, drawn.panel.title, drawn.per_row)
        return
    for axes, drawn in zip(part.subplots(1, len(row), squeeze=False)[0], row, strict=True):
        (_bars if drawn.panel.kind == "bars" else _lines)(axes, drawn, width / len(row))


# --- lines ------------------------------------------------------------------------------------------------------------


def _lines(axes: Axes, drawn: _Drawn, width: float) -> None:
    panel, entries = drawn.panel, []
    if panel.column == "penalty" and panel.level != 0:
        axes.axhline(0, color="black", linewidth=0.7, zorder=1)
    for group in drawn.groups:
        entries.append((_line(axes, group, drawn.places), _named(group)))
    if panel.baseline:
        entries += _baseline(axes, drawn.groups)
    if panel.level is not None:
        axes.axhline(panel.level, color="black", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
        entries.append((Line2D([], [], color="black", linewidth=0.9, linestyle=(0, (4, 2))), _level(drawn)))
    _name_places(axes, drawn, width)
    axes.set_ylabel(drawn.label, parse_math=False)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    _fit_range(axes, drawn)
    if max(map(abs, axes.get_ylim())) >= _MANY:
        axes.yaxis.set_major_formatter(EngFormatter())
    if not drawn.places:
        _say_absent(axes)
    _legend(axes, entries, drawn, width)


def _line(axes: Axes, group: Group, places: Sequence[str]) -> Artist:
    """Draw the mean over seeds, their range, and the seeds."""
    if not group.there:
        return Line2D([], [], linestyle="none")
    at = group.values["place"].map({place: i for i, place in enumerate(places)})
    by = group.values.assign(at=at).groupby("at")["value"]
    mean, low, high = by.mean(), by.min(), by.max()
    axes.fill_between(mean.index, low, high, color=group.colour, alpha=0.16, linewidth=0, zorder=2)
    seeds = group.values["network_seed"].nunique()
    if 1 < seeds <= FEW:
        dots: dict[str, Any] = {"marker": ".", "markersize": 3.4, "linestyle": "none", "alpha": 0.6}
        axes.plot(at, group.values["value"], color=group.colour, zorder=3, markeredgewidth=0, **dots)
    (line,) = axes.plot(
        mean.index,
        mean,
        color=group.colour,
        marker=group.marker,
        linestyle=group.dashes,
        markersize=3.6 if len(places) <= 30 else 2.4,
        linewidth=1.4,
        zorder=4,
        markeredgecolor="white",
        markeredgewidth=0.4,
    )
    return line


def _baseline(axes: Axes, groups: Sequence[Group]) -> Entries:
    """Return the receivers' own scores: one line for all groups whose receivers score the same."""
    alone = [group.alone for group in groups if len(group.alone)]
    distinct = {tuple(scores.round(9)): scores for scores in alone}
    for scores in distinct.values():
        axes.axhspan(scores.min(), scores.max(), color=_GREY, alpha=0.18, linewidth=0, zorder=0)
        axes.axhline(scores.mean(), color=_GREY, linewidth=1.1, zorder=1)
    return [(Line2D([], [], color=_GREY, linewidth=1.1), "receiver alone")] if distinct else []


def _named(group: Group) -> str:
    return shortened(group.name) if group.there else f"{shortened(group.name)}: {_ABSENT}"


def _level(drawn: _Drawn) -> str:
    """Say what the legend says of the threshold, with the unit that the axis has."""
    unit = drawn.label.rpartition("(")[2].rstrip(")") if drawn.label.endswith(")") else ""
    return f"threshold: {drawn.panel.level:g} {unit}".rstrip()


def _fit_range(axes: Axes, drawn: _Drawn) -> None:
    """Leave some air; per cent end at 0 and 100."""
    axes.margins(x=0.03, y=0.08)
    axes.autoscale_view()
    low, high = axes.get_ylim()
    if any(group.percent for group in drawn.groups):
        low, high = (0.0, 102.0) if high - low > 55 else (max(low, 0.0), min(high, 101.0))
    axes.set_ylim(low, high)


def _name_places(axes: Axes, drawn: _Drawn, width: float) -> None:
    places = drawn.places
    step = max(1, -(-len(places) * 7 // int(72 * (width - 0.7))))
    names = [shortened(place, 24) for place in places[::step]]
    flat = sum(map(len, names)) * 4.6 < 72 * (width - 0.9) and len(names) < 7
    axes.set_xticks(
        range(0, len(places), step),
        names,
        rotation=0 if flat else 45 if len(names) <= 10 else 90,
        ha="center" if flat or len(names) > 10 else "right",
        va="top" if flat or len(names) > 10 else "center",
        rotation_mode="default" if flat or len(names) > 10 else "anchor",
        fontsize=7 if len(names) <= 20 else 6,
        parse_math=False,
    )
    side = drawn.panel.along.partition("_")[0]
    axes.set_xlabel(f"cut of the {side} (input → output)")


# --- bars -------------------------------------------------------------------------------------------------------------


def _bars(axes: Axes, drawn: _Drawn, width: float) -> None:
    """Draw a bar a group, from the top, with its seeds as dots and its mean in figures."""
    panel = drawn.panel
    largest = max((group.values["value"].max() for group in drawn.groups if group.there), default=1.0)
    for i, group in enumerate(drawn.groups):
        if not group.there:
            axes.text(0, i, f" {_ABSENT}", size=6.5, color=_GREY, va="center")
            continue
        seeds = group.values.groupby("network_seed")["value"].mean()
        axes.barh(i, seeds.mean(), height=0.62, color=group.colour, alpha=0.55, linewidth=0, zorder=2)
        axes.plot([seeds.min(), seeds.max()], [i, i], color="black", linewidth=0.8, zorder=3)
        dots: dict[str, Any] = {"marker": "o", "markersize": 2.4, "linestyle": "none", "markeredgewidth": 0}
        axes.plot(seeds, [i] * len(seeds), color="black", zorder=4, **dots)
        axes.text(max(seeds.max(), 0) + 0.015 * largest, i, f" {seeds.mean():.3g}", size=6.5, va="center")
    names = ["\n".join(wrap(shortened(group.name, 60), 32)) for group in drawn.groups]
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    if panel.level is not None:
        axes.axvline(panel.level, color="black", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    axes.set_xlim(right=1.14 * largest if largest > 0 else 1.0)
    if all(group.values["value"].min() >= 0 for group in drawn.groups if group.there):
        axes.set_xlim(left=0.0)
    if not any(group.there for group in drawn.groups):
        axes.set_xticks([])
    level = f"; dashed: {_level(drawn)}" if panel.level is not None else ""
    axes.set_xlabel(drawn.label + level, parse_math=False)
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    if panel.title:
        axes.set_title(panel.title, loc="left", size=8, weight="bold", parse_math=False)


# --- legend -----------------------------------------------------------------------------------------------------------


def _legend(axes: Axes, entries: Entries, drawn: _Drawn, width: float) -> None:
    """Name the lines above the panel, below its title, where nothing can be covered."""
    title = drawn.title
    if len(entries) == 1 and not title and drawn.places:
        axes.set_title(entries[0][1], loc="left", size=8, parse_math=False)
        return
    legend = axes.legend(
        [artist for artist, _ in entries],
        [str(i) for i in range(len(entries))],  # set below: a name may begin with an underscore
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        borderaxespad=0.3,
        borderpad=0.1,
        ncols=drawn.columns(width),
        title=title or None,
        title_fontproperties={"size": 8, "weight": "bold"},
        alignment="left",
        columnspacing=1.3,
        handlelength=1.7,
        labelspacing=0.3,
    )
    for text, (_, name) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(name)


def _say_absent(axes: Axes) -> None:
    axes.text(0.5, 0.5, _ABSENT, transform=axes.transAxes, ha="center", va="center", color=_GREY)
    axes.set(xticks=[], yticks=[])
