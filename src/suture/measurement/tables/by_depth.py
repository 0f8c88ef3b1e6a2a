"""Matrices by depth, which makes networks with different numbers of cuts comparable.

Networks differ in their number of cuts, so cells are compared by the *depth* of their cuts, index / number of cuts, in
(0, 1]. hernandez2022 (section 1.5) finds triangles: a late sender cut serves an early receiver cut, not the other way
round. So the mean over the cells whose sender cut is at least as deep as the receiver's (*late to early*, the diagonal
included) stands beside the mean over the others (*early to late*), and the cells near the diagonal beside those far
from it.

A cell is the mean over its seeds: stitch seeds of the same networks first, then network seeds. Failed trials are left
out and counted; a cell is empty if all of its trials failed. Scores are in the table's units (fractions, not per cent),
and so are differences. A sender that is not a network (clustered noise) has no depth: it is in the means over all
cells, and in no triangle; nor is a baseline that ends behind all of the receiver's layers, which is not one of its
cuts.

The family of stitches varies from cell to cell if the shapes decide it, and then does not tell matrices apart: it is
``by shape``. If a seam was stitched by several families, each that was used at every seam has a matrix of its own.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.measurement.tables.table import (
    Mask,
    Numbers,
    check_columns,
    ends_at_output,
    main_score,
    not_converged,
    rows_of,
)

BY_SHAPE = "by shape"  #: the stitch of a matrix whose shapes decide the family
POOLED = "all"  #: the sender and the receiver of a row over several pairs of networks
EXACT = 1e-9  #: numbers that differ by less are equal: depths of 1/3 and 2/6

_MATRIX = ["study", "sender", "receiver", "stitch", "fit", "control", "fit_data", "score_data", "score", "unit"]
_PLACE = ["sender_cut", "receiver_cut", "sender_depth", "receiver_depth"]
_MEANS = ["stitched", "sender_score", "receiver_score"]


def cells(table: pd.DataFrame, score: str | None = None, told_apart: Sequence[str] = _MATRIX) -> pd.DataFrame:
    """Average a table over its seeds: a row per matrix, sender cut and receiver cut, in the table's order.

    Columns: what tells matrices apart (with ``stitch``, see above, named among those that ``told_apart`` says), the
    cuts and their depths, ``stitched``, ``sender_score`` and ``receiver_score`` (missing if every trial failed),
    ``trials``, and how many of them ``failed`` or were ``open``, not converged. Raises ``DataError`` if the table lacks
    the score, or mixes stitches so that no matrix can be made of them.
    """
    check_columns(table, ("score", "status", "network_seed", *_PLACE))
    rows = rows_of(table, score or main_score(table)).reset_index(drop=True)
    rows = rows.assign(stitch=_families(rows, told_apart), failures=(rows["status"] == "failed").astype("int64"))
    rows["unfinished"] = not_converged(rows).astype("int64")
    places = [*_MATRIX, *_PLACE]
    rows["cell"] = rows.groupby(places, sort=False, dropna=False).ngroup()
    counts = rows.groupby("cell").agg(
        trials=("failures", "size"),
        failed=("failures", "sum"),
        open=("unfinished", "sum"),
    )
    measured = rows[rows["status"] == "ok"].astype(dict.fromkeys(_MEANS, "float64"))
    of_networks = measured.groupby(["cell", "network_seed"], dropna=False)[_MEANS].mean()
    means = of_networks.groupby(level="cell").mean().reindex(counts.index)
    return rows.drop_duplicates("cell")[places].reset_index(drop=True).join(counts.join(means))


def by_depth(table: pd.DataFrame, score: str | None = None, *, pooled: bool = False) -> pd.DataFrame:
    """Summarise every matrix of a table by the depths of its cuts: a tidy table, one row per matrix.

    Columns, after what tells matrices apart: ``pairs`` of networks; ``mean``, ``std`` (over the cells, all of which are
    there: divided by their number), ``min`` and ``max`` over all ``cells`` with a value; ``late_to_early``, the mean
    where sender depth ≥ receiver depth, ``early_to_late`` elsewhere, and their ``difference``; ``near``, the mean
    within one cut of the diagonal, ``far`` away from it, and their ``near_difference``; the number of cells of each
    (``late_to_early_cells`` …); ``trials``, of which ``failed`` were left out, and ``empty`` cells without a value.

    Within one cut is |sender depth − receiver depth| ≤ the larger of the two networks' steps, the median distance
    between neighbouring measured cuts. ``pooled`` takes the cells of all pairs of networks together, each cell counted
    once. Raises ``DataError`` if ``cells`` does.
    """
    names = [name for name in _MATRIX if not (pooled and name in ("sender", "receiver"))]
    held = cells(table, score, names)
    held.loc[ends_at_output(held), "receiver_depth"] = np.nan
    reach = pd.Series(0.0, index=held.index)
    for _, matrix in held.groupby(_MATRIX, sort=False, dropna=False):
        reach[matrix.index] = max(step_of(matrix["sender_depth"]), step_of(matrix["receiver_depth"]))
    held["near"] = (held["sender_depth"] - held["receiver_depth"]).abs() <= reach + EXACT
    rows: list[dict[str, object]] = [
        dict(zip(names, map(str, key), strict=True)) | _summarise(group)
        for key, group in held.groupby(names, sort=False, dropna=False)
    ]
    summary = pd.DataFrame(rows)
    means = [name for name in summary.columns if name not in _MATRIX]
    return summary.assign(sender=POOLED, receiver=POOLED)[[*_MATRIX, *means]] if pooled else summary


def profiles(table: pd.DataFrame, score: str | None = None) -> pd.DataFrame:
    """Average every matrix of a table along its rows and its columns: a tidy table, one row per matrix, role and cut.

    ``role`` names the network of the cut: the mean of a ``sender``'s cut is over all receiver cuts (a row of the
    matrix), that of a ``receiver``'s over all sender cuts (a column). Columns, after those that tell matrices apart:
    ``role``, ``cut``, ``depth``, ``mean``, ``std``, ``min``, ``max``, ``cells``, ``trials``, ``failed``, ``empty``. A
    sender that is not a network has no row profile. Raises ``DataError`` if ``cells`` does.
    """
    held = cells(table, score)
    rows: list[dict[str, object]] = []
    for key, matrix in held.groupby(_MATRIX, sort=False, dropna=False):
        for role in ("sender", "receiver"):
            cuts = matrix[matrix[f"{role}_depth"].notna()].sort_values(f"{role}_depth", kind="stable")
            for (cut, depth), line in cuts.groupby([f"{role}_cut", f"{role}_depth"], sort=False):
                named = dict(zip(_MATRIX, map(str, key), strict=True))
                rows.append(named | {"role": role, "cut": cut, "depth": depth} | _spread(line))
    return pd.DataFrame(rows)


def at_least_as_deep(sender_depths: Numbers, receiver_depths: Numbers) -> Mask:
    """Return whether the first depth is at least the second, whatever is lost in the last bits."""
    return np.asarray(sender_depths >= receiver_depths - EXACT)


def _families(rows: pd.DataFrame, told_apart: Sequence[str]) -> "pd.Series[str]":
    """Return the name of the stitches of every row's matrix."""
    names = rows["stitch"].copy()
    told = [name for name in told_apart if name != "stitch"]
    for _, group in rows.groupby(told, sort=False, dropna=False):
        if group["stitch"].nunique() == 1:
            continue
        seams = group.groupby(["sender", "receiver", "sender_cut", "receiver_cut"], dropna=False).ngroup()
        joined = seams.groupby(group["stitch"]).nunique()
        everywhere = group["stitch"].isin(joined[joined == seams.nunique()].index)
        for _, seam in group[~everywhere].groupby(seams[~everywhere]):
            if seam["stitch"].nunique() > 1:
                first = seam.iloc[0]
                raise DataError(
                    f"the table has {' and '.join(sorted({*seam['stitch']}))} at {first['sender_cut']} → "
                    f"{first['receiver_cut']}, and neither at every seam; select the rows of one stitch"
                )
        names[group.index[~everywhere]] = BY_SHAPE
    return names


def step_of(depths: "pd.Series[float]") -> float:
    """Return the median distance between neighbouring cuts; 0 if there is only one."""
    between = np.diff(np.unique(depths.dropna().to_numpy(float)))
    return float(np.median(between)) if len(between) else 0.0


def _summarise(held: pd.DataFrame) -> dict[str, object]:
    values = held["stitched"].to_numpy(float)
    placed = held[["sender_depth", "receiver_depth"]].notna().all(axis=1).to_numpy(bool)
    late = at_least_as_deep(held["sender_depth"].to_numpy(float), held["receiver_depth"].to_numpy(float))
    near = held["near"].to_numpy(bool)
    parts = {
        "late_to_early": values[placed & late],
        "early_to_late": values[placed & ~late],
        "near": values[placed & near],
        "far": values[placed & ~near],
    }
    late_mean, early_mean, near_mean, far_mean = map(_mean, parts.values())
    return {
        "pairs": len(held[["sender", "receiver"]].drop_duplicates()),
        **_spread(held),
        "late_to_early": late_mean,
        "early_to_late": early_mean,
        "difference": late_mean - early_mean,
        "near": near_mean,
        "far": far_mean,
        "near_difference": near_mean - far_mean,
        **{f"{name}_cells": int(np.isfinite(part).sum()) for name, part in parts.items()},
    }


def _spread(held: pd.DataFrame) -> dict[str, object]:
    values = held["stitched"].dropna().to_numpy(float)
    there = len(values) > 0
    return {
        "mean": _mean(values),
        "std": float(values.std()) if there else np.nan,
        "min": float(values.min()) if there else np.nan,
        "max": float(values.max()) if there else np.nan,
        "cells": len(values),
        "trials": int(held["trials"].sum()),
        "failed": int(held["failed"].sum()),
        "empty": int(held["stitched"].isna().sum()),
    }


def _mean(values: Numbers) -> float:
    there = values[np.isfinite(values)]
    return float(there.mean()) if len(there) else np.nan
