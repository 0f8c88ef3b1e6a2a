"""Charts as plain values: the numbers of a figure, the words of its caption, and the tables behind it.

A chart has *places*: the cuts of a curve, the cells of a matrix (row by row), the bars of a bar chart. A *measure* is a
quantity that can be shown (a score, its penalty, an index of similarity), and holds a *line* for each kind of trial.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from suture.measurement.tables.by_depth import Mask, Numbers
from suture.measurement.tables.matrix import Block
from suture.reports.style import SERIES, look_of

SCORE, PENALTY, SIMILARITY = "Score", "Penalty", "Similarity"  #: what a measure shows
Bright = Literal["high", "low"]  #: which end of a scale is bright
OPEN = "not converged: the penalty is an upper bound"  #: what a hollow point, a ring in a cell and a ° mean
THRESHOLD = "threshold"  #: the level that a claim names


@dataclass(frozen=True, eq=False)
class Line:
    """One kind of trial: values with 95 % intervals, nan if there are none, and which trials failed.

    In a matrix, a ``strip`` has a value for each column, anything else one for each cell, row by row.
    """

    kind: str
    name: str
    value: Numbers
    low: Numbers
    high: Numbers
    failed: Mask
    strip: bool = False
    hidden: bool = False  #: not printed, and on a page only shown when asked for
    looks: tuple[tuple[str, str, str], ...] = ()  #: colour, marker, dashes if the kind has none; of each bar
    seeds: Numbers | None = None  #: (seeds, places): the values that the means are of
    open: Mask | None = None  #: where a fit had not converged, of those that can say so

    @classmethod
    def of(cls, kind: str, name: str, value: Numbers) -> "Line":
        """Make a line without intervals or failures."""
        none = np.full(value.shape, np.nan)
        return cls(kind, name, value, none, none, np.zeros(value.shape, bool))

    @property
    def has_values(self) -> bool:
        """Whether anything was measured."""
        return bool(np.isfinite(self.value).any())

    @property
    def is_open(self) -> Mask:
        """Where there is a value whose fit had not converged."""
        return np.isfinite(self.value) & (self.open if self.open is not None else False)

    @property
    def is_group(self) -> bool:
        """Whether it is a group of a study, or a run, rather than a kind of trial: groups are drawn alike."""
        return self.kind.startswith("#")

    def look(self, number: int) -> tuple[str, str, str]:
        """Return the colour, the marker and the dashes of the line, which is the ``number``-th of its measure."""
        if self.looks:
            return self.looks[0]
        colour, marker = SERIES[number % len(SERIES)] if self.is_group else look_of(self.kind)
        return colour, marker, "-"


@dataclass(frozen=True, eq=False)
class Measure:
    """A quantity to show: ``show`` is its kind (score, penalty, …), ``of`` its name.

    ``levels`` are lines across, by name. ``bright`` says which end is better, or more alike, and so brighter in a
    matrix.
    """

    show: str
    of: str
    unit: str
    digits: int
    lines: tuple[Line, ...]
    signed: bool = False
    levels: Mapping[str, float] = field(default_factory=dict)
    span: tuple[float, float] | None = None
    bright: Bright = "high"
    over: str = ""  #: what the intervals are over

    @property
    def label(self) -> str:
        """Name and unit, for an axis."""
        named = {SCORE: "test", PENALTY: "penalty of"}
        what = f"{named[self.show]} {self.of}" if self.show in named else self.of
        return what + (f" ({self.unit})" if self.unit else "")

    @property
    def across(self) -> Iterator[tuple[str, float, bool]]:
        """The levels, and whether they are dashed: thresholds are, and all but the first of the others."""
        for i, (name, value) in enumerate(self.levels.items()):
            yield name, value, i > 0 or name == THRESHOLD

    @property
    def panels(self) -> tuple[Line, ...]:
        """Return the lines that have a value for every place."""
        return tuple(line for line in self.lines if not line.strip)

    @property
    def strips(self) -> tuple[Line, ...]:
        """Return the lines of a matrix that have a value for every column alone."""
        return tuple(line for line in self.lines if line.strip)

    def scale(self) -> tuple[float, float, bool]:
        """Return the ends of its colours, and whether they go by powers of ten."""
        return (*self.span, False) if self.span is not None else scale_of([line.value for line in self.lines])

    def written(self, value: float, unit: bool = False) -> str:
        """Write a value as it is shown; empty if there is none."""
        if not np.isfinite(value):
            return ""
        number = f"{value:{'+' if self.signed else ''}z.{self.digits}f}"
        return f"{number} {self.unit}" if unit and self.unit else number

    def interval(self, line: Line, place: int) -> str:
        """Write the interval of a line at a place, in brackets; empty if there is none."""
        low, high = float(line.low[place]), float(line.high[place])
        if not np.isfinite([low, high]).all():
            return ""
        return "[" + ", ".join(f"{end:z.{self.digits}f}" for end in (low, high)) + "]"

    def cell(self, line: Line, place: int, unit: bool = False) -> tuple[str, str]:
        """Write a value, marked ° if not converged and * if some seeds failed, and its interval."""
        value, failed = self.written(float(line.value[place]), unit), bool(line.failed[place])
        if not value:
            return ("failed" if failed else ""), ""
        marks = "°" * bool(line.is_open[place]) + "*" * failed
        return value + marks, self.interval(line, place)

    def say(self, line: Line, place: int) -> str:
        """Describe the value at a place, for a label: ``87.3 % [86.1, 88.4]``."""
        value, failed = self.written(float(line.value[place]), unit=True), bool(line.failed[place])
        if not value:
            return "failed" if failed else "not measured"
        notes = ["not converged"] * bool(line.is_open[place]) + ["some seeds failed"] * failed
        parts = ["penalty" * (self.show == PENALTY), value, self.interval(line, place), f"({', '.join(notes)})"]
        return " ".join(filter(None, parts if notes else parts[:-1]))


def scale_of(values: Sequence[Numbers]) -> tuple[float, float, bool]:
    """Return the least and the greatest value, and whether colours go by powers of ten: if a few dwarf all others."""
    every = np.concatenate(values)
    every = every[np.isfinite(every)]
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    powers = low > 0 and high > 100 * float(np.median(every))
    return (low, high, powers) if low < high else (low - 0.5, high + 0.5, False)


@dataclass(frozen=True)
class Grid:
    """A table of numbers behind a figure: for each row a name and its cells, a number and an interval each."""

    caption: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]


@dataclass(frozen=True, eq=False)
class Chart:
    """A curve along ``columns``, a matrix of ``rows`` × ``columns``, or a bar for each of ``columns``.

    ``alone`` are the networks' own scores in words. ``senders`` and ``receivers`` are the networks that rows and
    columns belong to, if a line shall part the cells whose sender's cut is at least as deep as the receiver's.
    """

    kind: Literal["curve", "matrix", "bars"]
    title: str
    about: str
    columns: tuple[str, ...]
    measures: tuple[Measure, ...]
    rows: tuple[str, ...] = ()
    axes: tuple[str, str] = ("cut (input → output)", "")
    alone: str = ""
    senders: tuple[Block, ...] = ()
    receivers: tuple[Block, ...] = ()

    def place(self, i: int) -> str:
        """Name a place."""
        if not self.rows:
            return self.columns[i]
        row, column = divmod(i, len(self.columns))
        return f"{self.rows[row]} → {self.columns[column]}"

    @property
    def caption(self) -> str:
        """Describe the figure, the units of its intervals, and the meaning of its marks."""
        over = " or ".join(dict.fromkeys(measure.over for measure in self.measures if measure.over))
        said = self.about + (f" Intervals are 95 %, over {over}." if over and "range" not in over else "")
        said += f" {self.alone}." if self.alone else ""
        said += " Below the line the sender's cut is at least as deep as the receiver's." if self.senders else ""
        if any(line.failed.any() for measure in self.measures for line in measure.lines):
            said += " Crossed cells failed" if self.rows else " Gaps are what failed"
            said += "; * is the mean of the seeds that did not."
        if any(line.is_open.any() for measure in self.measures for line in measure.lines):
            mark = "A ring in a cell" if self.rows else "A hollow bar" if self.kind == "bars" else "A hollow point"
            said += f" {mark}, and ° in the tables, means {OPEN}."
        return said

    def grids(self) -> Iterator[Grid]:
        """Lay out the tables behind the figure, which hold all of its numbers."""
        for measure in self.measures:
            if not self.rows:
                levels = "".join(f"; {name} {measure.written(x, unit=True)}" for name, x in measure.levels.items())
                rows = tuple(
                    (column, tuple(measure.cell(line, i) for line in measure.lines))
                    for i, column in enumerate(self.columns)
                )
                names = tuple(line.name for line in measure.lines)
                yield Grid(measure.label + levels, self.axes[0].partition(" (")[0], names, rows)
                continue
            across = range(len(self.columns))
            for line in measure.panels:
                rows = tuple(
                    (row, tuple(measure.cell(line, i * len(across) + j) for j in across))
                    for i, row in enumerate(self.rows)
                )
                whose = f", {line.name}" if len(measure.panels) > 1 else ""
                yield Grid(measure.label + whose, "sender ↓ receiver →", self.columns, rows)
            if measure.strips:
                rows = tuple((line.name, tuple(measure.cell(line, j) for j in across)) for line in measure.strips)
                yield Grid(f"{measure.label}, controls without the sender", "receiver cut →", self.columns, rows)
