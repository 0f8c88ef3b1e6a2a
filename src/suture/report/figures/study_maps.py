"""Heat maps of studies: sender cuts × receiver cuts, means over seeds, one colour scale for the maps of a panel.

Rows are senders, from the input at the top; columns are receivers, from the input at the left. The white line parts the
cells whose sender cut is at least as deep as the receiver's (below it) from the others. The colours are viridis.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import SubFigure
from matplotlib.patches import Rectangle

from suture.measurement.tables.by_depth import Numbers, at_least_as_deep
from suture.report.style import shortened

_SMALLEST = 4.2  #: points: the smallest letters
_GREY = "#EEEEEE"
_COLOURS = "viridis"
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
            ScalarMappable(norm, _COLOURS), ax=list(grid.ravel()), shrink=0.9, aspect=22 * rows, pad=0.015
        )
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=6.5)
        bar.set_label(label, size=7.5, parse_math=False)
    if title:
        part.suptitle(title, size=8, weight="bold", x=0.01, ha="left", parse_math=False)


def _norm(maps: Sequence[Map]) -> Normalize:
    """From 0 to 100 % for fractions, else from the least to the most that is shown, by powers where a few dwarf all."""
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
        axes.set_facecolor(_GREY)
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color="0.4", size=7)
        return
    rows, columns = values.shape
    axes.set_box_aspect(max(0.25, min(2.0, rows / columns)))
    axes.set(xlim=(0, columns), ylim=(rows, 0))
    axes.pcolormesh(
        np.ma.masked_invalid(values), cmap=mpl.colormaps[_COLOURS], norm=norm, edgecolors="face", linewidth=0.1
    )
    for i, j in np.argwhere(np.isnan(values)):
        axes.add_patch(Rectangle((j, i), 1, 1, facecolor=_GREY, edgecolor="#AAAAAA", hatch="////", linewidth=0))
    _numbers(axes, values, norm, width / columns, shown.percent)
    _staircase(axes, shown)
    _names(axes, shown, width)


def _numbers(axes: Axes, values: Numbers, norm: Normalize, cell: float, percent: bool) -> None:
    """Write the values into cells of ``cell`` points where they have room."""
    digits = {(i, j): 0 if percent or abs(values[i, j]) >= 100 else 2 for i, j in np.argwhere(np.isfinite(values))}
    texts = {place: f"{values[place]:.{most}f}" for place, most in digits.items()}
    longest = max(map(len, texts.values()), default=1)
    size = min(6.5, 0.8 * cell / (0.64 * min(longest, 2) if percent else 0.64 * longest))
    if size < _SMALLEST:
        return
    for (i, j), text in texts.items():
        colour: Numbers = np.array(mpl.colormaps[_COLOURS](float(norm(values[i, j])))[:3])
        ink = "black" if float(colour**2.2 @ [0.2126, 0.7152, 0.0722]) > 0.18 else "white"
        small = size if len(text) <= 2 or not percent else size * 2 / len(text) * 1.05
        axes.text(j + 0.5, i + 0.5, text, size=small, color=ink, ha="center", va="center_baseline")


def _staircase(axes: Axes, shown: Map) -> None:
    """Part the cells whose sender cut is at least as deep as the receiver's from the others."""
    down = np.array([shown.down[str(cut)] for cut in shown.values.index])
    across = np.array([shown.across[str(cut)] for cut in shown.values.columns])
    reach = at_least_as_deep(down[:, None], across[None, :]).sum(axis=1)
    x, y = [0.0], [0.0]
    for i, end in enumerate(reach):
        x += [float(end), float(end)]
        y += [float(i), float(i + 1)]
    axes.plot(x, y, color="white", linewidth=1.0, solid_joinstyle="miter", clip_on=True)


def _names(axes: Axes, shown: Map, width: float) -> None:
    names = [[shortened(str(cut), _LONGEST) for cut in side] for side in (shown.values.index, shown.values.columns)]
    down, across = names
    size = [min(6.5, max(_SMALLEST, 0.85 * width / len(across))) for _ in names]
    axes.set_xticks(np.arange(len(across)) + 0.5, across, rotation=90, fontsize=size[1], parse_math=False)
    axes.set_yticks(np.arange(len(down)) + 0.5, down, fontsize=size[0], parse_math=False)
    axes.tick_params(length=0, pad=1.5)
