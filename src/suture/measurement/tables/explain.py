"""What a table of measurements says in words and numbers, and what must not be concluded from it.

``explain`` says all of it; ``say_curve`` and ``say_matrix`` say it in short, below a table or above a figure.

Theory. A stitched network that does as well as its receiver shows that the sender's representation *can be used* as the
receiver's is, by way of a trained stitch. It does not show that the two represent the same: networks that use colour
alone, and noise that knows nothing but the class, are stitched as well into a network that reads shapes (smith2024,
sections 4.1 and 4.2). Nor is a failure evidence of a difference, since a good enough map may not have been found
(section 2). What success is worth, the controls say: whatever a control does as well needs nothing of what it lacks.

Conventions. A seam is *compatible* if the whole 95 % interval of its penalty is within the margin (3 pp, which
bansal2021, table 1, calls close), not compatible if the whole interval is beyond it, and undecided otherwise. A control
*does as well* if the stitched network is certainly not better than it by more than the margin; the stitched network
is *beyond* it if it is certainly better by more; otherwise that is undecided. The interval of such a difference is put
together from those of the two scores as though they were independent (MOVER: Zou & Donner 2008, equation 4); both are
of the same images, so it is rather too wide. Seeds are averaged, and few of them make wide intervals (``summary``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.common.formatting import unsigned_zero
from suture.common.validation import check_kind
from suture.measurement.tables.by_depth import Mask, by_depth
from suture.measurement.tables.curve import PLAIN, Curve
from suture.measurement.tables.matrix import Matrix
from suture.measurement.tables.pairs import Estimates, Pair, disagreements, ranks_apart
from suture.measurement.tables.pairs import pairs as pairs_of

MARGIN = 3.0  #: pp: how much worse a network may be and still count as doing as well
_MOST = 6  #: places that a sentence names

#: Controls that do as well as a trained pair if it takes nothing of what they lack, and what that then means.
_AS_GOOD = {
    "untrained sender": ("an untrained sender", "success says nothing about what the sender has learned"),
    "untrained receiver": ("an untrained receiver", "the stitch alone can do the receiver's work"),
    "clustered noise": (
        "clustered noise in the sender's place",
        "telling the classes apart is all it takes, and success says nothing about the sender's features",
    ),
}

#: The controls that a trained pair must be beyond, with what is not to be concluded where it is not, and whose finding.
_CLAIMS = {
    "untrained sender": ("That it takes what {sender} has learned", "bansal2021, section 2"),
    "untrained receiver": ("That it takes what {receiver} has learned", "hernandez2022, section 2"),
    "clustered noise": ("That {receiver} is sent more than the class", "smith2024, section 4.2"),
}
#: What is to be tried beside a pair, and what it would rule out.
_RULED_OUT = {
    "itself": "that the stitch does more than align, or costs something by itself (smith2024, section 4.3)",
    "untrained sender": "that any features would do, learned or not (bansal2021, section 2)",
    "untrained receiver": "that the stitch alone does the receiver's work (hernandez2022, section 2)",
    "untrained both": "that stitch and fit find as much where there is nothing to be found (hernandez2022, section 2)",
    "shuffled pairs": "that the stitch is fitted by what all images have in common",
    "clustered noise": "that telling the classes apart is all it takes (smith2024, section 4.2)",
    "linear probe": "that the sender's layers already solve the task, and the receiver's add nothing",
}
_SIMILARITY = "similarity indices: would say whether the two say the same of the same samples (suture.compare)"
_RANK = (
    "numerical rank: would say whether the receiver finds as many dimensions in what it is sent as in its own "
    "activations (smith2024, section 4.1; suture.complexity)"
)


@final
@dataclass(frozen=True)
class Explanation:
    """What a table says: what ``holds``, what is ``not_concluded`` from it, and what is ``missing`` to conclude more.

    A sentence each; ``str`` is all of them as a text. The ``verdict`` on a single pair says in one sentence at how
    many seams it is compatible, or not, or undecided.
    """

    holds: tuple[str, ...]
    not_concluded: tuple[str, ...]
    missing: tuple[str, ...]
    verdict: str = ""

    def __str__(self) -> str:
        parts = (
            ("What holds", self.holds),
            ("What must not be concluded", self.not_concluded),
            ("What was not tried", self.missing),
        )
        return "\n\n".join("\n".join([title, *(f"- {said}" for said in lines)]) for title, lines in parts if lines)


def explain(
    table: pd.DataFrame,
    similarities: pd.DataFrame | None = None,
    ranks: pd.DataFrame | None = None,
    *,
    score: str = "accuracy",
    margin: float | None = None,
    chance: float | None = None,
) -> Explanation:
    """Say in words and numbers what a table of measurements says, and what must not be concluded from it.

    ``similarities`` is a table of ``compare``, of one or several indices; ``ranks`` one of ``complexity``, for the
    stitched networks and for their receivers stitched to themselves. ``margin`` is in the unit of the penalty: 3 pp
    if the score is a fraction, and to be given for any other. ``chance`` is the score of guessing, in the score's
    unit, above which by the margin shuffled pairs have not collapsed; without it, half of the stitched network's.

    Raises ``DataError`` if a table is none, holds no such score or several measurements of one seam, if a margin
    is needed or is below 0, and if a chance is no fraction and the score is one.
    """
    found = pairs_of(table, score)
    margin = _margin(margin, found[0].unit, score)
    if chance is not None and found[0].unit == "pp" and not 0 <= chance <= 1:
        raise DataError(f"chance={chance:g}: '{score}' is a fraction; give one from 0 to 1, such as chance=0.1")
    holds: list[str] = []
    denied: list[str] = []
    for pair in found:
        compatible = list(_compatible(pair, margin))
        holds += [*(f"{short}: {rest}." for short, rest in compatible), *_beyond(pair, margin)]
        denied += [*_compatibility(pair, found, margin), *_controls(pair, margin), *_shuffled(pair, chance, margin)]
        denied += [*_rank(pair, ranks, margin), *_index(pair, similarities, margin)]
    denied += _seeds(table, score, found)
    missing = [*_untried(found)]
    missing += [_SIMILARITY] if similarities is None else []
    missing += [_RANK] if ranks is None else []
    failed = table[(table["score"] == score) & (table["status"] == "failed")]["trial"].nunique()
    missing += [f"{failed} trial{'s' * (failed > 1)} failed, and of them nothing is said"] if failed else []
    verdict = f"{compatible[0][0]}." if len(found) == 1 and compatible else ""
    return Explanation(tuple(holds), tuple(denied), tuple(missing), verdict)


def _margin(given: float | None, unit: str, score: str) -> float:
    if given is None and unit != "pp":
        raise DataError(f"the margin of 3 pp is for fractions, and '{score}' is in {unit}; give margin= in {unit}")
    check_kind("margin", given, int | float | None, "a number, such as 3")
    if given is not None and not given >= 0:
        raise DataError(f"margin={given:g}: a penalty that counts as none is at least 0")
    return MARGIN if given is None else given


# --- what holds -------------------------------------------------------------------------------------------------------


def _compatible(pair: Pair, margin: float) -> Iterator[tuple[str, str]]:
    """Say at how many seams the two are compatible, at how many not, and at how many it is undecided; then at which."""
    within = _number(margin, pair)
    for where, said, then in (
        (pair.penalty.within(margin), f"compatible, the whole 95 % interval of the penalty within {within},", ""),
        (pair.penalty.beyond(margin), f"not compatible by this stitch and fit, the penalty beyond {within},", ""),
        (
            pair.penalty.across(margin),
            f"undecided, the interval on both sides of {within},",
            "; score more samples, or measure more seeds",
        ),
    ):
        if where.any():
            listed = _listed(pair, where, lambda i: spread_words(pair, pair.penalty, i, signed=True))
            yield f"{pair}: {said} at {share_of(pair, where)}", listed + then


def _beyond(pair: Pair, margin: float) -> Iterator[str]:
    """Say at which seams the stitched network certainly does better than a control, and at which it needs no stitch."""
    for control in (*_CLAIMS, "shuffled pairs"):
        ahead = pair.ahead_of(control)
        where = ahead.beyond(margin)
        if where.any():
            who = _AS_GOOD[control][0] if control in _AS_GOOD else "a stitch fitted to shuffled pairs"
            places = np.flatnonzero(where)
            ends = [places[np.argmin(ahead.value[places])], places[np.argmax(ahead.value[places])]]
            least, most = (f"{spread_words(pair, ahead, i)} ({pair.labels[i]})" for i in ends)
            by = least if len(places) == 1 else f"{least} to {most}"
            yield f"{pair}: beyond {who} at {share_of(pair, where)}, by {by}."
    plugged = pair.ahead_of("plugged in")
    where = plugged.within(margin)
    if where.any():
        yield (
            f"{pair}: plugged in without a stitch, it does as well at {share_of(pair, where)} ({_named(pair, where)}): "
            "there the layers can be exchanged as they are."
        )


# --- what must not be concluded ---------------------------------------------------------------------------------------


def _compatibility(pair: Pair, found: tuple[Pair, ...], margin: float) -> Iterator[str]:
    """Say what the penalties alone never say."""
    sender, receiver = pair.sender, pair.receiver
    if pair.penalty.within(margin).any() and sender != receiver:
        yield (
            f"{pair}: that {sender} and {receiver} represent the same, where they are compatible: networks that use "
            "different information are, too (smith2024, sections 4.1, 4.2 and 5)."
        )
    costly = pair.penalty.beyond(margin)
    if costly.any():
        yield (
            f"{pair}: that {sender} lacks what {receiver} needs, where they are not compatible "
            f"({_named(pair, costly)}): a good enough map may not have been found (smith2024, section 2)."
        )
    better = pair.penalty.high < 0
    if better.any() and sender != receiver:
        back = [other for other in found if (other.sender, other.receiver) == (receiver, sender)]
        reverse = any((other.penalty.high < 0).any() for other in back)
        also = f"{back[0]} beats {sender}, too" if reverse else f"stitching {receiver} → {sender} may say the reverse"
        yield (
            f"{pair}: that {sender} represents more than {receiver}, where the stitched network is better than "
            f"{receiver} ({_named(pair, better)}): {also} (smith2024, section 4.3)."
        )
    yield from _itself(pair, margin)


def _itself(pair: Pair, margin: float) -> Iterator[str]:
    """Say what stitching the receiver to itself says of the stitch."""
    own = pair.penalties.get("itself", Estimates.none(len(pair.labels)))
    for where, claim in (
        (own.high < 0, "that the stitch only aligns: {} stitched to itself is better than {} (smith2024, section 4.3)"),
        (own.beyond(margin), "that a penalty is the sender's: {} stitched to itself is worse than {}"),
    ):
        if where.any():
            listed = _listed(pair, where, lambda i: spread_words(pair, own, i, signed=True))
            yield f"{pair}: {claim.format(pair.receiver, pair.receiver)}, the penalty {listed}."


def _controls(pair: Pair, margin: float) -> Iterator[str]:
    """Say which controls do as well, and of which it is undecided."""
    for control, (claim, source) in _CLAIMS.items():
        ahead = pair.ahead_of(control)
        who, meaning = _AS_GOOD[control]
        said = claim.format(sender=pair.sender, receiver=pair.receiver)
        said = said[0].lower() + said[1:]
        yield from _as_well(pair, ahead, margin, said, who, f"there, {meaning} ({source})")
    probe = pair.ahead_of("linear probe")
    said = f"that {pair.receiver}'s layers add to {pair.sender}'s"
    meaning = f"there, {pair.sender}'s layers solve the task without {pair.receiver}'s"
    yield from _as_well(pair, probe, margin, said, f"a linear probe of {pair.sender}", meaning)


def _as_well(pair: Pair, ahead: Estimates, margin: float, claim: str, who: str, meaning: str) -> Iterator[str]:
    as_well = ahead.within(margin)
    if as_well.any():
        within = _number(margin, pair)
        listed = _listed(pair, as_well, lambda i: spread_words(pair, ahead, i, signed=True))
        yield (
            f"{pair}: {claim}, at {share_of(pair, as_well)}: {who} does as well, within {within}: {meaning}; the "
            f"stitched network less the control: {listed}."
        )
    open_ = ahead.across(margin)
    if open_.any():
        listed = _listed(pair, open_, lambda i: spread_words(pair, ahead, i, signed=True))
        yield (
            f"{pair}: {claim}, at {share_of(pair, open_)}: undecided whether {who} does as well; the stitched network "
            f"is better by {listed}."
        )


def _shuffled(pair: Pair, chance: float | None, margin: float) -> Iterator[str]:
    """Where a stitch fitted to shuffled pairs did not collapse."""
    kept = pair.scores.get("shuffled pairs", Estimates.none(len(pair.labels)))
    floor = pair.score.value / 2 if chance is None else np.full(len(pair.labels), pair.scale * chance + margin)
    where = kept.low > floor if pair.scale > 0 else np.zeros(len(pair.labels), bool)
    if where.any():
        above = (
            "half of the true pairs' score"
            if chance is None
            else f"chance, {_plain(pair.scale * chance, pair)}, by more than {_number(margin, pair)}"
        )
        listed = _listed(pair, where, lambda i: _plain(kept.value[i], pair))
        yield (
            f"{pair}: that success is owed to what {pair.sender} says of each image, at {share_of(pair, where)}: "
            f"fitted to shuffled pairs the stitched network did not collapse and is above {above} ({listed})."
        )


def _rank(pair: Pair, ranks: pd.DataFrame | None, margin: float) -> Iterator[str]:
    """Where the receiver finds another number of dimensions than in its own activations."""
    if ranks is None:
        return
    own, sent = ranks_apart(pair, ranks)
    where = np.isfinite(own) & pair.penalty.within(margin)
    if where.any():
        listed = _listed(pair, where, lambda i: f"{sent[i]:.0f} against {own[i]:.0f}")
        yield (
            f"{pair}: that {pair.receiver} takes what it is sent for its own, at {share_of(pair, where)} where they "
            f"are compatible: the numerical rank differs from that of {pair.receiver} stitched to itself ({listed}) "
            "(smith2024, section 4.1)."
        )


def _index(pair: Pair, similarities: pd.DataFrame | None, margin: float) -> Iterator[str]:
    """Where an index calls compatible layers unlike, or layers that are not compatible alike."""
    if similarities is None:
        return
    close, costly = pair.penalty.within(margin), pair.penalty.beyond(margin)
    said: dict[str, list[str]] = {"are alike, where they are compatible": [], "differ, where they are not": []}
    for name, values, alike in disagreements(pair, similarities):
        known = np.isfinite(values)
        for claim, where in zip(said, (close & known & ~alike, costly & known & alike), strict=True):
            if where.any():
                listed = _listed(pair, where, lambda i, shown=values: f"{shown[i]:.2f}")  # type: ignore[misc]
                said[claim].append(f"{name} ({listed})")
    for claim, names in said.items():
        if names:
            yield f"{pair}: that {pair.sender} and {pair.receiver} {claim}: by {', '.join(names)} it is the reverse."


def _seeds(table: pd.DataFrame, score: str, found: tuple[Pair, ...]) -> Iterator[str]:
    rows = table[(table["score"] == score) & (table["control"] == "")]
    if rows["network_seed"].nunique() <= 1:
        names = " and ".join(dict.fromkeys(name for pair in found for name in (pair.sender, pair.receiver)))
        yield f"That other trainings of these networks would do the same: {names} are one training each."


# --- what is missing --------------------------------------------------------------------------------------------------


def _untried(found: tuple[Pair, ...]) -> Iterator[str]:
    """Return the controls that were not run, or not everywhere."""
    for control, ruled_out in _RULED_OUT.items():
        lacking = [(pair, int((~np.isfinite(pair.of(control).value)).sum())) for pair in found]
        if all(count == len(pair.labels) for pair, count in lacking):
            yield f"{control}: would rule out {ruled_out}"
        elif any(count for _, count in lacking):
            some = ", ".join(f"{count} of {len(pair.labels)} of {pair}" for pair, count in lacking if count)
            yield f"{control} at some {found[0].many} ({some}): would rule out {ruled_out}"


# --- in short ---------------------------------------------------------------------------------------------------------


def say_curve(shown: Curve, places: bool = True) -> list[str]:
    """Say the worst penalty of a curve, and what its controls say; ``places`` names the cuts.

    For scores that are no fraction, and for tables without controls, it says what it can; nothing of what failed.
    """
    plain = shown.plain[shown.plain["penalty"].notna()]
    if plain.empty:
        return []
    place = int(np.argmax(plain["penalty"].to_numpy(float)))
    worst, cut = plain.iloc[place], shown.labels[shown.cuts.index(str(plain.index[place]))]
    digits, unit = (1, "pp") if shown.percent else (3, shown.unit)
    value, low, high = (
        unsigned_zero(float(worst[name]), digits) for name in ("penalty", "penalty_low", "penalty_high")
    )
    spread = f" [{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite([low, high]).all() else ""
    said = [f"Worst penalty: {value:+.{digits}f}{' ' + unit if unit != 'raw' else ''}{spread} at {cut}."]
    if shown.percent:
        said += _say_controls(pairs_of(shown.table, shown.score), "cuts", lambda pair, i: pair.labels[i], places)
    return said


def say_matrix(shown: Matrix, places: bool = True) -> list[str]:
    """Say what the triangles of a matrix, its extremes and its controls say; ``places`` names the seams of controls.

    For scores that are no fraction, and for tables without controls, it says what it can.
    """
    if not np.isfinite(shown.plain).any():
        return []
    plain = shown.table[shown.table["control"] == PLAIN]
    means = by_depth(plain, shown.score, pooled=True).iloc[0]

    def value(x: float) -> str:
        return f"{100 * x:.1f} %" if shown.percent else f"{x:.3f} {shown.unit.replace('raw', '')}".strip()

    said = []
    for here, there, difference, name, other in (
        (
            *("late_to_early", "early_to_late", "difference"),
            *("Late → early (sender cut at least as deep as receiver cut)", "early → late"),
        ),
        ("near", "far", "near_difference", "Within one cut of the diagonal", "away from it"),
    ):
        gap = means[difference]
        if np.isfinite(gap):
            apart = f"{100 * abs(gap):.1f} pp" if shown.percent else f"{abs(gap):.3f}"
            said.append(
                f"{name}: {value(means[here])} on average over {means[f'{here}_cells']:.0f} seams, {apart} "
                f"{'higher' if gap > 0 else 'lower'} than {other}: {value(means[there])} over "
                f"{means[f'{there}_cells']:.0f}."
            )
    named = [
        [cut if shown.single else f"{block.name} {cut}" for block in side for cut in block.cuts]
        for side in (shown.senders, shown.receivers)
    ]
    labels, values = [f"{row} → {column}" for row in named[0] for column in named[1]], shown.plain.ravel()
    least, most = int(np.nanargmin(values)), int(np.nanargmax(values))
    said.append(f"Lowest: {value(values[least])} at {labels[least]}; highest: {value(values[most])} at {labels[most]}.")

    def seam(pair: Pair, i: int) -> str:
        names = ("", "") if shown.single else (f"{pair.sender} ", f"{pair.receiver} ")
        return " → ".join(f"{name}{cut}" for name, cut in zip(names, pair.cuts[i], strict=True))

    if shown.percent and plain.loc[plain["score"] == shown.score, "penalty"].notna().any():
        said += _say_controls(pairs_of(shown.table, shown.score), "seams", seam, places)
    return said


def _say_controls(found: Sequence[Pair], many: str, label: Callable[[Pair, int], str], places: bool) -> Iterator[str]:
    """Say what each control that was tried says of a fraction, a sentence each; ``many`` are cuts or seams."""
    for control in ("untrained sender", "untrained receiver"):
        yield from _as_good(control, found, many, label, places)
    costs = np.concatenate([pair.penalties["itself"].value for pair in found if "itself" in pair.penalties] or [_NONE])
    if np.isfinite(costs).any():
        receivers = dict.fromkeys(pair.receiver for pair in found)
        who = next(iter(receivers)) if len(receivers) == 1 else "a receiver"
        yield f"Stitched to itself, {who} has a penalty of at most {unsigned_zero(float(np.nanmax(costs)), 1):+.1f} pp."
    kept = np.concatenate([pair.of("shuffled pairs").value for pair in found])
    if np.isfinite(kept).any():
        bound = "at most" if found[0].scale > 0 else "at least"
        yield f"Fitted to shuffled pairs, the stitched network reaches {bound} {abs(np.nanmax(kept)):.1f} %."
    yield from _as_good("clustered noise", found, many, label, places)


_NONE = np.array([np.nan])


def _as_good(
    control: str, found: Sequence[Pair], many: str, label: Callable[[Pair, int], str], places: bool
) -> Iterator[str]:
    """Say at which seams a control does as well as the real thing, and at which it is undecided."""
    ahead = [(pair, pair.ahead_of(control)) for pair in found]
    as_well = [label(pair, i) for pair, one in ahead for i in np.flatnonzero(one.within(MARGIN)).tolist()]
    undecided = [label(pair, i) for pair, one in ahead for i in np.flatnonzero(one.across(MARGIN)).tolist()]
    compared = sum(int(np.isfinite(one.value).sum()) for _, one in ahead)
    if not compared:
        return
    who, meaning = _AS_GOOD[control]
    within = f"within {MARGIN:g} pp"

    def named(seams: list[str]) -> str:
        more = f" and {len(seams) - _MOST} more" if len(seams) > _MOST else ""
        return f" ({', '.join(seams[:_MOST])}{more})" if places else ""

    if as_well:
        also = f" It is undecided at {len(undecided)}{named(undecided)}." if undecided else ""
        at = f"At {len(as_well)} of {compared} {many}"
        yield f"{at} {who} does as well, {within}: there, {meaning}{named(as_well)}.{also}"
    elif undecided:
        at = f"{len(undecided)} of {compared} {many}{named(undecided)}"
        yield f"Whether {who} does as well, {within}, is undecided at {at}."
    else:
        yield f"At no {many.removesuffix('s')} does {who} do as well, {within}."


# --- in words ---------------------------------------------------------------------------------------------------------


def share_of(pair: Pair, where: Mask) -> str:
    """``3 of 8 cuts``."""
    return f"{int(where.sum())} of {len(pair.labels)} {pair.many}"


def _named(pair: Pair, where: Mask) -> str:
    return _listed(pair, where, lambda i: "")


def _listed(pair: Pair, where: Mask, said: Callable[[int], str]) -> str:
    """Places with what is said of each; of very many the first."""
    places = np.flatnonzero(where).tolist()
    shown = ", ".join(f"{pair.labels[i]} {said(i)}".strip() for i in places[:_MOST])
    return shown + (f" and {len(places) - _MOST} more" if len(places) > _MOST else "")


def _number(value: float, pair: Pair) -> str:
    return f"{value:g} {pair.unit}".strip()


def _plain(value: float, pair: Pair) -> str:
    return f"{abs(value):.1f} %" if pair.unit == "pp" else f"{abs(value):.3f} {pair.unit}".strip()


def spread_words(pair: Pair, of: Estimates, i: int, signed: bool = False) -> str:
    """``+1.2 pp [-0.3, 2.8]``."""
    digits = 1 if pair.unit == "pp" else 3
    value, low, high = (unsigned_zero(float(part[i]), digits) for part in (of.value, of.low, of.high))
    number = f"{value:{'+' if signed else ''}.{digits}f} {pair.unit}".strip()
    return f"{number} [{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite([low, high]).all() else number
