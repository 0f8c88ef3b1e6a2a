"""Explanations of a table of measurements in words and numbers, and the conclusions that it does not support.

``explain`` answers five questions (``questions``) on one screen. The rest, unsupported conclusions and missing
measurements, is in ``Explanation.full``.

Theory. That a stitched network works shows that the sender's representation *can be used* as the receiver's is, by way
of a trained stitch. It does not show that the two represent the same: networks that use colour alone, and noise that
knows nothing but the class, are stitched as well into a network that reads shapes (smith2024, sections 4.1 and 4.2).
Nor is a failure evidence of a difference, since a good enough map may not have been found (section 2).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np
import pandas as pd

from suture.common.constants import CLASSIFICATION
from suture.common.errors import DataError
from suture.common.visible import visible
from suture.measurement.scores.in_distribution import MEASURES
from suture.measurement.tables import say
from suture.measurement.tables.curve import NOISE, PLAIN, Curve
from suture.measurement.tables.questions import NO, YES, Answered
from suture.measurement.tables.read import Reading, make_reading
from suture.measurement.tables.similarities import check_similarities
from suture.measurement.tables.table import Mask, check_columns, never_known, told_from_own

ALIKE = 0.5  #: of the way of an index from chance to the same layers, from which on it calls two layers alike
APART = 0.1  #: of a receiver's own numerical rank, by which another must differ
_SEAM = ["sender_cut", "receiver_cut"]

#: Controls that answer no question, and the conclusion to avoid where one does as well.
_AS_WELL = {
    NOISE: "that {receiver} is sent more than the class: noise that carries only the class does as well (smith2024, "
    "section 4.2)",
    "linear probe": "that {receiver}'s layers add to {sender}'s: a linear probe of {sender} does as well",
    "untrained both": "that anything was learned that this needs: two untrained networks do as well",
}
#: Measurements to try beside a pair, and the explanation that each would rule out.
_RULED_OUT = {
    "itself": "that the stitch does more than align, or costs something by itself (smith2024, section 4.3)",
    "untrained sender": "that any features would do, learned or not (bansal2021, section 2)",
    "untrained receiver": "that the stitch alone does the receiver's work (hernandez2022, section 1.5)",
    "shuffled pairs": "that the stitch only learned what all samples share",
    NOISE: "that telling the classes apart is all it takes (smith2024, section 4.2)",
    "linear probe": "that the sender's layers already solve the task, and the receiver's add nothing",
}
_SIMILARITY = "similarity indices: would show whether the two represent the samples alike (suture.compare)"
_RANK = (
    "numerical rank: would show whether stitched activations have as many dimensions as the receiver's own "
    "(smith2024, section 4.1; suture_papers.complexity)"
)


@final
@dataclass(frozen=True)
class Explanation:
    """The explanation of one score of a table.

    ``verdict`` is the headline: where the stitched network works, and the conditions for that. ``answers`` has each
    question with its answer, and ``warnings`` lists problems, if any. ``not_concluded`` lists the conclusions to avoid,
    and ``missing`` the measurements that were not made, a sentence each. ``str`` is the first screen, ``full`` all of
    it.
    """

    title: str
    verdict: str
    answers: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    not_concluded: tuple[str, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        wide = max((len(question) for question, _ in self.answers), default=0)
        rows = [f"{question:<{wide}}  {said}" for question, said in self.answers]
        parts = [self.title, "\n".join(self.warnings), "\n".join(rows), self.verdict and f"So: {self.verdict}"]
        return visible("\n\n".join(filter(None, parts)))

    @property
    def full(self) -> str:
        """The whole text."""
        parts = (("What must not be concluded", self.not_concluded), ("What was not tried", self.missing))
        lists = ("\n".join([title, *(f"- {said}" for said in lines)]) for title, lines in parts if lines)
        return visible("\n\n".join([str(self), *lists]))


def explain(
    table: pd.DataFrame,
    similarities: pd.DataFrame | None = None,
    ranks: pd.DataFrame | None = None,
    *,
    score: str | None = None,
    margin: float | None = None,
    chance: float | None = None,
) -> Explanation:
    """Answer five questions from a table of measurements, and list the conclusions that it does not support.

    ``similarities`` is a table of ``compare``, of one or several indices; ``ranks`` one of ``complexity``, for the
    stitched networks and for their receivers stitched to themselves. ``margin`` is in the unit of the penalty: 3 pp
    if the score is a fraction, and to be given for any other. ``chance`` is the score of guessing, in the score's
    unit, where the table does not know it.

    Raises ``DataError`` if ``table`` is not a table of measurements, lacks the score or holds several measurements of
    one seam, if a margin is needed or is below 0, and if the score is a fraction and the chance is not.
    """
    reading = make_reading(table, score, margin, chance)
    pairs = reading.pairs
    if reading.margin is None:
        unit = pairs[0].penalty_unit
        raise DataError(
            f"the margin of 3 pp is for fractions, and '{reading.score}' {f'is in {unit}' if unit else 'has no unit'}; "
            f"give margin= in {unit or reading.score}"
        )
    return explain_reading(reading, similarities, ranks)


def explain_reading(
    reading: Reading, similarities: pd.DataFrame | None = None, ranks: pd.DataFrame | None = None
) -> Explanation:
    """Explain a reading as ``explain`` does a table; the reading must have a margin."""
    pairs, table = reading.pairs, reading.table
    denied: list[str] = []
    for pair, answered in zip(pairs, reading.answered, strict=True):
        denied += [*_overrated(pair, answered, pairs), *_apart(pair, answered), *_as_well(pair, answered, reading)]
        denied += [*_rank(pair, answered, ranks), *_index(pair, answered, similarities)]
    rows = table[table["score"] == reading.score]
    if rows.loc[rows["control"] == PLAIN, "network_seed"].nunique() <= 1:
        names = " and ".join(dict.fromkeys(name for pair in pairs for name in (pair.sender, pair.receiver)))
        denied.append(f"That other trainings of these networks would do the same: {names} are one training each.")
    if never := never_known(rows[rows["control"] == PLAIN]):
        denied.append(f"That no better stitch exists: {' and '.join(never)} never says whether it has converged.")
    failed = rows.loc[rows["status"] == "failed", "trial"].nunique()
    missing = [
        *_untried(pairs),
        *([_SIMILARITY] if similarities is None else _not_calibrated(similarities)),
        *([_RANK] if ranks is None else []),
        *(
            [f"{failed} trial{'s' * (failed > 1)} failed and {'are' if failed > 1 else 'is'} left out"]
            if failed
            else []
        ),
    ]
    return Explanation(
        say.say_title(reading),
        say.headline(reading),
        tuple(say.say_answers(reading)),
        (*reading.warnings, *say.say_trouble(reading)),
        tuple(denied),
        tuple(missing),
    )


# --- what must not be concluded ---------------------------------------------------------------------------------------


def _overrated(pair: Curve, answered: Answered, every: tuple[Curve, ...]) -> Iterator[str]:
    """Yield the conclusions that penalties alone never support, and those from stitching the receiver to itself."""
    sender, receiver, penalty = pair.sender, pair.receiver, pair.penalties()
    if answered["works"].are(YES).any() and sender != receiver:
        yield (
            f"{pair}: that {sender} and {receiver} represent the same thing, where it works: networks that use "
            "different information can be stitched, too (smith2024, sections 4.1, 4.2 and 5)."
        )
    if (costly := answered["works"].are(NO)).any():
        yield (
            f"{pair}: that {sender} lacks what {receiver} needs, where it does not work ({_listed(pair, costly)}): a "
            "good enough map may not have been found (smith2024, section 2)."
        )
    better = penalty.high < 0
    if better.any() and sender != receiver:
        back = [other for other in every if (other.sender, other.receiver) == (receiver, sender)]
        reverse = any((other.penalties().high < 0).any() for other in back)
        also = f"{back[0]} beats {sender}, too" if reverse else f"{sender} may be beaten in the other direction, too"
        yield (
            f"{pair}: that {sender} represents more than {receiver}, where the stitched network is better than "
            f"{receiver} ({_listed(pair, better)}): {also} (smith2024, section 4.3)."
        )
    own, margin = pair.penalties("itself"), answered["works"].margin
    open_ = pair.is_open("itself")
    for where, claim in (
        (own.high < 0, "that the stitch only aligns: {} stitched to itself is better than {} (smith2024, section 4.3)"),
        (
            (own.low > margin) & ~open_,
            f"that {sender} causes the penalty: {{}} stitched to itself is also worse than {{}}",
        ),
        (
            (own.low > margin) & open_,
            f"that {sender} causes the penalty: {{}} to itself is also worse than {{}}, as yet",
        ),
    ):
        if where.any():
            penalties = _listed(pair, where, lambda i: say.spread_words(pair, own, i))
            yield f"{pair}: {claim.format(receiver, receiver)}, the penalty {penalties}."


def _apart(pair: Curve, answered: Answered) -> Iterator[str]:
    """Yield where a stitch works, but sends the receiver activations unlike those that it saw in training."""
    where = answered["works"].are(YES) & told_from_own(pair.plain).to_numpy(bool)
    if where.any():
        far, near = (pair.plain[f"apart_{name}"].to_numpy(float) for name in MEASURES)
        yield (
            f"{pair}: that {pair.receiver} sees at its cut what it saw in training, at {say.share_of(pair, where)}: "
            f"what the stitch gives is told apart from {pair.receiver}'s own activations, the AUROC by Mahalanobis and "
            f"nearest neighbours {_listed(pair, where, lambda i: f'{far[i]:.2f} and {near[i]:.2f}')} "
            "(Balogh & Jelasity 2024)."
        )


def _as_well(pair: Curve, answered: Answered, reading: Reading) -> Iterator[str]:
    """Say where a control that answers no question does as well, and where the layers can be exchanged as they are."""
    works, margin = answered["works"].are(YES), answered["works"].margin
    for control, claim in _AS_WELL.items():
        same = (pair.ahead_of(control).high < margin) & works
        if same.any():
            said = claim.format(sender=pair.sender, receiver=pair.receiver)
            yield f"{pair}: {said}, at {say.share_of(pair, same)} ({_listed(pair, same)})."
    same = (pair.ahead_of("plugged in").high < margin) & works
    if same.any():
        yield (
            f"{pair}: that a stitch is needed, at {say.share_of(pair, same)} ({_listed(pair, same)}): plugged in "
            "without one it does as well."
        )


def _rank(pair: Curve, answered: Answered, ranks: pd.DataFrame | None) -> Iterator[str]:
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
    where = np.array([i in said for i in range(len(pair.seams))]) & answered["works"].are(YES)
    if where.any():
        yield (
            f"{pair}: that {pair.receiver} takes what it is sent for its own, at {say.share_of(pair, where)}: the "
            f"numerical rank differs from that of {pair.receiver} stitched to itself "
            f"({_listed(pair, where, said.__getitem__)}) (smith2024, section 4.1)."
        )


def _index(pair: Curve, answered: Answered, similarities: pd.DataFrame | None) -> Iterator[str]:
    """Say where an index calls layers unlike that work, or alike that do not.

    Alike is a calibrated value whose interval is above ``ALIKE``, unlike one whose interval is below. Of an index that
    was not calibrated nothing is said.
    """
    if similarities is None:
        return
    check_similarities(similarities)
    works = answered["works"]
    said: dict[str, list[str]] = {"are alike, where it works": [], "differ, where it does not": []}
    rows = similarities[(similarities["sender"] == pair.sender) & (similarities["receiver"] == pair.receiver)]
    for name, held in rows.groupby("index", sort=False):
        columns = held.set_index(_SEAM)[["calibrated", "low", "high"]]
        laid = columns.reindex(pd.MultiIndex.from_tuples(pair.seams)).to_numpy(float)
        values, low, high = (laid[:, i] for i in range(3))
        unlike, alike = np.isfinite(high) & (high < ALIKE), np.isfinite(low) & (low > ALIKE)
        wrong = works.are(YES) & unlike, works.are(NO) & alike
        for claim, where in zip(said, wrong, strict=True):
            if where.any():
                listed = _listed(pair, where, lambda i, shown=values: f"{shown[i]:.2f}")  # type: ignore[misc]
                said[claim].append(f"{name}, calibrated ({listed})")
    for claim, names in said.items():
        if names:
            yield f"{pair}: that {pair.sender} and {pair.receiver} {claim}: {', '.join(names)} says the opposite."


def _not_calibrated(similarities: pd.DataFrame) -> Iterator[str]:
    """Name the indices that were compared with no chance level."""
    for name, held in similarities.groupby("index", sort=False):
        if held["calibrated"].isna().all():
            yield f"{name}: its chance level would say what is left of it (suture.compare with permutations)"


def _untried(found: tuple[Curve, ...]) -> Iterator[str]:
    """Name the controls that were not run, or not everywhere."""
    tasks = set(found[0].table["task"])
    for control, ruled_out in _RULED_OUT.items():
        if control in (NOISE, "linear probe") and not tasks <= {"", CLASSIFICATION}:
            continue  # there is nothing of a class where there are no classes
        lacking = [(pair, int((~np.isfinite(pair.scores(control).value)).sum())) for pair in found]
        if all(count == len(pair.seams) for pair, count in lacking):
            yield f"{control}: would rule out {ruled_out}"
        elif any(count for _, count in lacking):
            some = ", ".join(f"{count} of {len(pair.seams)} of {pair}" for pair, count in lacking if count)
            yield f"{control} at some {found[0].many} ({some}): would rule out {ruled_out}"


# --- in words ---------------------------------------------------------------------------------------------------------


def _listed(pair: Curve, where: Mask, said: Callable[[int], str] = lambda i: "") -> str:
    """List places with a remark on each; of very many, only the first."""
    places = np.flatnonzero(where).tolist()
    return say.listed([pair.labels[i] for i in places], map(said, places))
