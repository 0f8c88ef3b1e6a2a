"""Contrasts: quantities that compare some cells of a matrix with others, or one group of pairs with another.

Cells are told apart by depth, as ``tables.by_depth`` does. Groups of networks are few, so what is compared decides the
interval: means by Welch's t or the jackknife, means in standard deviations by the noncentral t, standard deviations by
F. The last two take the numbers of a group to be normal, and the two groups to be independent.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import optimize, stats

from suture import by_depth
from suture.common.errors import DataError
from suture.extend import EXACT, SIDE, Average, step_of
from suture.extend import LEAST_NETWORKS as LEAST
from suture_papers.base.cells import Tables, Where, average_cells, keep_best
from suture_papers.base.quantities import LEVEL, Figure, PerUnit, Quantity, average_units, figure_of

# --- some cells and others --------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Above(PerUnit):
    """The mean of the cells ``inside`` minus that of all others ``among`` which they are, pair by pair."""

    column: str
    inside: Where
    among: Where

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the differences, by pair of networks."""
        inside, among = self.inside.select(tables), self.among.select(tables)
        parts = (inside, among.drop(index=inside.index))
        first, second = (average_cells(part, self.column).groupby("network_seed")["value"].mean() for part in parts)
        return first - second


@final
@dataclass(frozen=True)
class OverStitches(PerUnit):
    """The largest minus the smallest value over stitch seeds, of each network: how far a stitch's start matters."""

    column: str
    where: Where

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the ranges, by network seed, in percentage points."""
        values = self.where.select(tables).groupby("network_seed")[self.column]
        return 100 * (values.max() - values.min()).astype("float64")


@final
@dataclass(frozen=True)
class ByDepth(PerUnit):
    """A contrast of a pair's matrix, in percentage points: a column of ``by_depth.by_depth``.

    ``difference`` is late to early minus early to late, ``near_difference`` the cells within one cut of the diagonal
    minus the others. ``like`` keeps the cells that its rows have too. ``ties=False`` leaves out the cells of equal
    depths, which count as late to early; ``lower`` leaves out the cells above the diagonal that are not near it, so
    that the others are the lower triangle. ``stages`` takes for depths the numbers of the ResNets' stages. Raises
    ``DataError`` if a pair has several matrices.
    """

    column: Literal["difference", "near_difference"]
    where: Where = Where()
    like: Where | None = None
    ties: bool = True
    lower: bool = False
    stages: bool = False

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the contrasts, by pair of networks."""
        rows = keep_best(self.where.select(tables))
        if self.like is not None:
            rows = rows[_places_of(rows).isin(_places_of(self.like.select(tables)))]
        if self.stages:
            cuts = {role: rows[f"{role}_cut"].str.extract(r"^layer(\d)", expand=False) for role in _ROLES}
            rows = rows.assign(**{f"{role}_depth": cuts[role].astype("float64") for role in _ROLES})
        if self.lower:
            ahead = rows["receiver_depth"] - rows["sender_depth"]
            rows = rows[ahead <= rows["network_seed"].map(_steps_of(rows)) + EXACT]
        if not self.ties:
            rows = rows[(rows["sender_depth"] - rows["receiver_depth"]).abs() > EXACT]
        # by_depth tells matrices apart by their study, not by their network seed; one call for all units is ten times
        # as fast as one call for each.
        summary = by_depth(rows.assign(study=rows["network_seed"]), self.where.score)
        several = summary["study"].duplicated()
        if several.any():
            unit = summary.loc[several, "study"].iloc[0]
            raise DataError(f"pair {unit} has several matrices in {self.where}; tell them apart")
        values = (100 * summary[self.column]).set_axis(summary["study"].astype(rows["network_seed"].dtype))
        return values.astype("float64").sort_index().rename_axis(None).rename(None)


_ROLES = ("sender", "receiver")


def _steps_of(rows: pd.DataFrame) -> dict[object, float]:
    """Return the distance of cells within one cut of the diagonal, by pair."""
    return {pair: max(step_of(own[f"{role}_depth"]) for role in _ROLES) for pair, own in rows.groupby("network_seed")}


def _places_of(rows: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(rows[["network_seed", "sender", "receiver", "sender_cut", "receiver_cut"]])


@final
@dataclass(frozen=True)
class ShareOfLower(PerUnit):
    """The share, in per cent, of a pair's cells from late to early, the diagonal included, within ``most`` pp."""

    most: float
    where: Where = Where()

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the shares, by pair of networks."""
        cells = self.where.cells(tables, "penalty")
        lower = cells[cells["sender_depth"] >= cells["receiver_depth"] - EXACT]
        return 100 * (lower["value"] <= self.most).groupby(lower["network_seed"]).mean()


@final
@dataclass(frozen=True)
class ShareOfAxis(PerUnit):
    """The share, in per cent, of a pair's variance over cells that is between the cuts ``along`` one axis."""

    column: str
    along: Literal["sender_cut", "receiver_cut"]
    where: Where = Where()

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the shares, by pair of networks."""
        cells = self.where.cells(tables, self.column)
        between = cells.groupby(["network_seed", self.along])["value"].transform("mean").groupby(cells["network_seed"])
        return 100 * between.var(ddof=0) / cells.groupby("network_seed")["value"].var(ddof=0)


# --- two groups of units ----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Contrast(Quantity):
    """The mean of one quantity minus the mean of another that is of other units, with its interval over networks.

    Groups without a network in common are taken for independent, and may differ in spread and number (Welch 1947). If
    every pair of both has a network that is in both groups, the jackknife leaves each of these out of both means at
    once: what they add to both may agree, which Welch's interval would be too wide for, or be opposed.
    """

    first: PerUnit
    second: PerUnit

    def estimate(self, tables: Tables, level: float = LEVEL) -> Figure:
        """Return the difference of the means, and its interval."""
        groups = [part.read(tables).dropna() for part in (self.first, self.second)]
        a, b = map(average_units, groups)
        parts = ((a.variance, a.freedom), (b.variance, b.freedom))
        variance = a.variance + b.variance
        freedom = variance**2 / sum(part**2 / own for part, own in parts) if variance > 0 else a.freedom
        networks = min(a.networks, b.networks)
        without = _leave_out_shared(groups)
        if len(without) >= LEAST:
            networks, freedom = len(without), len(without) - 1.0
            variance = (networks - 1) * float(np.var(without))
        return figure_of(Average(a.value - b.value, variance, freedom, a.pairs + b.pairs, networks), level)


def _leave_out_shared(groups: "list[pd.Series[float]]") -> list[float]:
    """Return the difference of two means without each network that is in both groups, if every pair has such a one."""
    members = [
        [{*divmod(int(number), SIDE)} if number >= SIDE else set[int]() for number in one.index] for one in groups
    ]
    shared = set[int]().union(*members[0]) & set[int]().union(*members[1])
    if not all(pair & shared for own in members for pair in own):
        return []
    kept = [[[network not in pair for pair in own] for own in members] for network in sorted(shared)]
    if not all(any(keep) for both in kept for keep in both):
        return []
    return [float(groups[0][both[0]].mean() - groups[1][both[1]].mean()) for both in kept]


@dataclass(frozen=True)
class OfGroups(Quantity):
    """Two groups of units whose spreads decide the power."""

    first: PerUnit
    second: PerUnit

    @abstractmethod
    def power(self, figure: Figure, bound: float, n: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the power with ``n`` units in each group."""

    def _read(self, tables: Tables) -> "tuple[pd.Series[float], pd.Series[float]]":
        return self.first.read(tables).dropna(), self.second.read(tables).dropna()


@final
@dataclass(frozen=True)
class StandardisedDifference(OfGroups):
    """How many standard deviations lie between the means of two quantities, whichever is larger.

    |mean − mean| / s, with s² the mean of the two variances over units (n − 1). The interval is exact for normal
    numbers of one variance: t is noncentral, and the interval is of its noncentrality (Steiger & Fouladi 1997). Unlike
    one that takes s as known, it says how little a few units tell about s. It is of the signed difference, in the
    measured direction, so a small one reaches below 0.
    """

    def estimate(self, tables: Tables, level: float = LEVEL) -> Figure:
        """Return the standardised difference, and its interval."""
        a, b = self._read(tables)
        n, m = len(a), len(b)
        pooled = ((n - 1) * float(a.var(ddof=1)) + (m - 1) * float(b.var(ddof=1))) / max(n + m - 2, 1)
        apart, within = abs(float(a.mean() - b.mean())), float(np.sqrt(pooled))
        value = apart / within if within > 0 else (float("inf") if apart > 0 else 0.0)
        if min(n, m) < LEAST or not within > 0:
            return Figure(value, float("nan"), float("nan"), min(n, m), min(n, m), level)
        root = float(np.sqrt(n * m / (n + m)))
        tails = (1 + level) / 2, (1 - level) / 2
        low, high = (_find_noncentrality(value * root, n + m - 2, p) / root for p in tails)
        return Figure(value, low, high, min(n, m), min(n, m), level)

    def power(self, figure: Figure, bound: float, n: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the power by the noncentral t."""
        freedom, root, above = 2 * n - 2, np.sqrt(n / 2), figure.value > bound
        end = stats.nct.ppf((1 + figure.level) / 2 if above else (1 - figure.level) / 2, freedom, bound * root)
        found = (stats.nct.sf if above else stats.nct.cdf)(end, freedom, figure.value * root)
        return np.asarray(found, dtype=np.float64)


def _find_noncentrality(t: float, freedom: int, p: float) -> float:
    """Return the noncentrality of which ``t`` is the quantile ``p``; searched in steps, as ``cdf`` is nan far off."""

    def over(noncentrality: float) -> float:
        return float(stats.nct.cdf(t, freedom, noncentrality)) - p

    step = 1.0 + abs(t) / 8
    low = high = t
    while over(low) < 0:
        low -= step
    while over(high) > 0:
        high += step
    return float(optimize.brentq(over, low, high))


@final
@dataclass(frozen=True)
class SpreadRatio(OfGroups):
    """The standard deviation over units of one quantity divided by that of another, with its F interval."""

    def estimate(self, tables: Tables, level: float = LEVEL) -> Figure:
        """Return the ratio, and its interval."""
        a, b = self._read(tables)
        over, under = float(a.std(ddof=1)), float(b.std(ddof=1))
        value = over / under if under > 0 else (float("inf") if over > 0 else float("nan"))
        few = min(len(a), len(b))
        if few < LEAST or not under > 0:
            return Figure(value, float("nan"), float("nan"), few, few, level)
        tails = (1 + level) / 2, (1 - level) / 2
        low, high = (value / float(np.sqrt(stats.f.ppf(p, len(a) - 1, len(b) - 1))) for p in tails)
        return Figure(value, low, high, few, few, level)

    def power(self, figure: Figure, bound: float, n: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the power by F."""
        above, of = figure.value > bound, (bound / figure.value) ** 2
        end = of * stats.f.ppf((1 + figure.level) / 2 if above else (1 - figure.level) / 2, n - 1, n - 1)
        return np.asarray((stats.f.sf if above else stats.f.cdf)(end, n - 1, n - 1), dtype=np.float64)
