"""Contrasts: quantities that compare some cells of a matrix with others, or one group of units with another.

Cells are told apart by depth, as ``tables.by_depth`` does. Groups of networks are few, so what is compared decides the
interval: means by Welch's t, means in standard deviations by the noncentral t, standard deviations by F. All three take
the numbers of a group to be normal, and the two groups to be independent. If every network is in several pairs the
pairs are not the unit: ``Crossed`` takes senders and receivers instead, ``PerSender`` senders alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import numpy as np
import pandas as pd
from scipy import optimize, stats

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import EXACT, by_depth
from suture.studies.base.quantities import (
    FEWEST,
    LEVEL,
    Average,
    Figure,
    PerUnit,
    Quantity,
    Tables,
    Where,
    average_cells,
    average_units,
)

_TAILS = ((1 + LEVEL) / 2, (1 - LEVEL) / 2)

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
    depths, which count as late to early: a triangle alone makes them high, and with them the diagonal, and networks of
    one shape have more of them. ``stages`` takes for depths the numbers of the ResNets' stages. Raises ``DataError``
    if a unit has several matrices.
    """

    column: Literal["difference", "near_difference"]
    where: Where = Where()
    like: Where | None = None
    ties: bool = True
    stages: bool = False

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the contrasts, by pair of networks."""
        rows = self.where.select(tables)
        if self.like is not None:
            rows = rows[_places_of(rows).isin(_places_of(self.like.select(tables)))]
        if self.stages:
            cuts = {role: rows[f"{role}_cut"].str.extract(r"^layer(\d)", expand=False) for role in _ROLES}
            rows = rows.assign(**{f"{role}_depth": cuts[role].astype("float64") for role in _ROLES})
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

    def name_networks(self, tables: Tables) -> pd.DataFrame:
        """Return the sender and the receiver of each pair; *another* network of a name is one of that name."""
        named = self.where.select(tables).groupby("network_seed")[list(_ROLES)].first()
        return named.assign(receiver=named["receiver"].str.removeprefix("another "))


_ROLES = ("sender", "receiver")


def _places_of(rows: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(rows[["network_seed", "sender", "receiver", "sender_cut", "receiver_cut"]])


# --- networks as units ------------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class PerSender(PerUnit):
    """The mean of a contrast over the pairs of each sender, by its name: the units if it is in several pairs."""

    contrast: ByDepth
    unit = "sender"

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the means, by sender."""
        return self.contrast.read(tables).groupby(self.contrast.name_networks(tables)["sender"]).mean()


@final
@dataclass(frozen=True)
class Crossed(PerUnit):
    """The mean of a contrast over ordered pairs of networks, each of which is in several pairs.

    A pair's number is taken for a sum of what the sender, the receiver and the pair add, and the interval is over
    senders and receivers (two-way random effects, least squares, Satterthwaite's degrees of freedom). The effects
    estimated hold noise of the pairs too, which widens the interval. What a network adds as a sender is taken for
    independent of what it adds as a receiver; were the two alike, the interval would be too narrow. There is none if
    senders or receivers are fewer than ``FEWEST``, or if pairs do not connect them all.
    """

    contrast: ByDepth
    unit = "pair"

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the contrasts, by pair of networks."""
        return self.contrast.read(tables)

    def average(self, tables: Tables) -> Average:
        """Return their mean, and its variance over senders and receivers; the units are the pairs."""
        values = self.read(tables).dropna()
        mean, pairs = average_units(values).value, self.contrast.name_networks(tables).loc[values.index]
        members = [pd.get_dummies(pairs[role], dtype=float).to_numpy() for role in _ROLES]
        design = np.hstack(members)
        counts = [one.shape[1] for one in members]
        if min(counts) < FEWEST or np.linalg.matrix_rank(design) < sum(counts) - 1:
            return Average(mean, float("nan"), float("nan"), len(values))
        effects = np.split(np.linalg.lstsq(design, values.to_numpy(float), rcond=None)[0], counts[:1])
        shares = [(one.mean(axis=0) ** 2).sum() for one in members]
        parts = [float(np.var(own, ddof=1) * share) for own, share in zip(effects, shares, strict=True)]
        return Average(mean, sum(parts), _add_freedom(parts, [count - 1 for count in counts]), len(values))


def _add_freedom(variances: Sequence[float], freedoms: Sequence[float]) -> float:
    """Return Satterthwaite's degrees of freedom of a sum of variances."""
    under = sum(variance**2 / freedom for variance, freedom in zip(variances, freedoms, strict=True))
    return sum(variances) ** 2 / under if under > 0 else min(freedoms)


# --- two groups of units ----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Contrast(Quantity):
    """The mean of one quantity minus the mean of another that is of other units, with Welch's t interval.

    The two groups are taken for independent, and may differ in spread and number (Welch 1947); each needs ``FEWEST``
    units.
    """

    first: PerUnit
    second: PerUnit

    def estimate(self, tables: Tables) -> Figure:
        """Return the difference of the means, and its interval."""
        a, b = self.first.average(tables), self.second.average(tables)
        freedom = _add_freedom((a.variance, b.variance), (a.freedom, b.freedom))
        return Average(a.value - b.value, a.variance + b.variance, freedom, a.units + b.units).figure("unit")


@dataclass(frozen=True)
class _OfGroups(Quantity):
    """Two groups of units whose spreads are what counts."""

    first: PerUnit
    second: PerUnit

    def _read(self, tables: Tables) -> "tuple[pd.Series[float], pd.Series[float]]":
        return self.first.read(tables).dropna(), self.second.read(tables).dropna()


@final
@dataclass(frozen=True)
class StandardisedDifference(_OfGroups):
    """How many standard deviations lie between the means of two quantities, whichever is larger.

    |mean − mean| / s, with s² the mean of the two variances over units (n − 1). The interval is exact for normal
    numbers of one variance: t is noncentral, and the interval is of its noncentrality (Steiger & Fouladi 1997). Unlike
    one that takes s as known, it says how little a few units tell about s. It is of the signed difference, in the
    measured direction, so a small one reaches below 0.
    """

    def estimate(self, tables: Tables) -> Figure:
        """Return the standardised difference, and its interval."""
        a, b = self._read(tables)
        n, m = len(a), len(b)
        pooled = ((n - 1) * float(a.var(ddof=1)) + (m - 1) * float(b.var(ddof=1))) / max(n + m - 2, 1)
        apart, within = abs(float(a.mean() - b.mean())), float(np.sqrt(pooled))
        value = apart / within if within > 0 else (float("inf") if apart > 0 else 0.0)
        if min(n, m) < FEWEST or not within > 0:
            return Figure(value, float("nan"), float("nan"), min(n, m))
        root = float(np.sqrt(n * m / (n + m)))
        low, high = (_find_noncentrality(value * root, n + m - 2, p) / root for p in _TAILS)
        return Figure(value, low, high, min(n, m))


def _find_noncentrality(t: float, freedom: int, p: float) -> float:
    """Return the noncentrality of which ``t`` is the quantile ``p``."""
    reach = 10.0 + 10.0 * abs(t)
    return float(optimize.brentq(lambda d: stats.nct.cdf(t, freedom, d) - p, -reach, reach))


@final
@dataclass(frozen=True)
class SpreadRatio(_OfGroups):
    """The standard deviation over units of one quantity divided by that of another, with its F interval."""

    def estimate(self, tables: Tables) -> Figure:
        """Return the ratio, and its interval."""
        a, b = self._read(tables)
        over, under = float(a.std(ddof=1)), float(b.std(ddof=1))
        value = over / under if under > 0 else (float("inf") if over > 0 else float("nan"))
        if min(len(a), len(b)) < FEWEST or not under > 0:
            return Figure(value, float("nan"), float("nan"), min(len(a), len(b)))
        low, high = (value / float(np.sqrt(stats.f.ppf(p, len(a) - 1, len(b) - 1))) for p in _TAILS)
        return Figure(value, low, high, min(len(a), len(b)))
