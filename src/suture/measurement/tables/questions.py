"""Five questions about each seam, answered one by one: yes, no, or undecided, with the difference behind it.

1. *Does it work?* Is the stitched network as good as its receiver: is the penalty below the margin?
2. *Does it need what the sender has learned?* Is it better, by more than the margin, than with an untrained sender?
3. *Does it need what the receiver has learned?* Is it better, by more than the margin, than with an untrained receiver?
4. *Does it need the right pairs?* Does a stitch that was fitted to shuffled pairs fall to guessing?
5. *Whose mistakes does it make?* Those of the sender, of the receiver, of both, or of neither.

Theory. A stitched network that does as well as its receiver shows that the sender's representation *can be used* as the
receiver's is, by way of a trained stitch. What that is worth, the controls say: whatever an untrained network does as
well needs nothing that the trained one has learned (bansal2021, section 2; hernandez2022, section 1.5). Accuracy
cannot tell what was passed on: noise that carries nothing but the class is stitched as well (smith2024, section 4.2).
Mistakes tell more, since two networks that have the class right need not be wrong on the same samples.

Differences are paired over the scored samples wherever the outcomes of both are kept (``Curve.ahead_of``), and their
intervals are of 95 %. The answer is *yes* if the interval lies wholly on one side of the margin, *no* if it lies wholly
on the other, else *undecided*. A mark concerns one seam. What is counted over seams is corrected by Holm's method
(Holm 1979) over the seams, and over questions 2 and 3 together, so that a count is wrong in at most 5 % of readings.

A fit that had not converged may still gain. A penalty is then an upper bound: it may show that a seam works, never that
it does not. A control that had not converged is beaten only by more than the margin and the gain that it may still
make. That is what its fit said of its last doubling, ``gained`` and its standard error. If it says nothing, the
question stays open.

*Whose mistakes.* κ is Cohen's κ of being right or wrong on the same samples (Geirhos, Meding & Wichmann 2020). The
baseline is κ(A, B): how far the two networks agree without a stitch. Mistakes are the sender's if κ(stitched, A) is
certainly more than ``SHARED`` above that, the receiver's if κ(stitched, B) is, both over the same samples. The margin
is needed because networks of one kind differ in how much they agree: put in the place of A or B, networks that no
stitch has seen exceed the baseline by up to 0.05 (``benchmarks/mistakes.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from suture.measurement.scores.outcomes import CLASSES, Outcomes, unpack
from suture.measurement.tables.curve import PLAIN, Curve, Estimates
from suture.measurement.tables.table import OVER_SAMPLES, Mask, Numbers

Question = Literal["works", "sender", "receiver", "pairs", "mistakes"]
QUESTIONS: tuple[Question, ...] = ("works", "sender", "receiver", "pairs", "mistakes")
CONTROL = {"sender": "untrained sender", "receiver": "untrained receiver", "pairs": "shuffled pairs"}

YES, NO, CLOSE, UNASKED = "yes", "no", "undecided", ""
SENDERS, RECEIVERS, BOTH, NEITHER = "the sender's", "the receiver's", "both networks'", "neither network's"

LEAST_ERRORS = 100  #: of each network, below which κ says nothing
SHARED = 0.05  #: κ above the baseline, from which on mistakes count as a network's
LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers to one question at every seam of a pair.

    ``marks`` are ``YES``, ``NO``, ``CLOSE`` or ``UNASKED``; of mistakes ``SENDERS``, ``RECEIVERS``, ``BOTH``,
    ``NEITHER``, ``CLOSE`` or ``UNASKED``. ``behind`` is the difference that decides, in the unit of the penalty (of
    mistakes κ(stitched, sender) − κ(sender, receiver)). ``surely`` is the least level of a test, two-sided, at which
    the mark would still be yes or no. ``assumed`` is where a control counts as beaten that had not converged.
    """

    margin: float
    marks: tuple[str, ...]
    behind: Estimates
    surely: Numbers
    assumed: Mask

    def are(self, mark: str) -> Mask:
        """Return where the mark is this one."""
        return np.array([one == mark for one in self.marks], bool)

    @property
    def asked(self) -> Mask:
        """Where there is an answer, even if that is *undecided*."""
        return ~self.are(UNASKED)


Answered = dict[Question, Answers]


def answer(pair: Curve, margin: float | None, chance: float | None = None) -> Answered:
    """Answer every question at every seam of a pair.

    ``margin`` is in the unit of the penalty; without one nothing is asked but whose mistakes it makes. ``chance`` is
    the score of guessing in the score's unit, in place of that of the table.
    """
    found: Answered = {}
    if margin is not None:
        found["works"] = _works(pair, margin)
        found["sender"] = _needs(pair, "sender", margin)
        found["receiver"] = _needs(pair, "receiver", margin)
        found["pairs"] = _pairs(pair, margin, chance)
    found["mistakes"] = _mistakes(pair)
    trusted = ~pair.is_doubtful()  # at the other seams the answers are blank
    for question, one in found.items():
        marks = tuple(mark if sure else UNASKED for mark, sure in zip(one.marks, trusted, strict=True))
        found[question] = replace(one, marks=marks, assumed=one.assumed & trusted)
    return found


def settle(answers: Sequence[Answers], where: Sequence[Mask]) -> list[Mask]:
    """Return where answers stay yes or no when all those asked at these places are corrected together by Holm's method.

    ``where`` has a mask for each of the answers.
    """
    counted = [one.asked & np.isfinite(one.surely) & mask for one, mask in zip(answers, where, strict=True)]
    levels = np.concatenate([one.surely[mask] for one, mask in zip(answers, counted, strict=True)] or [np.zeros(0)])
    order = np.argsort(levels, kind="stable")
    allowed = LEVEL / (len(levels) - np.arange(len(levels)))
    held = np.zeros(len(levels), bool)
    held[order] = np.logical_and.accumulate(levels[order] <= allowed)
    settled = []
    for one, mask in zip(answers, counted, strict=True):
        kept = np.zeros(len(one.marks), bool)
        kept[mask], held = held[: mask.sum()], held[mask.sum() :]
        settled.append(kept & (one.are(YES) | one.are(NO)))
    return settled


# --- questions 1 to 4 -------------------------------------------------------------------------------------------------


def _works(pair: Curve, margin: float) -> Answers:
    """Ask whether the penalty is below the margin; only a fit that has converged can show that it is not."""
    penalty = pair.penalties()
    sure = pair.is_sure()
    marks = _mark(penalty, yes=penalty.high < margin, no=(penalty.low > margin) & sure)
    surely = _level(penalty, margin, _freedom(pair, PLAIN))
    surely[(penalty.value > margin) & ~sure] = 1.0
    return Answers(margin, marks, penalty, surely, np.zeros(len(marks), bool))


def _needs(pair: Curve, role: Question, margin: float) -> Answers:
    """Ask whether the stitched network is better, by more than the margin, than with an untrained network."""
    control = CONTROL[role]
    ahead = pair.ahead_of(control)
    gain, own = may_gain(pair, control), may_gain(pair, PLAIN)
    # Fitted for longer, the control may come closer, and the stitched network may get farther away.
    least, most = ahead.moved(-gain), ahead.moved(own)
    yes, no = least.low > margin, most.high < margin
    free = np.minimum(_freedom(pair, PLAIN), _freedom(pair, control))
    surely = np.fmin(_level(least, margin, free, above=True), _level(most, margin, free, above=False))
    return Answers(margin, _mark(ahead, yes, no), ahead, surely, yes & (gain > 0))


def _pairs(pair: Curve, margin: float, chance: float | None) -> Answers:
    """Ask whether a stitch that was fitted to shuffled pairs falls to guessing."""
    kept, floor = pair.scores(CONTROL["pairs"]), pair.guessing(chance)
    above = kept.moved(-floor)
    marks = _mark(above, yes=above.high <= margin, no=above.low > margin)
    surely = _level(above, margin, _freedom(pair, CONTROL["pairs"]))
    return Answers(margin, marks, above, surely, np.zeros(len(marks), bool))


def _mark(of: Estimates, yes: Mask, no: Mask) -> tuple[str, ...]:
    """Return the marks, blank for a seam that was not measured or has no interval."""
    asked: list[bool] = (np.isfinite(of.value) & np.isfinite(of.low) & np.isfinite(of.high)).tolist()
    return tuple(
        UNASKED if not known else YES if one else NO if other else CLOSE
        for known, one, other in zip(asked, yes.tolist(), no.tolist(), strict=True)
    )


def may_gain(pair: Curve, control: str) -> Numbers:
    """Return by how much a longer fit may still better each score of a control, in the unit of the penalty.

    Nothing if it had converged. Infinite if nobody knows.
    """
    rows = pair.line(control)
    said = rows["gained"].to_numpy(float).clip(0) + rows["gained_error"].to_numpy(float)
    unsure = said if pair.percent else np.full(len(rows), np.nan)
    return np.where(pair.is_sure(control), 0.0, np.where(np.isfinite(unsure), unsure, np.inf))


def _freedom(pair: Curve, control: str) -> Numbers:
    """Return the degrees of freedom of each interval: one less than there are seeds, infinite over samples."""
    rows = pair.line(control)
    seeds = rows["seeds"].astype("Float64").to_numpy(float, na_value=np.nan)
    return np.where((rows["interval"] == OVER_SAMPLES).to_numpy(bool), np.inf, np.fmax(seeds - 1, 1))


def _level(of: Estimates, margin: float, free: Numbers, above: bool | None = None) -> Numbers:
    """Return the two-sided level at which an estimate differs from the margin, by its own interval.

    With ``above`` only a difference to that side counts, and 1 is returned for one to the other.
    """
    over = of.value > margin
    with np.errstate(divide="ignore", invalid="ignore"):  # of what may still gain without end
        half = np.where(over, of.value - of.low, of.high - of.value)
        reach = np.abs(of.value - margin) / half
    known = np.isfinite(free)
    few = np.where(known, free, 1.0)
    level = np.where(
        known,
        2 * stdtr(few, -reach * stdtrit(few, 1 - LEVEL / 2)),
        2 * ndtr(-reach * ndtri(1 - LEVEL / 2)),
    )
    level = np.where(half == 0, np.where(of.value == margin, 1.0, 0.0), level)
    return level if above is None else np.where(over == above, level, np.where(np.isnan(of.value), np.nan, 1.0))


# --- whose mistakes ---------------------------------------------------------------------------------------------------


def _mistakes(pair: Curve) -> Answers:
    held = pair.plain["outcomes"].fillna("")
    found = [agreement(unpack(text)) if text and pair.sender != pair.receiver else None for text in held]
    marks = tuple(UNASKED if one is None else one.mark for one in found)
    value, low, high = (
        np.array([(np.nan,) * 3 if one is None else one.senders for one in found], float).reshape(-1, 3).T
    )
    none = np.zeros(len(marks), bool)
    return Answers(SHARED, marks, Estimates(value, low, high), np.full(len(marks), np.nan), none)


@dataclass(frozen=True)
class Agreement:
    """How two parents and their stitched network agree in being right or wrong, by Cohen's κ.

    ``senders`` and ``receivers`` are by how much κ of the stitched network with either exceeds κ(sender, receiver),
    each with a 95 % interval.
    """

    senders: tuple[float, float, float]
    receivers: tuple[float, float, float]

    @property
    def mark(self) -> str:
        """Whose mistakes the stitched network makes."""
        own, others = self.senders[1] > SHARED, self.receivers[1] > SHARED
        if own and others:
            return BOTH
        if own or others:
            return SENDERS if own else RECEIVERS
        return NEITHER if self.senders[2] < SHARED and self.receivers[2] < SHARED else CLOSE


def agreement(outcomes: Outcomes) -> Agreement | None:
    """Compare the mistakes of a stitched network with those of its parents.

    Nothing if there are no classes, if a parent has no outcomes, or if one of the three is wrong on fewer than
    ``LEAST_ERRORS`` samples.
    """
    roles = ("stitched", "sender", "receiver")
    if outcomes.of != CLASSES or not {*roles} <= {*outcomes.by_role}:
        return None
    right = np.stack([outcomes.by_role[role] == 0 for role in roles])
    if (~right).sum(1).min() < LEAST_ERRORS:
        return None
    n = right.shape[1]
    # All that κ depends on: how many samples show each of the eight patterns of right and wrong.
    shares = np.bincount(right.T.astype(int) @ [4, 2, 1], minlength=8) / n
    base = _kappa(shares, 1, 2)
    differences = []
    for other in (1, 2):
        value, slope = _kappa(shares, 0, other) - base, np.zeros(8)
        for i in range(8):  # the delta method for multinomial shares
            step = np.zeros(8)
            step[i] = 1e-6
            up, down = (_kappa(shares + s, 0, other) - _kappa(shares + s, 1, 2) for s in (step, -step))
            slope[i] = (up - down) / 2e-6
        spread = float(np.sqrt(max(shares @ slope**2 - (shares @ slope) ** 2, 0.0) / n))
        reach = float(ndtri(1 - LEVEL / 2)) * spread
        differences.append((value, value - reach, value + reach))
    return Agreement(*differences)


def _kappa(shares: Numbers, one: int, other: int) -> float:
    """Return Cohen's κ of two of three networks from the shares of the eight patterns, whatever these sum to."""
    cube = shares.reshape(2, 2, 2)
    table = cube.sum(axis=3 - one - other) / cube.sum()
    agreed, expected = table[0, 0] + table[1, 1], table.sum(1) @ table.sum(0)
    return float((agreed - expected) / (1 - expected))
