"""Similarities, measures of complexity and traits, arranged from their tables for figures, screens and pages."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.measurement import compare, complexity
from suture.measurement.indices import INDICES
from suture.measurement.tables.by_depth import Numbers
from suture.measurement.tables.curve import PLAIN
from suture.measurement.tables.matrix import Block, Matrix
from suture.measurement.tables.onset import Onset
from suture.measurement.tables.table import summary

MEASURE = ["measure", "normalised", "settings"]  #: the columns that tell measures of complexity apart
_TOLD = ("epsilon", "batch", "threshold")  #: the settings that a measure's name shows


def check_similarities(similarities: pd.DataFrame) -> pd.DataFrame:
    """Return a table of ``compare`` if it is one, with one value of an index at each seam; else ``DataError``."""
    missing = [name for name in compare.COLUMNS if name not in similarities]
    if missing or similarities.empty:
        lacking = f"it has no column {', '.join(map(repr, missing))}" if missing else "it has no row"
        raise DataError(f"this is no table of similarities: {lacking}")
    if similarities.duplicated([*compare.SEAM, "index"]).any():
        raise DataError("the table has several values of one index at a seam; keep one samples_as and one score_data")
    return similarities


def arrange_similarities(similarities: pd.DataFrame) -> dict[str, Matrix]:
    """Return every index as a matrix of one sender and one receiver, in a table of ``compare``."""
    check_similarities(similarities)
    blocks = []
    for role in ("sender", "receiver"):
        names = dict.fromkeys(similarities[role])
        if len(names) > 1:
            raise DataError(f"the table has {', '.join(map(str, names))} as {role}; select the rows of one")
        cuts = similarities.drop_duplicates(f"{role}_cut").sort_values(f"{role}_depth", kind="stable")
        depths = cuts[f"{role}_depth"].to_numpy(float)
        blocks.append(Block(str(next(iter(names))), tuple(map(str, cuts[f"{role}_cut"])), depths, 0))
    sender, receiver = blocks
    made = {}
    for name, held in similarities.groupby("index", sort=False):
        laid = held.pivot(index="sender_cut", columns="receiver_cut", values="value")
        values = laid.reindex(index=list(sender.cuts), columns=list(receiver.cuts)).to_numpy(float)
        nothing = np.zeros(values.shape, bool)
        panels, failed = {PLAIN: values}, {PLAIN: nothing}
        made[str(name)] = Matrix(
            str(name), "raw", (sender,), (receiver,), panels, {}, failed, {}, rises=True, table=similarities
        )
    return made


def scale_of(name: str, values: Numbers) -> tuple[float, float, bool]:
    """Return the ends of the colours of an index, and whether it is a distance."""
    index = INDICES.get(name.partition("(")[0])
    there = values[np.isfinite(values)]
    low = min(0.0, float(there.min())) if len(there) else 0.0
    return low, index.bounds[1] if index is not None else 1.0, bool(index is not None and index.distance)


def say_distance(name: str) -> str:
    """Return what to add to an index's name if it is a distance."""
    return " (distance: 0 is alike)" if scale_of(name, np.array([]))[2] else ""


def split_complexity(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows of a table of ``complexity`` that are of seams, and those of networks alone."""
    missing = [name for name in (*compare.SEAM, "receiver_depth", *complexity.COLUMNS) if name not in table]
    if missing or table.empty:
        lacking = f"it has no column {', '.join(map(repr, missing))}" if missing else "it has no row"
        raise DataError(f"this is no table of complexity of seams: {lacking}")
    rows = table if "control" in table else table.assign(control=PLAIN)
    alone = rows["receiver_cut"] == ""
    return rows[~alone], rows[alone]


def name_measure(held: pd.DataFrame) -> str:
    """Return a measure in words: ``mean sharpness, normalised, epsilon=0.01 (nats)``."""
    first = held.iloc[0]
    told = [word for word in str(first["settings"]).split(", ") if word.partition("=")[0] in _TOLD]
    told = [word for word in told if not word.endswith("=None")]
    words = ", ".join([str(first["measure"]), *(["normalised"] if first["normalised"] else []), *told])
    return words + (f" ({first['unit']})" if first["unit"] != "raw" else "")


def ends_of(found: Onset, sends: bool) -> tuple[str, str]:
    """Return sender and receiver of one way."""
    return (found.carrier, found.reference) if sends else (found.reference, found.carrier)


def control_shares(table: pd.DataFrame, found: Onset) -> Iterator[tuple[bool, dict[str, Numbers]]]:
    """Yield for each way (whether the carrier sends) the shares that controls convey at its cuts, by kind."""
    rows = table[(table["score"] == found.trait) & (table["status"] == "ok")]
    means = summary(rows)
    means = means.assign(share=(means["stitched"] - found.levels[1]) / (found.levels[0] - found.levels[1] or np.nan))
    for way in (found.sending, found.receiving):
        sender, receiver = ends_of(found, way.sends)
        role, other = ("sender_cut", "receiver_cut") if way.sends else ("receiver_cut", "sender_cut")
        across = means[(means["sender"] == sender) & (means["receiver"] == receiver)]
        seams = across[across["control"] == PLAIN].set_index(role)[other]
        itself = means[(means["sender"] == found.reference) & (means["receiver"] == found.reference)]
        held = {
            kind: across[across["control"] == kind].set_index(role)["share"]
            for kind in dict.fromkeys(across["control"])
            if kind
        }
        shares = {kind: line.reindex(list(way.cuts)).to_numpy(float) for kind, line in held.items()}
        own = itself.drop_duplicates("receiver_cut").set_index("receiver_cut")["share"]
        if len(own):
            cuts = [str(seams.get(cut, cut)) for cut in way.cuts]
            shares[f"{found.reference} → {found.reference}"] = own.reindex(cuts).to_numpy(float)
        yield way.sends, shares
