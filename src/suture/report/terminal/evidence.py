"""Evidence beside penalties, for the terminal: similarity indices, measures of complexity, and where a trait lies."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from rich.table import Table

from suture.measurement.compare import check_similarities
from suture.measurement.complexity.table import MEASURE, name_measure, split_complexity
from suture.measurement.tables.curve import PLAIN
from suture.measurement.tables.matrix import arrange_similarities, say_distance
from suture.measurement.tables.onset import Onset, Way
from suture.report.terminal.curve import lay_out
from suture.report.terminal.matrix import fitting_tables


def similarity_heading(similarities: pd.DataFrame) -> str:
    """Say what similarities are shown, and on how many images. Raises ``DataError`` if the table is none."""
    check_similarities(similarities)
    first = similarities.iloc[0]
    means = "an image is a sample" if first["samples_as"] == "flattened" else "a position of a map is a sample"
    return (
        f"{first['sender']} → {first['receiver']}: rows are sender cuts, columns receiver cuts\n"
        f"on {first['n']:,} images of {first['score_data']}; {means}"
    )


def similarity_tables(similarities: pd.DataFrame, width: int = 80) -> list[Table | str]:
    """Show the values of each index; ``width`` is that of the screen. Raises ``DataError`` if the table is none."""
    parts: list[Table | str] = []
    for name, shown in arrange_similarities(similarities).items():
        drawn = fitting_tables(shown, shown.senders[0], shown.receivers[0], width)
        cells = f"{shown.plain.shape[0]} × {shown.plain.shape[1]} cells have no room on a screen of {width} columns"
        parts += [*([""] if parts else []), name + say_distance(name), *(drawn or [f"{cells}; the figure shows them"])]
    return parts


def complexity_table(table: pd.DataFrame) -> Table:
    """Show a row per measure, a column per cut of the receiver, or per network if none is stitched."""
    rows, alone = split_complexity(table)
    shown = rows[rows["control"] == PLAIN] if len(rows) else alone
    shown = shown.assign(column=shown["receiver_cut"] if len(rows) else shown["sender"])
    columns = list(dict.fromkeys(shown.sort_values("receiver_depth", kind="stable")["column"]))
    rows_ = []
    for _, held in shown.groupby(MEASURE, sort=False):
        means = held.groupby("column")["value"].mean()
        rows_.append((name_measure(held), *(f"{means[name]:.4g}" if name in means else "" for name in columns)))
    return lay_out(("measure", *(f">{name}" for name in columns)), rows_)


def trait_heading(found: Onset) -> str:
    """Say what the table of shares shows."""
    return (
        f"{found.trait}: what the stitched network conveys of the difference between {found.carrier} (100 %) and "
        f"{found.reference} (0 %),\nin %, with 95 % intervals; ← is the first cut that conveys half of it"
    )


def trait_record(found: Onset) -> dict[str, Any]:
    """Return an onset as plain values."""
    between = list(found.between) if found.between is not None else None
    made: dict[str, Any] = {"trait": found.trait, "verdict": found.verdict, "between": between}
    made["levels"] = {found.carrier: found.levels[0], found.reference: found.levels[1]}
    return made | {"sending": asdict(found.sending), "receiving": asdict(found.receiving)}


def trait_table(found: Onset) -> Table:
    """Show a row per cut of the carrier: what it conveys of the trait each way, in %, with 95 % intervals."""
    ways = (found.sending, found.receiving)
    cuts = dict.fromkeys((*found.sending.cuts, *found.receiving.cuts))
    headings = ("cut", *(f">{' → '.join(found.ends(way))}" for way in ways))
    return lay_out(headings, ((cut, *(_share(way, cut) for way in ways)) for cut in cuts))


def _share(way: Way, cut: str) -> str:
    if cut not in way.cuts:
        return ""
    i = way.cuts.index(cut)
    value, low, high = (100 * part[i] for part in (way.shares, way.low, way.high))
    if not np.isfinite(value):
        return ""
    mark = " ←" if cut == way.onset else "  "
    return f"{value:.0f} [{low:.0f}, {high:.0f}]{mark}"
