"""Contrasts: quantities that compare some cells of a matrix with others, or one group of units with another.

Cells are told apart by depth, as ``suture.depth`` does. Groups of networks are few, so what is compared decides the
interval: means by Welch's t, means in standard deviations by the noncentral t, standard deviations by F. All three take
the numbers of a group to be normal, and the two groups to be independent.
"""

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import pandas as pd
from scipy import optimize, stats

from suture.depth import by_depth
from suture.errors import DataError
from suture.studies.quantities import FEWEST, LEVEL, Figure, Quantity, Tables, Where, cells


@final
@dataclass(frozen=True)
class ByDepth(Quantity):
    """A contrast of a pair's matrix, in percentage points: a column of ``suture.depth.by_depth``.

    ``difference`` is late to early minus early to late, ``near_difference`` the cells within one cut of the diagonal
    minus the others. ``like`` keeps the cells that its rows have too. Raises ``DataError`` where a unit has several
    matrices.
    """

    column: Literal["difference", "near_difference"]
    where: Where = Where()
    like: Where | None = None

    def of(self, tables: Tables) -> "pd.Series[float]":
        """The contrasts, by pair of networks."""
        rows = self.where.rows(tables)
        if self.like is not None:
            rows = rows[_places(rows).isin(_places(self.like.rows(tables)))]
        found = {}
        for unit, matrix in rows.groupby("network_seed"):
            summary = by_depth(matrix, self.where.score)
            if len(summary) > 1:
                raise DataError(f"pair {unit} has {len(summary)} matrices in {self.where}; tell them apart")
            found[unit] = 100 * float(summary[self.column].iloc[0])
        return pd.Series(found, dtype="float64")


@final
@dataclass(frozen=True)
class Above(Quantity):
    """The mean of the cells ``inside`` minus that of all others ``among`` which they are, pair by pair."""

    column: str
    inside: Where
    among: Where

    def of(self, tables: Tables) -> "pd.Series[float]":
        """The differences, by pair of networks."""
        inside, among = self.inside.rows(tables), self.among.rows(tables)
        parts = (inside, among.drop(index=inside.index))
        first, second = (cells(part, self.column).groupby("network_seed")["value"].mean() for part in parts)
        return first - second


@final
@dataclass(frozen=True)
class Contrast(Quantity):
    """The mean of one quantity minus the mean of another that is of other units, with Welch's t interval.

    The two groups are independent, and may differ in spread and number (Welch 1947); each needs ``FEWEST`` units.
    """

    first: Quantity
    second: Quantity

    def of(self, tables: Tables) -> "pd.Series[float]":
        """The first quantity by its own units, less the mean of the second."""
        return self.first.of(tables) - float(self.second.of(tables).mean())

    def figure(self, tables: Tables) -> Figure:
        """The difference of the means, and its interval."""
        a, b = (quantity.of(tables).dropna().to_numpy(float) for quantity in (self.first, self.second))
        if not len(a) or not len(b):
            raise DataError("there is no measurement to read this from")
        value = float(a.mean() - b.mean())
        if min(len(a), len(b)) < FEWEST:
            return Figure(value, float("nan"), float("nan"), len(a) + len(b))
        over, under = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
        parts = over**2 / (len(a) - 1) + under**2 / (len(b) - 1)
        half = 0.0
        if parts > 0:
            half = float(stats.t.ppf(_TAILS[0], (over + under) ** 2 / parts) * np.sqrt(over + under))
        return Figure(value, value - half, value + half, len(a) + len(b))


def _places(rows: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(rows[["network_seed", "sender", "receiver", "sender_cut", "receiver_cut"]])


@final
@dataclass(frozen=True)
class Standardised(Quantity):
    """How many standard deviations lie between the means of two quantities, whichever is larger.

    |mean − mean| / s, with s² the mean of the two variances over units (n − 1). The interval is exact for normal
    numbers of one variance: t is noncentral, and the interval is of its noncentrality (Steiger & Fouladi 1997). Unlike
    one that takes s as known, it says how little a few units tell about s. It is of the signed difference, in the
    measured direction, so a small one reaches below 0.
    """

    first: Quantity
    second: Quantity

    def of(self, tables: Tables) -> "pd.Series[float]":
        """The difference of each unit of the first quantity from the mean of the second, in standard deviations."""
        a, b = self.first.of(tables).dropna(), self.second.of(tables).dropna()
        return (a - float(b.mean())) / _pooled(a, b)

    def figure(self, tables: Tables) -> Figure:
        """The standardised difference, and its interval."""
        a, b = self.first.of(tables).dropna(), self.second.of(tables).dropna()
        apart, within = abs(float(a.mean() - b.mean())), _pooled(a, b)
        value = apart / within if within > 0 else (float("inf") if apart > 0 else 0.0)
        if min(len(a), len(b)) < FEWEST or not within > 0:
            return Figure(value, float("nan"), float("nan"), min(len(a), len(b)))
        root = float(np.sqrt(len(a) * len(b) / (len(a) + len(b))))
        low, high = (_noncentrality(value * root, len(a) + len(b) - 2, p) / root for p in _TAILS)
        return Figure(value, low, high, min(len(a), len(b)))


@final
@dataclass(frozen=True)
class SpreadRatio(Quantity):
    """The standard deviation over units of one quantity divided by that of another, with its F interval."""

    first: Quantity
    second: Quantity

    def of(self, tables: Tables) -> "pd.Series[float]":
        """How far each unit of the first quantity is from its mean, in standard deviations of the second."""
        a, b = self.first.of(tables), self.second.of(tables)
        return (a - float(a.mean())).abs() / float(b.std(ddof=1))

    def figure(self, tables: Tables) -> Figure:
        """The ratio, and its interval."""
        a, b = (quantity.of(tables).dropna() for quantity in (self.first, self.second))
        over, under = float(a.std(ddof=1)), float(b.std(ddof=1))
        value = over / under if under > 0 else (float("inf") if over > 0 else float("nan"))
        if min(len(a), len(b)) < FEWEST or not under > 0:
            return Figure(value, float("nan"), float("nan"), min(len(a), len(b)))
        low, high = (value / float(np.sqrt(stats.f.ppf(p, len(a) - 1, len(b) - 1))) for p in _TAILS)
        return Figure(value, low, high, min(len(a), len(b)))


@final
@dataclass(frozen=True)
class OverStitches(Quantity):
    """The largest minus the smallest value over stitch seeds, of each network: how far a stitch's start matters."""

    column: str
    where: Where

    def of(self, tables: Tables) -> "pd.Series[float]":
        """The ranges, by network seed, in percentage points."""
        values = self.where.rows(tables).groupby("network_seed")[self.column]
        return 100 * (values.max() - values.min()).astype("float64")


_TAILS = ((1 + LEVEL) / 2, (1 - LEVEL) / 2)


def _pooled(a: "pd.Series[float]", b: "pd.Series[float]") -> float:
    """The standard deviation of two groups; nan where one has a single number."""
    n, m = len(a), len(b)
    weighed = ((n - 1) * float(a.var(ddof=1)) + (m - 1) * float(b.var(ddof=1))) / max(n + m - 2, 1)
    return float(np.sqrt(weighed))


def _noncentrality(t: float, freedom: int, p: float) -> float:
    """The noncentrality of which ``t`` is the quantile ``p``."""
    reach = 10.0 + 10.0 * abs(t)
    return float(optimize.brentq(lambda d: stats.nct.cdf(t, freedom, d) - p, -reach, reach))
