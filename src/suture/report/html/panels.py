"""The panels of a study's figure as charts: means over pairs of networks, with the range of the pairs."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.report.figures.study_bars import looks_of
from suture.report.html.charts import Chart, Line, Measure
from suture.studies import Panel, Study, Where
from suture.studies.base.quantities import PERCENT, Tables, average_cells

_OVER = "pairs of networks (their range)"


def charts(study: Study, tables: Tables) -> Iterator[Chart | str]:
    """Return a chart for each panel of a study that can be read from its tables, and in words why another cannot."""
    for number, panel in enumerate(study.panels, 1):
        try:
            yield _chart(study, panel, tables)
        except (DataError, KeyError) as error:
            yield f"Panel {number} ({panel.title or panel.label}) cannot be drawn: {error}."


def _chart(study: Study, panel: Panel, tables: Tables) -> Chart:
    groups = [(name, average_cells(where.measured(tables), panel.column), where) for name, where in panel.lines]
    match panel.kind:
        case "lines":
            chart = _lines(panel, groups)
        case "bars":
            chart = _bars(panel, groups)
        case "map":
            chart = _maps(panel, groups)
    columns, rows, lines, axes = chart
    lines = _looking(lines, panel)
    measure = _measure(panel, lines, _levels(panel, tables))
    caption = f"{panel.title or measure.of}: means over pairs of networks, with the range of the pairs."
    kind = {"lines": "curve", "bars": "bars", "map": "matrix"}[panel.kind]
    return Chart(kind, panel.title or measure.of, caption, columns, (measure,), rows, axes)  # type: ignore[arg-type]


Groups = list[tuple[str, pd.DataFrame, Where]]
Arranged = tuple[tuple[str, ...], tuple[str, ...], tuple[Line, ...], tuple[str, str]]


def _measure(panel: Panel, lines: tuple[Line, ...], levels: dict[str, float]) -> Measure:
    percent, cost = panel.column in PERCENT, panel.column.startswith("penalty")
    name, _, unit = panel.label.rstrip("])").replace("(", "[").partition("[")
    unit = unit.strip() or ("%" if percent else "pp" if cost else "")
    digits = 1 if unit in ("%", "pp") else 3
    of = name.strip()
    bright = "low" if cost else "high"
    return Measure(of, of, unit, digits, lines, signed=cost, levels=levels, over=_OVER, bright=bright)  # type: ignore[arg-type]


def _levels(panel: Panel, tables: Tables) -> dict[str, float]:
    """Return the claim's threshold, and the receivers' own scores."""
    found = {} if panel.level is None else {"the claim's threshold": panel.level}
    if panel.baseline and panel.lines:
        own = average_cells(panel.lines[0][1].measured(tables), "receiver_score")["value"].mean()
        found["receivers alone"] = float(own)
    return {name: value for name, value in found.items() if np.isfinite(value)}


def _over_seeds(held: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Mean, least and most over seeds of what is averaged within each, by ``keys``."""
    of_seeds = held.groupby(["network_seed", *keys], dropna=False)["value"].mean()
    if not keys:
        return pd.DataFrame({"mean": [of_seeds.mean()], "min": [of_seeds.min()], "max": [of_seeds.max()]})
    return of_seeds.groupby(level=keys).agg(["mean", "min", "max"])


def _ordered(groups: Groups, column: str) -> tuple[str, ...]:
    """Return the cuts of all groups, from input to output."""
    depth = column.replace("_cut", "_depth")
    every = pd.concat([held for _, held, _ in groups])
    places = every.groupby(column, sort=False)[depth].mean() if depth in every else pd.Series(dtype=float)
    return tuple(map(str, places.sort_values(kind="stable").index)) or tuple(map(str, dict.fromkeys(every[column])))


def _line(number: int, name: str, found: pd.DataFrame) -> Line:
    value, low, high = (found[part].to_numpy(float) for part in ("mean", "min", "max"))
    several = high > low
    low, high = np.where(several, low, np.nan), np.where(several, high, np.nan)
    return Line(f"#{number}", name, value, low, high, np.zeros(value.shape, bool))


def _looking(lines: tuple[Line, ...], panel: Panel) -> tuple[Line, ...]:
    """Lines, or the one line of bars, with the look that the printed figure gives them."""
    looks = tuple(looks_of(panel))
    if panel.kind == "bars":
        return tuple(replace(line, looks=looks) for line in lines)
    return tuple(replace(line, looks=(look,)) for line, look in zip(lines, looks, strict=True))


def _lines(panel: Panel, groups: Groups) -> Arranged:
    cuts = _ordered(groups, panel.along)
    lines = tuple(
        _line(number, name, _over_seeds(held, [panel.along]).reindex(list(cuts)))
        for number, (name, held, _) in enumerate(groups)
    )
    whose = panel.along.partition("_")[0]
    return cuts, (), lines, (f"cut of the {whose} (input → output)", "")


def _bars(panel: Panel, groups: Groups) -> Arranged:
    found = pd.concat([_over_seeds(held, []) for _, held, _ in groups])
    return tuple(name for name, *_ in groups), (), (_line(0, panel.title or panel.label, found),), ("", "")


def _maps(panel: Panel, groups: Groups) -> Arranged:
    rows, columns = _ordered(groups, "sender_cut"), _ordered(groups, "receiver_cut")
    every = pd.MultiIndex.from_product([rows, columns], names=["sender_cut", "receiver_cut"])
    lines = tuple(
        _line(number, name, _over_seeds(held, ["sender_cut", "receiver_cut"]).reindex(every))
        for number, (name, held, _) in enumerate(groups)
    )
    return columns, rows, lines, ("receiver cut", "sender cut")
