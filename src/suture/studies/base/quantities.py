"""What a claim is about: one number for each seed, read from a study's tables, and its interval over seeds.

A *quantity* gives a number per seed of the networks; a ``Figure`` is their mean with a 95 % t interval over them. The
seed is the unit, since the cuts and the test images of one pair of networks are not independent: whatever a claim says
of several cuts is first made one number of each pair. "At every cut" is a statement about the worst cut, so it is the
worst cut of each pair that is taken (``Worst``), and its interval is simultaneous over cuts by construction. It is a
strict reading: noise makes the worst of many cuts look worse than any one of them is.

Fewer than ``FEWEST`` seeds have no interval, whatever the number of test images: they decide nothing.

Fractions (accuracies) are read in per cent, penalties are in percentage points, all else is in its own unit.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import isclose, isfinite
from typing import Literal, final

import numpy as np
import pandas as pd
from scipy import stats

from suture.common.errors import DataError
from suture.measurement.scores.intervals import t_interval
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


def average_seeds(values: "pd.Series[float]") -> Figure:
    """Return the mean of a number per seed, and its 95 % t interval. Raises ``DataError`` if there is none."""
    there = values.dropna().astype("float64")
    if there.empty:
        raise DataError("there is no measurement to read this from")
    n, mean = len(there), float(there.mean())
    if n < FEWEST:
        return Figure(mean, float("nan"), float("nan"), n)
    return Figure(mean, *t_interval(there), n)


def correlate(a: "pd.Series[float]", b: "pd.Series[float]") -> float:
    """Return Spearman's ρ: nan for a single pair of numbers, 0 if one of the two never moves."""
    if len(a) < 2:
        return float("nan")
    return 0.0 if min(a.nunique(), b.nunique()) < 2 else float(stats.spearmanr(a, b).statistic)


def clip_correlation(figure: Figure) -> Figure:
    """Return the same figure with its interval cut to what a correlation can be, -1 to 1."""
    if not figure.decides:
        return figure
    return replace(figure, low=max(figure.low, -1.0), high=min(figure.high, 1.0))


@final
@dataclass(frozen=True)
class Where:
    """Which rows of a table are meant: by names, or patterns such as ``"layer4*|fc"``; empty means whichever.

    ``control`` is the exact label, empty for plain trials; ``fit`` is ``default``, ``published`` (a paper's recipe),
    ``any``, or a pattern of the fit as the table spells it. ``sender_depth`` and ``receiver_depth`` are ranges, both
    ends included; ``cells`` is of depths: ``late to early`` where the sender's cut is at least as deep as the
    receiver's, ``early to late`` elsewhere, ``near`` within ``reach`` of the diagonal, ``far`` elsewhere.
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
    cells: Literal["", "late to early", "early to late", "near", "far"] = ""
    reach: float = 0.0

    def rows(self, tables: Tables) -> pd.DataFrame:
        """Return the rows, in the table's order.

        Raises ``DataError`` if there are none, or if one is of a failed trial: a seam that failed may be the worst of
        all, so the others alone decide nothing.
        """
        kept = self._meant(tables)
        if self.table == TRIALS and (failed := int((kept["status"] == "failed").sum())):
            raise DataError(f"{failed} of {len(kept)} trials failed; suture run --retry measures them again")
        return self._there(kept)

    def measured(self, tables: Tables) -> pd.DataFrame:
        """Return the rows without those of failed trials: to be looked at, and nothing decided by them."""
        kept = self._meant(tables)
        return self._there(kept[kept["status"] == "ok"] if self.table == TRIALS else kept)

    def _meant(self, tables: Tables) -> pd.DataFrame:
        if self.table not in tables:
            raise DataError(f"the study has no table of {self.table}; it has {', '.join(tables) or 'none'}")
        table = tables[self.table]
        return table[self._mask(table)]

    def _there(self, kept: pd.DataFrame) -> pd.DataFrame:
        if kept.empty:
            raise DataError(f"no row of {self.table} is {self}")
        return kept

    def _mask(self, table: pd.DataFrame) -> "pd.Series[bool]":
        mask = pd.Series(True, index=table.index)
        if self.table == TRIALS:
            mask &= table["score"] == self.score
            mask &= self._fitted(table)
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
        return mask & self._triangle(table) if self.cells else mask

    def _fitted(self, table: pd.DataFrame) -> "pd.Series[bool]":
        if self.fit == "any":
            return pd.Series(True, index=table.index)
        if self.fit in ("default", "published"):
            return table["published"] == (self.fit == "published")
        return table["fit"].map(_match(self.fit)).astype(bool)

    def _triangle(self, table: pd.DataFrame) -> "pd.Series[bool]":
        ahead = table["sender_depth"] - table["receiver_depth"]
        return {
            "late to early": ahead >= -EXACT,
            "early to late": ahead < -EXACT,
            "near": ahead.abs() <= self.reach + EXACT,
            "far": ahead.abs() > self.reach + EXACT,
        }[self.cells]


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


class Quantity(ABC):
    """One number for each seed."""

    @abstractmethod
    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the numbers, by seed. Raises ``DataError`` if the tables lack what it needs."""

    def figure(self, tables: Tables) -> Figure:
        """Return their mean and its interval over seeds."""
        return average_seeds(self.of(tables))


@dataclass(frozen=True)
class _ColumnQuantity(Quantity):
    """A quantity that is read from one column of some rows."""

    column: str
    where: Where = Where()

    def of(self, tables: Tables) -> "pd.Series[float]":
        held = average_cells(self.where.rows(tables), self.column)
        return held.groupby("network_seed", dropna=False)[list(held.columns)].apply(self._one)

    @abstractmethod
    def _one(self, held: pd.DataFrame) -> float:
        """Return the number of one seed, of its cells."""


@final
@dataclass(frozen=True)
class Mean(_ColumnQuantity):
    """The mean over the rows."""

    def _one(self, held: pd.DataFrame) -> float:
        return float(held["value"].mean())


@final
@dataclass(frozen=True)
class Worst(_ColumnQuantity):
    """The largest over the rows, or the ``smallest``: what "at every cut" is decided by."""

    smallest: bool = False

    def _one(self, held: pd.DataFrame) -> float:
        return float(held["value"].min() if self.smallest else held["value"].max())


@final
@dataclass(frozen=True)
class Spread(_ColumnQuantity):
    """The standard deviation over the rows, divided by their number."""

    def _one(self, held: pd.DataFrame) -> float:
        return float(held["value"].std(ddof=0))


@final
@dataclass(frozen=True)
class Trend(_ColumnQuantity):
    """Spearman's ρ of the value with the depth of the cut (``along``)."""

    along: Literal["sender_depth", "receiver_depth"] = "receiver_depth"

    def figure(self, tables: Tables) -> Figure:
        """Return the mean ρ and its interval."""
        return clip_correlation(super().figure(tables))

    def _one(self, held: pd.DataFrame) -> float:
        return correlate(held[self.along], held["value"])


@final
@dataclass(frozen=True)
class Slope(_ColumnQuantity):
    """The slope of a straight line through the values, for a depth from 0 to 1 (``along``): for trends of few cuts."""

    along: Literal["sender_depth", "receiver_depth"] = "receiver_depth"

    def _one(self, held: pd.DataFrame) -> float:
        return float(np.polyfit(held[self.along].to_numpy(float), held["value"].to_numpy(float), 1)[0])


@final
@dataclass(frozen=True)
class Difference(Quantity):
    """One quantity minus another, seed by seed."""

    first: Quantity
    second: Quantity

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the differences, by seed."""
        return self.first.of(tables) - self.second.of(tables)


@final
@dataclass(frozen=True)
class Ratio(Quantity):
    """One quantity divided by another, seed by seed; a seed whose divisor is 0 has none."""

    first: Quantity
    second: Quantity

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the ratios, by seed. Raises ``DataError`` if every divisor is 0."""
        over, under = self.first.of(tables), self.second.of(tables)
        if not under.dropna().empty and (under.dropna() == 0).all():
            raise DataError(DIVISOR_IS_0)
        return over / under.where(under != 0)


@final
@dataclass(frozen=True)
class Greatest(Quantity):
    """The greatest of several quantities, seed by seed; with ``least``, the smallest."""

    quantities: tuple[Quantity, ...]
    least: bool = False

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the greatest, or the smallest, by seed."""
        together = pd.concat([quantity.of(tables) for quantity in self.quantities], axis=1).dropna()
        return together.min(axis=1) if self.least else together.max(axis=1)
