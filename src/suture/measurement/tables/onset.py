"""The onset of a trait: between which layers it lies, read from the table of what ``localise`` planned.

Everything is in units of the difference between the two networks: a stitched network conveys the share

    (stitched − reference) / (carrier − reference)

of the trait, so the trait may be high or low in the carrier. The carrier's part grows over the cuts from nothing (the
reference network itself, share 0) to everything (the carrier itself, share 1): from its first layers on if it sends,
from its last layers back if it receives. The *onset* is the first cut, as this part grows, that conveys ``CONVEYED`` of
the trait. The trait lies between that cut and the one before.

====================  ================================================================================================
verdict               when
====================  ================================================================================================
localised             the step from the cut before to the onset makes ``STEP`` of all that is conveyed, and no larger
                      part of the carrier certainly fails to convey it
distributed           it is conveyed, but not by one such step
carried by the stitch a control without the carrier conveys it too, at the onset
undecided             it would be localised or not found, but a trial failed at a cut between the two, or at any, or of
                      a control without the carrier at the onset
not found             no cut conveys it, or the two networks differ by less than the median width of the intervals
====================  ================================================================================================

Controls without the carrier are reference → reference, an untrained network in the carrier's place, and both untrained.
In the others (clustered noise, shuffled pairs, carrier → carrier) the carrier is there, or the class itself is sent. A
control counts if it conveys ``CONVEYED`` in the mean over its seeds, and certainly some. An untrained network that
calls every image by one name shows a confusion, or accuracy on a class, by chance: measure with three seeds, because
each brings untrained networks of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.common.formatting import say_count
from suture.measurement.tables.table import check_columns, check_single, not_converged, rows_of, summary

if TYPE_CHECKING:
    from suture.core.network.network import Network
    from suture.measurement.scores.traits import Trait

CONVEYED = 0.5  #: the share of the parents' difference from which on a trait counts as conveyed
STEP = 0.8  #: the share of all that is conveyed which one step must make
INPUT, OUTPUT = "the input", "the output"  #: where the first layers begin and the last end

Verdict = Literal["localised", "distributed", "carried by the stitch", "undecided", "not found"]


@final
@dataclass(frozen=True)
class Way:
    """What stitching in one direction says: the carrier ``sends`` its first layers, or receives with its last.

    ``cuts`` are the carrier's, from input to output; ``shares`` what each conveys of the difference between the two
    networks, with its 95 % interval from ``low`` to ``high``. ``onset`` is the first cut, as the carrier's part grows,
    that conveys the trait, if any does. The trait lies ``between`` that cut and the one before (from input to output)
    and, by the intervals, certainly ``within`` the wider pair. ``step`` is the share of all that is conveyed which the
    step to the onset makes; ``controls`` are those without the carrier that convey the trait there too, and
    ``control_shares`` what every control conveys at the cuts (nan where it was not tried). ``failed`` are the cuts and
    controls whose trials failed, so that it is undecided; ``open`` of how many cuts the fit had not converged.
    """

    sends: bool
    cuts: tuple[str, ...]
    shares: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    verdict: Verdict
    onset: str | None = None
    between: tuple[str, str] | None = None
    within: tuple[str, str] | None = None
    step: float = 0.0
    controls: tuple[str, ...] = ()
    control_shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    open: int = 0

    def __str__(self) -> str:
        if np.isnan(self.shares).all():
            return f"the two are not told apart in it: {self.verdict}"
        open_ = f"; {self.open} of {say_count(len(self.cuts), 'cut')} not converged" if self.open else ""
        failed = f", since trials failed ({', '.join(self.failed)})" if self.failed else ""
        return f"{self._said}{failed}{open_}"

    @property
    def _said(self) -> str:
        if self.onset is None or self.between is None or self.within is None:
            return f"conveyed at no cut, at most {100 * max(self.shares):.0f} % of it: {self.verdict}"
        side, surely = "on" if self.sends else "back", " and ".join(self.within)
        said = f"conveyed from {self.onset} {side} (between {' and '.join(self.between)}"
        said += f"; with certainty between {surely})" if self.within != self.between else ")"
        if self.controls:
            return f"{said}: {self.verdict}, since without the carrier it shows too ({', '.join(self.controls)})"
        return f"{said}, {100 * self.step:.0f} % of it in one step: {self.verdict}"


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
        """What both directions say together.

        ``carried by the stitch`` or ``distributed`` if either direction is, else ``undecided`` if either is; ``not
        found`` if neither found the trait; ``localised`` if all that found it place it between the same cuts; else
        ``distributed``.
        """
        verdicts = (self.sending.verdict, self.receiving.verdict)
        if "carried by the stitch" in verdicts:
            return "carried by the stitch"
        if "distributed" in verdicts or len(self._places) > 1:
            return "distributed"
        if "undecided" in verdicts:
            return "undecided"
        return "localised" if self._places else "not found"

    @property
    def between(self) -> tuple[str, str] | None:
        """The neighbouring cuts, or the input or output, between which the trait lies; ``None`` if not localised."""
        return next(iter(self._places)) if self.verdict == "localised" else None

    @property
    def _places(self) -> set[tuple[str, str]]:
        ways = (self.sending, self.receiving)
        return {way.between for way in ways if way.between is not None and way.verdict == "localised"}

    def __str__(self) -> str:
        carrier, reference = (_level(level, self.unit) for level in self.levels)
        place = f", between {' and '.join(self.between)}" if self.between is not None else ""
        return (
            f"{self.trait}: {self.verdict}{place}\n"
            f"  {self.carrier} (carrier) {carrier}, {self.reference} (reference) {reference}\n"
            f"  {self.carrier} → {self.reference}: {self.sending}\n"
            f"  {self.reference} → {self.carrier}: {self.receiving}"
        )


def onset(table: pd.DataFrame, trait: "Trait | str", carrier: "Network | str", reference: "Network | str") -> Onset:
    """Find the layers in which a trait lies, in a table of what ``localise`` planned; seeds are averaged.

    Raises ``DataError`` if the table lacks the trait or a direction, or holds several kinds of measurement (fits,
    stitches or data) of one seam: select the rows of one.
    """
    name, of, other = (given if isinstance(given, str) else given.name for given in (trait, carrier, reference))
    rows = _rows(table, name, of, other)
    means = summary(rows)
    plain = means[means["control"] == ""]
    own = [float(plain.loc[plain["receiver"] == end, "receiver_score"].mean()) for end in (of, other)]
    measured = rows[rows["control"] == ""]
    uncertain = float((measured["stitched_high"] - measured["stitched_low"]).median())
    scale = own[0] - own[1]
    ends = ("stitched_low", "stitched_high")[:: 1 if scale > 0 else -1]
    conveyed = (means[["stitched", *ends]] - own[1]) / (scale or np.nan)
    shares = means.assign(
        share=conveyed["stitched"] if abs(scale) > uncertain else np.nan, low=conveyed[ends[0]], high=conveyed[ends[1]]
    )
    shares["open"] = not_converged(means).to_numpy(bool)
    scored = rows_of(table, name)
    failed = scored[scored["status"] == "failed"]
    ways = [_way(shares, failed, of, other, sends=sends) for sends in (True, False)]
    return Onset(name, str(means["unit"].iloc[0]), of, other, (own[0], own[1]), *ways)


def _rows(table: pd.DataFrame, trait: str, carrier: str, reference: str) -> pd.DataFrame:
    """Return the rows of the trait and the two networks that were measured."""
    check_columns(table, ("score", "status", "control", "sender_cut", "receiver_cut"))
    scored = rows_of(table, trait)
    ends = {carrier, reference}
    rows = scored[scored["sender"].isin(ends) & scored["receiver"].isin(ends) & (scored["status"] == "ok")]
    measured = rows[rows["control"] == ""]
    for sender, receiver in ((carrier, reference), (reference, carrier)):
        if not ((measured["sender"] == sender) & (measured["receiver"] == receiver)).any():
            raise DataError(f"the table has no seam {sender} → {receiver}; measure what localise(…) plans, both ways")
    return rows


def _way(shares: pd.DataFrame, failed: pd.DataFrame, carrier: str, reference: str, *, sends: bool) -> Way:
    """Say what one direction tells."""
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
    if len(itself):
        own = itself.drop_duplicates("receiver_cut").set_index("receiver_cut")
        beside[f"{reference} → {reference}"] = own.reindex(seams[f"{other}_cut"]).set_axis(seams.index)
    cuts = tuple(map(str, seams.index))
    share, low, high = (tuple(map(float, seams[name])) for name in ("share", "low", "high"))
    controls = {kind: tuple(map(float, held["share"])) for kind, held in beside.items()}
    order = slice(None) if sends else slice(None, None, -1)
    names = (INPUT, *cuts, OUTPUT)[order]
    lost_here = failed[(failed["sender"] == sender) & (failed["receiver"] == receiver)]
    lost_cuts = lost_here[(lost_here["control"] == "") & ~lost_here[f"{role}_cut"].isin(cuts)]
    open_ = int(seams["open"].sum())
    values, lows, highs = (np.array([0.0, *numbers[order], 1.0]) for numbers in (share, low, high))
    conveying = np.flatnonzero(values[1:-1] >= CONVEYED) + 1
    if not len(conveying):
        missed = () if np.isnan(share).all() else tuple(dict.fromkeys(map(str, lost_cuts[f"{role}_cut"])))
        none: Verdict = "undecided" if missed else "not found"
        return Way(sends, cuts, share, low, high, none, control_shares=controls, failed=missed, open=open_)
    first = int(conveying[0])
    before = int(np.flatnonzero(highs[:first] < CONVEYED).max())
    after = first + int(np.flatnonzero(lows[first:] > CONVEYED).min())
    clipped = values.clip(0, 1)
    step = float((clipped[first] - clipped[first - 1]) / clipped[1:-1].max())
    lost = bool((highs[first:-1] < CONVEYED).any())
    without = {f"untrained {role}", "untrained both", f"{reference} → {reference}"}
    here = {kind: held.loc[names[first]] for kind, held in beside.items() if kind in without}
    shown = tuple(kind for kind, at in here.items() if at["share"] >= CONVEYED and at["low"] > 0)
    verdict: Verdict = "localised" if step >= STEP and not lost else "distributed"
    missed = ()
    if verdict == "localised" and not shown:  # is it so, though trials failed?
        edges = [-np.inf, *seams[f"{role}_depth"].astype(float), np.inf][order]
        near, far = sorted((edges[first - 1], edges[first]))
        amid = lost_cuts[lost_cuts[f"{role}_depth"].between(near, far)]
        at = lost_here[lost_here["control"].isin(without) & (lost_here[f"{role}_cut"] == names[first])]
        own = failed[(failed["sender"] == reference) & (failed["receiver"] == reference)]
        same = names[first] in cuts and (own["receiver_cut"] == seams.loc[names[first], f"{other}_cut"]).any()
        told = [*at["control"], *([f"{reference} → {reference}"] if same else [])]
        gone = [kind for kind in told if kind not in here or np.isnan(here[kind]["share"])]
        missed = tuple(dict.fromkeys([*map(str, amid[f"{role}_cut"]), *gone]))
        verdict = "undecided" if missed else verdict
    neighbours, surely = (
        (names[a], names[b]) if sends else (names[b], names[a]) for a, b in ((first - 1, first), (before, after))
    )
    return Way(
        sends=sends,
        cuts=cuts,
        shares=share,
        low=low,
        high=high,
        verdict="carried by the stitch" if shown else verdict,
        onset=names[first],
        between=neighbours,
        within=surely,
        step=step,
        controls=shown,
        control_shares=controls,
        failed=missed,
        open=open_,
    )


def _level(value: float, unit: str) -> str:
    return f"{100 * value:.1f} %" if unit == "fraction" else f"{value:.3f}" + (f" {unit}" if unit != "raw" else "")
