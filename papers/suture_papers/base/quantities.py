"""The subject of a claim: a number read from a study's tables, and its interval over networks.

Four steps lead from a table to a figure. ``Where`` selects rows, ``average_cells`` makes a number of each cell (both in
``cells``). A quantity makes one number of the cells of each pair of networks (``PerUnit.read``). Their mean has an
interval over networks (``tables.over_networks``), which gives a ``Figure``. Fewer than ``LEAST`` networks have no
interval, whatever the number of test images.

A statement about several cuts is either reduced to one number of each pair first (``Mean``, ``Trend`` …), or it is a
statement about an extreme: "at every cut" is one about the worst cut, "at some cut" one about the best. The worst cut
of a pair is worse by chance alone, so ``Extreme`` takes the means at single cuts instead, with an interval that holds
for all cuts together.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from math import isclose, isfinite
from typing import ClassVar, Literal, TypeVar, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from suture.common.errors import DataError
from suture.extend import Average, average_numbered, say_count
from suture_papers.base.cells import NETWORKS, TRIALS, Condition, Tables, Where, join_by_cut

LEVEL = 0.95
_ROUNDING = 1e-12  #: of a number, by which equal ones may differ
Q = TypeVar("Q")

_FOUND = {"penalty": -1.0, "stitched": 1.0}  #: how columns move if a fit finds more
DIVISOR_IS_0 = "what it is divided by is 0"  #: why a ratio has no figure
NOTHING_THERE = "so there is nothing to measure"  #: why what presupposes something has none


def average_units(values: "pd.Series[float]") -> Average:
    """Return the mean of a number per pair, with its variance over networks; numbers below 1000 are networks alone.

    Raises ``DataError`` if there is none.
    """
    there = values.dropna().astype("float64")
    return average_numbered(there.index, there.to_numpy())


@final
@dataclass(frozen=True)
class Figure:
    """A mean over ``pairs`` of ``networks`` with its interval at ``level``; the ends are nan if those are too few.

    ``spread`` is the standard deviation of one network's number, as the mean's variance has it.
    """

    value: float
    low: float
    high: float
    pairs: int
    networks: int
    level: float = LEVEL
    deciding: tuple[float, ...] = ()  #: of an extreme, the means whose intervals its ends are of
    alike: tuple[bool, bool] = (False, False)  #: whether the low and the high end are of numbers that are all alike
    spread: float = float("nan")

    @property
    def decides(self) -> bool:
        """Whether it has an interval."""
        return isfinite(self.low) and isfinite(self.high)

    @property
    def is_point(self) -> bool:
        """Whether its interval has no width but rounding's."""
        return self.decides and isclose(self.low, self.high, rel_tol=_ROUNDING)

    @property
    def all_alike(self) -> bool:
        """Whether all gave the same number, which has no spread to make an interval of."""
        return all(self.alike) or self.is_point

    @property
    def units(self) -> str:
        """Of how many pairs and networks it is, and at which level its interval if that is not ``LEVEL``."""
        said = say_count(self.pairs, "pair") + (f" of {self.networks} networks" if self.networks != self.pairs else "")
        if self.level != LEVEL and self.decides:
            said = f"{said}, at {100 * self.level:.3g} %"
        return f"{said}, one end of a cut where all are alike" if any(self.alike) and not self.all_alike else said

    def clip(self, low: float, high: float) -> "Figure":
        """Return the same figure with its interval cut to the possible values."""
        return replace(self, low=max(self.low, low), high=min(self.high, high))


def share_of(holds: "pd.Series[bool]", level: float = LEVEL) -> Figure:
    """Return the share of pairs of which something holds, in per cent, with an exact interval.

    Clopper & Pearson's, for as many independent cases as the pairs amount to (``Average.cases``), since pairs of one
    network succeed and fail together.
    """
    found = average_units(holds.astype("float64"))
    n, x = found.cases, found.cases * found.value
    low = float(stats.beta.ppf((1 - level) / 2, x, n - x + 1)) if x > 0 else 0.0
    high = float(stats.beta.ppf((1 + level) / 2, x + 1, n - x)) if x < n else 1.0
    return Figure(100 * found.value, 100 * low, 100 * high, found.pairs, found.networks, level)


def figure_of(average: Average, level: float) -> Figure:
    """Return a mean with its t interval."""
    reach = average.reach(level)
    value, spread, alike = average.value, _spread_of(average), _are_alike(average)
    ends = value - reach, value + reach
    return Figure(value, *ends, average.pairs, average.networks, level, alike=(alike, alike), spread=spread)


def _are_alike(average: Average) -> bool:
    """Return whether numbers differ by no more than rounding."""
    return _spread_of(average) <= _ROUNDING * abs(average.value)


def _spread_of(average: Average) -> float:
    return float((average.variance * average.networks) ** 0.5)


class Quantity(ABC):
    """A number that can be estimated from a study's tables."""

    @abstractmethod
    def estimate(self, tables: Tables, level: float = LEVEL) -> Figure:
        """Return the figure with its interval at a level. Raises ``DataError`` if the tables lack a needed column."""

    def of_pairs(self, tables: Tables) -> "pd.Series[float] | None":
        """Return the number of each pair by itself; none if it is not one of pairs."""
        return None

    def power(self, figure: Figure, bound: float, n: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the power of ``n`` networks to tell the figure's distance from a threshold.

        Of an extreme it is the power of the extreme mean alone: somewhat more networks are needed for all of them.
        """
        return power_of_t(abs(figure.value - bound) / figure.spread, n, figure.level)


def power_of_t(distance: float, n: NDArray[np.int64], level: float = LEVEL) -> NDArray[np.float64]:
    """Return the power of the t test of ``n`` numbers, so many standard deviations from the threshold."""
    ends = stats.t.ppf((1 + level) / 2, n - 1)
    return np.asarray(stats.nct.sf(ends, n - 1, distance * np.sqrt(n)), dtype=np.float64)


def rows_read(quantity: object) -> Iterator[Where]:
    """Yield which rows a quantity reads."""
    if isinstance(quantity, Where):
        yield quantity
    elif is_dataclass(quantity):
        yield from (where for own in fields(quantity) for where in rows_read(getattr(quantity, own.name)))
    elif isinstance(quantity, tuple):
        yield from (where for one in quantity for where in rows_read(one))


def with_fit(quantity: Q, fit: str) -> Q:
    """Return the same quantity of trials by another fit, where it reads those of the default one."""
    if isinstance(quantity, Where):
        return replace(quantity, fit=fit) if (quantity.table, quantity.fit) == (TRIALS, "default") else quantity
    if is_dataclass(quantity) and not isinstance(quantity, type):
        changed = {own.name: with_fit(getattr(quantity, own.name), fit) for own in fields(quantity) if own.init}
        return type(quantity)(**changed)
    return tuple(with_fit(one, fit) for one in quantity) if isinstance(quantity, tuple) else quantity  # type: ignore[return-value]


def better_of(quantity: object) -> float:
    """Return 1 if a fit that finds more can only raise a quantity, -1 if it can only lower it, 0 if it may do either.

    That is known of penalties and stitched accuracies, and of their means and extremes. It is not known of differences
    between fits.
    """
    if isinstance(quantity, Extreme):
        every = {better_of(part) for part in quantity.parts}
        return every.pop() if len(every) == 1 and not quantity.either else 0.0
    if isinstance(quantity, AtCuts):
        fixed = all(where.table == NETWORKS for where in rows_read(quantity.minus))  # which no fit moves
        if quantity.steps or not fixed:
            return 0.0
    if isinstance(quantity, AtCuts | Mean | Worst) and quantity.where.table == TRIALS:
        least = quantity.least[0] if isinstance(quantity, AtCuts) and quantity.least else quantity.column
        signs = {_FOUND.get(quantity.column, 0.0), _FOUND.get(least, 0.0)}
        return signs.pop() if len(signs) == 1 else 0.0
    return 0.0


class PerUnit(Quantity):
    """One number for each pair of networks, and their mean."""

    limits: ClassVar[tuple[float, float]] = (float("-inf"), float("inf"))

    @abstractmethod
    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the numbers, by pair. Raises ``DataError`` if the tables lack needed rows."""

    def estimate(self, tables: Tables, level: float = LEVEL) -> Figure:
        """Return their mean and its interval over networks."""
        return figure_of(average_units(self.read(tables)), level).clip(*self.limits)

    def of_pairs(self, tables: Tables) -> "pd.Series[float]":
        """Return the numbers."""
        return self.read(tables)


# --- every cut, or some -----------------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class AtCuts:
    """The values of a ``column`` at single cuts: a row per pair of networks, and a column per cut.

    With ``minus``, ``times`` as much of that condition at the same cut of the ``by`` network is taken off, or of a
    quantity of the pair; with ``least``, the smaller one of two conditions counts. With ``steps`` it is what each cut
    has beyond the one before it, less ``times`` what the last one has.
    """

    column: str
    where: Where = Where()
    minus: "Condition | PerUnit | None" = None
    times: float = 1.0
    least: "Condition | None" = None
    steps: bool = False
    by: Literal["sender_cut", "receiver_cut"] = "receiver_cut"

    def read(self, tables: Tables) -> pd.DataFrame:
        """Return the values, by pair and cut."""
        own: Condition = (self.column, self.where)
        if isinstance(self.minus, PerUnit):
            return self._all(tables).sub(self.times * self.minus.read(tables), axis=0)
        other = self.minus or self.least
        if other is not None:
            both = join_by_cut(tables, (own, other), self.by)
            return (both.min(axis=1) if self.least else both[0] - self.times * both[1]).unstack(self.by)
        if self.steps:
            line = join_by_cut(tables, (own,), self.by)[0].unstack(self.by, sort=False)
            return line.diff(axis=1).iloc[:, 1:].sub(self.times * line.iloc[:, -1], axis=0)
        return self._all(tables)

    def _all(self, tables: Tables) -> pd.DataFrame:
        cells = self.where.cells(tables, self.column)
        return cells.pivot_table(values="value", index="network_seed", columns=["sender_cut", "receiver_cut"])


@final
@dataclass(frozen=True)
class Extreme(Quantity):
    """The largest of several means over pairs, or the ``smallest``: at single cuts, or of single quantities.

    What is claimed of all is decided by it, and what is claimed of some by the other extreme. For the largest mean
    the upper end is the largest of the means' own upper ends, and the lower end the largest of their lower ends
    after a Bonferroni correction: so a claim that all are small is accepted by intersection-union and refused by
    union-intersection (Roy 1953), at 2.5 % either way (Berger 1982). With ``either`` means count by their size,
    whichever their sign: two one-sided tests (Schuirmann 1987). Studentised maxima with estimated correlations
    refuse falsely in up to 5 % of cases for three to five networks (benchmarks/decisions.py), so they are not used.
    """

    parts: tuple[AtCuts | PerUnit, ...]
    smallest: bool = False
    either: bool = False

    def estimate(self, tables: Tables, level: float = LEVEL) -> Figure:
        """Return the extreme mean with its simultaneous interval."""
        columns = [own for _, own in self._read(tables).items()]
        sign = -1.0 if self.smallest else 1.0
        signs = (1.0, -1.0) if self.either else (sign,)
        means = [average_units(one * own) for own in columns for one in signs]
        largest = max(means, key=lambda mean: mean.value)
        lower = max(means, key=lambda mean: mean.value - mean.reach(level, len(means)))
        upper = max(means, key=lambda mean: mean.value + mean.reach(level))
        low, high = lower.value - lower.reach(level, len(means)), upper.value + upper.reach(level)
        if any(np.isnan(mean.variance) for mean in means):  # max() may pass over nan
            low = high = float("nan")
        pairs, networks = (min(getattr(mean, name) for mean in means) for name in ("pairs", "networks"))
        ends = (-high, -low) if self.smallest else (low, high)
        deciding, alike = (sign * lower.value, sign * upper.value), (_are_alike(lower), _are_alike(upper))
        spread = max(map(_spread_of, (largest, lower, upper)))
        alike = alike[::-1] if self.smallest else alike
        return Figure(sign * largest.value, *ends, pairs, networks, level, deciding, alike, spread)

    def of_pairs(self, tables: Tables) -> "pd.Series[float]":
        """Return each pair's own extreme."""
        every = self._read(tables).dropna()
        return every.abs().max(axis=1) if self.either else every.min(axis=1) if self.smallest else every.max(axis=1)

    def _read(self, tables: Tables) -> pd.DataFrame:
        """Return a row per pair, and a column per cut or quantity."""
        read = [pd.DataFrame(part.read(tables)) for part in self.parts]
        return pd.concat([own for part in read for _, own in part.items()], axis=1, ignore_index=True)


# --- all cells of a seed together -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _OfCells(PerUnit):
    """A number of the cells of each seed, of one column of some rows."""

    column: str
    where: Where = Where()

    def read(self, tables: Tables) -> "pd.Series[float]":
        cells = self.where.cells(tables, self.column)
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
    """The largest over the rows, or the ``smallest``, of values without noise; for noisy ones ``Extreme`` is fair."""

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
class LargestStep(_AlongCuts):
    """The largest step from a cut to the next, as a share of the value at the last; none if that is 0.

    Of each pair by itself: the mean of lines that jump at different cuts is gradual.
    """

    def _one(self, values: "pd.Series[float]") -> float:
        last = float(values.iloc[-1])
        return float(values.diff().max()) / last if last > 0 else float("nan")


@final
@dataclass(frozen=True)
class Peak(_AlongCuts):
    """The largest value at an interior cut, divided by the larger one of the two ends: above 1 if it peaks inside.

    Fair to four cuts, of which two are inside; of more, chance alone makes a peak.

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

    Chance is against it: of three steps that are equal but for noise, it refuses one first step in eight.

    Raises ``DataError`` for fewer than three cuts.
    """

    def _one(self, values: "pd.Series[float]") -> float:
        if len(values) < 3:
            raise DataError(f"no first step among several in {len(values)} cuts")
        steps = values.diff().abs().iloc[1:]
        span = float(values.max() - values.min())
        return (float(steps.iloc[0]) - float(steps.iloc[1:].max())) / span if span > 0 else 0.0


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
    """One quantity minus another, seed by pair."""

    first: PerUnit
    second: PerUnit

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the differences, by pair."""
        return self.first.read(tables) - self.second.read(tables)


@final
@dataclass(frozen=True)
class Ratio(PerUnit):
    """One quantity divided by another, seed by pair.

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
class WaysThatHold(PerUnit):
    """In how many ways all of several statements hold, pair by pair: each way has parts that are ``(low, part, high)``.

    A part that a pair lacks holds of nothing, so pairs that lack one have no number.
    """

    ways: tuple[tuple[tuple[float, "Quantity", float], ...], ...]

    def read(self, tables: Tables) -> "pd.Series[float]":
        """Return the numbers, by pair. Raises ``DataError`` if a part is not of pairs, or the tables lack it."""
        held = []
        for way in self.ways:
            numbers = [part.of_pairs(tables) for _, part, _ in way]
            each = pd.concat([own for own in numbers if own is not None], axis=1, join="inner").dropna()
            if len(each.columns) < len(way):
                raise DataError("a statement that is not about pairs of networks cannot be counted")
            held.append(
                each.ge([low for low, _, _ in way]).all(axis=1) & each.le([high for *_, high in way]).all(axis=1)
            )
        return pd.concat(held, axis=1, join="inner").sum(axis=1).astype("float64")


@final
@dataclass(frozen=True)
class Provided(Quantity):
    """A quantity that means something only if the mean of one other is below that of a second."""

    quantity: Quantity
    less: PerUnit
    more: PerUnit

    def estimate(self, tables: Tables, level: float = LEVEL) -> Figure:
        """Return its figure. Raises ``DataError`` if the condition does not hold."""
        less, more = (average_units(part.read(tables)).value for part in (self.less, self.more))
        if not less < more:
            raise DataError(f"what should be below {more:g} is {less:g}, {NOTHING_THERE}")
        return self.quantity.estimate(tables, level)

    def of_pairs(self, tables: Tables) -> "pd.Series[float] | None":
        """Return the numbers of its quantity."""
        return self.quantity.of_pairs(tables)
