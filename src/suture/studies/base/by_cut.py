"""Quantities that compare conditions cut by cut before they become one number of each seed.

A difference of two means says nothing of single cuts: "the probe is below the stitch at each of these cuts" and "the
error hardly moves with the kernel" are about the same cut under two conditions or more. Each condition is a column of
some rows; cells are averaged by cut, cuts that lack a condition are left out, and each pair of networks gives a number.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, final

import pandas as pd

from suture.common.errors import DataError
from suture.studies.base.quantities import Figure, Quantity, Tables, Where, average_cells, clip_correlation, correlate

Read = tuple[str, Where]
"""A column of some rows."""


@dataclass(frozen=True)
class ByCut(Quantity):
    """A number per seed, of several conditions at the same cuts; ``by`` says whose cuts tell the cells apart."""

    read: tuple[Read, ...]
    by: Literal["sender_cut", "receiver_cut"] = "receiver_cut"

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the numbers, by seed. Raises ``DataError`` if no cut has all conditions."""
        held = join_by_cut(tables, self.read, self.by)
        return held.groupby("network_seed", sort=True)[list(held.columns)].apply(self._one)

    @abstractmethod
    def _one(self, held: pd.DataFrame) -> float:
        """Return the number of one seed: a row per cut, from input to output, and a column per condition."""


def join_by_cut(tables: Tables, read: tuple[Read, ...], by: str) -> pd.DataFrame:
    """Return a row per seed and cut, from input to output by the first condition, and a column per condition.

    0, 1, …
    """
    together = pd.DataFrame()
    depth = by.replace("_cut", "_depth")
    for number, (column, where) in enumerate(read):
        found = average_cells(where.rows(tables), column)
        ordered = found.sort_values(depth, kind="stable") if depth in found else found
        held = ordered.groupby(["network_seed", by], sort=False)[["value"]].mean()
        held.columns = pd.Index([str(number)])
        together = held if number == 0 else together.join(held, how="inner")
    if together.dropna().empty:
        raise DataError(f"no cut has all of {', '.join(str(where) for _, where in read)}")
    return together.dropna()


@final
@dataclass(frozen=True)
class Gap(ByCut):
    """The first condition minus ``times`` the second: the smallest over cuts, or the ``largest``."""

    largest: bool = False
    times: float = 1.0

    def _one(self, held: pd.DataFrame) -> float:
        gaps = held["0"] - self.times * held["1"]
        return float(gaps.max() if self.largest else gaps.min())


@final
@dataclass(frozen=True)
class Moves(ByCut):
    """How far apart the conditions are at a cut, the largest less the smallest, at the cut where that is most."""

    def _one(self, held: pd.DataFrame) -> float:
        return float((held.max(axis=1) - held.min(axis=1)).max())


@final
@dataclass(frozen=True)
class Jointly(ByCut):
    """The smallest of the conditions at a cut, at the cut where that is largest: how far all hold together."""

    def _one(self, held: pd.DataFrame) -> float:
        return float(held.min(axis=1).max())


@final
@dataclass(frozen=True)
class Agreement(ByCut):
    """Spearman's ρ of the first condition with the second, over cuts."""

    def figure(self, tables: Tables) -> Figure:
        """Return the mean ρ and its interval."""
        return clip_correlation(super().figure(tables))

    def _one(self, held: pd.DataFrame) -> float:
        return correlate(held["0"], held["1"])


@final
@dataclass(frozen=True)
class RunOfCuts(ByCut):
    """How many cuts in a row, from the input, are at most ``most``; with ``last``, from the output.

    Of two conditions it is the first minus the second that counts.
    """

    most: float = 0.0
    last: bool = False

    def _one(self, held: pd.DataFrame) -> float:
        values = held["0"] - held["1"] if "1" in held else held["0"]
        low = (values <= self.most).to_numpy()
        return float((low[::-1] if self.last else low).cumprod().sum())


@final
@dataclass(frozen=True)
class AtBest(Quantity):
    """The value of each seed at the cut where it is least in the other seeds.

    "At some cut" would else be the least of many noisy values, which is below zero wherever they are about zero.
    """

    column: str
    where: Where = Where()

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the values, by seed.

        Raises ``DataError`` for fewer than two seeds, and if they have no cut in common.
        """
        held = join_by_cut(tables, ((self.column, self.where),), "receiver_cut")["0"].unstack("network_seed")
        if held.shape[1] < 2:
            raise DataError("there is one pair of networks; a cut is chosen by the others")
        held = held.dropna()
        if held.empty:
            raise DataError("the pairs of networks have no cut in common, by which others could choose")
        others = {seed: held.drop(columns=seed).mean(axis=1).to_numpy().argmin() for seed in held.columns}
        values = [float(held[seed].iloc[place]) for seed, place in others.items()]
        return pd.Series(values, index=pd.Index(list(others), name="network_seed"))
