"""What a figure says before it is read: its verdict on top, a mark for each cut below, names beside the lines."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.optimize import isotonic_regression

from suture.measurement.tables.verdicts import Verdict
from suture.reports.style import MARKS, mark_of, shortened, with_minus

_LETTERS = 12.4  #: of a verdict, in an inch of its line
_LETTER = 3.7  #: points: the width of a letter of a name
_LONGEST = 36  #: letters of the name of a line, after which its middle is left out
_TITLE, _NAME, _HEIGHT = 9.0, 7.0, 1.25  #: points: a verdict, the name of a line; the height of a line, in its size


def head(figure: Figure, verdict: str) -> None:
    """Write the verdict above a figure, from its left edge."""
    lines = fill(with_minus(verdict), int(_LETTERS * figure.get_figwidth()))
    figure.suptitle(lines, x=0.01, ha="left", size=_TITLE, weight="bold", parse_math=False)


def strip(axes: Axes, verdicts: Sequence[Verdict]) -> None:
    """Draw a mark for each cut."""
    for place, verdict in enumerate(verdicts):
        colour, marker, hollow = mark_of(verdict)
        look: dict[str, Any] = {"marker": marker, "markersize": 6, "linestyle": "none", "clip_on": False}
        axes.plot([place], [0], color=colour, markerfacecolor="white" if hollow else colour, **look)
    axes.set(ylim=(-1, 1), yticks=[0])
    axes.set_yticklabels(["verdict"], fontsize=_NAME)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", length=0)


def mark_entries(verdicts: Sequence[Verdict]) -> list[tuple[Artist, str]]:
    """Return what a legend says of the marks of verdicts, each once."""
    entries: list[tuple[Artist, str]] = []
    for verdict in sorted(dict.fromkeys(verdicts), key=lambda one: list(MARKS).index(one.kind)):
        colour, marker, hollow = mark_of(verdict)
        look: dict[str, Any] = {"marker": marker, "markersize": 5, "linestyle": "none"}
        handle = Line2D([], [], color=colour, markerfacecolor="white" if hollow else colour, **look)
        entries.append((handle, verdict.said))
    return entries


def name_marks(figure: Figure, verdicts: Sequence[Verdict], others: Sequence[tuple[Artist, str]]) -> None:
    """Say below a figure what the marks of its verdicts mean, those that it has, and what ``others`` do."""
    entries = [*mark_entries([one for one in verdicts if not (others and one.kind == "not converged")]), *others]
    if entries:
        handles, names = zip(*entries, strict=True)
        columns = int(72 * figure.get_figwidth() // (_LETTER * max(map(len, names)) + 24))
        how: dict[str, Any] = {"handletextpad": 0.7, "columnspacing": 1.2, "fontsize": _NAME}
        figure.legend(handles, names, loc="outside lower left", ncols=min(max(columns, 1), len(entries)), **how)


def name_lines(axes: Axes, named: Sequence[tuple[float, str, str, bool]]) -> None:
    """Write names right of axes at these heights, apart where lines end close together: height, name, colour, bold.

    The axes must have been laid out.
    """
    low, high = axes.get_ylim()
    tall = axes.get_window_extent().height / axes.get_figure(root=True).dpi * 72  # type: ignore[union-attr]
    least = _NAME * _HEIGHT / tall
    order = sorted(named, key=lambda one: one[0])
    places = _apart(np.array([(y - low) / (high - low) for y, *_ in order]), least)
    for place, (_, name, colour, bold) in zip(places.tolist(), order, strict=True):
        axes.annotate(
            shortened(name, _LONGEST),
            (1, place),
            xytext=(5, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center_baseline",
            size=_NAME,
            color=colour,
            weight="bold" if bold else "normal",
            parse_math=False,
            annotation_clip=False,
        )


def _apart(wanted: "np.ndarray[Any, np.dtype[np.float64]]", least: float) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return rising places within [0, 1], ``least`` apart, as close to those wanted as can be."""
    if not len(wanted):
        return wanted
    steps = np.arange(len(wanted)) * least
    rising = np.asarray(isotonic_regression(wanted - steps).x)
    return np.clip(rising, 0.0, max(1.0 - float(steps[-1]), 0.0)) + steps
