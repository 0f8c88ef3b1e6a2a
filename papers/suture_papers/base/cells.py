"""The inputs of a quantity: rows of a study's tables, and a number for each cell.

A cell is a seam of two networks, with the best of its stitch seeds. A pair of networks has one number,
``network_seed``, which identifies its networks. Fractions (accuracies) are read in per cent, penalties are in
percentage points, all else is in its own unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import final

import pandas as pd

from suture.common.errors import DataError
from suture.extend import EXACT, SIDE
from suture.fits import Quick
from suture_papers.recipes import RECIPES

_OTHER = 500
QUICK = str(Quick())
TRIALS, SIMILARITIES, COMPLEXITIES, NETWORKS, FOLDS = "trials", "similarities", "complexities", "networks", "folds"

Tables = Mapping[str, pd.DataFrame]
"""What a study measured: tables by kind, each with a column ``network_seed``."""

#: Columns that hold fractions and are shown in %.
PERCENT = ("stitched", "stitched_low", "stitched_high", "sender_score", "receiver_score", "accuracy")
_CELL = ("sender", "receiver", "sender_cut", "receiver_cut", "control", "fit_data", "score_data", "index", "measure")


def number_pair(sender: int, receiver: int, alike: bool = True) -> int:
    """Return the number of a pair by the seeds of its networks; ``alike`` if both are of one kind.

    It is 1000 × the sender's + the receiver's, plus 500 for a receiver of another kind than the sender's, so that
    networks of two kinds with one seed are told apart. A network alone is the pair of its seed with itself.
    """
    if not (0 < sender < _OTHER and 0 < receiver < _OTHER):
        raise DataError(f"seeds {sender} and {receiver}: networks of a pair have seeds from 1 to {_OTHER - 1}")
    return SIDE * sender + receiver + (0 if alike else _OTHER)


@final
@dataclass(frozen=True)
class Where:
    """A selection of a table's rows by names, or patterns such as ``"layer4*|fc"``; an empty one selects any.

    ``control`` is the exact label, empty for plain trials; ``fit`` is ``default`` (of cells that have none, ``Quick``,
    which finds less), ``published`` (a paper's recipe,
    whatever its length), ``recipe`` (one at the length that its paper states), ``any``, or a pattern of the fit as the
    table spells it. ``sender_depth`` and ``receiver_depth`` are ranges, both
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
        rows = self._rows(tables)
        if self.table == TRIALS and (failed := int((rows["status"] == "failed").sum())):
            raise DataError(f"{failed} of {len(rows)} trials failed; suture run --retry measures them again")
        return rows

    def cells(self, tables: Tables, column: str) -> pd.DataFrame:
        """Return ``average_cells`` of the rows."""
        return average_cells(self.select(tables), column)

    def select_measured(self, tables: Tables) -> pd.DataFrame:
        """Return the rows without those of failed trials: to be looked at, and nothing decided by them."""
        rows = self._rows(tables)
        if self.table == TRIALS and (rows := rows[rows["status"] == "ok"]).empty:
            raise DataError(f"every trial of {self} failed")
        return rows

    def _rows(self, tables: Tables) -> pd.DataFrame:
        if self.table not in tables:
            raise DataError(f"the study has no table of {self.table}; it has {', '.join(tables) or 'none'}")
        table = tables[self.table]
        mask = pd.Series(True, index=table.index)
        if self.table == TRIALS:
            mask &= table["score"] == self.score
            if self.fit in ("default", "published"):
                mask &= table["published"] == (self.fit == "published")
            elif self.fit == "recipe":
                mask &= table["fit"].isin([str(recipe) for recipe in RECIPES.values()])  # another length is spelled out
            elif self.fit != "any":
                mask &= _match(table["fit"], self.fit)
        if "control" in table:
            mask &= table["control"] == self.control
        for name in ("sender", "receiver", "sender_cut", "receiver_cut", "fit_data", "score_data", "stitch"):
            if pattern := getattr(self, name):
                mask &= _match(table[name], pattern)
        for name in ("index", "measure"):
            if wanted := getattr(self, name):
                mask &= table[name] == wanted
        for name in ("sender_depth", "receiver_depth"):
            low, high = getattr(self, name)
            if (low, high) != (0.0, 1.0):
                mask &= (table[name] >= low - EXACT) & (table[name] <= high + EXACT)
        if self.table == TRIALS and self.fit == "default" and (quick := mask & (table["fit"] == QUICK)).any():
            cells = pd.MultiIndex.from_frame(table[["network_seed", *(name for name in _CELL if name in table)]])
            mask &= ~quick | ~cells.isin(cells[mask & ~quick])
        if not mask.any():
            raise DataError(f"no row of {self.table} is {self}")
        return table[mask]


def _match(names: "pd.Series[str]", pattern: str) -> "pd.Series[bool]":
    parts = pattern.split("|")
    return names.isin([name for name in names.unique() if any(fnmatchcase(name, part) for part in parts)])


def average_cells(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return a row per pair and cell, with its ``value``, and the depths if there are any.

    Of several stitch seeds it is the one with the least validation loss, if the rows have that, else their mean.
    """
    values = rows[column].astype("float64")
    if column in PERCENT and "unit" in rows:
        values = values.where(rows["unit"] != "fraction", 100 * values)
    keys = ["network_seed", *(name for name in _CELL if name in rows)]
    depths = [name for name in ("sender_depth", "receiver_depth") if name in rows]
    return (
        keep_best(rows.assign(value=values))
        .groupby(keys, dropna=False, sort=False)[["value", *depths]]
        .mean()
        .reset_index()
    )


def keep_best(rows: pd.DataFrame) -> pd.DataFrame:
    """Return of each cell the stitch seed with the least validation loss; all of a cell in which none is known."""
    if "validation_loss" not in rows:
        return rows
    keys = ["network_seed", *(name for name in (*_CELL, "fit", "stitch", "score") if name in rows)]
    known = rows.groupby(keys, dropna=False)["validation_loss"].transform("count") > 0
    best = rows[known].sort_values("validation_loss", kind="stable").drop_duplicates(keys)
    return pd.concat([best, rows[~known]]).sort_index()


Condition = tuple[str, Where]
"""A column of some rows."""


def join_by_cut(tables: Tables, conditions: tuple[Condition, ...], by: str) -> pd.DataFrame:
    """Return a row per seed and cut, from input to output by the first condition, and a column per condition.

    The columns are 0, 1, …; cuts that lack a condition are left out. Raises ``DataError`` if no cut has them all.
    """
    depth = by.replace("_cut", "_depth")
    columns: list[pd.Series[float]] = []
    for column, where in conditions:
        cells = where.cells(tables, column)
        ordered = cells.sort_values(depth, kind="stable") if depth in cells else cells
        columns.append(ordered.groupby(["network_seed", by], sort=False)["value"].mean().rename(len(columns)))
    joined = pd.concat(columns, axis=1, join="inner").dropna()
    if joined.empty:
        raise DataError(f"no cut has all of {', '.join(str(where) for _, where in conditions)}")
    return joined
