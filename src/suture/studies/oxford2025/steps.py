"""Quantities of neighbouring cuts: how much of a trait one step brings, whether a curve peaks inside, its first step.

The values of each pair of networks are ordered by the depth of a cut, and become one number of that pair.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, final

import pandas as pd

from suture.common.errors import DataError
from suture.studies.base.quantities import Quantity, Tables, Where, average_cells


@dataclass(frozen=True)
class Along(Quantity):
    """A number per seed, of one column of some rows along the cuts of the sender or the receiver (``along``)."""

    column: str
    where: Where = Where()
    along: Literal["sender_cut", "receiver_cut"] = "sender_cut"

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the numbers, by seed. Raises ``DataError`` if the tables lack the rows."""
        depth = self.along.replace("cut", "depth")
        held = average_cells(self.where.rows(tables), self.column).sort_values(depth, kind="stable")
        found = {seed: self._one(rows.groupby(self.along, sort=False)["value"].mean()) for seed, rows in _by_seed(held)}
        return pd.Series(found, dtype="float64").rename_axis("network_seed")

    @abstractmethod
    def _one(self, values: "pd.Series[float]") -> float:
        """Return the number of one seed, of its values by cut, from input to output."""


def _by_seed(held: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    return [(int(str(seed)), rows) for seed, rows in held.groupby("network_seed", dropna=False)]


@final
@dataclass(frozen=True)
class Share(Quantity):
    """One quantity divided by another, seed by seed; the share of what is not there, 0, is 0."""

    first: Quantity
    second: Quantity

    def of(self, tables: Tables) -> "pd.Series[float]":
        """Return the shares, by seed."""
        part, whole = self.first.of(tables), self.second.of(tables)
        return (part / whole).mask(whole.reindex(part.index) == 0, 0.0)


@final
@dataclass(frozen=True)
class Step(Along):
    """The share of the largest value over cuts that the step to one ``cut``, from the one before, makes.

    As ``suture.onset`` has it, of a score that is 0 if nothing is conveyed: 1 if all is conveyed from that cut on
    and nothing before, 0 if nothing ever is. Raises ``DataError`` if that cut is not among them.
    """

    cut: str = ""

    def _one(self, values: "pd.Series[float]") -> float:
        names = list(values.index)
        if self.cut not in names:
            raise DataError(f"no cut '{self.cut}' among {', '.join(map(str, names))}")
        place = names.index(self.cut)
        before = float(values.iloc[place - 1]) if place else 0.0
        largest = float(values.max())
        return (float(values.iloc[place]) - before) / largest if largest > 0 else 0.0


@final
@dataclass(frozen=True)
class Peak(Along):
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
class FirstStep(Along):
    """How much larger the first step between cuts is than any other, either way, as a share of the range of values.

    Raises ``DataError`` for fewer than three cuts.
    """

    def _one(self, values: "pd.Series[float]") -> float:
        if len(values) < 3:
            raise DataError(f"no first step among several in {len(values)} cuts")
        steps = values.diff().abs().iloc[1:]
        span = float(values.max() - values.min())
        return (float(steps.iloc[0]) - float(steps.iloc[1:].max())) / span if span > 0 else 0.0
