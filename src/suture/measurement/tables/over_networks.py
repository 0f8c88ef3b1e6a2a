"""A table averaged over pairs of networks."""

import math

import pandas as pd

from suture.common.errors import DataError
from suture.measurement.tables.averages import average_over_networks
from suture.measurement.tables.table import check_columns, main_score, not_converged, rows_of

_PLACE = ["control", "sender_cut", "receiver_cut"]
_ALIKE = ["stitch", "fit", "fit_data", "score_data"]


def over_networks(table: pd.DataFrame, column: str = "penalty", score: str | None = None) -> pd.DataFrame:
    """Average a table over pairs of networks: a row for each control and pair of cuts.

    A network goes by its name, so a table of ``matrix([a, b, c, d, e], data=…)`` has all ordered pairs of five.
    Columns: ``control``, ``sender_cut``, ``receiver_cut``, the mean ``column``, ``low`` and ``high`` (its 95 %
    interval, nan for fewer than three networks), ``pairs`` and ``networks``, and of these pairs how many were ``open``
    (a fit that can say so had not converged) and how many more ``failed``. Stitch seeds are averaged first; networks
    stitched to themselves are left out. Raises ``DataError`` if a pair's rows at one seam differ in stitch, fit or
    data, and if there is no pair.
    """
    check_columns(table, ("status", "sender", "receiver", column, *_PLACE, *_ALIKE))
    rows = rows_of(table, score or main_score(table))
    rows = rows[rows["sender"] != rows["receiver"]].reset_index(drop=True)
    pairs = [*_PLACE, "sender", "receiver"]
    ok = rows["status"] == "ok"
    counts = rows.assign(ok=ok, open=not_converged(rows)).groupby(pairs, sort=False)[["ok", "open"]].any().reset_index()
    rows = rows[ok]
    several = [name for name in _ALIKE if (rows.groupby(pairs)[name].nunique() > 1).any()]
    if several:
        raise DataError(f"pairs of networks have rows of more than one {several[0]} at one seam; keep one of them")
    if rows.empty:
        raise DataError("the table has no pair of two networks; give one of matrix or curve, of several networks")
    values = rows.groupby(pairs, sort=False)[column].mean().astype("float64").dropna().reset_index()
    made, there = [], dict(iter(values.groupby(_PLACE, sort=False)))
    for place, planned in counts.groupby(_PLACE, sort=False):
        counted = {"open": int((planned["ok"] & planned["open"]).sum()), "failed": int((~planned["ok"]).sum())}
        begun = dict(zip(_PLACE, place, strict=True))
        own = there.get(place)
        if own is None:
            nothing = dict.fromkeys((column, "low", "high"), math.nan)
            made.append(begun | nothing | {"pairs": 0, "networks": 0} | counted)
            continue
        found = average_over_networks(own[column], list(own["sender"]), list(own["receiver"]))
        ends = {"low": found.value - found.reach(0.95), "high": found.value + found.reach(0.95)}
        made.append(begun | {column: found.value, **ends, "pairs": found.pairs, "networks": found.networks} | counted)
    return pd.DataFrame(made)
