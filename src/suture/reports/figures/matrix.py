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
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import by_depth
from suture.measurement.tables.curve import PLAIN
from suture.measurement.tables.matrix import Block, Matrix, places_of, staircase
from suture.measurement.tables.questions import CLOSE, NO, YES
from suture.measurement.tables.read import Reading
from suture.measurement.tables.say import asked, headline, name_question, say_mark
from suture.measurement.tables.table import Numbers, say_quick
from suture.reports import charts
from suture.reports.charts import OPEN, scale_of
from suture.reports.figures.cells import (
    COLOURS,
    DIAGONAL,
    FAILED,
    LONGEST,
    MISSING,
    ON_PAGE,
    TALLEST,
    draw_cells,
    ink_on,
    slot,
    write_cells,
    write_text,
)
from suture.reports.figures.curve import SMALLEST, WIDEST, WIDTH, Picture, styled, tell
from suture.reports.figures.verdict import head
from suture.reports.style import LETTERS, name_of, place_of, shortened, with_minus

_GAP, _STRIP = 0.04, 0.14  #: inches: between a panel and its strips, and their width
_CELL, _NARROWEST = 0.42, 0.9  #: inches: the largest cell, and the narrowest panel
_LARGE = 0.6  #: inches: the largest cell of what a page shows first
_LINE = 0.3  #: inches: a line of means by depth
_VERDICT, _DEPTH = "verdict", "depth"  #: the panel of marks, and that of means by depth
_LATE = [(-1, 1), (1, -1), (-1, -1)]  #: a mark: the half of a matrix below its line
_EARLY = [(-1, 1), (1, -1), (1, 1)]  #: and above it
_LETTER = 0.57  #: the width of a letter of a name, in its size
_NETWORK = LETTERS  #: points: the names of networks
_LEAST = 6.5  #: points: a title, or the name of an axis, that would else lack a part


# --- all kinds of trial -----------------------------------------------------------------------------------------------


def matrix(reading: Reading, *, for_page: bool = False, controls: bool = False) -> Figure:
    """Draw a score of every sender cut × every receiver cut, a panel for the trials and for each control.

    The top row and the left column are next to the input. The white line parts the cells whose sender cut is at least
    as deep as the receiver's (lower left) from the others; faint lines part the stages of a network, wide ones
    networks. Beside each panel its networks alone, and below the first the controls with one value per receiver cut.
    One panel says where it works, and where an untrained network does as well; the last has the means of the cells
    below and above the white line (``by_depth``). All others have one scale: 0–100 % for fractions, else from the least
    to the most. Several seeds are averaged. ``for_page`` draws a part of the panels: the trials themselves and where it
    works, or the ``controls`` and the means by depth. Raises ``DataError`` if the reading is more than one matrix.
    """
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
            panel = max(across * cell, _NARROWEST), down * max(min(cell, TALLEST / down), min(0.14, 0.7 / down))
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
        self.chart = charts.matrix(reading)
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
            axes.add_line(Line2D(*staircase(sender, receiver), linewidth=thick, **DIAGONAL))

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
                write_text(axes, x, y, text, points, ink_on(self.colours, value), rotation=turned)
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
        names = [shortened(name, LONGEST) for _, name in named]
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
                shortened(block.name, max(4, int(letter)) if along else LONGEST)
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
        step = Line2D([], [], linewidth=1.0, path_effects=outline, **DIAGONAL)
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
