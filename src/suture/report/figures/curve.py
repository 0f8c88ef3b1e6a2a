"""Figures from tables, in one style: readable in print, in grey and by the colour-blind (Okabe & Ito's palette).

Whatever a user's matplotlib is set to, the figures look the same, and names come out as they are written.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from suture.common.errors import DataError, OutputError
from suture.measurement.tables.curve import PLAIN, Curve, arrange_curve
from suture.report.style import look_of, name_of, place_of, shortened

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",  # of which matplotlib brings DejaVu Sans; a viewer of SVG may need another
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "suture",
    "hatch.linewidth": 0.4,
}

DASHES: dict[str, Any] = {"receiver": "-", "sender": (0, (4, 2))}  #: of the lines of the parents
KINDS = ("png", "pdf", "svg")  #: of the files of a figure
_TIMELESS: dict[str, dict[str, None]] = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
WIDTH = 6.6  #: inches: a page of text
WIDEST = 10.0  #: inches: a page on its side
_LETTER = 4.5  #: points: the width of a letter of the legend, on average
SMALLEST = 4.5  #: points: the smallest letters
_LETTERS = 50  #: after which the name of a line is broken in the legend

Entries = list[tuple[Artist, str]]


def curve(table: pd.DataFrame, score: str = "accuracy") -> Figure:
    """Draw a score of the stitched network at every cut, with its controls, its parents and 95 % intervals.

    Below it, if the score has one, its penalty in pp or in the score's unit. ``table`` holds one sender and one
    receiver, any seeds. Raises ``DataError`` if it holds none of that score, or more than one curve.
    """
    shown = arrange_curve(table, score)
    if all(line["stitched"].isna().all() for line in shown.lines.values()):
        raise DataError(f"the table has no measurement of '{score}' to draw: every trial failed")
    with styled():
        crowd = min(max(len(shown.cuts) - 20, 0), 40) / 40
        panels = 2 if shown.plain["penalty"].notna().any() else 1
        figure = Figure(figsize=(WIDTH + (WIDEST - WIDTH) * crowd, 1), layout="constrained")
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=[2.4, 1][:panels])[:, 0]
        entries = draw_scores(axes[0], shown)
        if panels == 2:
            _penalties(axes[1], shown)
        height = name_cuts(figure, axes[-1], shown) + legend_above(figure, entries, shown.intervals)
        figure.set_figheight(height + 2.4 + 0.9 * (panels - 1))
        figure.align_ylabels()
    return figure


def draw_scores(axes: Axes, shown: Curve) -> Entries:
    """Draw the parents and every kind of trial; what the legend says of each."""
    scale, unit = (100.0, "%") if shown.percent else (1.0, shown.unit)
    entries: Entries = []
    for kind in sorted(shown.lines, key=place_of):
        name = name_of(kind, f"{shown.sender} → {shown.receiver}")
        entries.append((_line(axes, shown.lines[kind], "stitched", kind, scale), name))
    parents: Entries = []
    for role, dashes in DASHES.items():
        value = shown.parent(role) * scale
        if np.isfinite(value):
            line = axes.axhline(value, color="black", linewidth=0.8, linestyle=dashes, zorder=1)
            parents.append((line, f"{getattr(shown, role)} alone ({role})"))
    axes.set_ylabel(f"test {shown.score}" + (f" ({unit})" if unit != "raw" else ""), parse_math=False)
    if shown.percent:
        axes.set_ylim(0, 102)
    grid_behind(axes)
    return [*entries[:1], *parents, *entries[1:]]


def _penalties(axes: Axes, shown: Curve) -> None:
    unit = "pp" if shown.percent else shown.unit
    axes.axhline(0, color="black", linewidth=0.8, zorder=1)
    for kind in ("itself", PLAIN):
        if kind in shown.lines:
            _line(axes, shown.lines[kind], "penalty", kind, 1.0)
    axes.set_ylabel("penalty" + (f" ({unit})" if unit != "raw" else ""))
    grid_behind(axes)


def _line(axes: Axes, rows: pd.DataFrame, column: str, kind: str, scale: float) -> Artist:
    """Draw one kind of trial with its band; if a cut has no value, a gap."""
    colour, marker = look_of(kind)
    plain = kind == PLAIN
    places = np.arange(len(rows))
    value, low, high = (rows[f"{column}{end}"].to_numpy(float) * scale for end in ("", "_low", "_high"))
    axes.fill_between(places, low, high, color=colour, alpha=0.25 if plain else 0.14, linewidth=0, zorder=2)
    alone = without_neighbour(value)
    axes.vlines(places[alone], low[alone], high[alone], color=colour, alpha=0.6, linewidth=1.5, zorder=2)
    (line,) = axes.plot(
        places,
        value,
        color=colour,
        marker=marker,
        markersize=(4 if plain else 3.2) if len(rows) <= 30 else 2.4,
        linewidth=1.8 if plain else 1.0,
        zorder=4 if plain else 3,
    )
    return line


def without_neighbour(values: "np.ndarray[Any, np.dtype[np.float64]]") -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Say which values have no neighbour, so that a band between neighbours does not show."""
    there = np.isfinite(values)
    before, after = np.roll(there, 1), np.roll(there, -1)
    before[:1], after[-1:] = False, False
    return np.asarray(there & ~before & ~after)


def grid_behind(axes: Axes) -> None:
    """Draw the horizontal lines of a grid behind the data."""
    axes.margins(x=0.02)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    axes.set_axisbelow(True)


def name_cuts(figure: Figure, axes: Axes, shown: Curve) -> float:
    """Name every cut below the axis, as flat and as large as there is room; of very many, every second or third.

    The height of all that, in inches.
    """
    room = 72 * 0.9 * figure.get_figwidth() / len(shown.cuts)  # points
    step = int(np.ceil(SMALLEST / room))
    names = [shortened(name) for name in shown.labels[::step]]
    length = max(map(len, names)) * _LETTER
    flat, steep = length < room, room * step < 14
    size = min(7.0, max(SMALLEST, 0.85 * room * step)) if steep else 7.0
    axes.set_xticks(
        range(0, len(shown.cuts), step),
        names,
        rotation=0 if flat else 90 if steep else 40,
        ha="center" if flat or steep else "right",
        va="center" if not (flat or steep) else "top",
        rotation_mode="default" if flat or steep else "anchor",
        fontsize=size,
        parse_math=False,
    )
    axes.set_xlabel("cut (input → output)")
    return 0.3 + (0.1 if flat else length * size / 7.0 / 72 * (1 if steep else 0.65))


def legend_above(figure: Figure, entries: Entries, intervals: str) -> float:
    """Name the lines above the axes, in as many columns as their names leave room for; the height in inches."""
    names = [fill(name, _LETTERS) for _, name in entries]
    longest = max(len(line) for name in names for line in name.splitlines())
    columns = min(max(1, int(72 * figure.get_figwidth() // (_LETTER * longest + 36))), 4)
    legend = figure.legend(
        [artist for artist, _ in entries],
        [str(i) for i in range(len(entries))],  # set below: a name may begin with an underscore
        loc="outside upper center",
        ncols=columns,
        title=f"bands: 95 % intervals over {intervals}" if intervals else None,
        title_fontsize=7,
        columnspacing=1.6,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
    lines = sum(len(name.splitlines()) for name in names) if columns == 1 else -(-len(names) // columns)
    return 0.3 + 0.16 * lines


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
