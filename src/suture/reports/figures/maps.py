"""Heat maps of a chart: every index of a comparison, or every measure of another chart, at all pairs of cuts.

Rows are sender cuts, from the input at the top, columns receiver cuts, from the input at the left, as in ``matrix``.
"""

from itertools import product
from math import ceil
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from suture.measurement.tables.matrix import Block, staircase
from suture.measurement.tables.table import Mask, Numbers
from suture.reports import charts
from suture.reports.charts import SIMILARITY, Chart
from suture.reports.figures.cells import COLOURS, DIAGONAL, LONGEST, MISSING, TALLEST, draw_cells, slot, write_cells
from suture.reports.figures.curve import SMALLEST, WIDTH, Picture, styled, tell
from suture.reports.style import LETTERS, shortened, with_minus


def similarities(found: pd.DataFrame) -> Figure:
    """Draw every index of a table of ``compare`` as a heat map.

    Calibrated values, 0 by chance and 1 for layers that are the same, or plain ones if the table has no others, with
    the scale turned round for a distance, so that bright is alike. Layers that were not compared are hatched. Raises
    ``DataError`` if the table is none, or has several networks.
    """
    return similarities_of(charts.similarity(found))


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
            [shortened(name, LONGEST) for name in np.array(names)[kept]]
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
            axes.plot(x[:-1], y[:-1], linewidth=1.0, **DIAGONAL)
        self.drawn.append((axes, values, colours))

    def missing_height(self) -> float:
        """Return the inches that the page lacks, or has too many, for cells that are square, once it is laid out."""
        lacking = [
            min(slot(axes)[0] * values.shape[0] / values.shape[1], TALLEST) - slot(axes)[1]
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
