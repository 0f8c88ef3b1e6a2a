"""A table of one sender, one receiver and one score, arranged along the cuts, for figures and screens."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from suture.common.errors import DataError
from suture.measurement.tables.by_depth import ends_at_output
from suture.measurement.tables.table import OVER_SAMPLES, check_single, rows_of, summary

PLAIN = ""  #: the control of the trial itself
NO_SENDER = ("itself", "clustered noise")  #: controls in which the receiver, or no network, is in the sender's place


@dataclass(frozen=True, eq=False)
class Curve:
    """What was measured of one score along the cuts, aggregated over seeds."""

    sender: str
    receiver: str
    score: str
    unit: str
    cuts: tuple[str, ...]  #: of the receiver, from input to output
    labels: tuple[str, ...]  #: of the cuts: ``sender cut → receiver cut`` if the two differ
    lines: dict[str, pd.DataFrame]  #: by control, the plain one first: a row per cut; missing if nothing was measured
    failed: frozenset[tuple[str, str]]  #: (control, cut) where a trial failed; where a seed did not, there is a value
    table: pd.DataFrame  #: that it was arranged from

    @property
    def percent(self) -> bool:
        """Whether the score is a fraction, to be shown in per cent, and its penalty in percentage points."""
        return self.unit == "fraction"

    @property
    def rises(self) -> bool:
        """Whether more of the score is better."""
        return more_is_better(pd.concat(list(self.lines.values())), self.percent)

    @property
    def controls(self) -> tuple[str, ...]:
        """The controls that were tried."""
        return tuple(kind for kind in self.lines if kind != PLAIN)

    @property
    def plain(self) -> pd.DataFrame:
        """A row per cut of the trials themselves; all missing if there are none."""
        return self.lines.get(PLAIN, pd.DataFrame(index=list(self.cuts), columns=_VALUES, dtype=float))

    def parent(self, role: str) -> float:
        """Return the score of the ``sender`` or the ``receiver`` on its own; nan if it has none."""
        return float(self.plain[f"{role}_score"].astype(float).mean())

    @property
    def intervals(self) -> str:
        """What the 95 % intervals are over, in words: ``597 test samples``, ``3 stitch seeds``."""
        rows = pd.concat(list(self.lines.values())).dropna(subset=["interval", "stitched_low"])
        records: list[dict[Hashable, Any]] = rows.to_dict("records")
        return " or ".join(dict.fromkeys(over_words(row["interval"], row["n"], row["seeds"]) for row in records))


_VALUES = [
    *("stitched", "stitched_low", "stitched_high", "sender_score", "receiver_score"),
    *("penalty", "penalty_low", "penalty_high", "n", "seeds", "interval"),
]


def more_is_better(rows: pd.DataFrame, percent: bool) -> bool:
    """Return whether more of a score is better, as its penalties say, of which positive ones are worse.

    If no network differs from its receiver, it is for a fraction (``percent``), and is not for a loss.
    """
    numbers = rows[["penalty", "receiver_score", "stitched"]].astype("float64")
    behind = float((numbers["penalty"] * (numbers["receiver_score"] - numbers["stitched"])).sum())
    return behind > 0 or (behind == 0 and percent)


def arrange_curve(table: pd.DataFrame, score: str = "accuracy") -> Curve:
    """Arrange a table along the cuts of its receiver; a baseline without one lies if the trial itself does.

    Raises ``DataError`` if the table lacks the score, or holds more than one sender, receiver or setting.
    """
    rows = _beside(rows_of(table, score)).sort_values("receiver_depth", kind="stable")
    first = _one_pair(rows)
    cuts = tuple(dict.fromkeys(rows["receiver_cut"]))
    measured = summary(rows[rows["status"] == "ok"])
    check_single(measured, ["control", "receiver_cut"])
    kinds = sorted(dict.fromkeys(rows["control"]), key=bool)
    failed = rows[rows["status"] == "failed"]
    return Curve(
        sender=first["sender"],
        receiver=first["receiver"],
        score=score,
        unit=first["unit"],
        cuts=cuts,
        labels=tuple(_label(rows, cut) for cut in cuts),
        lines={
            kind: measured[measured["control"] == kind].set_index("receiver_cut").reindex(list(cuts)) for kind in kinds
        },
        failed=frozenset(zip(failed["control"], failed["receiver_cut"], strict=True)),
        table=table,
    )


def _beside(rows: pd.DataFrame) -> pd.DataFrame:
    """Move baselines that end at the output to the receiver's cut that the trial itself joins to their sender's."""
    plain = rows[rows["control"] == PLAIN].drop_duplicates("sender_cut").set_index("sender_cut")
    ended = ends_at_output(rows) & rows["sender_cut"].isin(plain.index)
    if not ended.any():
        return rows
    placed = rows.copy()
    for column in ("receiver_cut", "receiver_depth"):
        placed.loc[ended, column] = rows.loc[ended, "sender_cut"].map(plain[column])
    return placed


def _one_pair(rows: pd.DataFrame) -> "pd.Series[str]":
    """Return a row of the only sender and receiver: a plain one, if there are any."""
    across = rows[~without_sender(rows)]
    across = rows if across.empty else across
    for role in ("sender", "receiver"):
        names = dict.fromkeys(across[role])
        if len(names) > 1:
            raise DataError(f"a curve has one {role}, and the table has {', '.join(names)}; select the rows of one")
    return across.sort_values("control", kind="stable").iloc[0]


def without_sender(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return which rows are of a control that depends on the receiver's cut alone."""
    return rows["control"].isin(NO_SENDER) | (rows["sender"] == "")


def _label(rows: pd.DataFrame, cut: str) -> str:
    here = rows[(rows["receiver_cut"] == cut) & ~without_sender(rows)]
    senders = [name for name in dict.fromkeys(here["sender_cut"]) if name != cut]
    return f"{senders[0]} → {cut}" if senders else cut


def over_words(interval: str, n: int, seeds: int) -> str:
    """Return what an interval is over: ``10,000 test samples``, ``3 network seeds``."""
    over = interval.removeprefix("t over ")
    counted = over.replace(OVER_SAMPLES, f"{n:,} {OVER_SAMPLES}")
    return counted if over == OVER_SAMPLES else f"{seeds} {counted}"
