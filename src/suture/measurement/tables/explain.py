"""What a table of measurements says in words and numbers, and what must not be concluded from it.

``explain`` says all of it; ``say_curve`` and ``say_matrix`` say it in short, below a table or above a figure.

Theory. A stitched network that does as well as its receiver shows that the sender's representation *can be used* as the
receiver's is, by way of a trained stitch. It does not show that the two represent the same: networks that use colour
alone, and noise that knows nothing but the class, are stitched as well into a network that reads shapes (smith2024,
sections 4.1 and 4.2). Nor is a failure evidence of a difference, since a good enough map may not have been found
(section 2). What success is worth, the controls say: whatever a control does as well needs nothing of what it lacks.

Conventions. A seam is *compatible* if the whole 95 % interval of its penalty is within the margin (3 pp, which
bansal2021, table 1, calls close), not compatible if the whole interval is beyond it, and undecided otherwise; it is not
judged if one of its networks is not to be trusted (``scores.alone``). A control
*does as well* if the stitched network is certainly not better than it by more than the margin; the stitched network is
*beyond* it if it is certainly better by more; otherwise that is undecided. Such a difference is paired over the scored
samples, whose outcomes the table keeps. Where it has none, and where several seeds were averaged, its interval is put
together from those of the two scores as though they were independent (MOVER: Zou & Donner 2008, equation 4), which is
rather too wide. What a fit gave that had not converged is an upper bound of the penalty:
where it is all there is, a seam is never called incompatible, nor the stitched network beyond a control or as good as
one, but *not converged*, and counted. A fit that never says whether it has converged is named wherever a seam fails by
it. Seeds are averaged, and few of them make wide intervals (``summary``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import pandas as pd

from suture.common.constants import CLASSIFICATION
from suture.common.errors import DataError
from suture.common.formatting import say_count
from suture.common.validation import check_kind
from suture.measurement.scores.in_distribution import MEASURES
from suture.measurement.tables.by_depth import Mask, by_depth
from suture.measurement.tables.curve import PLAIN, Curve, Estimates, arrange_pairs
from suture.measurement.tables.matrix import Matrix
from suture.measurement.tables.similarities import check_similarities
from suture.measurement.tables.table import (
    MARGIN,
    check_columns,
    main_score,
    never_known,
    say_warnings,
    told_from_own,
)
from suture.measurement.tables.verdicts import say_verdict

ALIKE = 0.5  #: of the way of an index from chance to the same layers, from which on it calls two layers alike
APART = 0.1  #: of a receiver's own numerical rank, by which another must differ
_MOST = 6  #: places that a sentence names
_SEAM = ["sender_cut", "receiver_cut"]
_LATE = "Late → early (sender cut at least as deep as receiver cut)"


@dataclass(frozen=True)
class _Known:
    """What a control is called in a sentence, what it means if it does as well, and what must then not be concluded."""

    who: str
    meaning: str
    claim: str
    source: str = ""


_KNOWN = {
    "untrained sender": _Known(
        "an untrained sender",
        "success says nothing about what the sender has learned",
        "that it takes what {sender} has learned",
        " (bansal2021, section 2)",
    ),
    "untrained receiver": _Known(
        "an untrained receiver",
        "the stitch alone can do the receiver's work",
        "that it takes what {receiver} has learned",
        " (hernandez2022, section 1.5)",
    ),
    "clustered noise": _Known(
        "clustered noise in the sender's place",
        "telling the classes apart is all it takes, and success says nothing about the sender's features",
        "that {receiver} is sent more than the class",
        " (smith2024, section 4.2)",
    ),
    "linear probe": _Known(
        "a linear probe of {sender}",
        "{sender}'s layers solve the task without {receiver}'s",
        "that {receiver}'s layers add to {sender}'s",
    ),
}
#: What is to be tried beside a pair, and what it would rule out.
_RULED_OUT = {
    "itself": "that the stitch does more than align, or costs something by itself (smith2024, section 4.3)",
    "untrained sender": "that any features would do, learned or not (bansal2021, section 2)",
    "untrained receiver": "that the stitch alone does the receiver's work (hernandez2022, section 1.5)",
    "untrained both": "that stitch and fit find as much where there is nothing to be found "
    "(hernandez2022, section 1.5)",
    "shuffled pairs": "that the stitch is fitted by what all images have in common",
    "clustered noise": "that telling the classes apart is all it takes (smith2024, section 4.2)",
    "linear probe": "that the sender's layers already solve the task, and the receiver's add nothing",
}
_SIMILARITY = "similarity indices: would say whether the two say the same of the same samples (suture.compare)"
_RANK = (
    "numerical rank: would say whether the receiver finds as many dimensions in what it is sent as in its own "
    "activations (smith2024, section 4.1; suture_papers.complexity)"
)


@final
@dataclass(frozen=True)
class Explanation:
    """What a table says: what ``holds``, what is ``not_concluded`` from it, and what is ``missing`` to conclude more.

    A sentence each; ``str`` is all of them as a text. The ``verdict`` on a single pair is one sentence: where the
    sender stands in for the receiver, and where controls do as well.
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
    score: str | None = None,
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
    score = score or main_score(table)
    found = arrange_pairs(table, score)
    unit, percent = found[0].penalty_unit, found[0].percent
    if margin is None and not percent:
        raise DataError(f"the margin of 3 pp is for fractions, and '{score}' is in {unit}; give margin= in {unit}")
    check_kind("margin", margin, int | float | None, "a number, such as 3")
    if margin is not None and not margin >= 0:
        raise DataError(f"margin={margin:g}: a penalty that counts as none is at least 0")
    margin = MARGIN if margin is None else margin
    if chance is not None and percent and not 0 <= chance <= 1:
        raise DataError(f"chance={chance:g}: '{score}' is a fraction; give one from 0 to 1, such as chance=0.1")
    holds = say_warnings(table)
    denied: list[str] = []
    for pair in found:
        compatible = list(_compatible(pair, margin))
        holds += [*(f"{short}: {rest}." for short, rest in compatible), *_beyond(pair, margin)]
        holds += [f"{pair}: {one}" for one in say_open(pair.is_open(), pair.many)]
        denied += [*_overrated(pair, found, margin), *_apart(pair, margin), *_as_well(pair, margin)]
        denied += _shuffled(pair, chance, margin)
        denied += [*_rank(pair, ranks, margin), *_index(pair, similarities, margin)]
    rows = table[table["score"] == score]
    if rows.loc[rows["control"] == PLAIN, "network_seed"].nunique() <= 1:
        names = " and ".join(dict.fromkeys(name for pair in found for name in (pair.sender, pair.receiver)))
        denied.append(f"That other trainings of these networks would do the same: {names} are one training each.")
    if never := never_known(rows[rows["control"] == PLAIN]):
        denied.append(f"That no better stitch exists: {' and '.join(never)} never says whether it has converged.")
    failed = rows.loc[rows["status"] == "failed", "trial"].nunique()
    missing = [
        *_untried(found),
        *([_SIMILARITY] if similarities is None else _not_calibrated(similarities)),
        *([_RANK] if ranks is None else []),
        *([f"{failed} trial{'s' * (failed > 1)} failed, and of them nothing is said"] if failed else []),
    ]
    verdict = f"{say_verdict(found[0], margin)}." if len(found) == 1 and compatible else ""
    if verdict and (penalties := say_open(found[0].is_open(), found[0].many)):
        verdict = " ".join([verdict, *penalties])
    return Explanation(tuple(holds), tuple(denied), tuple(missing), verdict)


# --- what holds -------------------------------------------------------------------------------------------------------


def _compatible(pair: Curve, margin: float) -> Iterator[tuple[str, str]]:
    """Say at how many seams the two are compatible, at how many not, and at how many it is undecided; then at which."""
    within, penalty, open_ = _number(margin, pair), pair.penalties(), pair.is_open()
    known, by = ~pair.is_doubtful(), "not compatible by this stitch and fit"
    if pair.never_known:  # and so may be far from the best that is possible
        by = f"not shown to be compatible by {pair.never_known}, which never says whether it has converged"
    again = "; mend what the warning names, and measure again"
    for where, said, then in (
        (~known & np.isfinite(penalty.value), "not judged, since a network is not to be trusted,", again),
        (penalty.within(margin) & known, f"compatible, the whole 95 % interval of the penalty within {within},", ""),
        (
            penalty.beyond(margin) & ~open_ & known,
            f"{by}, the penalty beyond {within},",
            "",
        ),
        (
            penalty.beyond(margin) & open_ & known,
            f"not converged, so undecided, the penalty beyond {within} as yet,",
            "; fit for longer",
        ),
        (
            penalty.across(margin) & known,
            f"undecided, the interval on both sides of {within},",
            "; score more samples, or measure more seeds",
        ),
    ):
        if where.any():
            yield f"{pair}: {said} at {share_of(pair, where)}", _numbers(pair, where, penalty) + then


def _beyond(pair: Curve, margin: float) -> Iterator[str]:
    """Say at which seams the stitched network certainly does better than a control, and at which it needs no stitch."""
    shuffled = {"shuffled pairs": "a stitch fitted to shuffled pairs"}
    for control, who in ({kind: _KNOWN[kind].who for kind in _KNOWN if kind != "linear probe"} | shuffled).items():
        ahead = pair.ahead_of(control)
        where, open_ = ahead.beyond(margin), pair.is_open(control)
        if (where & open_).any():
            yield (
                f"{pair}: not converged, so undecided whether it is beyond {who}, at {share_of(pair, where & open_)}: "
                f"fitted for longer, the control may do better ({_listed(pair, where & open_)})."
            )
        where = where & ~open_
        if where.any():
            places = np.flatnonzero(where)
            ends = [places[np.argmin(ahead.value[places])], places[np.argmax(ahead.value[places])]]
            least, most = (f"{spread_words(pair, ahead, i)} ({pair.labels[i]})" for i in ends)
            by = least if len(places) == 1 else f"{least} to {most}"
            yield f"{pair}: beyond {who} at {share_of(pair, where)}, by {by}."
    where = pair.ahead_of("plugged in").within(margin) & ~pair.is_open()
    if where.any():
        yield (
            f"{pair}: plugged in without a stitch, it does as well at {share_of(pair, where)} "
            f"({_listed(pair, where)}): there the layers can be exchanged as they are."
        )


# --- what must not be concluded ---------------------------------------------------------------------------------------


def _overrated(pair: Curve, found: tuple[Curve, ...], margin: float) -> Iterator[str]:
    """Say what the penalties alone never say, and what stitching the receiver to itself says of them."""
    sender, receiver, penalty = pair.sender, pair.receiver, pair.penalties()
    if penalty.within(margin).any() and sender != receiver:
        yield (
            f"{pair}: that {sender} and {receiver} represent the same, where they are compatible: networks that use "
            "different information are, too (smith2024, sections 4.1, 4.2 and 5)."
        )
    costly = penalty.beyond(margin) & ~pair.is_open()
    if costly.any():
        shown = "shown to be " if pair.never_known else ""
        yield (
            f"{pair}: that {sender} lacks what {receiver} needs, where they are not {shown}compatible "
            f"({_listed(pair, costly)}): a good enough map may not have been found (smith2024, section 2)."
        )
    better = penalty.high < 0
    if better.any() and sender != receiver:
        back = [other for other in found if (other.sender, other.receiver) == (receiver, sender)]
        reverse = any((other.penalties().high < 0).any() for other in back)
        also = f"{back[0]} beats {sender}, too" if reverse else f"stitching {receiver} → {sender} may say the reverse"
        yield (
            f"{pair}: that {sender} represents more than {receiver}, where the stitched network is better than "
            f"{receiver} ({_listed(pair, better)}): {also} (smith2024, section 4.3)."
        )
    own = pair.penalties("itself")
    open_ = pair.is_open("itself")
    for where, claim in (
        (own.high < 0, "that the stitch only aligns: {} stitched to itself is better than {} (smith2024, section 4.3)"),
        (own.beyond(margin) & ~open_, "that a penalty is the sender's: {} stitched to itself is worse than {}"),
        (own.beyond(margin) & open_, "that a penalty is the sender's: {} stitched to itself had not converged to {}"),
    ):
        if where.any():
            yield f"{pair}: {claim.format(receiver, receiver)}, the penalty {_numbers(pair, where, own)}."


def _apart(pair: Curve, margin: float) -> Iterator[str]:
    """Say where a stitch works, but sends the receiver what it never saw in training."""
    where = pair.penalties().within(margin) & told_from_own(pair.plain).to_numpy(bool)
    if where.any():
        far, near = (pair.plain[f"apart_{name}"].to_numpy(float) for name in MEASURES)
        yield (
            f"{pair}: that {pair.receiver} sees at its cut what it saw in training, at {share_of(pair, where)} where "
            f"they are compatible: what the stitch gives is told apart from {pair.receiver}'s own activations, the "
            f"AUROC by Mahalanobis and nearest neighbours "
            f"{_listed(pair, where, lambda i: f'{far[i]:.2f} and {near[i]:.2f}')} (Balogh & Jelasity 2024)."
        )


def _as_well(pair: Curve, margin: float) -> Iterator[str]:
    """Say which controls do as well, and of which it is undecided."""
    for control, known in _KNOWN.items():
        ahead = pair.ahead_of(control)
        who, meaning, claim = (
            said.format(sender=pair.sender, receiver=pair.receiver) for said in (known.who, known.meaning, known.claim)
        )
        same, open_ = ahead.within(margin) & ~pair.is_open(), ahead.across(margin)
        unsettled = ahead.within(margin) & pair.is_open()
        if unsettled.any():
            yield (
                f"{pair}: {claim}, at {share_of(pair, unsettled)}: not converged, so undecided whether {who} does as "
                f"well; the stitched network less the control as yet: {_numbers(pair, unsettled, ahead)}."
            )
        if same.any():
            yield (
                f"{pair}: {claim}, at {share_of(pair, same)}: {who} does as well, within {_number(margin, pair)}: "
                f"there, {meaning}{known.source}; the stitched network less the control: {_numbers(pair, same, ahead)}."
            )
        if open_.any():
            yield (
                f"{pair}: {claim}, at {share_of(pair, open_)}: undecided whether {who} does as well; the stitched "
                f"network is better by {_numbers(pair, open_, ahead)}."
            )


def _shuffled(pair: Curve, chance: float | None, margin: float) -> Iterator[str]:
    """Say where a stitch fitted to shuffled pairs did not collapse."""
    if not pair.rises:
        return
    kept, floor = pair.scores("shuffled pairs"), pair.scores().value / 2
    said = "is above half of the true pairs' score, which may be chance if classes are few or unequal: give chance="
    if chance is not None:
        chance = 100 * chance if pair.percent else chance
        floor = np.full(len(pair.seams), chance + margin)
        said = f"did not collapse and is above chance, {_plain(chance, pair)}, by more than {_number(margin, pair)}"
    where = kept.low > floor
    where &= ~pair.is_open() if chance is None else True  # half of a score that may still rise says nothing
    if where.any():
        yield (
            f"{pair}: that success is owed to what {pair.sender} says of each image, at {share_of(pair, where)}: "
            f"fitted to shuffled pairs the stitched network {said} "
            f"({_listed(pair, where, lambda i: _plain(kept.value[i], pair))})."
        )


def _rank(pair: Curve, ranks: pd.DataFrame | None, margin: float) -> Iterator[str]:
    """Say where the receiver finds another number of dimensions than in its own activations.

    The numerical ranks, means over seeds, differ if they are ``APART`` of the receiver's from each other, and no seed
    of the one is among those of the other.
    """
    if ranks is None:
        return
    check_columns(ranks, ("sender", "receiver", *_SEAM, "measure", "value", "normalised"), "complexity of seams")
    rows = ranks[(ranks["measure"] == "numerical rank") & ~ranks["normalised"].astype(bool)]
    rows = rows[rows["control"].isin([PLAIN, "itself"])] if "control" in rows else rows
    values = rows.groupby(["sender", "receiver", *_SEAM])["value"].agg(["mean", "min", "max"]).to_dict("index")
    said: dict[int, str] = {}
    for i, (start, end) in enumerate(pair.seams):
        keys = (pair.receiver, pair.receiver, end, end), (pair.sender, pair.receiver, start, end)
        if all(key in values for key in keys):
            own, sent = (values[key] for key in keys)
            far = abs(sent["mean"] - own["mean"]) > APART * abs(own["mean"])
            if far and (sent["min"] > own["max"] or sent["max"] < own["min"]):
                said[i] = f"{sent['mean']:.0f} against {own['mean']:.0f}"
    where = np.array([i in said for i in range(len(pair.seams))]) & pair.penalties().within(margin)
    if where.any():
        yield (
            f"{pair}: that {pair.receiver} takes what it is sent for its own, at {share_of(pair, where)} where they "
            f"are compatible: the numerical rank differs from that of {pair.receiver} stitched to itself "
            f"({_listed(pair, where, said.__getitem__)}) (smith2024, section 4.1)."
        )


def _index(pair: Curve, similarities: pd.DataFrame | None, margin: float) -> Iterator[str]:
    """Say where an index calls compatible layers unlike, or layers that are not compatible alike.

    Alike is a calibrated value whose interval is above ``ALIKE``, unlike one whose interval is below. Of an index that
    was not calibrated nothing is said.
    """
    if similarities is None:
        return
    check_similarities(similarities)
    penalty = pair.penalties()
    said: dict[str, list[str]] = {"are alike, where they are compatible": [], "differ, where they are not": []}
    rows = similarities[(similarities["sender"] == pair.sender) & (similarities["receiver"] == pair.receiver)]
    for name, held in rows.groupby("index", sort=False):
        columns = held.set_index(_SEAM)[["calibrated", "low", "high"]]
        laid = columns.reindex(pd.MultiIndex.from_tuples(pair.seams)).to_numpy(float)
        values, low, high = (laid[:, i] for i in range(3))
        unlike, alike = np.isfinite(high) & (high < ALIKE), np.isfinite(low) & (low > ALIKE)
        wrong = penalty.within(margin) & unlike, penalty.beyond(margin) & ~pair.is_open() & alike
        for claim, where in zip(said, wrong, strict=True):
            if where.any():
                listed = _listed(pair, where, lambda i, shown=values: f"{shown[i]:.2f}")  # type: ignore[misc]
                said[claim].append(f"{name}, calibrated ({listed})")
    for claim, names in said.items():
        if names:
            yield f"{pair}: that {pair.sender} and {pair.receiver} {claim}: by {', '.join(names)} it is the reverse."


def _not_calibrated(similarities: pd.DataFrame) -> Iterator[str]:
    """Name the indices that were compared with no chance level."""
    for name, held in similarities.groupby("index", sort=False):
        if held["calibrated"].isna().all():
            yield f"{name}: its chance level would say what is left of it (suture.compare with permutations)"


def _untried(found: tuple[Curve, ...]) -> Iterator[str]:
    """Name the controls that were not run, or not everywhere."""
    tasks = set(found[0].table["task"]) if "task" in found[0].table else set()
    for control, ruled_out in _RULED_OUT.items():
        if control in ("clustered noise", "linear probe") and not tasks <= {"", CLASSIFICATION}:
            continue  # there is nothing of a class where there are no classes
        lacking = [(pair, int((~np.isfinite(pair.scores(control).value)).sum())) for pair in found]
        if all(count == len(pair.seams) for pair, count in lacking):
            yield f"{control}: would rule out {ruled_out}"
        elif any(count for _, count in lacking):
            some = ", ".join(f"{count} of {len(pair.seams)} of {pair}" for pair, count in lacking if count)
            yield f"{control} at some {found[0].many} ({some}): would rule out {ruled_out}"


# --- in short ---------------------------------------------------------------------------------------------------------


def say_curve(shown: Curve, places: bool = True) -> list[str]:
    """Say the worst penalty of a curve, and what its controls say; ``places`` names the cuts.

    For scores that are no fraction, and for tables without controls, it says what it can; nothing of what failed.
    """
    penalty = shown.penalties()
    if np.isnan(penalty.value).all():
        return []
    worst = int(np.nanargmax(penalty.value))
    said = [f"Worst penalty: {spread_words(shown, penalty, worst, signed=True)} at {shown.labels[worst]}."]
    said += [*say_open(shown.is_open(), shown.many), *say_apart(shown.is_apart(), shown.many)]
    if shown.percent:
        said += _say_controls([shown], "cuts", lambda pair, i: pair.labels[i], places)
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
    for here, there, name, other in (
        ("late_to_early", "early_to_late", _LATE, "early → late"),
        ("near", "far", "Within one cut of the diagonal", "away from it"),
    ):
        gap = means[here] - means[there]
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
    held = np.isfinite(shown.plain)
    said += [*say_open(shown.open[PLAIN][held], "seams"), *say_apart(shown.apart[PLAIN][held], "seams")]
    labels, values = [f"{row} → {column}" for row in named[0] for column in named[1]], shown.plain.ravel()
    least, most = int(np.nanargmin(values)), int(np.nanargmax(values))
    said.append(f"Lowest: {value(values[least])} at {labels[least]}; highest: {value(values[most])} at {labels[most]}.")

    def seam(pair: Curve, i: int) -> str:
        names = ("", "") if shown.single else (f"{pair.sender} ", f"{pair.receiver} ")
        return " → ".join(f"{name}{cut}" for name, cut in zip(names, pair.seams[i], strict=True))

    if shown.percent and plain.loc[plain["score"] == shown.score, "penalty"].notna().any():
        said += _say_controls(arrange_pairs(shown.table, shown.score), "seams", seam, places)
    return said


def _say_controls(found: Sequence[Curve], many: str, label: Callable[[Curve, int], str], places: bool) -> Iterator[str]:
    """Say what each control that was tried says of a fraction, a sentence each; ``many`` are cuts or seams."""
    for control in ("untrained sender", "untrained receiver"):
        yield from _as_good(control, found, many, label, places)
    costs = np.concatenate([pair.penalties("itself").value for pair in found])

    def unfinished(control: str) -> str:
        count = sum(int(pair.is_open(control).sum()) for pair in found)
        return f", not converged at {say_count(count, many.removesuffix('s'))}" if count else ""

    if np.isfinite(costs).any():
        receivers = dict.fromkeys(pair.receiver for pair in found)
        who = next(iter(receivers)) if len(receivers) == 1 else "a receiver"
        yield f"Stitched to itself, {who} has a penalty of at most {np.nanmax(costs):+z.1f} pp{unfinished('itself')}."
    kept = np.concatenate([pair.scores("shuffled pairs").value for pair in found])
    if np.isfinite(kept).any():
        bound = "at most" if found[0].rises else "at least"
        reached = f"{bound} {abs(np.nanmax(kept)):.1f} %{unfinished('shuffled pairs')}"
        yield f"Fitted to shuffled pairs, the stitched network reaches {reached}."
    yield from _as_good("clustered noise", found, many, label, places)


def _as_good(
    control: str, found: Sequence[Curve], many: str, label: Callable[[Curve, int], str], places: bool
) -> Iterator[str]:
    """Say at which seams a control does as well as the real thing, and at which it is undecided."""
    ahead = [(pair, pair.ahead_of(control)) for pair in found]
    # A stitched network that had not converged may yet beat the control, and such a control may yet do as well.
    open_ = [
        (one.within(MARGIN) & pair.is_open()) | (one.beyond(MARGIN) & pair.is_open(control)) for pair, one in ahead
    ]
    as_well = [
        label(pair, i)
        for (pair, one), left_out in zip(ahead, open_, strict=True)
        for i in np.flatnonzero(one.within(MARGIN) & ~left_out).tolist()
    ]
    unsettled = [
        label(pair, i)
        for (pair, _), left_out in zip(ahead, open_, strict=True)
        for i in np.flatnonzero(left_out).tolist()
    ]
    undecided = [label(pair, i) for pair, one in ahead for i in np.flatnonzero(one.across(MARGIN)).tolist()]
    compared = sum(int(np.isfinite(one.value).sum()) for _, one in ahead)
    if not compared:
        return
    who, meaning, within = _KNOWN[control].who, _KNOWN[control].meaning, f"within {MARGIN:g} pp"

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
    elif not unsettled:
        yield f"At no {many.removesuffix('s')} does {who} do as well, {within}."
    elif len(unsettled) < compared:
        yield f"At no {many.removesuffix('s')} whose fits had converged does {who} do as well, {within}."
    if unsettled:
        at = f"{len(unsettled)} of {compared} {many}{named(unsettled)}"
        yield f"Whether {who} does as well is open at {at}, where a fit had not converged."


def say_open(where: Mask, many: str) -> list[str]:
    """Say at how many places, ``cuts`` or ``seams``, a fit had not converged; nothing if all did, or none can say."""
    count = int(where.sum())
    if not count:
        return []
    one = len(where) == 1
    which = f"The {many.removesuffix('s')}" if one else f"{count} of {len(where)} {many}"
    bounds = "its penalty is an upper bound" if count == 1 else "their penalties are upper bounds"
    return [f"{which} had not converged; {bounds}."]


def say_apart(where: Mask, many: str) -> list[str]:
    """Say at how many places a stitch works on what the receiver never saw in training; nothing if at none."""
    count = int(where.sum())
    which = f"{count} of {len(where)} {many}" if len(where) > 1 else f"the {many.removesuffix('s')}"
    told = "activations that are told apart from the receiver's own"
    return [f"At {which} it works within {MARGIN:g} pp, but on {told}."] if count else []


# --- in words ---------------------------------------------------------------------------------------------------------


def share_of(pair: Curve, where: Mask) -> str:
    """``3 of 8 cuts``."""
    return f"{int(where.sum())} of {len(pair.seams)} {pair.many}"


def spread_words(pair: Curve, of: Estimates, i: int, signed: bool = False) -> str:
    """``+1.2 pp [-0.3, 2.8]``."""
    digits = 1 if pair.percent else 3
    value, low, high = (float(part[i]) for part in (of.value, of.low, of.high))
    number = f"{value:{'+' if signed else ''}z.{digits}f} {pair.penalty_unit}".strip()
    return f"{number} [{low:z.{digits}f}, {high:z.{digits}f}]" if np.isfinite([low, high]).all() else number


def _listed(pair: Curve, where: Mask, said: Callable[[int], str] = lambda i: "") -> str:
    """Places with what is said of each; of very many the first."""
    places = np.flatnonzero(where).tolist()
    shown = ", ".join(f"{pair.labels[i]} {said(i)}".strip() for i in places[:_MOST])
    return shown + (f" and {len(places) - _MOST} more" if len(places) > _MOST else "")


def _numbers(pair: Curve, where: Mask, of: Estimates) -> str:
    return _listed(pair, where, lambda i: spread_words(pair, of, i, signed=True))


def _number(value: float, pair: Curve) -> str:
    return f"{value:g} {pair.penalty_unit}".strip()


def _plain(value: float, pair: Curve) -> str:
    return f"{abs(value):.1f} %" if pair.percent else f"{abs(value):.3f} {pair.penalty_unit}".strip()
