"""The seams of a table, arranged by pairs of networks, with controls, indices and ranks beside them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.measurement.compare import check_similarities
from suture.measurement.indices import INDICES
from suture.measurement.tables.by_depth import Numbers
from suture.measurement.tables.curve import PLAIN, more_is_better
from suture.measurement.tables.table import check_columns, check_single, rows_of, summary

ALIKE = 0.5  #: of the range of an index, from which on it calls two layers alike
APART = 0.1  #: of a receiver's own numerical rank, by which another must differ
RANK = "numerical rank"  #: the measure
_NOISE = "clustered noise"
_OF_RECEIVER = ("itself", _NOISE)  #: controls that depend on the receiver's cut alone
_OF_SENDER = ("linear probe",)  #: baselines that depend on the sender's cut alone
_SEAM = ["sender_cut", "receiver_cut"]
_FITTED = ("fit", "stitch", "fit_data", "score_data")  #: by what a control may differ from a pair beside it

Mask = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


@dataclass(frozen=True, eq=False)
class Estimates:
    """Values with 95 % intervals; nan if there are none."""

    value: Numbers
    low: Numbers
    high: Numbers

    @classmethod
    def none(cls, count: int) -> "Estimates":
        """Return ``count`` empty places."""
        return cls(*(np.full(count, np.nan) for _ in range(3)))

    @classmethod
    def of(cls, rows: pd.DataFrame, column: str, scale: float = 1.0) -> "Estimates":
        """Return a column and its bounds, times ``scale``, which may be negative."""
        value, low, high = (rows[f"{column}{end}"].to_numpy(float) * scale for end in ("", "_low", "_high"))
        return cls(value, low, high) if scale > 0 else cls(value, high, low)

    def less(self, other: "Estimates") -> "Estimates":
        """Return the difference, with the interval that the two intervals give if they are independent (MOVER)."""
        value = self.value - other.value
        down = np.hypot(self.value - self.low, other.high - other.value)
        up = np.hypot(self.high - self.value, other.value - other.low)
        return Estimates(value, value - down, value + up)

    def at(self, places: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> "Estimates":
        """Return those at some places."""
        return Estimates(self.value[places], self.low[places], self.high[places])

    def within(self, margin: float) -> Mask:
        """Return which intervals lie at or below the margin."""
        return np.asarray(self.high <= margin)

    def beyond(self, margin: float) -> Mask:
        """Return which intervals lie above the margin."""
        return np.asarray(self.low > margin)

    def across(self, margin: float) -> Mask:
        """Return which values are neither certainly within the margin nor beyond it."""
        return np.asarray(np.isfinite(self.value) & ~self.within(margin) & ~self.beyond(margin))


@dataclass(frozen=True, eq=False)
class Pair:
    """What was measured from one sender to one receiver, over seeds, a place for each seam.

    ``unit`` is that of penalties (pp, nats, …), and all numbers are in it; scores are such that more is better, by
    ``scale``, which is negative for a loss. ``scores`` and ``penalties`` are by control.
    """

    sender: str
    receiver: str
    unit: str
    scale: float
    cuts: tuple[tuple[str, str], ...]
    labels: tuple[str, ...]
    score: Estimates
    penalty: Estimates
    scores: Mapping[str, Estimates]
    penalties: Mapping[str, Estimates]

    def __str__(self) -> str:
        return f"{self.sender} → {self.receiver}"

    def at(self, seams: Sequence[tuple[str, str]]) -> "Pair":
        """Return the pair at some of its seams, in this order."""
        places = np.array([self.cuts.index(seam) for seam in seams])
        return replace(
            self,
            cuts=tuple(seams),
            labels=tuple(self.labels[i] for i in places),
            score=self.score.at(places),
            penalty=self.penalty.at(places),
            scores={kind: held.at(places) for kind, held in self.scores.items()},
            penalties={kind: held.at(places) for kind, held in self.penalties.items()},
        )

    @property
    def many(self) -> str:
        """What its places are called."""
        return "cuts" if all(start == end for start, end in self.cuts) else "seams"

    def of(self, control: str) -> Estimates:
        """Return the scores of a control; nan if it was not tried."""
        return self.scores.get(control, Estimates.none(len(self.labels)))

    def ahead_of(self, control: str) -> Estimates:
        """Return by how much the stitched network beats a control, in the unit of the penalty."""
        return self.score.less(self.of(control))


def pairs(table: pd.DataFrame, score: str) -> tuple[Pair, ...]:
    """Arrange a table by sender and receiver, in its order, seams from input to output.

    Raises ``DataError`` if it is no table of measurements, if it lacks the score or a trial of it that did not fail, if
    the score is neither good nor bad, and if there are several measurements of one seam.
    """
    check_columns(table)
    scored = rows_of(table, score)
    rows = scored[scored["status"] == "ok"]
    plain = rows[rows["control"] == PLAIN]
    if plain.empty:
        if (scored["control"] == PLAIN).any():
            raise DataError(f"every trial of '{score}' failed but controls; the column error says why")
        raise DataError(f"of '{score}' the table has controls alone; they are explained beside a trial of the pair")
    if plain["penalty"].isna().all():
        raise DataError(f"'{score}' is neither good nor bad, so it has no penalty to explain; name another score")
    means = summary(rows)
    names = means.loc[means["control"] == PLAIN, ["sender", "receiver"]].drop_duplicates()
    return tuple(_pair(means, *map(str, pair)) for pair in names.itertuples(index=False))


def ranks_apart(pair: Pair, ranks: pd.DataFrame) -> tuple[Numbers, Numbers]:
    """Return the numerical ranks of the receiver stitched to itself and of the stitched networks, where they differ.

    Means over seeds; they differ if they are ``APART`` of the receiver's from each other, and no seed of the one is
    among those of the other. nan elsewhere. Raises ``DataError`` if it is no table of complexity.
    """
    check_columns(ranks, ("sender", "receiver", *_SEAM, "measure", "value", "normalised"), "complexity of seams")
    rows = ranks[(ranks["measure"] == RANK) & ~ranks["normalised"].astype(bool)]
    if "control" in rows:
        rows = rows[rows["control"].isin(["", "itself"])]
    rows = rows[rows["receiver"] == pair.receiver]
    itself = rows[(rows["sender"] == pair.receiver) & (rows["sender_cut"] == rows["receiver_cut"])]
    across = rows[rows["sender"] == pair.sender]
    own, sent = np.full(len(pair.cuts), np.nan), np.full(len(pair.cuts), np.nan)
    for i, (start, end) in enumerate(pair.cuts):
        mine = itself.loc[itself["receiver_cut"] == end, "value"]
        theirs = across.loc[(across["sender_cut"] == start) & (across["receiver_cut"] == end), "value"]
        if len(mine) and len(theirs) and _differ(mine, theirs):
            own[i], sent[i] = mine.mean(), theirs.mean()
    return own, sent


def _differ(mine: "pd.Series[float]", theirs: "pd.Series[float]") -> bool:
    far = abs(theirs.mean() - mine.mean()) > APART * abs(mine.mean())
    return bool(far and (theirs.min() > mine.max() or theirs.max() < mine.min()))


def disagreements(pair: Pair, similarities: pd.DataFrame) -> Iterator[tuple[str, Numbers, Mask]]:
    """Yield each index with its values at the seams, and where it calls the two layers alike.

    Alike is ``ALIKE`` of the range or more, from 0 (like nothing) to the bound that the same layers have. Indices that
    are not in the registry count as similarities in [0, 1]. Raises ``DataError`` if it is no table of similarities, or
    holds several values of one seam.
    """
    check_similarities(similarities)
    rows = similarities[(similarities["sender"] == pair.sender) & (similarities["receiver"] == pair.receiver)]
    for name, held in rows.groupby("index", sort=False):
        at = held.set_index(_SEAM)["value"].reindex(pd.MultiIndex.from_tuples(pair.cuts))
        values = at.to_numpy(float)
        index = INDICES.get(str(name).partition("(")[0])
        high = index.bounds[1] if index is not None else 1.0
        share = 1 - values / high if index is not None and index.distance else values / high
        yield str(name), values, np.asarray(share >= ALIKE)


def _pair(means: pd.DataFrame, sender: str, receiver: str) -> Pair:
    mine = means[means["receiver"] == receiver]
    plain = mine[(mine["control"] == PLAIN) & (mine["sender"] == sender)]
    plain = plain.sort_values(["receiver_depth", "sender_depth"], kind="stable")
    check_single(plain, _SEAM)
    cuts = tuple((str(start), str(end)) for start, end in zip(plain["sender_cut"], plain["receiver_cut"], strict=True))
    fraction = bool(plain["unit"].iloc[0] == "fraction")
    scale = (100.0 if fraction else 1.0) * (1 if more_is_better(mine, fraction) else -1)
    beside = mine[mine["control"] != PLAIN]
    kinds = beside["control"].where(~beside["control"].str.startswith(_NOISE), _NOISE)
    ordered = _like_first(beside.assign(kind=kinds), plain)
    lines = {str(kind): _line(ordered[ordered["kind"] == kind], sender, str(kind), cuts) for kind in kinds.unique()}
    return Pair(
        sender=sender,
        receiver=receiver,
        unit="pp" if plain["unit"].iloc[0] == "fraction" else str(plain["unit"].iloc[0]).replace("raw", ""),
        scale=scale,
        cuts=cuts,
        labels=tuple(end if start == end else f"{start} → {end}" for start, end in cuts),
        score=Estimates.of(plain, "stitched", scale),
        penalty=Estimates.of(plain, "penalty"),
        scores={kind: Estimates.of(line, "stitched", scale) for kind, line in lines.items()},
        penalties={kind: Estimates.of(line, "penalty") for kind, line in lines.items()},
    )


def _like_first(beside: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """Sort the rows of controls: those fitted and scored as the pair was first, then noise of the usual scale.

    A table may hold the same control by another fit, on other data, or with noise of several scales.
    """
    unlike = pd.concat([~beside[name].isin(plain[name].unique()) for name in _FITTED], axis=1).sum(axis=1)
    return beside.assign(unlike=unlike).sort_values(["unlike", "control"], kind="stable")


def _line(rows: pd.DataFrame, sender: str, kind: str, cuts: tuple[tuple[str, str], ...]) -> pd.DataFrame:
    """Return the rows of a control, the first for each seam; missing if it was not tried."""
    if kind in _OF_RECEIVER:
        return rows.drop_duplicates("receiver_cut").set_index("receiver_cut").reindex([end for _, end in cuts])
    rows = rows[rows["sender"] == sender]
    if kind in _OF_SENDER:
        return rows.drop_duplicates("sender_cut").set_index("sender_cut").reindex([start for start, _ in cuts])
    return rows.drop_duplicates(_SEAM).set_index(_SEAM).reindex(pd.MultiIndex.from_tuples(cuts))
