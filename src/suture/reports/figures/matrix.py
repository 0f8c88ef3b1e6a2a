"""Heat maps: rows are sender cuts, from the input at the top, columns receiver cuts, from the input at the left.

The style is that of ``curve``; the colours are viridis, uniform to the eye, in grey and for the colour-blind. A page is
laid out twice: first to measure how much room names and bars leave, then with cells as large as that allows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import EllipseCollection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import Mask, Numbers, by_depth
from suture.measurement.tables.curve import PLAIN
from suture.measurement.tables.matrix import Block, Matrix, places_of, staircase
from suture.measurement.tables.questions import CLOSE, NO, YES
from suture.measurement.tables.read import Reading
from suture.measurement.tables.say import asked, headline, name_question, say_mark
from suture.measurement.tables.table import say_quick
from suture.reports import arrange
from suture.reports.charts import OPEN, SIMILARITY, Chart, scale_of
from suture.reports.figures.curve import SMALLEST, WIDEST, WIDTH, Picture, styled, tell
from suture.reports.figures.verdict import head
from suture.reports.style import LETTERS, name_of, place_of, shortened, with_minus

COLOURS = "viridis"
MISSING: dict[str, Any] = {"facecolor": "#EEEEEE", "edgecolor": "#AAAAAA", "hatch": "////", "linewidth": 0}
FAILED: dict[str, Any] = {"facecolor": "#FFFFFF", "edgecolor": "#D55E00", "hatch": "xxxx", "linewidth": 0}
_MOST_CELLS = 10_000  #: of a panel that is drawn as shapes; larger ones are drawn as pixels, which open faster
ON_PAGE = 5.8  #: points: the smallest letters on a page, which are at least 9 pixels high there
_RING = 0.14  #: the width of the ring in a cell that had not converged, in the cell's width
_GAP, _STRIP = 0.04, 0.14  #: inches: between a panel and its strips, and their width
_CELL, _TALLEST, _NARROWEST = 0.42, 3.4, 0.9  #: inches: the largest cell, the tallest panel and the narrowest one
_LARGE = 0.6  #: inches: the largest cell of what a page shows first
_LINE = 0.3  #: inches: a line of means by depth
_VERDICT, _DEPTH = "verdict", "depth"  #: the panel of marks, and that of means by depth
_LATE = [(-1, 1), (1, -1), (-1, -1)]  #: a mark: the half of a matrix below its line
_EARLY = [(-1, 1), (1, -1), (1, 1)]  #: and above it
_LETTER = 0.57  #: the width of a letter of a name, in its size
_LONGEST = 24  #: letters of a name, after which its middle is left out
_NETWORK = LETTERS  #: points: the names of networks
_LEAST = 6.5  #: points: a title, or the name of an axis, that would else lack a part
_DIAGONAL: dict[str, Any] = {"color": "white", "solid_joinstyle": "miter"}


# --- cells ------------------------------------------------------------------------------------------------------------


def draw_cells(
    axes: Axes,
    values: Numbers,
    colours: ScalarMappable,
    failed: Mask | None = None,
    open_: Mask | None = None,
) -> None:
    """Draw cells, the first row on top; missing and failed cells are hatched.

    A cell whose fit had not converged has a ring at the upper right.
    """
    rows, columns = values.shape
    axes.pcolormesh(
        np.ma.masked_invalid(values),
        cmap=colours.get_cmap(),
        norm=colours.norm,  # type: ignore[arg-type]  # the stubs of matplotlib name a base class here
        edgecolors="face",
        linewidth=0.1,  # without it, viewers of PDF show white hairlines between cells
        rasterized=values.size > _MOST_CELLS,
    )
    axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    axes.tick_params(length=0, pad=1.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    for i, j in np.argwhere(np.isnan(values)):
        axes.add_patch(Rectangle((j, i), 1, 1, **(FAILED if failed is not None and failed[i, j] else MISSING)))
    rings = np.argwhere(np.isfinite(values) & (open_ if open_ is not None else False))
    if len(rings):
        axes.add_collection(
            EllipseCollection(
                *([_RING] * len(rings), [_RING] * len(rings), [0.0] * len(rings)),
                units="x",  # of a cell's width, round whatever its height
                offsets=[(j + 0.86, i + 0.16) for i, j in rings.tolist()],
                offset_transform=axes.transData,
                facecolor="none",
                edgecolor=[_ink_on(colours, float(values[i, j])) for i, j in rings],
                linewidth=0.4,
            )
        )


def write_cells(
    axes: Axes, values: Numbers, colours: ScalarMappable, written: Callable[[float], str], for_page: bool = False
) -> None:
    """Write the values into their cells if they have room, unusually long ones in smaller letters.

    The axes must have been laid out. No number is too small to be read on a page.
    """
    box, point = axes.get_window_extent(), 72 / axes.get_figure(root=True).dpi  # type: ignore[union-attr]
    width, height = point * box.width / values.shape[1], point * box.height / values.shape[0]
    texts = {(i, j): written(float(values[i, j])) for i, j in np.argwhere(np.isfinite(values)).tolist()}
    lengths = sorted(map(len, texts.values())) or [1]

    def size(letters: int) -> float:
        return float(min(LETTERS, 0.75 * height, 1.3 * width / max(letters, 2)))

    usual, least = (ON_PAGE, ON_PAGE) if for_page else (SMALLEST, 0.7 * SMALLEST)
    if size(lengths[len(lengths) // 2]) < usual or size(lengths[-1]) < least:
        return
    for (i, j), text in texts.items():
        ink = _ink_on(colours, float(values[i, j]))
        _text(axes, j + 0.5, i + 0.5, text, size(len(text)), ink)


def _text(axes: Axes, x: float, y: float, text: str, size: float, ink: str, **how: Any) -> None:
    axes.text(x, y, text, size=size, color=ink, ha="center", va="center_baseline", in_layout=False, **how)


def _ink_on(colours: ScalarMappable, value: float) -> str:
    """Return black or white, whichever contrasts more with the colour of a value."""
    colour: Numbers = np.asarray(colours.to_rgba(np.array([value])))[0, :3]
    return "black" if float(colour**2.2 @ [0.2126, 0.7152, 0.0722]) > 0.18 else "white"  # luminance, as WCAG has it


def slot(axes: Axes) -> tuple[float, float]:
    """Return the inches that the layout leaves axes, across and down."""
    part, place = axes.figure, axes.get_position(original=True)
    inches = part.bbox.width / part.dpi, part.bbox.height / part.dpi
    return place.width * inches[0], place.height * inches[1]


# --- all kinds of trial -----------------------------------------------------------------------------------------------


def matrix(reading: Reading) -> Figure:
    """Draw a score of every sender cut × every receiver cut, a panel for the trials and for each control.

    The top row and the left column are next to the input. The white line parts the cells whose sender cut is at least
    as deep as the receiver's (lower left) from the others; faint lines part the stages of a network, wide ones
    networks. Beside each panel its networks alone, and below the first the controls with one value per receiver cut.
    One panel says where it works, and where an untrained network does as well; the last has the means of the cells
    below and above the white line (``by_depth``). All others have one scale: 0–100 % for fractions, else from the least
    to the most. Several seeds are averaged. Raises ``DataError`` if the reading is more than one matrix.
    """
    return _matrix(reading, for_page=False)


def matrix_for_page(reading: Reading, controls: bool = False) -> Figure:
    """Draw the trials themselves, and where it works; or the ``controls``, and the means by depth."""
    return _matrix(reading, True, controls)


def _matrix(reading: Reading, for_page: bool, controls: bool = False) -> Figure:
    """Draw all panels or, on a page, a part of them."""
    shown = reading.matrix
    if not shown.panels:
        kinds = " and ".join(shown.strips)
        raise DataError(f"the table has no sender cut × receiver cut to draw, only {kinds}; draw a curve of it")
    if not any(np.isfinite(part).any() for part in (*shown.panels.values(), *shown.strips.values())):
        raise DataError(f"the table has no measurement of '{shown.score}' to draw: every trial failed")
    drawn = _Source(reading, for_page, controls)
    down, across = shown.plain.shape
    per_row = min(3, len(drawn.kinds))
    width = WIDTH + (WIDEST - WIDTH) * min(max(across - 10, 0), 20) / 20
    height, panel = 8.0, ((width - 1.6) / per_row - 0.4, 2.0)
    largest = _LARGE if for_page and not controls else _CELL
    with styled():
        for _ in range(2):
            page = _Page(drawn, per_row, (width, height), panel)
            page.figure.draw_without_rendering()
            wide, tall = slot(page.panels[0])
            cell = min(largest, wide / across)
            panel = max(across * cell, _NARROWEST), down * max(min(cell, _TALLEST / down), min(0.14, 0.7 / down))
            width += per_row * (panel[0] - wide)
            height += page.rows * (panel[1] - tall)
        for write in page.numbers:
            write()
    return page.figure


@dataclass(frozen=True)
class _Mark:
    """The mark of a cell: whether it works, whether that says little, and all answers in words."""

    works: str
    as_well: bool
    said: str


class _Source:
    """The source of a page of panels: its reading, and the kinds of panel it has."""

    def __init__(self, reading: Reading, for_page: bool, controls: bool) -> None:
        self.reading, self.shown, self.for_page = reading, reading.matrix, for_page
        self.chart = arrange.matrix(reading)
        self.judged, self.means = _judge(reading), _means_by_depth(reading.matrix)
        self.said = "" if for_page else headline(reading)
        first, *others = sorted(self.shown.panels, key=place_of)
        front = [first, *([_VERDICT] if self.judged else [])]
        rest = [*others, *([_DEPTH] if self.means else [])]
        self.first = first  #: which has the strips of controls below it
        self.kinds = [*front, *rest] if not (for_page and others) else rest if controls else front


_Judged = dict[tuple[int, int], _Mark]  #: by row and column
_Means = dict[str, tuple[float, float]]  #: late to early, and early to late, by kind of trial


def _means_by_depth(shown: Matrix) -> _Means:
    """Return the means of the two halves of every panel that has both."""
    summary = by_depth(shown.table, shown.score, pooled=True).set_index("control")
    halves = summary.loc[[kind for kind in shown.panels if kind in summary.index], ["late_to_early", "early_to_late"]]
    found = {str(kind): (float(late), float(early)) for kind, late, early in halves.itertuples()}
    return {kind: pair for kind, pair in found.items() if np.isfinite(pair).all()}


def _judge(reading: Reading) -> _Judged:
    """Return the mark of every cell."""
    if not reading.is_judged:
        return {}
    shown = reading.matrix
    down, across = places_of(shown.senders), places_of(shown.receivers)
    cells = [
        (down[pair.sender, start], across[pair.receiver, end]) for pair in reading.pairs for start, end in pair.seams
    ]
    as_well = reading.are("sender", NO) | reading.are("receiver", NO)
    questions = asked(reading)
    answers = zip(*(reading.marks(question) for question in questions), strict=True)
    said = [
        "; ".join(
            f"{name_question(reading, q)}: {say_mark(reading, q, mark)}"
            for q, mark in zip(questions, held, strict=True)
        )
        for held in answers
    ]
    marks = map(_Mark, reading.marks("works"), as_well.tolist(), said or [""] * len(cells))
    return dict(zip(cells, marks, strict=True))


class _Page:
    """A page of panels; ``numbers`` write those of the cells, once the page is laid out."""

    def __init__(
        self,
        drawn: _Source,
        per_row: int,
        size: tuple[float, float],
        panel: tuple[float, float],
    ) -> None:
        self.drawn, self.shown = drawn, drawn.shown
        shown, kinds = drawn.shown, drawn.kinds
        self.panel_size = panel
        beside = 72 * panel[0] / (_LETTER * len("untrained receiver"))
        self.small = max(6.0 if drawn.for_page else 5.5, min(LETTERS, beside))  #: points: the letters beside cells
        self.cell = panel[0] / shown.plain.shape[1], panel[1] / shown.plain.shape[0]
        self.scale = 100.0 if shown.percent else 1.0
        low, high, powers = scale_of([shown.values()])
        norm = Normalize(0, 100) if shown.percent else LogNorm(low, high) if powers else Normalize(low, high)
        self.colours = ScalarMappable(norm, COLOURS + "_r" * (not shown.rises))  # bright is better
        self.figure = Picture(figsize=size, layout="constrained")
        self.numbers: list[Callable[[], None]] = []
        self.judged = drawn.judged if _VERDICT in kinds else {}
        self.means = drawn.means if _DEPTH in kinds else {}
        if drawn.said:
            head(self.figure, drawn.said)
        rows = ceil(len(kinds) / per_row)
        ratios = [1.0] * rows
        if self.means and len(kinds) % per_row == 1:  # alone in the last row, which is as high as their lines
            ratios[-1] = _LINE * len(self.means) / panel[1]
        self.rows = sum(ratios)  #: in heights of a panel
        grid = self.figure.subplots(rows, per_row, squeeze=False, height_ratios=ratios)
        self.panels: list[Axes] = list(grid.flat[: len(kinds)])
        for axes in grid.flat[len(kinds) :]:
            axes.set_visible(False)
        for i, (axes, kind) in enumerate(zip(self.panels, kinds, strict=True)):
            if kind == _DEPTH:
                self._draw_means(axes, panel[1] * ratios[-1])
                continue
            draw = self._verdicts if kind == _VERDICT else partial(self._panel, kind=kind)
            draw(axes, leftmost=i % per_row == 0, lowest=i + per_row >= len(kinds) - bool(self.means))
        bar = self.figure.colorbar(self.colours, ax=list(grid.flat), aspect=25 * len(grid), pad=0.02)
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=2, pad=1.5)
        unit = "%" if shown.percent else shown.unit
        label = f"test {shown.score}" + (f" ({unit})" if unit != "raw" else "")
        bar.set_label("; ".join(filter(None, [label, say_quick(drawn.reading.table)])), parse_math=False)
        self._legend()

    def _written(self, value: float) -> str:
        return with_minus(f"{value:.{0 if self.shown.percent else 2}f}")

    def _verdicts(self, axes: Axes, leftmost: bool, lowest: bool) -> None:
        """Draw a mark for the verdict on every cell."""
        down, across = self.shown.plain.shape
        axes.set(xlim=(0, across), ylim=(down, 0), xticks=[], yticks=[], facecolor="#F4F4F2")
        axes.tick_params(length=0, pad=1.5)
        for spine in axes.spines.values():
            spine.set_visible(False)
        size = min(4.0, 72 * 0.3 * min(self.cell))
        for (row, column), mark in self.judged.items():
            if mark.works in _WORKS:
                axes.add_patch(Rectangle((column, row), 1, 1, linewidth=0.3, edgecolor="white", **_WORKS[mark.works]))
            if mark.as_well:
                axes.plot([column + 0.5], [row + 0.5], markersize=size, **_AS_WELL)
            tell(axes, [(column, row)], [f"{self.drawn.chart.place(row * across + column)}: {mark.said}"], (1, 1))
        self._part(axes, self.shown.senders, self.shown.receivers)
        axes.set_title("does it work?", size=LETTERS, pad=3)
        if leftmost:
            self._name(axes, self.shown.senders, upright=True)
        if lowest:
            self._name(axes, self.shown.receivers, upright=False)

    def _draw_means(self, axes: Axes, room: float) -> None:
        """Draw the means of both halves of every panel, a line for each, in so many inches."""
        rows, (least, most) = sorted(self.means, key=place_of), self.colours.get_clim()
        axes.set_axis_off()
        axes.set_title("mean by depth", size=LETTERS, pad=3)
        lines, beside = max(room / _LINE, len(rows)), 0.2 * (most - least)  # numbers have room at either end
        axes.set(xticks=[], yticks=[], xlim=(least - beside, most + beside), ylim=(lines - 0.5, -0.5))
        for i, kind in enumerate(rows):
            colour, halves = "#222222" if kind == PLAIN else "#777777", self.means[kind]
            how: dict[str, Any] = {"size": self.small, "color": colour, "va": "center_baseline", "in_layout": False}
            axes.plot([least, most], [i + 0.25] * 2, color="#DDDDDD", linewidth=0.6)
            for mean, mark in zip(halves, (_LATE, _EARLY), strict=True):
                at, greater = self.scale * mean, mean >= max(halves)
                axes.plot([at], [i + 0.25], linestyle="none", **_half(mark, colour))
                offset, side = ((4, 0), "left") if greater else ((-4, 0), "right")
                text = self._written(at)
                axes.annotate(text, (at, i + 0.25), offset, textcoords="offset points", ha=side, **how)
            axes.text(least - beside, i - 0.25, "trained networks" if kind == PLAIN else kind, parse_math=False, **how)

    def _panel(self, axes: Axes, kind: str, leftmost: bool, lowest: bool) -> None:
        shown, (wide, tall) = self.shown, self.panel_size
        self._cells(axes, kind, shown.panels[kind])
        self._part(axes, shown.senders, shown.receivers)
        title = kind if kind != PLAIN else "trained networks" if not shown.single else shown.title
        room = (wide + 0.35) * 72 / _LETTER  # in letters times their points
        size = min(LETTERS, max(_LEAST, room / max(len(title), 1)))
        axes.set_title(shortened(title, int(room / size)), size=size, pad=3, parse_math=False)
        senders, receivers = shown.parents[kind]
        beside = self._strip(axes, 1, upright=True)
        self._alone(beside, shown.senders, senders, upright=True)
        side = shown.senders[0].name if shown.single else "sender"
        beside.yaxis.set_label_position("right")
        alone = _fitting(tall, self.small, f"{shortened(side, 14)} alone", "alone")
        beside.set_ylabel(alone, size=self.small, labelpad=2, parse_math=False)
        strip = self._strip(axes, 1, upright=False)
        self._alone(strip, shown.receivers, receivers, upright=False)
        side = shown.receivers[0].name if shown.single else "receiver"
        strips = [(strip, f"{shortened(side, 14)} alone")]
        for i, control in enumerate(sorted(shown.strips, key=place_of) if kind == self.drawn.first else (), 2):
            strip = self._strip(axes, i, upright=False)
            self._cells(strip, control, shown.strips[control][None])
            self._part(strip, (), shown.receivers)
            strips.append((strip, shortened(name_of(control, ""), 22)))
        if leftmost:
            self._name(axes, shown.senders, upright=True)
            for part, name in strips:
                part.set_yticks([0.5], [name], fontsize=self.small, parse_math=False)
            if len(axes.get_ylabel()) * LETTERS * _LETTER > 72 * tall:  # it reaches down beside the names of strips
                cuts = max((len(text.get_text()) for text in axes.get_yticklabels()), default=0)
                below = max(len(name) for _, name in strips)
                axes.yaxis.labelpad = max(axes.yaxis.labelpad, 3 + _LETTER * (self.small * below - LETTERS * cuts))
        if lowest:
            self._name(strip, shown.receivers, upright=False)

    def _strip(self, axes: Axes, i: int, upright: bool) -> Axes:
        """Return the ``i``-th strip right of a panel, or below it, whose width is in inches, its length the panel's."""
        corner = ScaledTranslation(1 if upright else 0, 0, axes.transAxes)  # type: ignore[arg-type]
        inches = self.figure.dpi_scale_trans + corner
        if upright:
            across = blended_transform_factory(inches, axes.transAxes)
            return axes.inset_axes((_GAP, 0, _STRIP, 1), transform=across)
        down = blended_transform_factory(axes.transAxes, inches)
        return axes.inset_axes((0, -i * (_GAP + _STRIP), 1, _STRIP), transform=down)

    def _cells(self, axes: Axes, kind: str, values: Numbers) -> None:
        marks = (held[kind].reshape(values.shape) for held in (self.shown.failed, self.shown.open))
        draw_cells(axes, self.scale * values, self.colours, *marks)
        for_page = self.drawn.for_page
        self.numbers.append(partial(write_cells, axes, self.scale * values, self.colours, self._written, for_page))
        if for_page:
            said = self._say(kind)
            tell(axes, [(j, i) for i in range(values.shape[0]) for j in range(values.shape[1])], said, (1, 1))

    def _say(self, kind: str) -> list[str]:
        """Describe the measurement in each cell of a panel or of a strip, its penalty beside it."""
        chart = self.drawn.chart
        lines = [(measure, line) for measure in chart.measures for line in measure.lines if line.kind == kind]
        value = lines[0][1]
        places = chart.columns if value.strip else [chart.place(i) for i in range(len(value.value))]
        name = "" if kind == PLAIN else f"{value.name}, "
        return [
            f"{name}{place}: "
            + "; ".join(m.say(one, i) for m, one in lines if np.isfinite(one.value[i]) or m is lines[0][0])
            for i, place in enumerate(places)
        ]

    def _part(self, axes: Axes, senders: Sequence[Block], receivers: Sequence[Block]) -> None:
        """Draw lines between networks, their stages, and the cells on either side of the diagonal of depth."""
        for blocks, line, cell in (
            (receivers, axes.axvline, 72 * self.cell[0]),
            (senders, axes.axhline, 72 * self.cell[1]),
        ):
            for block in blocks:
                for place in _stages(block) if cell > 4 else ():
                    line(place, color="white", linewidth=0.35, alpha=0.8)
                if block.start:
                    line(block.start, color="white", linewidth=min(max(0.25 * cell, 0.8), 2.0))
        for sender, receiver in product(senders, receivers):
            thick = min(max(7.2 * self.cell[0], 0.35), 0.9)
            axes.add_line(Line2D(*staircase(sender, receiver), linewidth=thick, **_DIAGONAL))

    def _alone(self, axes: Axes, blocks: tuple[Block, ...], values: Numbers, upright: bool) -> None:
        """Draw a strip of networks alone: along the rows if it is upright, else along the columns."""
        cells = np.repeat(self.scale * values, [len(block.cuts) for block in blocks])
        draw_cells(axes, cells[:, None] if upright else cells[None], self.colours)
        for block, value in zip(blocks, self.scale * values, strict=True):
            if block.start:
                (axes.axhline if upright else axes.axvline)(block.start, color="white", linewidth=0.8)
            text = self._written(value)
            points = min(self.small, 72 * self.cell[upright] * len(block.cuts) * 0.9 / (len(text) * 0.64))
            if np.isfinite(value) and points >= (ON_PAGE if self.drawn.for_page else SMALLEST):
                middle = (block.start + block.stop) / 2
                x, y = (0.5, middle) if upright else (middle, 0.5)
                turned = 90 * (upright and len(text) > 2)
                _text(axes, x, y, text, points, _ink_on(self.colours, value), rotation=turned)
            corner = (0, block.start) if upright else (block.start, 0)
            written = self.drawn.chart.measures[0].written(float(value), unit=True) or "not measured"
            size = (1, len(block.cuts)) if upright else (len(block.cuts), 1)
            tell(axes, [corner], [f"{block.name} alone: {written}"], size)

    def _name(self, axes: Axes, blocks: tuple[Block, ...], upright: bool) -> None:
        """Name the cuts and, if there are several, the networks, left of the rows or below the columns."""
        role, side = ("sender", "top") if upright else ("receiver", "left")
        cell, axis = self.cell[upright], axes.yaxis if upright else axes.xaxis
        step = ceil(SMALLEST / (72 * cell))
        cuts = [(block.start + i + 0.5, name) for block in blocks for i, name in enumerate(block.cuts)]
        named = cuts[::step] if step == 1 or self.shown.single else []
        names = [shortened(name, _LONGEST) for _, name in named]
        long = max(6.5, 72 / (_LETTER * max(map(len, names), default=1)))  # an inch, or cells would be small for it
        size = min(LETTERS, long, max(SMALLEST, 61 * cell))
        axis.set_ticks([place for place, _ in named], names, fontsize=size, parse_math=False)
        axis.set_tick_params(rotation=0 if upright else 90)
        pad = 3.0
        if not self.shown.single:
            letters = [72 * cell * len(block.cuts) / (_NETWORK * _LETTER) for block in blocks]
            fit = all(len(block.name) <= room for block, room in zip(blocks, letters, strict=True))
            along = fit or (upright and bool(named))
            room = max(map(len, names), default=0) * size * _LETTER + 5  # points
            texts = [
                shortened(block.name, max(4, int(letter)) if along else _LONGEST)
                for block, letter in zip(blocks, letters, strict=True)
            ]
            for block, text in zip(blocks, texts, strict=True):
                middle = (block.start + block.stop) / 2
                axes.annotate(
                    text,
                    (0, middle) if upright else (middle, 0),
                    (-room, 0) if upright else (0, -room),
                    axes.get_yaxis_transform() if upright else axes.get_xaxis_transform(),
                    "offset points",
                    rotation=90 if along == upright else 0,
                    ha="right" if upright else "center",
                    va="center" if upright else "top",
                    size=_NETWORK,
                    annotation_clip=False,
                    parse_math=False,
                )
            pad += 15 if along else 10 + max(map(len, texts)) * _NETWORK * _LETTER
        what = f"{role} {shortened(blocks[0].name, 28)}" if self.shown.single else f"{role} cut"
        texts = [f"{what} (input at the {side})", f"{role} (input at the {side})", role]
        beside = self.panel_size[upright] + 0.45
        text = _fitting(beside, _LEAST, *texts)
        size = min(LETTERS, max(_LEAST, 72 * beside / (_LETTER * len(text))))
        axis.set_label_text(text, size=size, parse_math=False)
        axis.labelpad = pad

    def _legend(self) -> None:
        """Explain lines and hatches in the legend."""
        entries: list[tuple[Artist, str]] = []
        outline = [withStroke(linewidth=2.4, foreground="#888888")]  # white as it is drawn, on a white page
        step = Line2D([], [], linewidth=1.0, path_effects=outline, **_DIAGONAL)
        entries.append((step, "below the line: sender cut at least as deep (late → early)"))
        for mark, half in ((_LATE, "below"), (_EARLY, "above")) if self.means else ():
            entries.append(
                (Line2D([], [], linestyle="none", **_half(mark, "#222222")), f"mean of the cells {half} the line")
            )
        every = self.shown.panels | self.shown.strips
        shown = [*self.drawn.kinds, *(self.shown.strips if self.drawn.first in self.drawn.kinds else ())]
        held = {kind: every[kind] for kind in shown if kind in every}
        empty = [(np.isnan(values), self.shown.failed[kind]) for kind, values in held.items()]
        if any((gone & ~failed).any() for gone, failed in empty):
            entries.append((Patch(**MISSING), "not measured"))
        if any((gone & failed).any() for gone, failed in empty):
            entries.append((Patch(**FAILED), "failed"))
        if any((self.shown.open[kind] & np.isfinite(values)).any() for kind, values in held.items()):
            ring: dict[str, Any] = {"marker": "o", "markersize": 3, "markerfacecolor": "none", "color": "#666666"}
            entries.append((Line2D([], [], linestyle="none", markeredgewidth=0.5, **ring), OPEN))
        held_answers = {mark.works for mark in self.judged.values()}
        entries += [(Patch(**look), _SAID[works]) for works, look in _WORKS.items() if works in held_answers]
        if any(mark.as_well for mark in self.judged.values()):
            entries.append((Line2D([], [], markersize=4, **_AS_WELL), "an untrained network does as well"))
        handles, texts = zip(*entries, strict=True)
        middle = ceil(len(texts) / 2)
        letters = sum(max(map(len, part), default=0) for part in (texts[:middle], texts[middle:]))
        columns = 1 if LETTERS * (_LETTER * letters + 7) > 72 * self.figure.get_figwidth() else min(len(entries), 2)
        self.figure.legend(handles, texts, loc="outside lower left", ncols=columns, fontsize=LETTERS, borderaxespad=0.3)


#: Cells by whether it works, and the mark of those where an untrained network does as well.
_WORKS: dict[str, dict[str, Any]] = {
    YES: {"facecolor": "#9CC8E5"},
    NO: {"facecolor": "#F2C5A2"},
    CLOSE: {"facecolor": "#DCDCDC"},
}
_SAID = {YES: "works", NO: "does not work", CLOSE: "undecided"}
_AS_WELL: dict[str, Any] = {"marker": "o", "color": "#222222", "linestyle": "none", "markerfacecolor": "white"}


def _half(mark: list[tuple[int, int]], colour: str) -> dict[str, Any]:
    return {"marker": mark, "markersize": 5.5, "color": colour, "markeredgewidth": 0}


def _stages(block: Block) -> Iterator[int]:
    """Yield where a stage of a network ends: the first part of the cuts' names changes, and one side has several."""
    stages = [name.partition(".")[0] for name in block.cuts]
    for i in range(1, len(stages)):
        if stages[i - 1] != stages[i] and max(stages.count(stages[i - 1]), stages.count(stages[i])) > 1:
            yield block.start + i


def _fitting(room: float, size: float, *texts: str) -> str:
    """Return the first of the texts that fits into ``room`` inches, else the last."""
    return next((text for text in texts if len(text) * size * _LETTER / 72 <= room), texts[-1])


# --- charts of matrices -----------------------------------------------------------------------------------------------


def similarities(found: pd.DataFrame) -> Figure:
    """Draw every index of a table of ``compare`` as a heat map.

    Calibrated values, 0 by chance and 1 for layers that are the same, or plain ones if the table has no others, with
    the scale turned round for a distance, so that bright is alike. Layers that were not compared are hatched. Raises
    ``DataError`` if the table is none, or has several networks.
    """
    return similarities_of(arrange.similarity(found))


def similarities_of(chart: Chart, for_page: bool = False) -> Figure:
    """Draw a heat map for each of a chart's indices."""
    per_row = min(3, len(chart.measures))
    with styled():
        width = min(WIDTH, 1.6 + per_row * (0.55 + 0.3 * len(chart.columns)))
        figure = Picture(figsize=(width, guess_height(chart, per_row, width)), layout="constrained")
        maps = Maps(figure, chart, per_row)
        for _ in range(2):  # bars take more width on a taller page
            figure.draw_without_rendering()
            figure.set_figheight(figure.get_figheight() + maps.missing_height())
        figure.draw_without_rendering()
        maps.write(for_page)
    return figure


def guess_height(chart: Chart, per_row: int, width: float) -> float:
    """Return about the inches that heat maps take, before they are laid out."""
    count = sum(len(measure.panels) for measure in chart.measures)
    return ceil(count / per_row) * (
        0.65 * width / per_row * min(len(chart.rows) / max(len(chart.columns), 1), 2.0) + 0.9
    )


class Maps:
    """Every measure and line of a chart as a heat map; measures have scales of their own, lines of one share it."""

    def __init__(self, part: Any, chart: Chart, per_row: int) -> None:
        shown = [(measure, line) for measure in chart.measures for line in measure.panels]
        own = chart.measures[0].show == SIMILARITY
        alike = len({(measure.scale(), measure.bright) for measure in chart.measures}) == 1
        grid = part.subplots(ceil(len(shown) / per_row), per_row, squeeze=False)
        self.rows, self.per_row = grid.shape
        self.drawn: list[tuple[Axes, Numbers, ScalarMappable]] = []
        maps = [line.value.reshape(len(chart.rows), len(chart.columns)) for _, line in shown]
        shared = all(there.any(1).all() and there.any(0).all() for there in map(np.isfinite, maps))
        for axes in grid.flat[len(shown) :]:
            axes.set_visible(False)
        for i, (axes, (measure, line)) in enumerate(zip(grid.flat, shown, strict=False)):
            low, high, powers = measure.scale()
            norm = LogNorm(low, high) if powers else Normalize(low, high)
            colours = ScalarMappable(norm, COLOURS + "_r" * (measure.bright == "low"))
            name = measure.of.replace(" (", "\n(", 1) if own else shortened(line.name, 60)  # bars stand between titles
            axes.set_title(name, size=LETTERS, pad=3, wrap=True, parse_math=False)
            said = np.array([f"{chart.place(j)}: {measure.say(line, j)}" for j in range(maps[i].size)])
            self._map(axes, maps[i], line.is_open.reshape(maps[i].shape), said.reshape(maps[i].shape), colours, chart)
            first, last = i % per_row == 0, i + per_row >= len(shown)
            if first:
                axes.set_ylabel(f"{chart.axes[1]} (input at the top)", size=LETTERS, parse_math=False)
            if last:
                axes.set_xlabel(f"{chart.axes[0]} (input at the left)", size=LETTERS, parse_math=False)
            if shared:  # maps of the same cuts name them at the left and below, and are larger for it
                axes.tick_params(labelleft=first, labelbottom=last)
            if own and not alike:
                bar = part.colorbar(colours, cax=axes.inset_axes((1.04, 0, 0.05, 1)))
            elif i == len(shown) - 1:
                bar = part.colorbar(colours, ax=list(grid.flat), pad=0.02, shrink=0.9, aspect=22 * self.rows)
                bar.set_label("index" if own else measure.label, size=LETTERS, parse_math=False)
            else:
                continue
            bar.outline.set_visible(False)
            bar.ax.tick_params(length=2, pad=1.5, labelsize=LETTERS)

    def _map(
        self,
        axes: Axes,
        values: Numbers,
        open_: Mask,
        said: "np.ndarray[Any, Any]",
        colours: ScalarMappable,
        chart: Chart,
    ) -> None:
        """Draw a heat map of the cuts that it has among those of all."""
        there = np.isfinite(values)
        if not there.any():
            axes.set(xticks=[], yticks=[], facecolor=MISSING["facecolor"])
            middle: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "va": "center"}
            axes.text(0.5, 0.5, "not measured", color="0.4", size=LETTERS, **middle)
            return
        down, across = there.any(1), there.any(0)
        values = values[down][:, across]
        draw_cells(axes, values, colours, None, open_[down][:, across])
        corners = [(j, i) for i in range(values.shape[0]) for j in range(values.shape[1])]
        tell(axes, corners, said[down][:, across].ravel().tolist(), (1, 1))
        axes.set_box_aspect(min(max(values.shape[0] / values.shape[1], 0.25), 2.0))
        rows, columns = (
            [shortened(name, _LONGEST) for name in np.array(names)[kept]]
            for names, kept in ((chart.rows, down), (chart.columns, across))
        )
        size = min(LETTERS, max(SMALLEST, 0.85 * 72 * 5 / (self.per_row * len(columns))))
        axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90, fontsize=size, parse_math=False)
        axes.set_yticks(np.arange(len(rows)) + 0.5, rows, fontsize=size, parse_math=False)
        for sender, receiver in product(chart.senders, chart.receivers):
            ends = (
                Block("", tuple(names), block.depths[kept], 0)
                for names, block, kept in ((rows, sender, down), (columns, receiver, across))
            )
            x, y = staircase(*ends)
            axes.plot(x[:-1], y[:-1], linewidth=1.0, **_DIAGONAL)
        self.drawn.append((axes, values, colours))

    def missing_height(self) -> float:
        """Return the inches that the page lacks, or has too many, for cells that are square, once it is laid out."""
        lacking = [
            min(slot(axes)[0] * values.shape[0] / values.shape[1], _TALLEST) - slot(axes)[1]
            for axes, values, _ in self.drawn
        ]
        return float(self.rows * max(lacking, default=0.0))

    def write(self, for_page: bool = False) -> None:
        """Write the numbers into the cells, once the page is laid out."""
        for axes, values, colours in self.drawn:
            percent = colours.get_clim() == (0, 100)
            write_cells(
                axes,
                values,
                colours,
                lambda x, short=percent: with_minus(f"{x:z.{0 if short or abs(x) >= 100 else 2}f}"),  # type: ignore[misc]
                for_page,
            )
