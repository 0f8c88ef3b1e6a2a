"""The onset of a trait: the layers between which it lies, read from the table of a plan by ``localise``.

Everything is in units of the difference between the two networks: a stitched network conveys the share

    (stitched − reference) / (carrier − reference)

of the trait, so the trait may be high or low in the carrier. The carrier's part grows over the cuts from nothing (the
reference network itself, share 0) to everything (the carrier itself, share 1): from its first layers on if it sends,
from its last layers back if it receives. The *onset* is the first cut, as this part grows, that conveys ``CONVEYED`` of
the trait. This direction places the trait between that cut and the one before. If no cut conveys it, only the whole
carrier does, and this direction places the trait beyond its last cut.

===================== ===============================================================================================
one direction finds   when
===================== ===============================================================================================
in one step           the step from the cut before to the onset makes ``STEP`` of all that is conveyed, and no larger
                      part of the carrier certainly fails to convey it
distributed           it is conveyed, but not by one such step
carried by the stitch a control without the carrier conveys it too, at the onset
undecided             a trial failed that decides: at a cut between the two, at any if none conveys it, or of a control
                      without the carrier at the onset; or reference → reference was not measured there
not found             no cut conveys it, or the two networks differ by less than the median width of the intervals
===================== ===============================================================================================

One direction does not say where a trait lies. A network may recognise a trigger in its first layers, in features that
the reference network ignores, and turn it into a class in its last. If it sends, the trait appears with the latter; if
it receives, the trait is gone without the former.

======================= =============================================================================================
both directions         when
======================= =============================================================================================
localised               both place it between the same two cuts, in one step or, if one does not find it, beyond its
                        last cut
distributed             both find it distributed, or one of them does and their places may be the same
the directions disagree by their intervals, the two places have no layer in common
carried by the stitch   either direction finds it so
undecided               a direction is undecided or was not measured, or the places differ, and the intervals leave
                        open whether they are one
not found               neither direction finds it
======================= =============================================================================================

Places are compared on the cuts that both directions have: one that lacks a cut cannot tell the layers on its two sides
apart, so the place that both support is between the nearest cuts that they share.

Controls without the carrier are reference → reference, an untrained network in the carrier's place, and both untrained.
The first decides whether the stitch has taught the trait, so nothing is concluded without it. In the others (clustered
noise, shuffled pairs, carrier → carrier) the carrier is there, or the class itself is sent. A control counts if it
conveys ``CONVEYED`` in the mean over its seeds, and certainly some. An untrained network that calls every image by one
name shows a confusion, or accuracy on a class, by chance: measure with three seeds, because each brings untrained
networks of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, final

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.common.formatting import say_count
from suture.measurement.tables.table import check_columns, check_single, not_converged, rows_of, summary, write_score

if TYPE_CHECKING:
    from suture.core.network.network import Network
    from suture.measurement.scores.traits import Trait

CONVEYED = 0.5  #: the share of the parents' difference from which on a trait counts as conveyed
STEP = 0.8  #: the share of all that is conveyed which one step must make
INPUT, OUTPUT = "the input", "the output"  #: where the first layers begin and the last end

Finding = Literal["in one step", "distributed", "carried by the stitch", "undecided", "not found"]  #: of one direction
Verdict = Literal[
    "localised", "distributed", "the directions disagree", "carried by the stitch", "undecided", "not found"
]  #: of both
Place = tuple[str, str]  #: the cuts, or the input or output, between which a trait lies


@final
@dataclass(frozen=True)
class Way:
    """The result of stitching in one direction: the carrier ``sends`` its first layers, or receives with its last.

    ``cuts`` are the carrier's, from input to output, none if the direction was not measured; ``shares`` the share of
    the difference between the two networks that each conveys, with its 95 % interval from ``low`` to ``high``.
    ``onset`` is the first cut, as the carrier's part grows, that conveys the trait, if any does. This direction places
    the trait ``between`` that cut and the one before (from input to output), beyond the last cut if there is no onset,
    and, by the intervals, certainly ``within`` the wider pair; both are ``None`` if the networks are not told apart.
    ``step`` is the share of all that is conveyed which the step to the onset makes; ``controls`` are those without the
    carrier that convey the trait there too, and ``control_shares`` the share that every control conveys at the cuts
    (nan where it was not tried). ``failed`` are the cuts and controls whose trials failed, ``unmeasured`` the control
    that is not in the table, so that it is undecided; ``open`` counts the cuts whose fit had not converged.
    """

    sends: bool
    cuts: tuple[str, ...]
    shares: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    verdict: Finding
    onset: str | None = None
    between: Place | None = None
    within: Place | None = None
    step: float = 0.0
    controls: tuple[str, ...] = ()
    control_shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    open: int = 0

    def __str__(self) -> str:
        why = [f"trials failed ({', '.join(self.failed)})"] if self.failed else []
        why += [f"{', '.join(self.unmeasured)} was not measured there"] if self.unmeasured else []
        since = f", since {' and '.join(why)}" if why else ""
        if self.cuts and np.isnan(self.shares).all():
            return f"the two are not told apart in it: {self.verdict}{since}"
        open_ = f"; {self.open} of {say_count(len(self.cuts), 'cut')} not converged" if self.open else ""
        return f"{self._said}{since}{open_}"

    @property
    def _said(self) -> str:
        if not self.cuts:
            return f"measured at no cut: {self.verdict}"
        if self.onset is None or self.between is None or self.within is None:
            return f"conveyed at no cut, at most {100 * max(self.shares):.0f} % of it: {self.verdict}"
        side, surely = "on" if self.sends else "back", " and ".join(self.within)
        said = f"conveyed from {self.onset} {side} (between {' and '.join(self.between)}"
        said += f"; with certainty between {surely})" if self.within != self.between else ")"
        if self.controls:
            return f"{said}: {self.verdict}, since without the carrier it shows too ({', '.join(self.controls)})"
        said = f"{said}, {100 * self.step:.0f} % of it in one step"
        return said if self.verdict == "in one step" else f"{said}: {self.verdict}"


@final
@dataclass(frozen=True)
class Onset:
    """The layers between which a trait lies, as stitching in both directions tells.

    ``levels`` are the carrier's and the reference network's own scores; ``sending`` is carrier → reference,
    ``receiving`` reference → carrier.
    """

    trait: str
    unit: str
    carrier: str
    reference: str
    levels: tuple[float, float]
    sending: Way
    receiving: Way

    def ends(self, way: Way) -> tuple[str, str]:
        """Return sender and receiver of one way."""
        return (self.carrier, self.reference) if way.sends else (self.reference, self.carrier)

    @property
    def verdict(self) -> Verdict:
        """The verdict on both directions, as the module defines it."""
        found = {self.sending.verdict, self.receiving.verdict}
        if "carried by the stitch" in found:
            return "carried by the stitch"
        if "undecided" in found:
            return "undecided"
        if found == {"distributed"}:
            return "distributed"
        if found == {"not found"}:
            return "not found"
        _, ours, surely = self._places
        if max(start for start, _ in surely) >= min(end for _, end in surely):
            return "the directions disagree"
        if "distributed" in found:
            return "distributed"
        return "localised" if self._shared and ours[0] == ours[1] else "undecided"

    @property
    def between(self) -> Place | None:
        """The neighbouring cuts, or the input or output, between which the trait lies; ``None`` if not localised."""
        if self.verdict != "localised":
            return None
        names, ours, _ = self._places
        start, end = ours[0]
        return names[start], names[end]

    @property
    def control(self) -> str:
        """The control without the trait: the reference network stitched to itself."""
        return f"{self.reference} → {self.reference}"

    @property
    def _shared(self) -> tuple[str, ...]:
        """The cuts that both directions have, from input to output."""
        return tuple(cut for cut in self.sending.cuts if cut in self.receiving.cuts)

    @property
    def _places(self) -> tuple[tuple[str, ...], list[tuple[int, int]], list[tuple[int, int]]]:
        """The shared cuts between input and output, and both directions' places among them: read, and certain."""
        names = (INPUT, *self._shared, OUTPUT)

        def among(way: Way, place: Place | None) -> tuple[int, int]:
            own = (INPUT, *way.cuts, OUTPUT)
            start, end = map(own.index, place or (INPUT, OUTPUT))
            at = [own.index(name) for name in names]
            return max(i for i, here in enumerate(at) if here <= start), min(
                i for i, here in enumerate(at) if here >= end
            )

        ways = (self.sending, self.receiving)
        return names, [among(way, way.between) for way in ways], [among(way, way.within) for way in ways]

    @property
    def _head(self) -> str:
        """The verdict, with the place, or why there is none."""
        if self.between is not None:
            return f"localised, between {' and '.join(self.between)}"
        ways = (self.sending, self.receiving)
        if self.verdict == "the directions disagree":
            return f"{self.verdict}: " + ", ".join(
                f"between {' and '.join(way.between or ())} by {' → '.join(self.ends(way))}" for way in ways
            )
        if self.verdict == "undecided" and "undecided" not in (ways[0].verdict, ways[1].verdict):
            open_ = "the intervals leave open whether both directions place it between the same cuts"
            return f"undecided, since {open_ if self._shared else 'no cut was measured both ways'}"
        return self.verdict

    def __str__(self) -> str:
        carrier, reference = (write_score(level, self.unit) for level in self.levels)
        return (
            f"{self.trait}: {self._head}\n"
            f"  {self.carrier} (carrier) {carrier}, {self.reference} (reference) {reference}\n"
            f"  {self.carrier} → {self.reference}: {self.sending}\n"
            f"  {self.reference} → {self.carrier}: {self.receiving}"
        )


def onset(table: pd.DataFrame, trait: "Trait | str", carrier: "Network | str", reference: "Network | str") -> Onset:
    """Find the layers in which a trait lies, from the table of a plan by ``localise``; seeds are averaged.

    A table of one direction is read too, and its result is undecided. Raises ``DataError`` if the table lacks the
    trait, or both directions, or the score of one network alone, or holds several kinds of measurement (fits, stitches
    or data) of one seam: select the rows of one.
    """
    name, of, other = (given if isinstance(given, str) else given.name for given in (trait, carrier, reference))
    check_columns(table, ("score", "status", "control", "sender_cut", "receiver_cut"))
    scored = rows_of(table, name)
    rows = scored[scored["sender"].isin({of, other}) & scored["receiver"].isin({of, other})]
    rows = rows[rows["status"] == "ok"]
    measured = rows[rows["control"] == ""]
    if not (measured["sender"] != measured["receiver"]).any():
        raise DataError(
            f"the table has no seam {of} → {other} nor {other} → {of}; measure what localise(…) plans, both ways"
        )
    means = summary(rows)
    plain = means[means["control"] == ""]
    own = [_level_of(plain, end) for end in (of, other)]
    uncertain = float((measured["stitched_high"] - measured["stitched_low"]).median())
    scale = own[0] - own[1]
    ends = ("stitched_low", "stitched_high")[:: 1 if scale > 0 else -1]
    conveyed = (means[["stitched", *ends]] - own[1]) / (scale or np.nan)
    shares = means.assign(
        share=conveyed["stitched"] if abs(scale) > uncertain else np.nan, low=conveyed[ends[0]], high=conveyed[ends[1]]
    )
    shares["open"] = not_converged(means).to_numpy(bool)
    failed = scored[scored["status"] == "failed"]
    ways = [_way(shares, failed, of, other, sends=sends) for sends in (True, False)]
    return Onset(name, str(means["unit"].iloc[0]), of, other, (own[0], own[1]), *ways)


def _level_of(plain: pd.DataFrame, name: str) -> float:
    """Return the score of one network alone: as receiver or, if only one direction was measured, as sender."""
    for role in ("receiver", "sender"):
        level = float(plain.loc[plain[role] == name, f"{role}_score"].mean())
        if not np.isnan(level):
            return level
    raise DataError(f"the table has no score of {name} alone; measure what localise(…) plans, both ways")


def _way(shares: pd.DataFrame, failed: pd.DataFrame, carrier: str, reference: str, *, sends: bool) -> Way:
    """Read the result of one direction."""
    sender, receiver = (carrier, reference) if sends else (reference, carrier)
    role, other = ("sender", "receiver") if sends else ("receiver", "sender")
    across = shares[(shares["sender"] == sender) & (shares["receiver"] == receiver)]
    seams = across[across["control"] == ""].sort_values(f"{role}_depth", kind="stable")
    check_single(seams, [f"{role}_cut"])
    seams = seams.set_index(f"{role}_cut")
    # What a control conveys, with the lower end of its interval. The reference network stitched to itself has no cut of
    # the carrier, and stands at the cut of its own that the seam has.
    beside = {
        str(kind): held.drop_duplicates(f"{role}_cut").set_index(f"{role}_cut").reindex(seams.index)
        for kind, held in across[across["control"] != ""].groupby("control", sort=False)
    }
    itself = shares[(shares["sender"] == reference) & (shares["receiver"] == reference)]
    itself = itself[itself["control"].isin(("", "itself"))]
    without_trait = f"{reference} → {reference}"
    if len(itself):
        own = itself.drop_duplicates("receiver_cut").set_index("receiver_cut")
        beside[without_trait] = own.reindex(seams[f"{other}_cut"]).set_axis(seams.index)
    cuts = tuple(map(str, seams.index))
    share, low, high = (tuple(map(float, seams[name])) for name in ("share", "low", "high"))
    controls = {kind: tuple(map(float, held["share"])) for kind, held in beside.items()}
    order = slice(None) if sends else slice(None, None, -1)
    names = (INPUT, *cuts, OUTPUT)[order]
    lost_here = failed[(failed["sender"] == sender) & (failed["receiver"] == receiver)]
    lost_cuts = lost_here[(lost_here["control"] == "") & ~lost_here[f"{role}_cut"].isin(cuts)]
    all_lost = tuple(dict.fromkeys(map(str, lost_cuts[f"{role}_cut"])))
    open_ = int(seams["open"].sum())
    if not cuts:
        return Way(sends, (), (), (), (), "undecided", failed=all_lost)
    if np.isnan(share).all():
        return Way(sends, cuts, share, low, high, "not found", control_shares=controls, open=open_)
    values, lows, highs = (np.array([0.0, *numbers[order], 1.0]) for numbers in (share, low, high))
    first = int(np.flatnonzero(values >= CONVEYED)[0])  # there is one: the whole carrier, if no cut conveys it
    before = int(np.flatnonzero(highs[:first] < CONVEYED).max())
    after = first + int(np.flatnonzero(lows[first:] > CONVEYED).min())
    neighbours, surely = (
        (names[a], names[b]) if sends else (names[b], names[a]) for a, b in ((first - 1, first), (before, after))
    )
    found = Way(
        sends=sends,
        cuts=cuts,
        shares=share,
        low=low,
        high=high,
        verdict="undecided" if all_lost else "not found",
        between=neighbours,
        within=surely,
        control_shares=controls,
        failed=all_lost,
        open=open_,
    )
    if first > len(cuts):
        return found
    clipped = values.clip(0, 1)
    step = float((clipped[first] - clipped[first - 1]) / clipped[1:-1].max())
    lost = bool((highs[first:-1] < CONVEYED).any())
    without = {f"untrained {role}", "untrained both", without_trait}
    here = {kind: held.loc[names[first]] for kind, held in beside.items() if kind in without}
    shown = tuple(kind for kind, at in here.items() if at["share"] >= CONVEYED and at["low"] > 0)
    verdict: Finding = "in one step" if step >= STEP and not lost else "distributed"
    missed: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()
    if shown:
        verdict = "carried by the stitch"
    else:  # is it so, though trials failed or the control without the trait was left out?
        known = {kind for kind, at in here.items() if not np.isnan(at["share"])}
        at = lost_here[lost_here["control"].isin(without) & (lost_here[f"{role}_cut"] == names[first])]
        own = failed[(failed["sender"] == reference) & (failed["receiver"] == reference)]
        same = (own["receiver_cut"] == seams.loc[names[first], f"{other}_cut"]).any()
        gone = [kind for kind in (*at["control"], *([without_trait] if same else [])) if kind not in known]
        if verdict == "in one step":  # of one that is distributed, a cut between the two changes nothing
            edges = [-np.inf, *seams[f"{role}_depth"].astype(float), np.inf][order]
            near, far = sorted((edges[first - 1], edges[first]))
            gone = [*lost_cuts.loc[lost_cuts[f"{role}_depth"].between(near, far), f"{role}_cut"], *gone]
        missed = tuple(dict.fromkeys(map(str, gone)))
        unmeasured = () if without_trait in (*known, *missed) else (without_trait,)
        verdict = "undecided" if missed or unmeasured else verdict
    return replace(
        found,
        verdict=verdict,
        onset=names[first],
        step=step,
        controls=shown,
        failed=missed,
        unmeasured=unmeasured,
    )
