"""Contrasts: quantities that compare some cells of a matrix with others, or one group of units with another.

Cells are told apart by depth, as ``tables.by_depth`` does. Groups of networks are few, so what is compared decides the
interval: means by Welch's t, means in standard deviations by the noncentral t, standard deviations by F. All three take
the numbers of a group to be normal, and the two groups to be independent. If every network is in several pairs the
pairs are not the unit: ``Crossed`` takes senders and receivers instead, ``PerSender`` senders alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
import pandas as pd
from scipy import optimize, stats

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import EXACT, by_depth
from suture.studies.base.quantities import FEWEST, LEVEL, Figure, Quantity, Tables, Where, average_cells


@final
@dataclass(frozen=True)
class ByDepth(Quantity):
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

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the contrasts, by pair of networks."""
        rows = self.where.rows(tables)
        if self.like is not None:
            rows = rows[_places_of(rows).isin(_places_of(self.like.rows(tables)))]
        if self.stages:
            rows = rows.assign(**{f"{role}_depth": _stages_of(rows[f"{role}_cut"]) for role in ("sender", "receiver")})
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


@final
@dataclass(frozen=True)
class PerSender(Quantity):
    """The mean of a contrast over the pairs of each sender, by its name: the units if it is in several pairs."""

    contrast: ByDepth

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the means, by sender."""
        return self.contrast.of(tables).groupby(_networks_of(self.contrast, tables)["sender"]).mean()

    def figure(self, tables: Tables) -> Figure:
        """Return their mean and its interval over senders."""
        return replace(super().figure(tables), unit="sender")


@final
@dataclass(frozen=True)
class Crossed(Quantity):
    """The mean of a contrast over ordered pairs of networks, each of which is in several pairs.

    A pair's number is taken for a sum of what the sender, the receiver and the pair add, and the interval is over
    senders and receivers (two-way random effects, least squares, Satterthwaite's degrees of freedom). The effects
    estimated hold noise of the pairs too, which widens the interval. What a network adds as a sender is taken for
    independent of what it adds as a receiver; were the two alike, the interval would be too narrow. There is none if
    senders or receivers are fewer than ``FEWEST``, or if pairs do not connect them all.
    """

    contrast: ByDepth

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the contrasts, by pair of networks."""
        return self.contrast.of(tables)

    def figure(self, tables: Tables) -> Figure:
        """Return their mean and its two-way interval; ``seeds`` counts the pairs."""
        return replace(_mean_of(self, tables).figure(), unit="pair")


@final
@dataclass(frozen=True)
class _MeanOf:
    """A mean, its variance and the degrees of freedom of that, which are nan if the units are too few."""

    value: float
    variance: float
    freedom: float
    units: int

    def figure(self) -> Figure:
        """Return the mean and its t interval."""
        half = float("nan")
        if np.isfinite(self.variance):
            half = float(stats.t.ppf(_TAILS[0], self.freedom) * np.sqrt(self.variance)) if self.variance > 0 else 0.0
        return Figure(self.value, self.value - half, self.value + half, self.units)


def _mean_of(quantity: Quantity, tables: Tables) -> _MeanOf:
    """Return the mean of a quantity over its units. Raises ``DataError`` if there is none."""
    values = quantity.of(tables).dropna()
    n, mean = len(values), float(values.mean())
    if not n:
        raise DataError("there is no measurement to read this from")
    if isinstance(quantity, Crossed):
        pairs = _networks_of(quantity.contrast, tables).loc[values.index]
        return _MeanOf(mean, *_vary_two_way(values, pairs), n)
    if n < FEWEST:
        return _MeanOf(mean, float("nan"), float("nan"), n)
    return _MeanOf(mean, float(values.var(ddof=1)) / n, n - 1, n)


def _vary_two_way(values: "pd.Series[float]", pairs: pd.DataFrame) -> tuple[float, float]:
    """Return the variance of the mean over pairs of senders and receivers, and its degrees of freedom.

    Nan for too few.
    """
    members = [pd.get_dummies(pairs[role], dtype=float).to_numpy() for role in ("sender", "receiver")]
    design = np.hstack(members)
    counts = [one.shape[1] for one in members]
    if min(counts) < FEWEST or np.linalg.matrix_rank(design) < sum(counts) - 1:
        return float("nan"), float("nan")
    effects = np.linalg.lstsq(design, values.to_numpy(float), rcond=None)[0]
    shares = [one.mean(axis=0) for one in members]
    parts = [
        float(np.var(of_role, ddof=1) * (share**2).sum())
        for of_role, share in zip((effects[: counts[0]], effects[counts[0] :]), shares, strict=True)
    ]
    return sum(parts), _add_freedom(parts, [count - 1 for count in counts])


def _add_freedom(variances: Sequence[float], freedoms: Sequence[float]) -> float:
    """Satterthwaite's degrees of freedom of a sum of variances."""
    under = sum(variance**2 / freedom for variance, freedom in zip(variances, freedoms, strict=True))
    return sum(variances) ** 2 / under if under > 0 else min(freedoms)


@final
@dataclass(frozen=True)
class Above(Quantity):
    """The mean of the cells ``inside`` minus that of all others ``among`` which they are, pair by pair."""

    column: str
    inside: Where
    among: Where

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the differences, by pair of networks."""
        inside, among = self.inside.rows(tables), self.among.rows(tables)
        parts = (inside, among.drop(index=inside.index))
        first, second = (average_cells(part, self.column).groupby("network_seed")["value"].mean() for part in parts)
        return first - second


@final
@dataclass(frozen=True)
class Contrast(Quantity):
    """The mean of one quantity minus the mean of another that is of other units, with Welch's t interval.

    The two groups are taken for independent, and may differ in spread and number (Welch 1947); each needs ``FEWEST``
    units.
    """

    first: Quantity
    second: Quantity

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the first quantity by its own units, less the mean of the second."""
        return self.first.of(tables) - float(self.second.of(tables).mean())

    def figure(self, tables: Tables) -> Figure:
        """Return the difference of the means, and its interval."""
        a, b = (_mean_of(quantity, tables) for quantity in (self.first, self.second))
        freedom = _add_freedom((a.variance, b.variance), (a.freedom, b.freedom))
        difference = _MeanOf(a.value - b.value, a.variance + b.variance, freedom, a.units + b.units)
        return replace(difference.figure(), unit="unit")


def _networks_of(contrast: ByDepth, tables: Tables) -> pd.DataFrame:
    """Return the sender and the receiver of each pair."""
    named = contrast.where.rows(tables).groupby("network_seed")[["sender", "receiver"]].first()
    return named.assign(receiver=named["receiver"].str.removeprefix("another "))


def _stages_of(cuts: "pd.Series[str]") -> "pd.Series[float]":
    """Return the numbers of the stages in which cuts such as ``layer2.1`` lie."""
    return cuts.str.extract(r"^layer(\d)", expand=False).astype("float64")


def _places_of(rows: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(rows[["network_seed", "sender", "receiver", "sender_cut", "receiver_cut"]])


@final
@dataclass(frozen=True)
class StandardisedDifference(Quantity):
    """How many standard deviations lie between the means of two quantities, whichever is larger.

    |mean − mean| / s, with s² the mean of the two variances over units (n − 1). The interval is exact for normal
    numbers of one variance: t is noncentral, and the interval is of its noncentrality (Steiger & Fouladi 1997). Unlike
    one that takes s as known, it says how little a few units tell about s. It is of the signed difference, in the
    measured direction, so a small one reaches below 0.
    """

    first: Quantity
    second: Quantity

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return each unit of the first quantity less the mean of the second, in standard deviations."""
        a, b = self.first.of(tables).dropna(), self.second.of(tables).dropna()
        return (a - float(b.mean())) / _pool_deviation(a, b)

    def figure(self, tables: Tables) -> Figure:
        """Return the standardised difference, and its interval."""
        a, b = self.first.of(tables).dropna(), self.second.of(tables).dropna()
        apart, within = abs(float(a.mean() - b.mean())), _pool_deviation(a, b)
        value = apart / within if within > 0 else (float("inf") if apart > 0 else 0.0)
        if min(len(a), len(b)) < FEWEST or not within > 0:
            return Figure(value, float("nan"), float("nan"), min(len(a), len(b)))
        root = float(np.sqrt(len(a) * len(b) / (len(a) + len(b))))
        low, high = (_find_noncentrality(value * root, len(a) + len(b) - 2, p) / root for p in _TAILS)
        return Figure(value, low, high, min(len(a), len(b)))


@final
@dataclass(frozen=True)
class SpreadRatio(Quantity):
    """The standard deviation over units of one quantity divided by that of another, with its F interval."""

    first: Quantity
    second: Quantity

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return how far each unit of the first quantity is from its mean, in standard deviations of the second."""
        a, b = self.first.of(tables), self.second.of(tables)
        return (a - float(a.mean())).abs() / float(b.std(ddof=1))

    def figure(self, tables: Tables) -> Figure:
        """Return the ratio, and its interval."""
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
        """Return the ranges, by network seed, in percentage points."""
        values = self.where.rows(tables).groupby("network_seed")[self.column]
        return 100 * (values.max() - values.min()).astype("float64")


_TAILS = ((1 + LEVEL) / 2, (1 - LEVEL) / 2)


def _pool_deviation(a: "pd.Series[float]", b: "pd.Series[float]") -> float:
    """Return the standard deviation of two groups; nan if one has a single number."""
    n, m = len(a), len(b)
    weighed = ((n - 1) * float(a.var(ddof=1)) + (m - 1) * float(b.var(ddof=1))) / max(n + m - 2, 1)
    return float(np.sqrt(weighed))


def _find_noncentrality(t: float, freedom: int, p: float) -> float:
    """Return the noncentrality of which ``t`` is the quantile ``p``."""
    reach = 10.0 + 10.0 * abs(t)
    return float(optimize.brentq(lambda d: stats.nct.cdf(t, freedom, d) - p, -reach, reach))
