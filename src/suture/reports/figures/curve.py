"""Figures along the cuts, in one style: readable in print, in grey and by the colour-blind (Okabe & Ito's palette).

Whatever a user's matplotlib is set to, the figures look the same, and names come out as they are written. How tall a
page must be is measured: it is laid out once, and grows or shrinks until its axes have the height that they shall have.
An HTML page shows the same figures, drawn ``for_page``: without what the page says beside them, and with the lines that
it hides at first.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from suture.common.errors import DataError, OutputError
from suture.measurement.tables.curve import PLAIN
from suture.measurement.tables.onset import CONVEYED, Onset, Way
from suture.measurement.tables.read import Reading
from suture.measurement.tables.say import asked, headline
from suture.reports import charts
from suture.reports.charts import OPEN, SIMILARITY, Chart, Line, Measure
from suture.reports.figures.verdict import head, mark_entries, name_lines, name_marks, strip
from suture.reports.style import LETTERS, SERIES, shortened

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",  # of which matplotlib brings DejaVu Sans; a viewer of SVG may need another
    "font.size": LETTERS,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.labelsize": LETTERS,
    "xtick.labelsize": LETTERS,
    "ytick.labelsize": LETTERS,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": LETTERS,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "suture",
    "hatch.linewidth": 0.4,
}

KINDS = ("png", "pdf", "svg")  #: of the files of a figure
_TIMELESS: dict[str, dict[str, None]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
WIDTH = 6.6  #: inches: a page of text
WIDEST = 10.0  #: inches: a page on its side
NARROW = 3.0  #: inches: the screen of a phone, which shows letters of 8 points 12 pixels high
SMALLEST = 4.5  #: points: the smallest letters
FEW = 6  #: seeds that are drawn one by one; six, for all ordered pairs of three networks
COVERED = 0.005  #: of the range of all lines: two that differ by no more anywhere cannot be told apart
BROADER = 2.0  #: points by which a line is broader for each that covers it
_LETTER = 4.6  #: points: the width of a letter of a name, on average
_TITLE_LETTERS = 13  #: of a panel's title, in an inch
_SHORT = 18  #: letters of the name of a line on a phone, after which its middle is left out

ASIDE, FEW_NAMES, ALL_NAMES = "aside", "few", "all"
"""Ids of what a page hides at first: lines, and the names of those that show at first and of all."""

Entries = list[tuple[Artist, str]]


@dataclass(frozen=True, eq=False)
class Told:
    """The text shown when one points at a mark: a point of axes or, with a size, a field right of it and above."""

    axes: Axes
    x: float
    y: float
    said: str
    size: tuple[float, float] | None = None
    aside: bool = False


class Picture(Figure):
    """A figure that a notebook shows, whatever has been imported, with the texts of its marks on a page."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.told: list[Told] = []

    def _repr_png_(self) -> bytes:
        drawn = BytesIO()
        with styled():
            self.savefig(drawn, format="png", dpi=150)
        return drawn.getvalue()


def tell(
    axes: Axes,
    places: Iterable[tuple[float, float]],
    said: Iterable[str],
    size: tuple[float, float] | None = None,
    aside: bool = False,
) -> None:
    """Give marks at these places of axes, all of one size, their texts on a page."""
    picture = axes.get_figure(root=True)
    if isinstance(picture, Picture):
        picture.told += [Told(axes, x, y, one, size, aside) for (x, y), one in zip(places, said, strict=True)]


# --- figures ----------------------------------------------------------------------------------------------------------


def curve(
    reading: Reading, similarities: pd.DataFrame | None = None, *, width: float = WIDTH, for_page: bool = False
) -> Figure:
    """Draw a score of the stitched network at every cut, with its controls, its parents and 95 % intervals.

    Above it stands the headline, below it, if the score has one, its penalty in pp or in the score's unit, and a row of
    marks for each question. The reading holds one sender and one receiver, any seeds. With ``similarities`` the indices
    stand below, at the same cuts, calibrated if the table says so. ``width`` is in inches; ``for_page`` leaves out the
    headline and the marks, and draws all lines. Raises ``DataError`` if the reading is more than one curve, or no seam
    of it was compared.
    """
    chart = charts.curve(reading, similarities)
    scored, *costs = (one for one in chart.measures if one.show != SIMILARITY)
    indices = [one for one in chart.measures if one.show == SIMILARITY]
    if similarities is not None and not indices:
        raise DataError(
            f"no seam of {scored.lines[0].name} in the table was compared; compare these networks, at the same cuts"
        )
    if not any(np.isfinite(line.value).any() for line in scored.lines):
        raise DataError(f"the table has no measurement of '{reading.score}' to draw: every trial failed")
    questions = asked(reading) if costs and not for_page else []
    answers = [0.17 * len(questions)] if questions else []
    heights = [2.4, *(1.0 for _ in costs), *(1.3 for _ in indices[:1]), *answers]
    shown = replace(scored, lines=tuple(line for line in scored.lines if not line.hidden))
    with styled():
        figure, axes = _page(chart, heights, width, beside=0.9 if questions else 0.0)
        draw_lines(axes[0], scored if for_page else shown, chart.columns)
        several = for_page and len(shown.lines) < len(scored.lines)
        named = [(axes[0], _names(shown), FEW_NAMES if several else None)]
        named += [(axes[0], _names(scored), ALL_NAMES)] if several else []
        for cost in costs:
            lines = tuple(replace(line, hidden=False) for line in cost.lines if line.kind in (PLAIN, "itself"))
            draw_lines(axes[1], replace(cost, lines=lines), chart.columns)
            own = _names(replace(cost, lines=lines[1:], levels={}))  # of the receiver stitched to itself
            axes[1].set_ylabel("penalty" + f" ({cost.unit})" * bool(cost.unit))
            if reading.margin is not None:
                axes[1].axhspan(0, reading.margin, color="0.5", alpha=0.12, linewidth=0, zorder=0)
                within = f"within {reading.margin:g} {cost.unit}".strip()
                own.append((reading.margin / 2, within, "0.45", False))
            named.append((axes[1], own, None))
        if indices:
            together = _together(indices)
            place = axes[1 + len(costs)]
            draw_lines(place, together, chart.columns)
            named.append((place, _names(together), None))
        if questions:
            strip(axes[-1], reading)
        name_marks(figure, [*(mark_entries(reading) if questions else ()), *say_marks(chart)])
        if not for_page:
            head(figure, headline(reading) or chart.title)
            made_by = _measured(scored, reading.table)
            note = axes[0].set_title(made_by, loc="left", size=LETTERS, color="0.35", pad=5, parse_math=False)
        fit_height(figure, axes, sum(heights))
        for place, names, which in named:
            _name(place, names, width, which)
        if not for_page:
            figure.draw_without_rendering()  # the names take room
            if note.get_window_extent().x1 > axes[0].get_window_extent().x1:
                note.set_text(made_by.replace("; ", "\n", 1))
                fit_height(figure, axes, sum(heights))
    return figure


def _name(axes: Axes, names: Sequence[tuple[float, str, str, bool]], width: float, which: str | None = None) -> None:
    """Write names beside lines; on a phone those that are too long without the names of networks."""
    if width >= WIDTH:
        name_lines(axes, names, gid=which)
        return
    general = []
    for height, name, colour, main in names:
        if len(name) > _SHORT:
            role = re.search(r" alone \((\w+)\)$", name)
            name = "stitched" if main else f"{role[1]} alone" if role else name
        general.append((height, name, colour, main))
    name_lines(axes, general, _SHORT, which)


def _together(indices: Sequence[Measure]) -> Measure:
    """Return several indices as one measure, a line each; its name says if all are calibrated."""
    dashes, words = ("-", "--", "-.", ":"), ", calibrated"
    known = all(measure.of.endswith(words) for measure in indices)
    lines = tuple(
        replace(
            measure.lines[0], kind=f"#{i}", name=measure.of.removesuffix(words * known), looks=((*look, dashes[i % 4]),)
        )
        for i, (measure, look) in enumerate(zip(indices, cycle(SERIES), strict=False))
    )
    every = np.concatenate([line.value for line in lines])
    span = (min(0.0, float(np.nanmin(every))) - 0.03, max(1.0, float(np.nanmax(every))) + 0.03)
    return Measure(SIMILARITY, f"index{words * known}", "", 2, lines, span=span)


def _names(measure: Measure) -> list[tuple[float, str, str, bool]]:
    """Return the height at which each line of a measure ends, its name, its colour, and whether it is the main one."""
    ends = [
        (float(line.value[np.isfinite(line.value)][-1]), line.name, line.look(i)[0], line.kind == PLAIN)
        for i, line in enumerate(measure.lines)
        if line.has_values
    ]
    return [*ends, *((value, name, "black", False) for name, value, _ in measure.across)]


def _measured(measure: Measure, table: pd.DataFrame) -> str:
    """Describe the measurement: the units of the intervals, the stitch and the fit."""
    plain = table[table["control"] == PLAIN]
    ways = (f"{' or '.join(map(str, plain[name].unique()))}" for name in ("stitch", "fit"))
    bands = f"bands: 95 % intervals over {measure.over}; " if measure.over else ""
    return bands + ", fitted by ".join(ways)


def localisation(table: pd.DataFrame, found: Onset, *, width: float = WIDTH, for_page: bool = False) -> Figure:
    """Draw the share of a trait that every cut conveys, in both directions, with 95 % intervals.

    0 % is the reference network itself, 100 % the carrier; controls are thin; the first cut that conveys the trait has
    a ring, and its place is marked behind, each direction's own in green if they disagree. ``width`` is in inches;
    ``for_page`` leaves out the verdict above.
    """
    chart = charts.localisation(table, found)
    with styled():
        figure, axes = _page(chart, [1.35, 1.35], width)
        marks: dict[str, Artist] = {}
        for panel, measure, way in zip(axes, chart.measures, (found.sending, found.receiving), strict=True):
            draw_lines(panel, measure, chart.columns)
            marks |= {name: artist for artist, name in _mark(panel, chart, found, way)}
            panel.axhline(100 * CONVEYED, color="0.6", linewidth=0.6, linestyle=":", zorder=1)
            panel.set_ylabel("")
            said = fill(f"{measure.show}: {way.verdict}", int(_TITLE_LETTERS * width))
            panel.set_title(said, size=LETTERS, loc="left", parse_math=False)
        figure.supylabel(chart.measures[0].label, size=LETTERS, parse_math=False)
        if not for_page:
            head(figure, str(found).splitlines()[0])
        bands = (Patch(color="0.8"), "95 % interval over samples or seeds")
        name_marks(figure, [bands, *((artist, name) for name, artist in marks.items()), *say_marks(chart)])
        fit_height(figure, axes, 2.7)
        for panel, measure in zip(axes, chart.measures, strict=True):
            _name(panel, _names(measure), width)
    return figure


def _mark(axes: Axes, chart: Chart, found: Onset, way: Way) -> Entries:
    """Mark the onset, and between which cuts the trait lies by both directions or, if they disagree, by this one."""
    marks: Entries = []
    axes.set_xlim(-0.5, len(chart.columns) - 0.5)
    if way.onset is not None:
        i, place = way.cuts.index(way.onset), chart.columns.index(way.onset)
        ring: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "linestyle": "none"}
        (drawn,) = axes.plot([place], [100 * way.shares[i]], color="black", zorder=5, **ring)
        marks.append((drawn, "first cut that conveys it"))
    disagree = found.verdict == "the directions disagree"
    between = way.between if disagree else found.between
    if between is not None:
        first, last = (chart.columns.index(end) if end in chart.columns else None for end in between)
        left, right = -0.5 if first is None else first, len(chart.columns) - 0.5 if last is None else last
        colour, said = ("#009E73", "where this direction places it") if disagree else ("#F0E442", "where it lies")
        look: dict[str, Any] = {"alpha": 0.25 if disagree else 0.45, "linewidth": 0, "zorder": 0}
        marks.append((axes.axvspan(left, right, color=colour, **look), said))
    return marks


def _page(chart: Chart, heights: Sequence[float], width: float, beside: float = 0.0) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure with panels below each other, the cuts named below the last; wider if there are many.

    ``beside`` is the room in inches that names on the left take.
    """
    crowd = min(max(len(chart.columns) - 20, 0), 40) / 40 if width >= WIDTH else 0.0
    width += (WIDEST - WIDTH) * crowd
    figure = Picture(figsize=(width, 8), layout="constrained")
    axes = list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    if width < WIDTH:  # letters of a phone cannot be smaller, and names beside the lines take half of its width
        name_cuts(axes[-1], chart.columns, width / 2, smallest=7.0)
    else:
        name_cuts(axes[-1], chart.columns, width - beside)
    axes[-1].set_xlabel(chart.axes[0], parse_math=False)
    return figure, axes


def fit_height(figure: Figure, axes: Sequence[Axes], inches: float) -> None:
    """Make the page as tall as it must be for axes below each other to be so tall together."""
    figure.draw_without_rendering()
    tall = sum(one.get_window_extent().height for one in axes) / figure.dpi
    figure.set_figheight(figure.get_figheight() + inches - tall)
    figure.align_ylabels([one for one in axes if one.get_ylabel()])  # the names of questions are wider than numbers


# --- lines and names --------------------------------------------------------------------------------------------------


def draw_lines(axes: Axes, measure: Measure, places: Sequence[str] = ()) -> Entries:
    """Draw every line of a measure with its band, and its levels across; return their legend entries.

    With the names of its ``places`` every point has a label on a page.
    """
    covering = count_covering(measure.lines)
    entries: Entries = [(_line(axes, line, i, covering[i]), line.name) for i, line in enumerate(measure.lines)]
    for line in sorted(measure.lines, key=lambda one: one.kind == PLAIN) if places else ():  # on top, as it is drawn
        there = np.flatnonzero(np.isfinite(line.value)).tolist()
        said = [f"{places[i]}, {line.name}: {measure.say(line, i)}" for i in there]
        tell(axes, [(i, float(line.value[i])) for i in there], said, aside=line.hidden)
    for name, value, dashed in measure.across:
        level = axes.axhline(value, color="black", linewidth=0.8, linestyle=(0, (4, 2)) if dashed else "-", zorder=1)
        entries.append((level, name))
    if measure.signed and 0 not in measure.levels.values():
        axes.axhline(0, color="black", linewidth=0.8, zorder=1)
    axes.set_ylabel(measure.label, parse_math=False)
    if measure.span is not None:
        axes.set_ylim(measure.span)
    axes.margins(x=0.02)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    return entries


def count_covering(lines: Sequence[Line]) -> list[int]:
    """Return for each line how many lie on all of it, of those that are drawn over it."""
    values = [line.value for line in lines]
    known = np.concatenate([value[np.isfinite(value)] for value in values] or [np.zeros(0)])
    near = COVERED * np.ptp(known) if len(known) else 0.0

    def covers(over: int, under: int) -> bool:
        there = np.isfinite(values[under])
        on_top = (lines[over].kind == PLAIN, over) > (lines[under].kind == PLAIN, under)
        on_top = on_top and lines[over].hidden <= lines[under].hidden
        return bool(on_top and there.any() and (np.abs(values[over] - values[under])[there] <= near).all())

    return [sum(covers(over, under) for over in range(len(lines))) for under in range(len(lines))]


def _line(axes: Axes, line: Line, number: int, covering: int) -> Artist:
    """Draw one line with its band; where a trial failed there is a gap.

    It is broader by each line that will be drawn on it, so that it is still seen.
    """
    colour, marker, dashes = line.look(number)
    main, certain, few = line.kind == PLAIN, np.isfinite(line.low).any(), len(line.value) <= 30
    broader = BROADER * covering
    places = np.arange(len(line.value))
    if line.is_group:  # it has its own cuts among those of all groups
        places = places[np.isfinite(line.value)]
        if not len(places):
            return Line2D([], [], linestyle="none")
    value, low, high = line.value[places], line.low[places], line.high[places]
    gid = ASIDE if line.hidden else None
    axes.fill_between(places, low, high, color=colour, alpha=0.25 if main else 0.15, linewidth=0, zorder=2, gid=gid)
    there = np.isfinite(low)
    lone = there & ~np.append(False, there[:-1]) & ~np.append(there[1:], False)  # a band needs a neighbour to be seen
    if lone.any():
        axes.vlines(places[lone], low[lone], high[lone], color=colour, alpha=0.6, linewidth=1.5, zorder=2, gid=gid)
    if line.seeds is not None and 1 < len(line.seeds) <= FEW:
        dots: dict[str, Any] = {"marker": ".", "markersize": 3.4, "linestyle": "none", "markeredgewidth": 0}
        at = np.broadcast_to(np.arange(len(line.value)), line.seeds.shape)
        axes.plot(at.ravel(), line.seeds.ravel(), color=colour, alpha=0.6, zorder=3, **dots)
    (drawn,) = axes.plot(
        places,
        value,
        color=colour,
        marker=marker,
        linestyle=dashes,
        markersize=broader + ((4 if main else 3.2 if certain or line.is_group else 2.6) if few else 2.4),
        linewidth=broader + (2.2 if main else 1.4 if line.is_group else 0.9),
        alpha=1.0 if main or line.is_group else 0.75,
        zorder=4 if main else 3,
        gid=gid,
    )
    hollow = line.is_open[places]
    if hollow.any():
        axes.plot(
            places[hollow],
            value[hollow],
            color=colour,
            marker="X" if marker == "x" else marker,  # a cross of lines has nothing to be hollow
            markerfacecolor="white",
            markersize=drawn.get_markersize() + 1.5 * (marker == "x"),
            linestyle="none",
            zorder=drawn.get_zorder() + 0.5,
            gid=gid,
        )
    return drawn


def say_marks(chart: Chart) -> Entries:
    """Return the legend entry of hollow points, if there are any."""
    lines = [line for measure in chart.measures for line in measure.lines]
    # a triangle, as controls are drawn: a ring would look like the mark of a no
    point: dict[str, Any] = {"marker": "^", "markersize": 4.5, "markerfacecolor": "white", "color": "#666666"}
    entries: Entries = []
    if any(line.is_open.any() for line in lines):
        entries.append((Line2D([], [], linestyle="none", **point), OPEN))
    return entries


def name_cuts(axes: Axes, cuts: Sequence[str], inches: float, smallest: float = SMALLEST) -> None:
    """Name the cuts below axes so wide, as flat and as large as there is room; of very many, every second or third."""
    room = 72 * 0.88 * inches / max(len(cuts), 1)  # points
    step = int(np.ceil(smallest / room))
    names = [shortened(name) for name in cuts[::step]]
    flat, steep = max(map(len, names), default=0) * _LETTER < room, room * step < 14
    axes.set_xticks(
        range(0, len(cuts), step),
        names,
        rotation=0 if flat else 90 if steep else 40,
        ha="center" if flat or steep else "right",
        va="center" if not (flat or steep) else "top",
        rotation_mode="default" if flat or steep else "anchor",
        fontsize=min(LETTERS, max(smallest, 0.85 * room * step)) if steep else LETTERS,
        parse_math=False,
    )


# --- files ------------------------------------------------------------------------------------------------------------


def save(figure: Figure, stem: str | Path) -> list[Path]:
    """Write a figure as PNG (200 dpi), PDF and SVG beside each other, text as text. Raises ``OutputError``."""
    paths = [Path(f"{stem}.{kind}") for kind in KINDS]
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            with styled():
                figure.savefig(path, dpi=200, metadata=_TIMELESS.get(path.suffix))
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; name another folder") from error
    return paths


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style, whatever the user's settings; a glyph that the font lacks is drawn as a box."""
    kept: dict[Any, Any] = {
        k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith(("backend", "interactive"))
    }
    with warnings.catch_warnings(), mpl.rc_context(kept | STYLE):
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
