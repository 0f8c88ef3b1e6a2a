"""Measures of complexity drawn and tabled along the cuts of a stitched curve: small multiples, one for each measure."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suture.common.errors import DataError
from suture.measurement.complexity.table import MEASURE, name_measure, split_complexity
from suture.measurement.tables.curve import PLAIN
from suture.report.figures.curve import DASHES, WIDTH, Entries, grid_behind, legend_above, styled
from suture.report.style import look_of, name_of, place_of, shortened

_PER_ROW = 3  #: panels beside each other
_TALL = 1.25  #: inches: a panel


def along(table: pd.DataFrame) -> Figure:
    """Draw every measure at every cut, a panel each, controls beside the stitched networks, parents as lines across.

    ``table`` holds rows of ``complexity`` for one sender and one receiver, with the labels of the seam and, if there
    are controls, a column ``control``. A network that is not stitched has its own name as sender and receiver, and no
    cut. Several rows of a measure and seam are averaged. Raises ``DataError`` if the table is none, or of several
    pairs.
    """
    rows, alone = split_complexity(table)
    sender, receiver = _pair(rows)
    cuts = list(dict.fromkeys(rows.sort_values("receiver_depth", kind="stable")["receiver_cut"]))
    kinds = sorted(dict.fromkeys(rows["control"]), key=place_of)
    measures = list(rows.groupby(MEASURE, sort=False))
    columns = min(_PER_ROW, len(measures))
    lines = -(-len(measures) // columns)
    with styled():
        figure = Figure(figsize=(WIDTH, 1), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False, sharex=True)
        entries: Entries = []
        for axes, (key, held) in zip(panels.flat, measures, strict=False):
            mine = alone[(alone[MEASURE] == list(key)).all(axis=1)]
            drawn = _panel(axes, held, mine, cuts, kinds, (sender, receiver))
            entries = max(entries, drawn, key=len)
        for axes in panels.flat[len(measures) :]:
            axes.set_visible(False)
        longest = _name(panels.flat[: len(measures)], columns, cuts)
        figure.set_figheight(lines * _TALL + legend_above(figure, entries, "") + longest + 0.35)
        figure.supxlabel("cut (input → output)", size=8)
    return figure


def _pair(rows: pd.DataFrame) -> tuple[str, str]:
    across = rows[rows["control"] == PLAIN]
    if across.empty:
        raise DataError("the table has no stitched network to draw, only networks alone or controls")
    for role in ("sender", "receiver"):
        names = dict.fromkeys(across[role])
        if len(names) > 1:
            raise DataError(f"a curve has one {role}, and the table has {', '.join(names)}; select the rows of one")
    return str(across["sender"].iloc[0]), str(across["receiver"].iloc[0])


def _panel(
    axes: Axes, held: pd.DataFrame, alone: pd.DataFrame, cuts: list[str], kinds: list[str], pair: tuple[str, str]
) -> Entries:
    """Draw one measure; what the legend says of each line."""
    entries: Entries = []
    for kind in kinds:
        line = held[held["control"] == kind].groupby("receiver_cut")["value"].mean().reindex(cuts)
        if line.isna().all():
            continue
        colour, marker = look_of(kind)
        plain = kind == PLAIN
        (drawn,) = axes.plot(
            range(len(cuts)),
            line.to_numpy(float),
            color=colour,
            marker=marker,
            markersize=3.4 if plain else 2.6,
            linewidth=1.6 if plain else 0.9,
            zorder=4 if plain else 3,
        )
        entries.append((drawn, name_of(kind, " → ".join(pair))))
    for role, network in zip(("sender", "receiver"), pair, strict=True):
        values = alone.loc[alone["sender"] == network, "value"]
        if len(values):
            level = axes.axhline(values.mean(), color="black", linewidth=0.8, linestyle=DASHES[role], zorder=1)
            entries.append((level, f"{network} alone ({role})"))
    title = name_measure(held)
    axes.set_title(title.replace(", ", ",\n", 1) if len(title) > 34 else title, size=6.5, pad=3, parse_math=False)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4), useMathText=False)
    axes.yaxis.get_offset_text().set_fontsize(6)
    axes.tick_params(labelsize=6.5)
    grid_behind(axes)
    return entries


def _name(panels: "np.ndarray[tuple[int], np.dtype[np.object_]]", columns: int, cuts: list[str]) -> float:
    """Name the cuts below the lowest panels; the height in inches."""
    names = [shortened(cut, 24) for cut in cuts]
    for i, axes in enumerate(panels):
        lowest = i + columns >= len(panels)
        axes.set_xticks(
            range(len(cuts)), names if lowest else [""] * len(cuts), rotation=90, fontsize=6, parse_math=False
        )
        axes.tick_params(axis="x", labelbottom=lowest)
    return max(map(len, names)) * 3.6 / 72
