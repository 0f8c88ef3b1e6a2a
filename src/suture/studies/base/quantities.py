"""What a claim is about: one number for each seed, read from a study's tables, and its interval over seeds.

Four steps lead from a table to a figure. ``Where`` selects rows. ``average_cells`` makes a number of each cell: a seam
of two networks, averaged over stitch seeds. A quantity makes one number of the cells of each seed of the networks
(``PerUnit.read``). Their mean, with its variance and degrees of freedom (``Average``), gives a ``Figure``, which has a
95 % t interval. The seed is the unit, since the cuts and the test images of one pair of networks are not independent:
whatever a claim says of several cuts is first made one number of each pair. "At every cut" is a statement about the
worst cut, so it is the worst cut of each pair that is taken (``Worst``), and its interval is simultaneous over cuts by
construction. It is a strict reading: noise makes the worst of many cuts look worse than any one of them is.

Fewer than ``FEWEST`` seeds have no interval, whatever the number of test images: they decide nothing.

Some quantities read all cells of a seed together (``Mean``, ``Worst``, ``Trend`` …). Others go cut by cut: those of one
column see its values in the order of the cuts (``Step``, ``Peak`` …); those of several *conditions* compare them at the
same cut first (``Gap``, ``Moves`` …), because a difference of two means says nothing of single cuts. ``contrasts`` has
the quantities that compare groups of units.

Fractions (accuracies) are read in per cent, penalties are in percentage points, all else is in its own unit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import isclose, isfinite
from typing import ClassVar, Literal, final

import numpy as np
import pandas as pd
from scipy import stats

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import EXACT

FEWEST = 3  #: seeds that an interval needs
LEVEL = 0.95
TRIALS, SIMILARITIES, COMPLEXITIES, NETWORKS, FOLDS = "trials", "similarities", "complexities", "networks", "folds"

DIVISOR_IS_0 = "what it is divided by is 0"  #: why a ratio has no figure

Tables = Mapping[str, pd.DataFrame]
"""What a study measured: tables by kind, each with a column ``network_seed``."""

#: Columns that hold fractions and are shown in %.
PERCENT = ("stitched", "stitched_low", "stitched_high", "sender_score", "receiver_score", "accuracy")
_CELL = ("sender", "receiver", "sender_cut", "receiver_cut", "control", "fit_data", "score_data", "index", "measure")


@final
@dataclass(frozen=True)
class Figure:
    """A mean over ``seeds`` with its interval; ``low`` and ``high`` are nan if the seeds are too few for one.

    ``unit`` says what they are if the mean is of something else.
    """

    value: float
    low: float
    high: float
    seeds: int
    unit: str = "seed"

    @property
    def decides(self) -> bool:
        """Whether it has an interval."""
        return isfinite(self.low) and isfinite(self.high)

    @property
    def all_alike(self) -> bool:
        """Whether all gave the same number, so that its interval is that number."""
        return self.decides and isclose(self.low, self.high, rel_tol=1e-9, abs_tol=1e-12)

    def clip(self, low: float, high: float) -> "Figure":
        """Return the same figure with its interval cut to what the number can be."""
        return replace(self, low=max(self.low, low), high=min(self.high, high))


@final
@dataclass(frozen=True)
class Average:
    """A mean, its variance and the degrees of freedom of that variance; nan if the units are too few."""

    value: float
    variance: float
    freedom: float
    units: int

    def figure(self, unit: str = "seed") -> Figure:
        """Return the mean and its t interval."""
        half = 0.0 if self.variance == 0 else float(stats.t.ppf((1 + LEVEL) / 2, self.freedom) * np.sqrt(self.variance))
        return Figure(self.value, self.value - half, self.value + half, self.units, unit)


def average_units(values: "pd.Series[float]") -> Average:
    """Return the mean of a number per unit, taken to be independent. Raises ``DataError`` if there is none."""
    there = values.dropna().astype("float64")
    if there.empty:
        raise DataError("there is no measurement to read this from")
    n, mean = len(there), float(there.mean())
    if n < FEWEST:
        return Average(mean, float("nan"), float("nan"), n)
    return Average(mean, float(there.var(ddof=1)) / n, n - 1, n)


@final
@dataclass(frozen=True)
class Where:
    """Which rows of a table are meant: by names, or patterns such as ``"layer4*|fc"``; empty means whichever.

    ``control`` is the exact label, empty for plain trials; ``fit`` is ``default``, ``published`` (a paper's recipe),
    ``any``, or a pattern of the fit as the table spells it. ``sender_depth`` and ``receiver_depth`` are ranges, both
    ends included.
    """

    table: str = TRIALS
    score: str = "accuracy"
    sender: str = ""
    receiver: str = ""
    sender_cut: str = ""
    receiver_cut: str = ""
    fit_data: str = ""
    score_data: str = ""
    stitch: str = ""
    control: str = ""
    fit: str = "default"
    index: str = ""
    measure: str = ""
    sender_depth: tuple[float, float] = (0.0, 1.0)
    receiver_depth: tuple[float, float] = (0.0, 1.0)

    def select(self, tables: Tables) -> pd.DataFrame:
        """Return the rows, in the table's order.

        Raises ``DataError`` if there are none, or if one is of a failed trial: a seam that failed may be the worst of
        all, so the others alone decide nothing.
        """
        rows = self._meant(tables)
        if self.table == TRIALS and (failed := int((rows["status"] == "failed").sum())):
            raise DataError(f"{failed} of {len(rows)} trials failed; suture run --retry measures them again")
        return rows

    def select_measured(self, tables: Tables) -> pd.DataFrame:
        """Return the rows without those of failed trials: to be looked at, and nothing decided by them."""
        rows = self._meant(tables)
        if self.table == TRIALS and (rows := rows[rows["status"] == "ok"]).empty:
            raise DataError(f"every trial of {self} failed")
        return rows

    def _meant(self, tables: Tables) -> pd.DataFrame:
        if self.table not in tables:
            raise DataError(f"the study has no table of {self.table}; it has {', '.join(tables) or 'none'}")
        table = tables[self.table]
        mask = pd.Series(True, index=table.index)
        if self.table == TRIALS:
            mask &= table["score"] == self.score
            if self.fit in ("default", "published"):
                mask &= table["published"] == (self.fit == "published")
            elif self.fit != "any":
                mask &= table["fit"].map(_match(self.fit)).astype(bool)
        if "control" in table:
            mask &= table["control"] == self.control
        for name in ("sender", "receiver", "sender_cut", "receiver_cut", "fit_data", "score_data", "stitch"):
            if pattern := getattr(self, name):
                mask &= table[name].map(_match(pattern)).astype(bool)
        for name in ("index", "measure"):
            if wanted := getattr(self, name):
                mask &= table[name] == wanted
        for name in ("sender_depth", "receiver_depth"):
            low, high = getattr(self, name)
            if (low, high) != (0.0, 1.0):
                mask &= (table[name] >= low - EXACT) & (table[name] <= high + EXACT)
        if not mask.any():
            raise DataError(f"no row of {self.table} is {self}")
        return table[mask]


def _match(pattern: str) -> Callable[[str], bool]:
    parts = pattern.split("|")
    return lambda text: any(fnmatchcase(text, part) for part in parts)


def average_cells(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return a row per seed and cell, with its ``value``, and the depths if there are any.

    Stitch seeds are averaged.
    """
    values = rows[column].astype("float64")
    if column in PERCENT and "unit" in rows:
        values = values.where(rows["unit"] != "fraction", 100 * values)
    keys = ["network_seed", *(name for name in _CELL if name in rows)]
    depths = [name for name in ("sender_depth", "receiver_depth") if name in rows]
    return rows.assign(value=values).groupby(keys, dropna=False, sort=False)[["value", *depths]].mean().reset_index()


Condition = tuple[str, Where]
"""A column of some rows."""


def join_by_cut(tables: Tables, conditions: tuple[Condition, ...], by: str) -> pd.DataFrame:
    """Return a row per seed and cut, from input to output by the first condition, and a column per condition.

    The columns are 0, 1, …; cuts that lack a condition are left out. Raises ``DataError`` if no cut has them all.
    """
    depth = by.replace("_cut", "_depth")
    columns: list[pd.Series[float]] = []
    for column, where in conditions:
        cells = average_cells(where.select(tables), column)
        ordered = cells.sort_values(depth, kind="stable") if depth in cells else cells
        columns.append(ordered.groupby(["network_seed", by], sort=False)["value"].mean().rename(len(columns)))
    joined = pd.concat(columns, axis=1, join="inner").dropna()
    if joined.empty:
        raise DataError(f"no cut has all of {', '.join(str(where) for _, where in conditions)}")
    return joined


class Quantity(ABC):
    """What can be estimated from a study's tables."""

    @abstractmethod
    def estimate(self, tables: Tables) -> Figure:
        """Return the figure. Raises ``DataError`` if the tables lack what it needs."""


class PerUnit(Quantity):
    """One number for each unit, by default for each seed, and their mean."""

    unit: ClassVar[str] = "seed"
    limits: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))

    @abstractmethod
    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the numbers, by unit. Raises ``DataError`` if the tables lack what it needs."""

    def average(self, tables: Tables) -> Average:
        """Return their mean and its variance."""
        return average_units(self.read(tables))

    def estimate(self, tables: Tables) -> Figure:
        """Return their mean and its interval over units."""
        return self.average(tables).figure(self.unit).clip(*self.limits)


# --- all cells of a seed together -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OfCells(PerUnit):
    """A number of the cells of each seed, of one column of some rows."""

    column: str
    where: Where = Where()

    def read(self, tables: Tables) -> "pd.Series[float]":
        cells = average_cells(self.where.select(tables), self.column)
        return cells.groupby("network_seed", dropna=False)[list(cells.columns)].apply(self._one)

    @abstractmethod
    def _one(self, cells: pd.DataFrame) -> float:
        """Return the number of one seed."""


@final
@dataclass(frozen=True)
class Mean(_OfCells):
    """The mean over the rows."""

    def _one(self, cells: pd.DataFrame) -> float:
        return float(cells["value"].mean())


@final
@dataclass(frozen=True)
class Worst(_OfCells):
    """The largest over the rows, or the ``smallest``: what "at every cut" is decided by."""

    smallest: bool = False

    def _one(self, cells: pd.DataFrame) -> float:
        return float(cells["value"].min() if self.smallest else cells["value"].max())


@final
@dataclass(frozen=True)
class Spread(_OfCells):
    """The standard deviation over the rows, divided by their number."""

    def _one(self, cells: pd.DataFrame) -> float:
        return float(cells["value"].std(ddof=0))


@final
@dataclass(frozen=True)
class Trend(_OfCells):
    """Spearman's ρ of the value with the depth of the cut (``along``)."""

    along: Literal["sender_depth", "receiver_depth"] = "receiver_depth"
    limits = (-1.0, 1.0)

    def _one(self, cells: pd.DataFrame) -> float:
        return _correlate(cells[self.along], cells["value"])


@final
@dataclass(frozen=True)
class Slope(_OfCells):
    """The slope of a straight line through the values, for a depth from 0 to 1 (``along``): for trends of few cuts."""

    along: Literal["sender_depth", "receiver_depth"] = "receiver_depth"

    def _one(self, cells: pd.DataFrame) -> float:
        return float(np.polyfit(cells[self.along].to_numpy(float), cells["value"].to_numpy(float), 1)[0])


def _correlate(a: "pd.Series[float]", b: "pd.Series[float]") -> float:
    """Return Spearman's ρ: nan for a single pair of numbers, 0 if one of the two never moves."""
    if len(a) < 2:
        return float("nan")
    return 0.0 if min(a.nunique(), b.nunique()) < 2 else float(stats.spearmanr(a, b).statistic)


# --- one column along the cuts ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AlongCuts(PerUnit):
    """A number of each seed's values along the cuts of the sender or the receiver."""

    column: str
    where: Where = Where()
    along: Literal["sender_cut", "receiver_cut"] = "sender_cut"

    def read(self, tables: Tables) -> "pd.Series[float]":
        values = join_by_cut(tables, ((self.column, self.where),), self.along)[0]
        return values.groupby("network_seed").apply(lambda one: self._one(one.droplevel("network_seed")))

    @abstractmethod
    def _one(self, values: "pd.Series[float]") -> float:
        """Return the number of one seed, of its values by cut, from input to output."""


@final
@dataclass(frozen=True)
class Step(_AlongCuts):
    """The share of the largest value over cuts that the step to one ``cut``, from the one before, makes.

    As ``suture.onset`` has it, of a score that is 0 if nothing is conveyed: 1 if all is conveyed from that cut on
    and nothing before, 0 if nothing ever is. Raises ``DataError`` if that cut is not among them.
    """

    cut: str = ""

    def _one(self, values: "pd.Series[float]") -> float:
        if self.cut not in values:
            raise DataError(f"no cut '{self.cut}' among {', '.join(map(str, values.index))}")
        step, largest = values.diff().fillna(values)[self.cut], float(values.max())
        return float(step) / largest if largest > 0 else 0.0


@final
@dataclass(frozen=True)
class Peak(_AlongCuts):
    """The largest value at an interior cut, divided by the larger one of the two ends: above 1 if it peaks inside.

    If values may be negative, ``signed``, the difference of the two: above 0 if it peaks inside. Raises
    ``DataError`` for fewer than three cuts, and for a ratio to ends of which none is above 0.
    """

    signed: bool = False

    def _one(self, values: "pd.Series[float]") -> float:
        ends = max(float(values.iloc[0]), float(values.iloc[-1]))
        if len(values) < 3 or (ends <= 0 and not self.signed):
            raise DataError(f"no peak inside of {len(values)} cuts whose larger end is {ends:g}")
        inside = float(values.iloc[1:-1].max())
        return inside - ends if self.signed else inside / ends


@final
@dataclass(frozen=True)
class FirstStep(_AlongCuts):
    """How much larger the first step between cuts is than any other, either way, as a share of the range of values.

    Raises ``DataError`` for fewer than three cuts.
    """

    def _one(self, values: "pd.Series[float]") -> float:
        if len(values) < 3:
            raise DataError(f"no first step among several in {len(values)} cuts")
        steps = values.diff().abs().iloc[1:]
        span = float(values.max() - values.min())
        return (float(steps.iloc[0]) - float(steps.iloc[1:].max())) / span if span > 0 else 0.0


@final
@dataclass(frozen=True)
class AtBest(PerUnit):
    """The value of each seed at the receiver's cut where it is least in the other seeds.

    "At some cut" would else be the least of many noisy values, which is below zero wherever they are about zero.
    """

    column: str
    where: Where = Where()

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the values, by seed.

        Raises ``DataError`` for fewer than two seeds, and if they have no cut in common.
        """
        values = join_by_cut(tables, ((self.column, self.where),), "receiver_cut")[0].unstack("network_seed")
        if values.shape[1] < 2:
            raise DataError("there is one pair of networks; a cut is chosen by the others")
        values = values.dropna()
        if values.empty:
            raise DataError("the pairs of networks have no cut in common, by which others could choose")
        places = {seed: values.drop(columns=seed).mean(axis=1).to_numpy().argmin() for seed in values.columns}
        return pd.Series({seed: float(values[seed].iloc[place]) for seed, place in places.items()})


# --- several conditions at the same cuts ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _AtCuts(PerUnit):
    """A number per seed, of several conditions at the same cuts; ``by`` says whose cuts tell the cells apart."""

    conditions: tuple[Condition, ...]
    by: Literal["sender_cut", "receiver_cut"] = "receiver_cut"

    def read(self, tables: Tables) -> "pd.Series[float]":
        joined = join_by_cut(tables, self.conditions, self.by)
        return joined.groupby("network_seed")[list(joined.columns)].apply(self._one)

    @abstractmethod
    def _one(self, cuts: pd.DataFrame) -> float:
        """Return the number of one seed: a row per cut, from input to output, and a column per condition."""


@final
@dataclass(frozen=True)
class Gap(_AtCuts):
    """The first condition minus ``times`` the second: the smallest over cuts, or the ``largest``."""

    largest: bool = False
    times: float = 1.0

    def _one(self, cuts: pd.DataFrame) -> float:
        gaps = cuts[0] - self.times * cuts[1]
        return float(gaps.max() if self.largest else gaps.min())


@final
@dataclass(frozen=True)
class Moves(_AtCuts):
    """How far apart the conditions are at a cut, the largest less the smallest, at the cut where that is most."""

    def _one(self, cuts: pd.DataFrame) -> float:
        return float((cuts.max(axis=1) - cuts.min(axis=1)).max())


@final
@dataclass(frozen=True)
class Jointly(_AtCuts):
    """The smallest of the conditions at a cut, at the cut where that is largest: how far all hold together."""

    def _one(self, cuts: pd.DataFrame) -> float:
        return float(cuts.min(axis=1).max())


@final
@dataclass(frozen=True)
class Agreement(_AtCuts):
    """Spearman's ρ of the first condition with the second, over cuts."""

    limits = (-1.0, 1.0)

    def _one(self, cuts: pd.DataFrame) -> float:
        return _correlate(cuts[0], cuts[1])


@final
@dataclass(frozen=True)
class RunOfCuts(_AtCuts):
    """How many cuts in a row, from the input, are at most ``most``; with ``last``, from the output.

    Of two conditions it is the first minus the second that counts.
    """

    most: float = 0.0
    last: bool = False

    def _one(self, cuts: pd.DataFrame) -> float:
        low = ((cuts[0] - cuts[1] if 1 in cuts else cuts[0]) <= self.most).to_numpy()
        return float((low[::-1] if self.last else low).cumprod().sum())


# --- of other quantities, seed by seed --------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Difference(PerUnit):
    """One quantity minus another, seed by seed."""

    first: PerUnit
    second: PerUnit

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the differences, by seed."""
        return self.first.read(tables) - self.second.read(tables)


@final
@dataclass(frozen=True)
class Ratio(PerUnit):
    """One quantity divided by another, seed by seed.

    A seed whose divisor is 0 has none; with ``share``, the share of what is not there is 0.
    """

    first: PerUnit
    second: PerUnit
    share: bool = False

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the ratios, by seed. Raises ``DataError`` if every divisor is 0."""
        over, under = self.first.read(tables), self.second.read(tables)
        if self.share:
            return (over / under).mask(under.reindex(over.index) == 0, 0.0)
        if not under.dropna().empty and (under.dropna() == 0).all():
            raise DataError(DIVISOR_IS_0)
        return over / under.where(under != 0)


@final
@dataclass(frozen=True)
class Greatest(PerUnit):
    """The greatest of several quantities, seed by seed; with ``least``, the smallest."""

    quantities: tuple[PerUnit, ...]
    least: bool = False

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the greatest, or the smallest, by seed."""
        together = pd.concat([quantity.read(tables) for quantity in self.quantities], axis=1).dropna()
        return together.min(axis=1) if self.least else together.max(axis=1)
