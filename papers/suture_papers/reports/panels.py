"""The panels of a study's figure as charts: means over pairs of networks, with the intervals that decide claims.

Fractions are in per cent. A group of which nothing was measured has no values, and its name says so.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suture.common.errors import DataError
from suture.extend import LOOK, SERIES, THRESHOLD, Block, Chart, Line, Measure, not_converged
from suture_papers.base.cells import PERCENT, Tables, Where, average_cells
from suture_papers.base.quantities import LEVEL, average_units, figure_of
from suture_papers.base.study import Panel

NOT_MEASURED = "not measured"
Look = tuple[str, str, str]
"""Colour, marker and dashes."""


def arrange_panels(panels: Sequence[Panel], tables: Tables) -> list[Chart]:
    """Arrange the panels of a study; rows that several of them show look the same in all."""
    return [arrange_panel(panel, tables, own) for panel, own in zip(panels, _list_looks(panels), strict=True)]


def arrange_panel(panel: Panel, tables: Tables, looks: Sequence[Look]) -> Chart:
    """Arrange a panel as a curve, as bars, or as a matrix for each group of rows."""
    found = [_measured(where, panel.column, tables) for _, where in panel.lines]
    groups = [average_cells(rows, panel.column) if len(rows) else rows for rows in found]
    names = tuple(
        name if len(rows) else f"{name}: {NOT_MEASURED}" for (name, _), rows in zip(panel.lines, found, strict=True)
    )
    percent = panel.column in PERCENT and any("unit" in rows and rows["unit"].eq("fraction").any() for rows in found)
    cost = panel.column.startswith("penalty")
    of, _, unit = panel.label.rstrip("])").replace("(", "[").partition("[")
    of, unit = of.strip(), unit.strip() or ("%" if percent else "pp" if cost else "")
    title = panel.title or of
    lines: Iterable[Line]
    senders: tuple[Block, ...] = ()
    receivers: tuple[Block, ...] = ()
    match panel.kind:
        case "bars":
            bars = [rows.groupby("network_seed")["value"].mean() if len(rows) else _NONE for rows in groups]
            open_ = np.array([not_converged(rows).any() for rows in found], bool)
            lines = [_line(0, title, pd.concat(bars, axis=1).T, looks, open_)]
            columns, axes = names, ("", "")
        case "lines":
            columns = _cuts(groups, panel.along).cuts
            axes = (f"cut of the {panel.along.partition('_')[0]} (input → output)", "")
            places = pd.Index(columns, name=panel.along)
            lines = _lines(names, groups, places, looks, found)
        case "map":
            down, across = _cuts(groups, "sender_cut"), _cuts(groups, "receiver_cut")
            senders, receivers = (down,), (across,)
            columns, axes = across.cuts, ("receiver cut", "sender cut")
            places = pd.MultiIndex.from_product([down.cuts, columns], names=["sender_cut", "receiver_cut"])
            lines = _lines(names, groups, places, looks, found)
    levels = dict(_own_scores(names, found)) if panel.baseline else {}
    levels |= {THRESHOLD: panel.level} if panel.level is not None else {}
    measure = Measure(
        show=of,
        of=of,
        unit=unit,
        digits=1 if unit in ("%", "pp") else 3,
        lines=tuple(lines),
        signed=cost,
        levels=levels,
        span=(0.0, 100.0) if percent and senders else None,
        bright="low" if cost else "high",
        over="networks",
    )
    return Chart(
        kind={"lines": "curve", "bars": "bars", "map": "matrix"}[panel.kind],  # type: ignore[arg-type]
        title=title,
        about=f"{title}: means over pairs of networks.",
        columns=columns,
        measures=(measure,),
        rows=senders[0].cuts if senders else (),
        axes=axes,
        senders=senders,
        receivers=receivers,
    )


_NONE: "pd.Series[float]" = pd.Series(dtype="float64")


def _measured(where: Where, column: str, tables: Tables) -> pd.DataFrame:
    """Return the rows of a group that have a value; none if nothing was measured."""
    try:
        rows = where.select_measured(tables)
    except DataError:
        return pd.DataFrame()
    return rows[rows[column].notna()] if column in rows else pd.DataFrame()


def _cuts(groups: Sequence[pd.DataFrame], column: str) -> Block:
    """Return the cuts of all groups, from input to output; a network alone has none."""
    rows = pd.concat([pd.DataFrame({column: [], column.replace("cut", "depth"): []}), *groups])
    depths = rows[rows[column].fillna("") != ""].groupby(column)[column.replace("cut", "depth")].mean()
    depths = depths.sort_values(kind="stable")
    return Block("", tuple(map(str, depths.index)), depths.to_numpy(float), 0)


def _lines(
    names: Sequence[str],
    groups: Sequence[pd.DataFrame],
    places: pd.Index,
    looks: Sequence[Look],
    found: Sequence[pd.DataFrame],
) -> Iterator[Line]:
    keys = list(places.names)
    for number, (name, rows, look, measured) in enumerate(zip(names, groups, looks, found, strict=True)):
        if len(rows):
            of_seeds = rows.groupby(["network_seed", *keys])["value"].mean().unstack("network_seed").reindex(places)
        else:
            of_seeds = pd.DataFrame(index=places, columns=[0], dtype="float64")
        open_ = pd.Series(False, index=places)
        if len(measured):
            early = not_converged(measured).groupby([measured[key] for key in keys]).any()
            open_ = early.reindex(places, fill_value=False)
        yield _line(number, name, of_seeds, [look], np.asarray(open_, bool))


def _line(number: int, name: str, of_seeds: pd.DataFrame, looks: Sequence[Look], open_: NDArray[np.bool_]) -> Line:
    """Return a line of the means over pairs, which are the columns, with 95 % intervals over networks."""
    made = [figure_of(average_units(row), LEVEL) if row.notna().any() else None for _, row in of_seeds.iterrows()]
    value, low, high = np.array([(f.value, f.low, f.high) if f else (np.nan,) * 3 for f in made]).reshape(-1, 3).T
    seeds: NDArray[np.float64] = of_seeds.to_numpy(float).T
    return Line(
        f"#{number}", name, value, low, high, np.zeros(value.shape, bool), looks=tuple(looks), seeds=seeds, open=open_
    )


def _own_scores(names: Sequence[str], found: Sequence[pd.DataFrame]) -> Iterator[tuple[str, float]]:
    """Yield the receivers' own scores, one for all groups whose receivers score the same."""
    scored = [rows[rows["receiver_score"].notna()] if "receiver_score" in rows else rows[:0] for rows in found]
    own = {
        round(float(average_cells(rows, "receiver_score").groupby("network_seed")["value"].mean().mean()), 9): name
        for name, rows in zip(names, scored, strict=True)
        if len(rows)
    }
    for score, name in own.items():
        yield "receiver alone" if len(own) == 1 else f"receiver alone ({name})", score


def _list_looks(panels: Sequence[Panel]) -> Iterator[list[Look]]:
    """Yield the looks of the groups of each panel.

    Controls have their own, unless a panel shows one of them several times; other groups have the one that they had in
    an earlier panel, or the next one that is free.
    """
    counted = [Counter(where.control for _, where in panel.lines) for panel in panels]
    own = {control for control in LOOK if control and max((count[control] for count in counted), default=0) == 1}
    known: dict[Where, Look] = {}
    for panel, count in zip(panels, counted, strict=True):
        before = {where: known[where] for _, where in panel.lines if where in known}
        taken = {LOOK[control][0] for control in own & count.keys()} | {colour for colour, *_ in before.values()}
        free = [look for look in SERIES if look[0] not in taken] or SERIES
        looks, number = list[Look](), 0
        for _, where in panel.lines:
            if where.control in own:
                looks.append((*LOOK[where.control], "-"))
            elif where in before:
                looks.append(before.pop(where))  # once: what a panel shows twice is told apart
            else:
                looks.append((*free[number % len(free)], "-" if number < len(free) else "--"))
                number += 1
        known = {where: look for (_, where), look in zip(panel.lines, looks, strict=True)} | known
        yield looks
