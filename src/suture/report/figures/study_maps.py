"""Heat maps of studies: sender cuts × receiver cuts, means over seeds, one colour scale for the maps of a panel.

Rows are senders, from the input at the top; columns are receivers, from the input at the left. The white line parts the
cells whose sender cut is at least as deep as the receiver's (below it) from the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import SubFigure

from suture.measurement.tables.by_depth import Numbers
from suture.measurement.tables.matrix import Block, staircase
from suture.report.figures.cells import COLOURS, MISSING, draw_cells, write_cells
from suture.report.style import shortened

_SMALLEST = 4.2  #: points: the smallest letters
_LONGEST = 20  #: letters of a cut's name


@dataclass(frozen=True, eq=False)
class Map:
    """One heat map: ``values`` by sender cut and receiver cut, and the depths of both; empty if not measured."""

    name: str
    values: pd.DataFrame
    down: dict[str, float]
    across: dict[str, float]
    percent: bool


def draw_maps(part: SubFigure, maps: Sequence[Map], label: str, title: str, per_row: int) -> None:
    """Draw maps beside each other, ``per_row`` of them, with one colour bar."""
    columns, rows = per_row, -(-len(maps) // per_row)
    grid = part.subplots(rows, columns, squeeze=False)
    norm = _norm(maps)
    width = 72 * (part.bbox.width / part.figure.dpi / columns - 1.0)  # points of a map, about
    for i, axes in enumerate(grid.ravel()):
        if i >= len(maps):
            axes.set_axis_off()
            continue
        _map(axes, maps[i], norm, width)
        if i % columns == 0:
            axes.set_ylabel("sender cut (input at the top)", size=6.5)
        if i + columns >= len(maps):
            axes.set_xlabel("receiver cut (input at the left)", size=6.5)
    if any(not map_.values.empty for map_ in maps):
        bar = part.colorbar(
            ScalarMappable(norm, COLOURS), ax=list(grid.ravel()), shrink=0.9, aspect=22 * rows, pad=0.015
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=6.5)
        bar.set_label(label, size=7.5, parse_math=False)
    if title:
        part.suptitle(title, size=8, weight="bold", x=0.01, ha="left", parse_math=False)


def _norm(maps: Sequence[Map]) -> Normalize:
    """From 0 to 100 % for fractions, else from the least to the most that is shown, by powers if a few dwarf all."""
    if any(map_.percent for map_ in maps):
        return Normalize(0, 100)
    every = [values for map_ in maps if (values := map_.values.to_numpy(float)).size]
    shown = np.concatenate([values[np.isfinite(values)] for values in every]) if every else np.array([0.0, 1.0])
    low, middle, high = float(shown.min()), float(np.median(shown)), float(shown.max())
    return LogNorm(low, high) if low > 0 and high > 100 * middle else Normalize(low, high)


def _map(axes: Axes, shown: Map, norm: Normalize, width: float) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    title = "\n".join(wrap(shortened(shown.name, 60), max(16, int(width / 4.1))))
    axes.set_title(title, size=7.5, pad=3, parse_math=False)
    values = shown.values.to_numpy(float)
    if shown.values.empty:
        axes.set(xticks=[], yticks=[])
        axes.set_facecolor(MISSING["facecolor"])
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color="0.4", size=7)
        return
    rows, columns = values.shape
    colours = ScalarMappable(norm, COLOURS)
    axes.set_box_aspect(max(0.25, min(2.0, rows / columns)))
    draw_cells(axes, values, colours)
    _write(axes, values, colours, width / columns, shown.percent)
    sender, receiver = (
        Block("", tuple(map(str, side)), np.array([depths[str(cut)] for cut in side]), 0)
        for side, depths in ((shown.values.index, shown.down), (shown.values.columns, shown.across))
    )
    x, y = staircase(sender, receiver)
    axes.plot(x[:-1], y[:-1], color="white", linewidth=1.0, solid_joinstyle="miter", clip_on=True)
    _names(axes, shown, width)


def _write(axes: Axes, values: Numbers, colours: ScalarMappable, cell: float, percent: bool) -> None:
    """Write the values into cells of ``cell`` points if they have room."""
    digits = {(i, j): 0 if percent or abs(values[i, j]) >= 100 else 2 for i, j in np.argwhere(np.isfinite(values))}
    texts = {place: f"{values[place]:.{most}f}" for place, most in digits.items()}
    longest = max(map(len, texts.values()), default=1)
    size = min(6.5, 0.8 * cell / (0.64 * min(longest, 2) if percent else 0.64 * longest))
    if size >= _SMALLEST:
        write_cells(axes, texts, values, colours, lambda text: size * min(1, 2.1 / len(text)) if percent else size)


def _names(axes: Axes, shown: Map, width: float) -> None:
    names = [[shortened(str(cut), _LONGEST) for cut in side] for side in (shown.values.index, shown.values.columns)]
    down, across = names
    size = [min(6.5, max(_SMALLEST, 0.85 * width / len(across))) for _ in names]
    axes.set_xticks(np.arange(len(across)) + 0.5, across, rotation=90, fontsize=size[1], parse_math=False)
    axes.set_yticks(np.arange(len(down)) + 0.5, down, fontsize=size[0], parse_math=False)
    axes.tick_params(length=0, pad=1.5)
