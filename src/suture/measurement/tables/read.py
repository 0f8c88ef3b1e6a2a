"""The one reading of a table: its kind, its pairs of networks with their controls, and their answers.

``make_reading`` makes the ``Reading`` from which every figure, page, screen and sentence is made, so that marks, counts
and words cannot contradict each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from suture.common.errors import DataError
from suture.common.validation import check_kind
from suture.measurement.tables.curve import PLAIN, Curve, Estimates, arrange_curve, arrange_pairs
from suture.measurement.tables.matrix import Matrix, arrange_matrix
from suture.measurement.tables.questions import QUESTIONS, UNASKED, YES, Answered, Answers, Question, answer, settle
from suture.measurement.tables.table import MARGIN, Mask, Numbers, main_score, say_warnings

View = Literal["trait", "curve", "curves", "matrix"]


@dataclass(frozen=True, eq=False)
class Reading:
    """The reading of one score from a table.

    ``margin`` is the largest penalty, in its unit, of a network that works; without one nothing is judged. ``chance``
    is the score of guessing, if it was given. The table is arranged once, at first use; one that cannot be arranged
    raises ``DataError`` there.
    """

    table: pd.DataFrame
    score: str
    margin: float | None
    chance: float | None

    @cached_property
    def kind(self) -> View:
        """How to show it: as it was planned, a trait stitched both ways, a matrix, a curve or several.

        Whatever was planned, only a matrix can show several cuts of a sender that lead to one of the receiver, and
        networks that are joined at one seam each.
        """
        plain = self.table[self.table["control"] == PLAIN] if "control" in self.table else self.table
        seams = plain[["sender", "receiver", "sender_cut", "receiver_cut"]].drop_duplicates()
        pairs = pairs_of(seams)
        planned = set(plain["plan"])
        if planned == {"trait"} and len(pairs) == 2:
            return "trait"
        several_to_one = seams.duplicated(["sender", "receiver", "receiver_cut"]).any()
        if planned == {"matrix"} or several_to_one or len(pairs) == len(seams) > 1:
            return "matrix"
        return "curve" if len(pairs) < 2 else "curves"

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Why networks are not to be trusted, a sentence for each reason."""
        return tuple(say_warnings(self.table))

    @cached_property
    def curve(self) -> Curve:
        """The table as one curve along the receiver's cuts, with or without trials of the pair itself."""
        return arrange_curve(self.table, self.score)

    @cached_property
    def matrix(self) -> Matrix:
        """The table as matrices of sender cuts × receiver cuts."""
        return arrange_matrix(self.table, self.score)

    @cached_property
    def pairs(self) -> tuple[Curve, ...]:
        """Every pair of networks, seam by seam, with its controls."""
        return arrange_pairs(self.table, self.score)

    @cached_property
    def answered(self) -> tuple[Answered, ...]:
        """The answers of every pair."""
        return tuple(answer(pair, self.margin, self.chance) for pair in self.pairs)

    @cached_property
    def is_arranged(self) -> bool:
        """Whether its pairs can be arranged."""
        try:
            return bool(self.pairs)
        except DataError:
            return False

    @property
    def is_judged(self) -> bool:
        """Whether its pairs can be arranged and there is a margin to judge them by."""
        return self.margin is not None and self.is_arranged

    # What follows has a place for every seam of every pair, in order.

    @cached_property
    def seams(self) -> tuple[str, ...]:
        """The names of all seams; of several pairs with those of the networks."""
        alone = len(self.pairs) == 1
        return tuple(label if alone else f"{pair} at {label}" for pair in self.pairs for label in pair.labels)

    @property
    def one(self) -> str:
        """The word for one of its seams: cut or seam."""
        return "cut" if all(pair.one == "cut" for pair in self.pairs) else "seam"

    def gather(self, of: Callable[[Curve], Numbers | Mask]) -> Numbers:
        """Return the values of all pairs, one pair after another."""
        return np.concatenate([of(pair) for pair in self.pairs])

    def marks(self, question: Question) -> tuple[str, ...]:
        """Return the answers to a question; blank where it was not asked."""
        return tuple(
            mark
            for pair, found in zip(self.pairs, self.answered, strict=True)
            for mark in (found[question].marks if question in found else (UNASKED,) * len(pair.seams))
        )

    def are(self, question: Question, mark: str) -> Mask:
        """Return where a question has this answer."""
        return np.array([one == mark for one in self.marks(question)], bool)

    def assumed(self, question: Question) -> Mask:
        """Return where a control that had not converged counts as beaten: it would hardly catch up."""
        parts = [
            found[question].assumed if question in found else np.zeros(len(pair.seams), bool)
            for pair, found in zip(self.pairs, self.answered, strict=True)
        ]
        return np.concatenate(parts)

    def behind(self, question: Question) -> Estimates:
        """Return the differences that decide a question."""
        return Estimates.join([found[question].behind for found in self.answered])

    @cached_property
    def settled(self) -> dict[Question, Mask]:
        """Where the answers to the first four questions stand when counted together.

        Each question is corrected over all its seams; 2 and 3 together, over the seams that work.
        """
        if not self.is_judged:
            return {}
        each: dict[Question, list[Answers]] = {q: [found[q] for found in self.answered] for q in QUESTIONS[:4]}
        everywhere = [np.ones(len(pair.seams), bool) for pair in self.pairs]
        found: dict[Question, list[Mask]] = {
            "works": settle(each["works"], everywhere),
            "pairs": settle(each["pairs"], everywhere),
        }
        works = [held & one.are(YES) for held, one in zip(found["works"], each["works"], strict=True)]
        both = settle([*each["sender"], *each["receiver"]], [*works, *works])
        found |= {"sender": both[: len(works)], "receiver": both[len(works) :]}
        return {question: np.concatenate(held) for question, held in found.items()}

    def count(self, question: Question, mark: str) -> Mask:
        """Return where an answer counts: it has this mark, and stands when all are counted."""
        return self.are(question, mark) & self.settled[question]


def make_reading(
    table: pd.DataFrame, score: str | None = None, margin: float | None = None, chance: float | None = None
) -> Reading:
    """Read a table of measurements: one of its scores, the accuracy or the first if none is named.

    ``margin`` is in the unit of the penalty: 3 pp if the score is a fraction; any other score is not judged without
    one. ``chance`` is the score of guessing, in the score's unit, in place of the table's own. Raises ``DataError`` if
    a margin is below 0, and if a chance is not a fraction although the score is.
    """
    score = score or main_score(table)
    percent = bool((table.loc[table["score"] == score, "unit"] == "fraction").any())
    check_kind("margin", margin, int | float | None, "a number, such as 3")
    check_kind("chance", chance, int | float | None, "a number, such as 0.1")
    if margin is not None and not margin >= 0:
        raise DataError(f"margin={margin:g}: a penalty that counts as none is at least 0")
    if chance is not None and percent and not 0 <= chance <= 1:
        raise DataError(f"chance={chance:g}: '{score}' is a fraction; give one from 0 to 1, such as chance=0.1")
    return Reading(table, score, MARGIN if margin is None and percent else margin, chance)


def read_scores(table: pd.DataFrame) -> list[Reading]:
    """Read every score of a table, the main one first."""
    return [make_reading(table, score) for score in scores_of(table)]


def scores_of(table: pd.DataFrame) -> list[str]:
    """Return the scores of a table, the main one first."""
    first = main_score(table)
    return sorted(dict.fromkeys(map(str, table["score"])), key=lambda score: score != first)


def pairs_of(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the pairs (sender, receiver) of some rows, each once."""
    return list(rows[["sender", "receiver"]].drop_duplicates().itertuples(index=False, name=None))


def trait_of(table: pd.DataFrame) -> tuple[str, str, str]:
    """Return the trait that a table of ``localise`` is of, its carrier and its reference.

    Raises ``DataError`` if the table has one direction alone, whose sender may be either.
    """
    pairs = pairs_of(table[table["control"] == PLAIN])
    carrier, reference = pairs[0]
    if (reference, carrier) not in pairs:
        raise DataError(f"the table has no seam {reference} → {carrier}; name carrier and reference to suture.onset")
    return str(table["score"].iloc[0]), carrier, reference
