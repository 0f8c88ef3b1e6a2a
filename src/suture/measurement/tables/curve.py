"""The measurements of one score from one sender to one receiver, seam by seam, with their controls.

``arrange_curve`` reads a table as one curve along the receiver's cuts, for figures and screens; ``arrange_pairs`` reads
any table of measurements as one ``Curve`` for each pair of networks, of which a matrix has a place for each seam.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.measurement.scores.outcomes import compare, unpack
from suture.measurement.tables.table import (
    OVER_SAMPLES,
    Mask,
    Numbers,
    check_columns,
    check_single,
    ends_at_output,
    main_score,
    not_converged,
    rows_of,
    summary,
)

PLAIN = ""  #: the control of the trial itself
NOISE = "clustered noise"
NO_SENDER = ("itself", NOISE)  #: controls in which the receiver, or no network, is in the sender's place
_OF_SENDER = ("linear probe",)  #: baselines that depend on the sender's cut alone
_SEAM = ["sender_cut", "receiver_cut"]
_FITTED = ("fit", "stitch", "fit_data", "score_data")  #: by what a control may differ from a pair beside it


@dataclass(frozen=True, eq=False)
class Estimates:
    """Values with 95 % intervals; nan if there are none."""

    value: Numbers
    low: Numbers
    high: Numbers

    @classmethod
    def of(cls, rows: pd.DataFrame, column: str, scale: float = 1.0) -> "Estimates":
        """Return a column and its bounds, times ``scale``, which may be negative."""
        value, low, high = (rows[f"{column}{end}"].to_numpy(float) * scale for end in ("", "_low", "_high"))
        return cls(value, low, high) if scale > 0 else cls(value, high, low)

    @classmethod
    def join(cls, parts: "Sequence[Estimates]") -> "Estimates":
        """Return several, one after another."""
        return cls(*(np.concatenate([getattr(part, end) for part in parts]) for end in ("value", "low", "high")))

    def less(self, other: "Estimates") -> "Estimates":
        """Return the difference, with the interval that the two intervals give if they are independent (MOVER)."""
        value = self.value - other.value
        down = np.hypot(self.value - self.low, other.high - other.value)
        up = np.hypot(self.high - self.value, other.value - other.low)
        return Estimates(value, value - down, value + up)

    def moved(self, by: Numbers) -> "Estimates":
        """Return the values and their intervals moved by so much."""
        return Estimates(self.value + by, self.low + by, self.high + by)


@dataclass(frozen=True, eq=False)
class Curve:
    """The measurements of one score from one sender to one receiver: a mean over seeds for each seam."""

    sender: str
    receiver: str
    score: str
    unit: str
    seams: tuple[tuple[str, str], ...]  #: sender cut and receiver cut, from input to output
    lines: dict[str, pd.DataFrame]  #: by control, the plain one first: a row per seam; missing if nothing was measured
    failed: frozenset[tuple[str, str]]  #: (control, cut) where a trial failed; where a seed did not, there is a value
    table: pd.DataFrame  #: that it was arranged from

    def __str__(self) -> str:
        return f"{self.sender} → {self.receiver}"

    @property
    def cuts(self) -> tuple[str, ...]:
        """The receiver's cuts."""
        return tuple(end for _, end in self.seams)

    @property
    def labels(self) -> tuple[str, ...]:
        """The seams in words: the receiver's cut, or ``sender cut → receiver cut`` if the two differ."""
        return tuple(end if start in (end, "") else f"{start} → {end}" for start, end in self.seams)

    @property
    def one(self) -> str:
        """The word for one of its places."""
        return "cut" if all(start == end for start, end in self.seams) else "seam"

    @property
    def many(self) -> str:
        """The word for several of its places."""
        return f"{self.one}s"

    @property
    def percent(self) -> bool:
        """Whether the score is a fraction, to be shown in per cent, and its penalty in percentage points."""
        return self.unit == "fraction"

    @property
    def penalty_unit(self) -> str:
        """The unit of the penalty: pp, nats, …; empty if there is none."""
        return "pp" if self.percent else self.unit.replace("raw", "")

    @cached_property
    def rises(self) -> bool:
        """Whether more of the score is better."""
        return more_is_better(pd.concat(list(self.lines.values())), self.percent)

    @property
    def _scale(self) -> float:
        """The factor that gives a score the penalty's unit, with more being better."""
        return (100.0 if self.percent else 1.0) * (1 if self.rises else -1)

    @property
    def controls(self) -> tuple[str, ...]:
        """The controls that were tried."""
        return tuple(kind for kind in self.lines if kind != PLAIN)

    @property
    def plain(self) -> pd.DataFrame:
        """A row per seam of the trials themselves; all missing if there are none."""
        return self.line(PLAIN)

    def line(self, control: str) -> pd.DataFrame:
        """Return the rows of a control, those of noise whatever its scale; all missing if it was not tried."""
        tried = [kind for kind in self.lines if kind == control or (control == NOISE and kind.startswith(NOISE))]
        return self.lines[min(tried)] if tried else next(iter(self.lines.values())).iloc[:0].reindex(list(self.cuts))

    def scores(self, control: str = PLAIN) -> Estimates:
        """Return the stitched network's scores, in the unit of the penalty, and such that more is better."""
        return Estimates.of(self.line(control), "stitched", self._scale)

    def penalties(self, control: str = PLAIN) -> Estimates:
        """Return the penalties."""
        return Estimates.of(self.line(control), "penalty")

    def is_open(self, control: str = PLAIN) -> Mask:
        """Return where the fit reports that it had not converged; elsewhere the value is an answer."""
        return not_converged(self.line(control)).to_numpy(bool)

    def is_sure(self, control: str = PLAIN) -> Mask:
        """Return where the fit reports that it had converged."""
        return self.line(control)["converged"].fillna(False).to_numpy(bool)

    def guessing(self, chance: float | None) -> Numbers:
        """Return the score of guessing at every seam, as ``scores`` counts it; nan where it is not known.

        ``chance`` is in the score's unit, and takes the place of the table's.
        """
        rows = self.plain
        known = rows["chance"].to_numpy(float) if chance is None else np.full(len(rows), chance)
        return known * self._scale

    def is_doubtful(self) -> Mask:
        """Return where networks are not to be trusted, by the trial itself or by the receiver stitched to itself."""
        own, itself = (self.line(kind)["warning"].fillna("").to_numpy(str) != "" for kind in (PLAIN, "itself"))
        return np.asarray(own | itself)

    def ahead_of(self, control: str) -> Estimates:
        """Return by how much the stitched network beats a control, in the unit of the penalty.

        The intervals are paired over samples wherever the outcomes of both are known.
        """
        if control in self._ahead:
            return self._ahead[control]
        apart = self.scores().less(self.scores(control))
        value, low, high = apart.value.copy(), apart.low.copy(), apart.high.copy()
        held = [self.line(kind)["outcomes"].fillna("") for kind in (PLAIN, control)]
        for i, texts in enumerate(zip(*held, strict=True)):
            one, other = (unpack(text) if text else None for text in texts)
            if one is not None and other is not None and one.describes(self.score) and (found := compare(one, other)):
                value[i], *ends = (self._scale * number for number in found)
                low[i], high[i] = sorted(ends)
        self._ahead[control] = Estimates(value, low, high)
        return self._ahead[control]

    @cached_property
    def _ahead(self) -> dict[str, Estimates]:
        """The differences to controls that were asked for, since outcomes take long to unpack and compare."""
        return {}

    def parent(self, role: str) -> float:
        """Return the score of the ``sender`` or the ``receiver`` on its own; nan if it has none."""
        return float(self.plain[f"{role}_score"].astype(float).mean())

    @property
    def intervals(self) -> str:
        """The units of the 95 % intervals, in words: ``597 test samples``, ``3 stitch seeds``."""
        rows = pd.concat(list(self.lines.values())).dropna(subset=["interval", "stitched_low"])
        records: list[dict[Hashable, Any]] = rows.to_dict("records")
        return " or ".join(dict.fromkeys(over_words(row["interval"], row["n"], row["seeds"]) for row in records))

    def at(self, seams: Sequence[tuple[str, str]]) -> "Curve":
        """Return the curve at some of its seams, in this order."""
        places = [self.seams.index(seam) for seam in seams]
        return replace(self, seams=tuple(seams), lines={kind: line.iloc[places] for kind, line in self.lines.items()})


def more_is_better(rows: pd.DataFrame, percent: bool) -> bool:
    """Return whether more of a score is better, as its penalties say, of which positive ones are worse.

    If no network differs from its receiver, it is for a fraction (``percent``), and is not for a loss.
    """
    numbers = rows[["penalty", "receiver_score", "stitched"]].astype("float64")
    behind = float((numbers["penalty"] * (numbers["receiver_score"] - numbers["stitched"])).sum())
    return behind > 0 or (behind == 0 and percent)


def without_sender(rows: pd.DataFrame) -> "pd.Series[bool]":
    """Return which rows are of a control that depends on the receiver's cut alone."""
    return rows["control"].isin(NO_SENDER) | (rows["sender"] == "")


def over_words(interval: str, n: int, seeds: int) -> str:
    """Return the units of an interval in words: ``10,000 test samples``, ``3 network seeds``."""
    over = interval.removeprefix("t over ")
    counted = over.replace(OVER_SAMPLES, f"{n:,} {OVER_SAMPLES}")
    return counted if over == OVER_SAMPLES else f"{seeds} {counted}"


# --- one curve --------------------------------------------------------------------------------------------------------


def arrange_curve(table: pd.DataFrame, score: str | None = None) -> Curve:
    """Arrange a table along the cuts of its receiver; a baseline without one lies if the trial itself does.

    Raises ``DataError`` if the table lacks the score, or holds more than one sender, receiver or setting.
    """
    score = score or main_score(table)
    rows = _beside(rows_of(table, score)).sort_values("receiver_depth", kind="stable")
    across = rows[~without_sender(rows)]
    pair = rows if across.empty else across
    for role in ("sender", "receiver"):
        names = dict.fromkeys(pair[role])
        if len(names) > 1:
            raise DataError(f"a curve has one {role}, and the table has {', '.join(names)}; select the rows of one")
    first = pair.sort_values("control", kind="stable").iloc[0]  # a plain one, if there are any
    cuts = list(dict.fromkeys(map(str, rows["receiver_cut"])))
    starts = across[across["sender_cut"] != across["receiver_cut"]].drop_duplicates("receiver_cut")
    start_of = dict(zip(starts["receiver_cut"], starts["sender_cut"], strict=True))
    measured = summary(rows[rows["status"] == "ok"])
    check_single(measured, ["control", "receiver_cut"])
    by_cut = measured.set_index("receiver_cut")
    failed = rows[rows["status"] == "failed"]
    return Curve(
        sender=first["sender"],
        receiver=first["receiver"],
        score=score,
        unit=first["unit"],
        seams=tuple((str(start_of.get(cut, cut)), cut) for cut in cuts),
        lines={
            kind: by_cut[by_cut["control"] == kind].reindex(cuts)
            for kind in sorted(dict.fromkeys(rows["control"]), key=bool)
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


# --- every pair of networks -------------------------------------------------------------------------------------------


def arrange_pairs(table: pd.DataFrame, score: str) -> tuple[Curve, ...]:
    """Arrange a table by sender and receiver, in its order, seams from input to output.

    A seam whose trial failed has its place, and no value. Raises ``DataError`` if it is not a table of measurements, if
    it lacks the score or a trial of it that did not fail, if the score is neither good nor bad, and if there are
    several measurements of one seam.
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
    planned = scored[scored["control"] == PLAIN].sort_values(["receiver_depth", "sender_depth"], kind="stable")
    broken = scored[scored["status"] == "failed"]
    found = []
    for sender, receiver in names.itertuples(index=False):
        mine = means[means["receiver"] == receiver]
        own = mine[(mine["control"] == PLAIN) & (mine["sender"] == sender)]
        check_single(own, _SEAM)
        here = planned[(planned["sender"] == sender) & (planned["receiver"] == receiver)]
        lost = broken[(broken["receiver"] == receiver) & (without_sender(broken) | (broken["sender"] == sender))]
        lost = _beside(pd.concat([here, lost[lost["control"] != PLAIN]]))
        lost = lost[lost["status"] == "failed"]
        seams = tuple(here[_SEAM].drop_duplicates().itertuples(index=False, name=None))
        # A table may hold the same control by another fit or on other data: what was fitted as the pair comes first.
        unlike = pd.concat([~mine[name].isin(own[name].unique()) for name in _FITTED], axis=1).sum(axis=1)
        beside = mine[mine["control"] != PLAIN].assign(unlike=unlike).sort_values("unlike", kind="stable")
        lines = {str(kind): _line(held, sender, seams) for kind, held in beside.groupby("control", sort=False)}
        unit = str(own["unit"].iloc[0])
        plain = own.set_index(_SEAM, drop=False).reindex(pd.MultiIndex.from_tuples(seams)).reset_index(drop=True)
        failed = frozenset(zip(lost["control"], lost["receiver_cut"], strict=True))
        found.append(Curve(sender, receiver, score, unit, seams, {PLAIN: plain} | lines, failed, table))
    return tuple(found)


def _line(rows: pd.DataFrame, sender: str, seams: tuple[tuple[str, str], ...]) -> pd.DataFrame:
    """Return the rows of a control, the first for each seam; missing if it was not tried."""
    kind = str(rows["control"].iloc[0])
    if kind == "itself" or kind.startswith(NOISE):
        return rows.drop_duplicates("receiver_cut").set_index("receiver_cut").reindex([end for _, end in seams])
    rows = rows[rows["sender"] == sender]
    if kind in _OF_SENDER:
        return rows.drop_duplicates("sender_cut").set_index("sender_cut").reindex([start for start, _ in seams])
    return rows.drop_duplicates(_SEAM).set_index(_SEAM).reindex(pd.MultiIndex.from_tuples(seams))
