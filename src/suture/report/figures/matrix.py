"""Heat maps of matrices: rows are sender cuts, columns receiver cuts, one colour scale for all kinds of trial.

The style is that of ``figures``; the colours are viridis, uniform to the eye, in grey and for the colour-blind.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import Mask, Numbers
from suture.measurement.tables.curve import PLAIN
from suture.measurement.tables.matrix import Block, Matrix, arrange_matrix, staircase
from suture.report.figures.cells import COLOURS, FAILED, MISSING, draw_cells, ink_on, write_cells
from suture.report.figures.curve import styled
from suture.report.figures.matrix_geometry import DIGIT, GAP, LETTER, NETWORK, SMALLEST, STRIP, Layout, lay_out
from suture.report.style import name_of, place_of, shortened

_DIAGONAL: dict[str, Any] = {"color": "white", "solid_joinstyle": "miter"}
_STAGES: dict[str, Any] = {"color": "white", "linewidth": 0.35, "alpha": 0.8}
_NETWORKS: dict[str, Any] = {"color": "white"}


def matrix(table: pd.DataFrame, score: str = "accuracy") -> Figure:
    """Draw a score of every sender cut × every receiver cut, a panel for the trials and for each control.

    The top row and the left column are next to the input. The white line parts the cells whose sender cut is at least
    as deep as the receiver's (lower left) from the others; faint lines part the stages of a network, wide ones
    networks. Beside each panel its networks alone, and below the first the controls with one value per receiver cut.
    All have one scale: 0–100 % for fractions, else from the least to the most. Several seeds are averaged. Raises
    ``DataError`` if the table holds none of that score, or more than one matrix.
    """
    shown = arrange_matrix(table, score)
    values = shown.values()
    if not shown.panels:
        kinds = " and ".join(shown.strips)
        raise DataError(f"the table has no sender cut × receiver cut to draw, only {kinds}; draw a curve of it")
    if not any(np.isfinite(part).any() for part in (*shown.panels.values(), *shown.strips.values())):
        raise DataError(f"the table has no measurement of '{score}' to draw: every trial failed")
    with styled():
        return _Drawing(shown, values).figure


class _Drawing:
    """A figure that is being drawn; places are in inches from the upper left."""

    def __init__(self, shown: Matrix, values: Numbers) -> None:
        self.shown = shown
        self.kinds = sorted(shown.panels, key=place_of)
        self.at: Layout = lay_out(shown, len(self.kinds))
        self.figure = Figure(figsize=self.at.size)
        self.scale = 100.0 if shown.percent else 1.0
        self.norm = Normalize(0, 100) if shown.percent else Normalize(values.min(), values.max())
        self.map = ScalarMappable(self.norm, mpl.colormaps[COLOURS])
        for i, kind in enumerate(self.kinds):
            self._panel(i, kind)
        self._strips()
        self._margins()
        self._bar()
        self._legend()

    def _axes(self, left: float, top: float, width: float, height: float) -> Axes:
        page_width, page_height = self.at.size
        place = (left / page_width, 1 - (top + height) / page_height, width / page_width, height / page_height)
        axes = self.figure.add_axes(place)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_visible(False)
        return axes

    def _cells(self, axes: Axes, values: Numbers, failed: Mask, width: float) -> None:
        """Draw cells, with their numbers if ``width`` inches leave room."""
        draw_cells(axes, values * self.scale, self.map, failed)
        height = self.at.cell[1] if len(values) > 1 else min(self.at.cell[1], STRIP)
        self._numbers(axes, values, width, height)

    def _numbers(self, axes: Axes, values: Numbers, width: float, height: float) -> None:
        """Write the values if they have room; what is longer than usual (100 %) in smaller digits."""
        texts = {(i, j): self._written(values[i, j]) for i, j in np.argwhere(np.isfinite(values))}
        room = 72 * width / DIGIT  # letters of one point
        longest = max(map(len, texts.values()), default=1)
        usual = min(longest, 2) if self.shown.percent else longest
        size = min(6.5, 0.82 * room / usual, 72 * height * 0.75)
        if size < SMALLEST or room / longest < 0.75 * SMALLEST:
            return

        def fitting(text: str) -> float:
            return min(size, 0.84 * room / len(text)) if len(text) > 2 else size

        write_cells(axes, texts, values * self.scale, self.map, fitting)

    def _written(self, value: float) -> str:
        return f"{value * self.scale:.{0 if self.shown.percent else 2}f}"

    def _panel(self, i: int, kind: str) -> None:
        shown, at = self.shown, self.at
        left, top = at.panel(i)
        axes = self._axes(left, top, *at.matrix)
        self._cells(axes, shown.panels[kind], shown.failed[kind], at.cell[0])
        self._lines(axes)
        title = kind if kind != PLAIN else "trained networks" if not shown.single else shown.title
        room = int((at.matrix[0] + at.beside - 0.1) * 72 / (7.5 * LETTER))
        axes.set_title(shortened(title, room), size=7.5, pad=3, parse_math=False)
        senders, receivers = shown.parents[kind]
        right, below = left + at.matrix[0] + GAP, top + at.matrix[1] + GAP
        self._alone(self._axes(right, top, STRIP, at.matrix[1]), shown.senders, senders, upright=True)
        self._alone(self._axes(left, below, at.matrix[0], STRIP), shown.receivers, receivers, upright=False)

    def _lines(self, axes: Axes, rows: bool = True) -> None:
        """Part networks, their stages, and the cells on and below the diagonal of depth from those above it."""
        width, height = (72 * side for side in self.at.cell)
        self._parted(self.shown.receivers, axes.axvline, width)
        if rows:
            self._parted(self.shown.senders, axes.axhline, height)
            for sender, receiver in product(self.shown.senders, self.shown.receivers):
                thick = min(max(0.1 * width, 0.35), 0.9)
                axes.add_line(Line2D(*staircase(sender, receiver), linewidth=thick, **_DIAGONAL))

    def _parted(self, blocks: tuple[Block, ...], line: Callable[..., Line2D], cell: float, stages: bool = True) -> None:
        """Draw the lines between networks, and between their stages, whose cells are ``cell`` points long."""
        for block in blocks:
            for place in _stages(block) if stages and cell > 4 else ():
                line(place, **_STAGES)
            if block.start:
                line(block.start, linewidth=min(max(0.25 * cell, 0.8), 2.0), **_NETWORKS)

    def _alone(self, axes: Axes, blocks: tuple[Block, ...], values: Numbers, upright: bool) -> None:
        """Draw a strip of networks alone: along the rows if it is upright, else along the columns."""
        length = blocks[-1].stop
        axes.set(xlim=(0, 1 if upright else length), ylim=(length if upright else 1, 0))
        for block, value in zip(blocks, values, strict=True):
            size = block.stop - block.start
            place = ((0, block.start), 1, size) if upright else ((block.start, 0), size, 1)
            there = np.isfinite(value)
            colour: dict[str, Any] = {"facecolor": self.map.to_rgba(value * self.scale)} if there else MISSING
            axes.add_patch(Rectangle(*place, **colour))
            if there:
                self._alone_number(axes, block, value, size * self.at.cell[upright], upright)
        self._parted(blocks, axes.axhline if upright else axes.axvline, 72 * self.at.cell[upright], stages=False)

    def _alone_number(self, axes: Axes, block: Block, value: float, inches: float, upright: bool) -> None:
        text = self._written(value)
        size = min(5.5, 72 * inches * 0.9 / (len(text) * DIGIT))
        turned = upright and len(text) > 2
        if size >= SMALLEST:
            middle = (block.start + block.stop) / 2
            x, y = (0.5, middle) if upright else (middle, 0.5)
            axes.text(
                x,
                y,
                text,
                size=size,
                color=ink_on(self.map, value * self.scale),
                ha="center",
                va="center",
                rotation=90 * turned,
            )

    def _strips(self) -> None:
        """Draw the controls that have one value per receiver cut, below the first panel."""
        left, top = self.at.panel(0)
        below = top + self.at.matrix[1] + GAP + STRIP
        for i, kind in enumerate(sorted(self.shown.strips, key=place_of)):
            y = below + GAP + i * (STRIP + GAP)
            axes = self._axes(left, y, self.at.matrix[0], STRIP)
            self._cells(axes, self.shown.strips[kind][None], self.shown.failed[kind][None], self.at.cell[0])
            self._lines(axes, rows=False)
            self._label(left - 0.05, y + STRIP / 2, shortened(name_of(kind, ""), 22), ha="right", size=5.5)

    def _label(self, x: float, y: float, text: str, **how: Any) -> None:
        page_width, page_height = self.at.size
        self.figure.text(
            x / page_width, 1 - y / page_height, text, **{"va": "center", "size": 7, **how}, parse_math=False
        )

    def _margins(self) -> None:
        """Name cuts and networks beside the outer panels, and the strips of networks alone beside all."""
        at = self.at
        for i in range(len(self.kinds)):
            left, top = at.panel(i)
            right, middle = left + at.matrix[0] + GAP + STRIP, top + at.matrix[1] / 2
            self._label(right + 0.07, middle, at.senders.alone, ha="center", rotation=90, size=5.5)
            if i % at.per_row == 0:
                self._left(left - 0.05, top)
            if i + at.per_row >= len(self.kinds):
                self._below(left, at.below(i))

    def _left(self, x: float, top: float) -> None:
        side, height = self.at.senders, self.at.matrix[1]
        for place, name in side.cuts:
            self._label(x, top + place, name, ha="right", size=side.size)
        outer = x - side.cuts_room
        for place, name in side.networks:
            how = {"ha": "right"} if side.across else {"ha": "center", "rotation": 90}
            self._label(outer - (0.0 if side.across else 0.05), top + place, name, size=NETWORK, **how)
        self._label(0.11, top + height / 2, side.title, ha="center", rotation=90)
        self._label(x, top + height + GAP + STRIP / 2, self.at.receivers.alone, ha="right", size=5.5)

    def _below(self, left: float, y: float) -> None:
        side = self.at.receivers
        for place, name in side.cuts:
            self._label(left + place, y, name, ha="center", va="top", rotation=90, size=side.size)
        for place, name in side.networks:
            how = {"rotation": 90} if side.across else {}
            self._label(left + place, y + side.cuts_room, name, ha="center", va="top", size=NETWORK, **how)
        self._label(left + self.at.matrix[0] / 2, y + side.room + 0.04, side.title, ha="center", va="top")

    def _bar(self) -> None:
        left, top = self.at.panel(min(self.at.per_row, len(self.kinds)) - 1)
        right = left + self.at.matrix[0] + self.at.beside
        axes = self._axes(right, top, 0.1, self.at.matrix[1])
        bar = self.figure.colorbar(self.map, cax=axes)
        bar.outline.set_visible(False)
        unit = "%" if self.shown.percent else self.shown.unit
        label = f"test {self.shown.score}" + (f" ({unit})" if unit != "raw" else "")
        axes.set_ylabel(label, parse_math=False)
        axes.tick_params(length=2, pad=1.5)

    def _legend(self) -> None:
        """Say what lines and hatches mean."""
        entries: list[tuple[Artist, str]] = []
        step = Line2D([], [], color="#666666", linewidth=1.0)
        entries.append((step, "below the line: sender cut at least as deep as receiver cut (late → early)"))
        empty = [(np.isnan(v), self.shown.failed[k]) for k, v in (self.shown.panels | self.shown.strips).items()]
        if any((gone & ~failed).any() for gone, failed in empty):
            entries.append((Patch(**MISSING), "not measured"))
        if any((gone & failed).any() for gone, failed in empty):
            entries.append((Patch(**FAILED), "failed"))
        handles, texts = zip(*entries, strict=True)
        columns = 1 if self.at.size[0] < 5.5 else len(entries)
        self.figure.legend(handles, texts, loc="lower left", ncols=columns, fontsize=6.5, borderaxespad=0.3)


def _stages(block: Block) -> Iterator[int]:
    """Where a stage of a network ends: the first part of the cuts' names changes, and one side has several cuts."""
    stages = [name.partition(".")[0] for name in block.cuts]
    for i in range(1, len(stages)):
        if stages[i - 1] != stages[i] and max(stages.count(stages[i - 1]), stages.count(stages[i])) > 1:
            yield block.start + i
