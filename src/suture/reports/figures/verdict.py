"""The verdict in a figure: its headline on top, the answers at each cut below, names beside the lines."""

from collections.abc import Sequence
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.optimize import isotonic_regression

from suture.measurement.tables.questions import UNASKED
from suture.measurement.tables.read import Reading
from suture.measurement.tables.say import asked, name_question, say_mark
from suture.reports.style import LETTERS, MARKS, shortened, with_minus

_LETTERS = 12.4  #: of a verdict, in an inch of its line
_LETTER = 4.2  #: points: the width of a letter of a name
_QUESTION = 24  #: letters of the name of a question
_LONGEST = 36  #: letters of the name of a line, after which its middle is left out
_TITLE, _HEIGHT = 9.0, 1.25  #: points: a verdict; the height of a line, in the size of its letters


def head(figure: Figure, verdict: str) -> None:
    """Write the verdict above a figure, from its left edge."""
    lines = fill(with_minus(verdict), int(_LETTERS * figure.get_figwidth()))
    figure.suptitle(lines, x=0.01, ha="left", size=_TITLE, weight="bold", parse_math=False)


def strip(axes: Axes, reading: Reading) -> None:
    """Draw a row for each question that was asked, and a mark at each cut that has an answer."""
    questions = asked(reading)
    for row, question in enumerate(questions):
        for place, answer in enumerate(reading.marks(question)):
            if answer != UNASKED:
                axes.plot([place], [row], markersize=5, clip_on=False, **_look(answer))
    axes.set(ylim=(len(questions) - 0.5, -0.5), yticks=range(len(questions)))
    names = [shortened(name_question(reading, question), _QUESTION) for question in questions]
    axes.set_yticklabels(names, fontsize=LETTERS, parse_math=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)


def _look(answer: str) -> dict[str, Any]:
    mark = MARKS[answer]
    edge = {"color": mark.colour, "markerfacecolor": "white" if mark.hollow else mark.colour}
    return {"marker": mark.marker, "linestyle": "none", "markeredgewidth": 1.0 if mark.hollow else 0.5, **edge}


def mark_entries(reading: Reading) -> list[tuple[Artist, str]]:
    """Return a legend entry for each answer in the figure."""
    questions = asked(reading)
    held = {(answer, say_mark(reading, q, answer)) for q in questions for answer in reading.marks(q)}
    order = sorted((one for one in held if one[0] != UNASKED), key=lambda one: list(MARKS).index(one[0]))
    return [(Line2D([], [], markersize=5, **_look(answer)), said) for answer, said in order]


def name_marks(figure: Figure, entries: Sequence[tuple[Artist, str]]) -> None:
    """Explain the marks of a figure below it."""
    if entries:
        handles, names = zip(*entries, strict=True)
        columns = int(72 * figure.get_figwidth() // (_LETTER * max(map(len, names)) + 24))
        how: dict[str, Any] = {"handletextpad": 0.7, "columnspacing": 1.2, "fontsize": LETTERS}
        figure.legend(handles, names, loc="outside lower left", ncols=min(max(columns, 1), len(entries)), **how)


def name_lines(
    axes: Axes, named: Sequence[tuple[float, str, str, bool]], longest: int = _LONGEST, gid: str | None = None
) -> None:
    """Write names right of axes at these heights, apart where lines end close together: height, name, colour, bold.

    The axes must have been laid out. ``gid`` is the id of all of them in an SVG.
    """
    low, high = axes.get_ylim()
    tall = axes.get_window_extent().height / axes.get_figure(root=True).dpi * 72  # type: ignore[union-attr]
    least = LETTERS * _HEIGHT / tall
    order = sorted(named, key=lambda one: one[0])
    places = _apart(np.array([(y - low) / (high - low) for y, *_ in order]), least)
    for place, (_, name, colour, bold) in zip(places.tolist(), order, strict=True):
        axes.annotate(
            shortened(name, longest),
            (1, place),
            xytext=(5, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            va="center_baseline",
            size=LETTERS,
            color=colour,
            weight="bold" if bold else "normal",
            parse_math=False,
            annotation_clip=False,
            gid=gid,
        )


def _apart(wanted: "np.ndarray[Any, np.dtype[np.float64]]", least: float) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Return rising places within [0, 1], ``least`` apart, as close to those wanted as can be."""
    if not len(wanted):
        return wanted
    steps = np.arange(len(wanted)) * least
    rising = np.asarray(isotonic_regression(wanted - steps).x)
    return np.clip(rising, 0.0, max(1.0 - float(steps[-1]), 0.0)) + steps
