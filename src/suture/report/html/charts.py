"""Charts as plain values: what ``report.js`` draws, and what the table behind every chart shows.

A chart has *places*: the cuts of a curve, the cells of a matrix (row by row), the bars of a bar chart. A *measure* is
what can be shown of them (a score, its penalty, an index of similarity), and holds a *line* for each kind of trial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from suture.measurement.tables.by_depth import Mask, Numbers
from suture.measurement.tables.controls_in_words import unsigned_zero
from suture.report.style import LOOK, OTHERS, SERIES

SCORE, PENALTY, SIMILARITY = "Score", "Penalty", "Similarity"  #: what a measure shows
_SYMBOLS = {"o": "circle", "s": "square", "v": "triangle-down", "^": "triangle-up", "D": "diamond", "x": "x"} | {
    "p": "pentagon",
    "P": "cross",
    "X": "x",
    "*": "star",
    "<": "triangle-left",
    ">": "triangle-right",
}
#: The colours of the printed figures that are too dark on a dark page, and what stands for each there.
_DARK = {
    "#0072B2": "#56B4E9",
    "#009E73": "#2FC79A",
    "#D55E00": "#F07F2E",
    "#7F7F7F": "#A9A9A9",
    "#555555": "#C8C8C8",
    "#882255": "#F0E442",
    "#56B4E9": "#B7A6F0",
    "#000000": "#FFFFFF",
    "#8C6D31": "#C9A65C",
    "#5254A3": "#9FA2E8",
}


@dataclass(frozen=True, eq=False)
class Line:
    """One kind of trial: values with 95 % intervals, nan where there are none, and where trials failed.

    Of a matrix, a ``strip`` has a value for each column, anything else one for each cell, row by row.
    """

    kind: str
    name: str
    value: Numbers
    low: Numbers
    high: Numbers
    failed: Mask
    strip: bool = False
    hidden: bool = False  #: at first
    looks: tuple[tuple[str, str, str], ...] = ()  #: colour, marker, dashes where the kind does not say; of bars, each

    @classmethod
    def of(cls, kind: str, name: str, value: Numbers, failed: Mask | None = None) -> "Line":
        """A line without intervals."""
        none = np.full(value.shape, np.nan)
        return cls(kind, name, value, none, none, np.zeros(value.shape, bool) if failed is None else failed)


@dataclass(frozen=True, eq=False)
class Measure:
    """What can be shown: ``show`` says which kind of thing (score, penalty, …), ``of`` its name.

    ``levels`` are lines across, by name: of one value, or of a value for each row or column of a matrix. Brighter is
    better, or more alike: ``bright`` says which end that is.
    """

    show: str
    of: str
    unit: str
    digits: int
    lines: tuple[Line, ...]
    signed: bool = False
    levels: Mapping[str, float] = field(default_factory=dict)
    span: tuple[float, float] | None = None
    bright: Literal["high", "low", "middle"] = "high"
    over: str = ""  #: what the intervals are over

    @property
    def label(self) -> str:
        """Name and unit, for an axis."""
        what = {SCORE: f"test {self.of}", PENALTY: f"penalty of {self.of}"}.get(self.show, self.of)
        return what + (f" ({self.unit})" if self.unit else "")

    def written(self, value: float, unit: bool = False) -> str:
        """A value as it is shown; empty where there is none."""
        if not np.isfinite(value):
            return ""
        number = f"{unsigned_zero(value, self.digits):{'+' if self.signed else ''}.{self.digits}f}"
        return f"{number} {self.unit}" if unit and self.unit else number

    def interval(self, line: Line, place: int) -> str:
        """The interval of a line at a place, in brackets; empty where there is none."""
        low, high = float(line.low[place]), float(line.high[place])
        if not np.isfinite([low, high]).all():
            return ""
        return "[" + ", ".join(f"{unsigned_zero(end, self.digits):.{self.digits}f}" for end in (low, high)) + "]"


@dataclass(frozen=True, eq=False)
class Chart:
    """A curve along ``columns``, a matrix of ``rows`` × ``columns``, or a bar for each of ``columns``.

    ``alone`` are the networks' own scores in words; ``steps`` the boundary below which a sender's cut is at least as
    deep as the receiver's, as points (column, row); ``blocks`` where a network ends, among rows and columns.
    """

    kind: Literal["curve", "matrix", "bars"]
    title: str
    caption: str
    columns: tuple[str, ...]
    measures: tuple[Measure, ...]
    rows: tuple[str, ...] = ()
    axes: tuple[str, str] = ("cut (input → output)", "")
    alone: str = ""
    steps: tuple[tuple[Sequence[float], Sequence[float]], ...] = ()
    blocks: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    @property
    def places(self) -> int:
        """How many places it has."""
        return len(self.columns) * max(len(self.rows), 1)

    def place(self, i: int) -> str:
        """A place in words."""
        if not self.rows:
            return self.columns[i]
        row, column = divmod(i, len(self.columns))
        return f"{self.rows[row]} → {self.columns[column]}"

    def plain(self) -> dict[str, Any]:
        """The chart as plain values."""
        names = ("kind", "title", "columns", "rows", "axes", "alone", "steps", "blocks")
        return {key: getattr(self, key) for key in names} | {"measures": [_measure(m) for m in self.measures]}


def _measure(measure: Measure) -> dict[str, Any]:
    names = ("show", "of", "unit", "digits", "label", "signed", "span", "bright")
    lines = [_line(line, place) for place, line in enumerate(measure.lines)]
    return {key: getattr(measure, key) for key in names} | {"levels": dict(measure.levels), "lines": lines}


def _line(line: Line, place: int) -> dict[str, Any]:
    made: dict[str, Any] = {key: getattr(line, key) for key in ("kind", "name", "value", "strip", "hidden")}
    if np.isfinite(line.low).any():
        made |= {"low": line.low, "high": line.high}
    if line.failed.any():
        made["failed"] = np.flatnonzero(line.failed)
    if len(line.looks) > 1:
        made["bars"] = [_shades(colour) for colour, *_ in line.looks]
    return made | _look(line, place)


def _look(line: Line, place: int) -> dict[str, Any]:
    """The colours (on a light page, on a dark one), the marker and the dashes of a line."""
    dashes = "-"
    if line.looks:
        colour, marker, dashes = line.looks[0]
    elif line.kind.startswith("#"):
        colour, marker = SERIES[place % len(SERIES)]
    else:
        colour, marker = LOOK[line.kind] if line.kind in LOOK else OTHERS[sum(map(ord, line.kind)) % len(OTHERS)]
    return {"colour": _shades(colour), "marker": _SYMBOLS[marker], "dash": "solid" if dashes == "-" else "dash"}


def _shades(colour: str) -> list[str]:
    return [colour, _DARK.get(colour, colour)]
