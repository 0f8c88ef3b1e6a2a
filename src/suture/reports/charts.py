"""Charts as plain values: numbers of a figure, words of its caption, tables behind it; and readings arranged as charts.

A chart has *places*: the cuts of a curve, the cells of a matrix (row by row), the bars of a bar chart. A *measure* is a
quantity that can be shown (a score, its penalty, an index of similarity), and holds a *line* for each kind of trial.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.measurement.tables.curve import PLAIN, Curve, over_words, without_sender
from suture.measurement.tables.matrix import (
    Block,
    Matrix,
    arrange_similarities,
    lay_cells,
    lay_strip,
    places_of,
    show_of,
)
from suture.measurement.tables.onset import Onset
from suture.measurement.tables.read import Reading
from suture.measurement.tables.table import (
    Mask,
    Numbers,
    ends_at_output,
    not_converged,
    rows_of,
    say_quick,
    summary,
    write_score,
)
from suture.reports.style import SERIES, look_of, name_of, place_of

_ASIDE = ("itself", "untrained both", "shuffled pairs")  #: drawn if that is asked for
_TRAINED = "trained sender"  #: what the trials themselves are called beside their controls
_DIGITS = 2  #: of an index of similarity
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


# --- curves -----------------------------------------------------------------------------------------------------------


def curve(reading: Reading, similarities: pd.DataFrame | None = None) -> Chart:
    """Arrange a score of one sender and one receiver along the cuts, and indices beside it.

    Raises ``DataError`` if the reading is more than one curve.
    """
    shown = reading.curve
    # The lines that answer a question, and whatever was asked for by name; the others on demand.
    aside = _ASIDE if {"untrained sender", "untrained receiver"} & {*shown.controls} else ()
    plain = f"{shown.sender} → {shown.receiver}"

    def line(kind: str, column: str, scale: float) -> Line:
        rows = shown.lines[kind].reindex(list(shown.cuts))
        value, low, high = (rows[f"{column}{end}"].to_numpy(float) * scale for end in ("", "_low", "_high"))
        failed = np.array([(kind, cut) in shown.failed for cut in shown.cuts], bool)
        open_ = not_converged(rows).to_numpy(bool)
        return Line(kind, name_of(kind, plain), value, low, high, failed, hidden=kind in aside, open=open_)

    scale = 100.0 if shown.percent else 1.0
    parents = {f"{getattr(shown, role)} alone ({role})": scale * shown.parent(role) for role in ("receiver", "sender")}
    parents = {name: value for name, value in parents.items() if np.isfinite(value)}
    score, *cost = _score_and_penalty(shown, list(shown.lines), shown.intervals, line)
    measures = [replace(score, levels=parents, span=(0.0, 102.0) if shown.percent else None)]
    measures += [replace(one, levels={"no penalty": 0.0}) for one in cost]
    if similarities is not None:
        seams = [((shown.sender, start), (shown.receiver, end)) for start, end in shown.seams]
        measures += _indices(similarities, seams, plain)
    parents_ = ", ".join(f"{role} {getattr(shown, role)}" for role in ("sender", "receiver") if getattr(shown, role))
    about = f"What the stitched network reaches at every cut, from input to output ({parents_}){_quick(reading.table)}."
    return Chart("curve", f"{plain}: {shown.score} along the cuts", about, shown.labels, tuple(measures))


def _quick(table: pd.DataFrame) -> str:
    return f", {said}" if (said := say_quick(table)) else ""


def _score_and_penalty(
    shown: Curve | Matrix, kinds: list[str], over: str, line: Callable[[str, str, float], Line]
) -> Iterator[Measure]:
    """Yield the score, and its penalty if it has one; ``line`` makes the line of a kind from a column and its scale."""
    kinds = sorted(kinds, key=place_of)
    unit, cost = ("%", "pp") if shown.percent else (shown.unit.replace("raw", ""),) * 2
    digits = 1 if shown.percent else 3
    scale = 100.0 if shown.percent else 1.0
    lines = tuple(line(kind, "stitched", scale) for kind in kinds)
    bright: Bright = "high" if shown.rises else "low"
    yield Measure(SCORE, shown.score, unit, digits, lines, bright=bright, over=over)
    lines = tuple(line(kind, "penalty", 1.0) for kind in kinds)
    if any(np.isfinite(one.value).any() for one in lines):
        yield Measure(PENALTY, shown.score, cost, digits, lines, signed=True, bright="low", over=over)


Ends = tuple[tuple[str, str], tuple[str, str]]  #: the sender and its cut, the receiver and its cut


def _indices(found: pd.DataFrame, seams: Iterable[Ends], name: str) -> Iterator[Measure]:
    """Yield each index's values at these ends of seams, if it has any: calibrated values, or else plain ones."""
    places = pd.MultiIndex.from_tuples([(*sender, *receiver) for sender, receiver in seams])
    for index, rows in found.groupby("index", sort=False):
        held = rows.set_index(["sender", "sender_cut", "receiver", "receiver_cut"]).reindex(places)
        shown = show_of(rows)
        laid, low, high = (held[column].to_numpy(float) for column in (shown.column, "low", "high"))
        if np.isfinite(laid).any():
            known = shown.column == "calibrated"
            never = np.zeros(laid.shape, bool)
            line = Line(PLAIN, name, laid, low, high, never) if known else Line.of(PLAIN, name, laid)
            bright: Bright = "low" if shown.distance else "high"
            over = "95 % over images" if known else ""
            yield Measure(
                SIMILARITY, f"{index}{shown.words}", "", _DIGITS, (line,), bright=bright, span=shown.span, over=over
            )


# --- matrices ---------------------------------------------------------------------------------------------------------


def matrix(reading: Reading, similarities: pd.DataFrame | None = None) -> Chart:
    """Arrange a score as matrices of sender cuts × receiver cuts. Raises ``DataError`` for other readings."""
    shown = reading.matrix
    if not shown.senders:
        raise DataError("the table has no sender that is a network")
    measures = [*_of_matrix(shown, reading.table)]
    if similarities is not None:
        measures += _indices(similarities, product(places_of(shown.senders), places_of(shown.receivers)), _TRAINED)
    senders, receivers = (
        tuple(cut if shown.single else f"{block.name} {cut}" for block in side for cut in block.cuts)
        for side in (shown.senders, shown.receivers)
    )
    return Chart(
        "matrix",
        f"{shown.title}: {shown.score}, sender cuts × receiver cuts",
        f"Rows are the cuts of the sender, columns those of the receiver, from input to output "
        f"({shown.title}){_quick(reading.table)}.",
        receivers,
        tuple(measures),
        senders,
        ("receiver cut", "sender cut"),
        "; ".join(f"{name} alone {write_score(value, shown.unit)}" for name, value in shown.alone.items()),
        shown.senders,
        shown.receivers,
    )


def _of_matrix(shown: Matrix, table: pd.DataFrame) -> Iterator[Measure]:
    rows = table[(table["score"] == shown.score) & (table["status"] == "ok")]
    means = summary(rows)
    means = means if ends_at_output(means).all() else means[~ends_at_output(means)]
    units = means[["interval", "n", "seeds"]].drop_duplicates().itertuples(index=False)
    over = " or ".join(dict.fromkeys(over_words(*row) for row in units))

    def line(kind: str, column: str, scale: float) -> Line:
        strip = kind in shown.strips
        rows = means[(means["control"] == kind) & (without_sender(means) == strip)]

        def laid(end: str) -> Numbers:
            if strip:
                return lay_strip(rows, column + end, shown.receivers) * scale
            return lay_cells(rows, column + end, shown.senders, shown.receivers).ravel() * scale

        failed = shown.failed[kind].ravel()
        ends = laid(""), laid("_low"), laid("_high")
        return Line(kind, name_of(kind, _TRAINED), *ends, failed, strip, open=shown.open[kind].ravel())

    return _score_and_penalty(shown, [*shown.panels, *shown.strips], over, line)


def similarity(found: pd.DataFrame) -> Chart:
    """Arrange a table of ``compare``: all pairs of cuts of a sender and a receiver, an index at a time.

    Raises ``DataError`` if it is none, or of several networks.
    """
    first = next(iter(arrange_similarities(found).values()))
    (sender,), (receiver,) = first.senders, first.receivers
    about = (
        f"How alike layers are on the same images, by indices of similarity: rows are the cuts of {sender.name}, "
        f"columns those of {receiver.name}; bright is alike. Nothing is trained."
    )
    measures = tuple(_indices(found, product(places_of((sender,)), places_of((receiver,))), _TRAINED))
    title = f"Similarity of {sender.name} and {receiver.name}"
    axes = (f"receiver {receiver.name}", f"sender {sender.name}")
    return Chart("matrix", title, about, receiver.cuts, measures, sender.cuts, axes)


# --- where a trait lies -----------------------------------------------------------------------------------------------


def localisation(table: pd.DataFrame, found: Onset) -> Chart:
    """Arrange the share of a trait that every cut of the carrier conveys, both ways, with controls."""
    cuts = tuple(dict.fromkeys((*found.sending.cuts, *found.receiving.cuts)))
    measures = []
    for way, start, end, look in (
        (found.sending, found.carrier, found.reference, (*SERIES[0], "-")),
        (found.receiving, found.reference, found.carrier, (*SERIES[0], "-")),
    ):
        places = pd.Index(way.cuts).get_indexer(pd.Index(cuts))  # -1 for cuts that were not stitched this way
        value, low, high = (np.array([*part, np.nan])[places] * 100 for part in (way.shares, way.low, way.high))
        rows = rows_of(table, found.trait).query("control == '' and sender == @start and receiver == @end")
        unfinished = {*rows[not_converged(rows)]["sender_cut" if way.sends else "receiver_cut"]}
        open_ = np.array([cut in unfinished for cut in cuts], bool)
        never = np.zeros(len(cuts), bool)
        lines = [Line(PLAIN, f"{start} → {end}", value, low, high, never, looks=(look,), open=open_)]
        for kind, shares in way.control_shares.items():
            lines.append(Line.of(kind, name_of(kind, kind), np.array([*shares, np.nan])[places] * 100))
        levels = {f"{found.carrier} alone (carrier)": 100.0, f"{found.reference} alone (reference)": 0.0}
        of = f"conveyed of {found.trait}"
        measures.append(Measure(f"{start} → {end}", of, "%", 0, tuple(lines), levels=levels, span=(-25.0, 125.0)))
    about = (
        f"What the stitched network conveys of the difference in {found.trait} between {found.carrier} (100 %) and "
        f"{found.reference} (0 %), at every cut of {found.carrier}, both ways."
    )
    title = f"Where {found.trait} lies in {found.carrier}"
    return Chart("curve", title, about, cuts, tuple(measures), axes=(f"cut of {found.carrier} (input → output)", ""))
