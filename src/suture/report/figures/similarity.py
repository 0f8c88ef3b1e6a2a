"""Similarity indices drawn: heat maps of all pairs of cuts, and along a stitched curve, beside its scores.

Heat maps are bright where two layers are alike, whether an index is a similarity or a distance.
"""

from itertools import cycle

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from suture.common.errors import DataError
from suture.measurement.compare import check_similarities
from suture.measurement.tables.by_depth import Numbers
from suture.measurement.tables.curve import Curve, arrange_curve, without_sender
from suture.measurement.tables.matrix import Matrix, arrange_similarities, say_distance, scale_of
from suture.report.figures.cells import COLOURS, draw_cells, write_cells
from suture.report.figures.curve import (
    SMALLEST,
    WIDTH,
    Entries,
    draw_scores,
    grid_behind,
    legend_above,
    name_cuts,
    styled,
)
from suture.report.style import shortened

#: Colours, markers and dashes of indices, one after another (Okabe & Ito).
_LOOK = (
    *(("#0072B2", "o", "-"), ("#D55E00", "v", "--"), ("#009E73", "s", "-."), ("#CC79A7", "D", ":")),
    *(("#E69F00", "^", "-"), ("#56B4E9", "P", "--"), ("#000000", "x", "-."), ("#882255", "p", ":")),
)
_PER_ROW = 3  #: heat maps beside each other
_LETTER = 4.0  #: points: the width of a letter of a cut's name
_NUMBER = 15.0  #: points: the width of a cell that has room for its number


def grid(similarities: pd.DataFrame) -> Figure:
    """Draw every index as a heat map, rows sender cuts, columns receiver cuts, from the input on.

    Each has the scale of its bounds, turned round for a distance, so that bright is alike. Layers that were not
    compared are hatched. Raises ``DataError`` if the table is none, or has several networks.
    """
    shown = arrange_similarities(similarities)
    first = next(iter(shown.values()))
    down, across = first.plain.shape
    columns = min(_PER_ROW, len(shown))
    rows = -(-len(shown) // columns)
    names = max(len(shortened(cut, 24)) for block in (first.senders[0], first.receivers[0]) for cut in block.cuts)
    with styled():
        width = min(WIDTH, 1.6 + columns * (0.55 + 0.3 * across))
        side = (width - 0.9 - columns * 0.45) / columns
        tall = min(max(side * down / across, 0.6), 3.2) + 0.35
        figure = Figure(figsize=(width, rows * tall + names * _LETTER / 72 + 0.55), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes, (name, matrix) in zip(panels.flat, shown.items(), strict=False):
            _heat(figure, axes, name, matrix, 72 * side / across)
        for axes in panels.flat[len(shown) :]:
            axes.set_visible(False)
        for i, axes in enumerate(panels.flat[: len(shown)]):
            _sides(axes, first, i + columns >= len(shown), i % columns == 0, 72 * min(side / across, tall / down))
    return figure


def along(table: pd.DataFrame, similarities: pd.DataFrame, score: str = "accuracy") -> Figure:
    """Draw a stitched curve with its controls, and below it, at the same cuts, what the indices say.

    ``table`` holds one sender and one receiver. Bands are 95 % intervals; indices have none. Raises ``DataError`` if
    one of the two is no such table, or no seam of the curve was compared.
    """
    shown = arrange_curve(table, score)
    check_similarities(similarities)
    lines = _along(shown, table[table["score"] == score], similarities)
    with styled():
        figure = Figure(figsize=(WIDTH, 1), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.6, 1])
        entries = draw_scores(upper, shown)
        height = _below(figure, _indices(lower, lines))
        height += name_cuts(figure, lower, shown) + legend_above(figure, entries, shown.intervals)
        figure.set_figheight(height + 4.0)
        figure.align_ylabels()
    return figure


def _indices(axes: Axes, lines: dict[str, Numbers]) -> Entries:
    """Draw the indices; what the legend says of each."""
    entries: Entries = []
    for (name, values), (colour, marker, dashes) in zip(lines.items(), cycle(_LOOK), strict=False):
        (line,) = axes.plot(
            range(len(values)), values, color=colour, marker=marker, linestyle=dashes, markersize=3.6, linewidth=1.2
        )
        entries.append((line, name + say_distance(name)))
    every = np.concatenate(list(lines.values()))
    low, high = min(0.0, float(np.nanmin(every))), max(1.0, float(np.nanmax(every)))
    axes.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))
    axes.set_ylabel("index")
    grid_behind(axes)
    return entries


def _below(figure: Figure, entries: Entries) -> float:
    """Name the indices below the axes; the height in inches."""
    columns = max(1, int(72 * figure.get_figwidth() // (_LETTER * max(len(name) for _, name in entries) + 36)))
    legend = figure.legend(
        [artist for artist, _ in entries],
        [str(i) for i in range(len(entries))],
        loc="outside lower center",
        ncols=min(columns, len(entries)),
        columnspacing=1.6,
    )
    for text, (_, name) in zip(legend.get_texts(), entries, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
    return 0.1 + 0.16 * -(-len(entries) // columns)


def _along(shown: Curve, rows: pd.DataFrame, similarities: pd.DataFrame) -> dict[str, Numbers]:
    """Return the values of each index at the seams of a curve; nan if a seam was not compared."""
    plain = rows[~without_sender(rows)].drop_duplicates("receiver_cut").set_index("receiver_cut")
    starts = [str(plain["sender_cut"].get(cut, cut)) for cut in shown.cuts]
    pair = similarities[(similarities["sender"] == shown.sender) & (similarities["receiver"] == shown.receiver)]
    seams = pd.MultiIndex.from_arrays([starts, list(shown.cuts)])
    lines = {
        str(name): held.set_index(["sender_cut", "receiver_cut"])["value"].reindex(seams).to_numpy(float)
        for name, held in pair.groupby("index", sort=False)
    }
    if not any(np.isfinite(values).any() for values in lines.values()):
        raise DataError(
            f"no seam of {shown.sender} → {shown.receiver} in the table was compared; compare these networks, at the "
            "same cuts"
        )
    return lines


def _heat(figure: Figure, axes: Axes, name: str, matrix: Matrix, cell: float) -> None:
    """Draw one index; ``cell`` is the width of a cell in points."""
    values = matrix.plain
    low, high, turned = scale_of(name, values)
    colours = ScalarMappable(Normalize(low, high), COLOURS + "_r" * turned)
    draw_cells(axes, values, colours)
    if cell >= _NUMBER:
        texts = {(i, j): f"{values[i, j]:.2f}" for i, j in np.argwhere(np.isfinite(values))}
        write_cells(axes, texts, values, colours, lambda text: min(6.0, cell / 3))
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_title(name + say_distance(name), size=7.5, pad=3, parse_math=False)
    bar = figure.colorbar(colours, ax=axes, pad=0.02, fraction=0.05, aspect=25)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, pad=1.5, labelsize=6)


def _sides(axes: Axes, matrix: Matrix, lowest: bool, first: bool, cell: float) -> None:
    """Name the cuts below the lowest heat maps and left of the first."""
    size = min(6.5, max(SMALLEST, 0.85 * cell))
    axes.tick_params(length=0, labelsize=size, labelbottom=lowest, labelleft=first)
    for block, axis in ((matrix.receivers[0], axes.xaxis), (matrix.senders[0], axes.yaxis)):
        step = int(np.ceil(SMALLEST / cell))
        axis.set_ticks(np.arange(0, len(block.cuts), step) + 0.5)
        axis.set_ticklabels([shortened(cut, 24) for cut in block.cuts[::step]], parse_math=False)
    for label in axes.get_xticklabels():
        label.set_rotation(90)
    if lowest:
        axes.set_xlabel(f"receiver {shortened(matrix.receivers[0].name, 20)}", size=7, parse_math=False)
    if first:
        axes.set_ylabel(f"sender {shortened(matrix.senders[0].name, 20)} (input on top)", size=7, parse_math=False)
