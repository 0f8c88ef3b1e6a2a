"""What the panels of studies show: rows of a study's tables as values per seed and place, each group with its look."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from suture.common.errors import DataError
from suture.report.figures.study_maps import Map
from suture.report.style import LOOK, SERIES
from suture.studies.base.quantities import Tables, Where, average_cells
from suture.studies.base.study import Panel

Look = tuple[str, str, str]  #: colour, marker, dashes


@dataclass(frozen=True, eq=False)
class Group:
    """One line or bar: ``values`` has a row per seed and place, with its ``depth``; none if nothing was measured."""

    name: str
    colour: str
    marker: str
    dashes: str
    values: pd.DataFrame
    alone: "pd.Series[float]"  # the receivers' own score, by seed; empty if unknown
    percent: bool = False

    @property
    def there(self) -> bool:
        """Say whether anything was measured."""
        return not self.values.empty


def groups_of(panel: Panel, tables: Tables) -> list[Group]:
    """Return the groups of a panel, each with its look."""
    made = []
    for (name, where), look in zip(panel.lines, looks_of(panel), strict=True):
        rows = found(where, panel.column, tables)
        values, alone = _values(rows, panel)
        made.append(Group(name, *look, values, alone, _percent(rows, panel.column)))
    return made


def looks_of(panel: Panel) -> list[Look]:
    """Return the look of each group of a panel: that of a control that is there once, else the next free one."""
    controls = [where.control for _, where in panel.lines]
    own = {control for control in controls if control and control in LOOK and controls.count(control) == 1}
    taken = {LOOK[control][0] for control in own}
    free = [look for look in SERIES if look[0] not in taken]
    made, number = [], 0
    for _, where in panel.lines:
        dashes = "-" if where.control in own or number < len(free) else "--"
        colour, marker = LOOK[where.control] if where.control in own else free[number % len(free)]
        number += where.control not in own
        made.append((colour, marker, dashes))
    return made


def found(where: Where, column: str, tables: Tables) -> pd.DataFrame:
    """Return the rows of a group that have a value; none if nothing was measured."""
    try:
        rows = where.measured(tables)
    except DataError:
        return pd.DataFrame()
    return rows[rows[column].notna()] if column in rows else pd.DataFrame()


def _percent(rows: pd.DataFrame, column: str) -> bool:
    """Say whether values are fractions, which are drawn in per cent."""
    if rows.empty or "unit" not in rows:
        return False
    one = rows[rows["unit"] == "fraction"].head(1).assign(**{column: 1.0})
    return len(one) > 0 and float(average_cells(one, column)["value"].iloc[0]) == 100.0


def _values(rows: pd.DataFrame, panel: Panel) -> "tuple[pd.DataFrame, pd.Series[float]]":
    """Return a value per seed and place, and the receivers' own score by seed."""
    nothing: pd.Series[float] = pd.Series(dtype="float64")
    if rows.empty:
        return pd.DataFrame({"network_seed": [], "place": [], "value": [], "depth": []}), nothing
    held = average_cells(rows, panel.column)
    depth = panel.along.replace("cut", "depth")
    if panel.kind == "lines":
        held = held[held[panel.along].fillna("") != ""]  # a network alone has no cut
    held = held.assign(place=held[panel.along] if panel.kind == "lines" else "", depth=held.get(depth, 0.0))
    values = held.groupby(["network_seed", "place"], sort=False)[["value", "depth"]].mean().reset_index()
    if "receiver_score" not in rows or rows["receiver_score"].isna().all():
        return values, nothing
    return values, average_cells(rows, "receiver_score").groupby("network_seed")["value"].mean()


def places_of(groups: Sequence[Group]) -> list[str]:
    """Return the cuts of all groups, from input to output."""
    there = [group.values for group in groups if group.there]
    if not there:
        return []
    return [str(place) for place in pd.concat(there).groupby("place")["depth"].mean().sort_values(kind="stable").index]


def map_of(name: str, where: Where, panel: Panel, tables: Tables) -> Map:
    """Return a group as a heat map: the mean over seeds of every seam, cuts from input to output."""
    rows = found(where, panel.column, tables)
    if rows.empty:
        return Map(name, pd.DataFrame(), {}, {}, False)
    held = average_cells(rows, panel.column)
    seams = held.groupby(["network_seed", "sender_cut", "receiver_cut"], sort=False)["value"].mean()
    laid = seams.groupby(["sender_cut", "receiver_cut"]).mean().unstack("receiver_cut")
    down, across = (
        {str(cut): float(depth) for cut, depth in held.groupby(f"{role}_cut")[f"{role}_depth"].mean().items()}
        for role in ("sender", "receiver")
    )
    order = [sorted(depths, key=lambda cut, d=depths: d[cut]) for depths in (down, across)]  # type: ignore[misc]
    return Map(name, laid.loc[order[0], order[1]], down, across, _percent(rows, panel.column))
