"""Claims: statements of a paper that a program decides from a study's tables.

A claim is data: a quantity, a direction, a threshold. It is *reproduced* if the whole interval of the measured
figure lies on the claimed side of the threshold, *not reproduced* if the whole of it lies on the other, and
*undecided* if the interval straddles the threshold, or if the networks are fewer than ``ENOUGH``. A *report* has no
threshold and no verdict: its figures are shown. Each verdict is wrong in at most 2.5 % of cases if what is claimed lies
exactly on the threshold and the networks' numbers are normal (benchmarks/decisions.py); the claims of one experiment
share that by Holm's method.

A figure in percentage points that is less than ``NEAR`` from its threshold decides if every fit that it reads had
converged and every seam was stitched ``STITCHES`` times, of which the best by validation counts; if only an end of its
interval is so near, the fits must have converged. Fits that never say whether they have converged, such as the papers'
recipes and closed forms, are stitched once.

"No worse than", "≥ the baseline" and "= 1.0" carry a margin of ``MARGIN`` percentage points in the claim's favour.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from suture.common.errors import DataError
from suture.extend import LEAST_NETWORKS as LEAST
from suture.extend import not_converged, say_count
from suture_papers.base.cells import TRIALS, Tables
from suture_papers.base.quantities import LEVEL, Figure, Quantity, power_of_t, rows_read, share_of

READING = 1  #: version of how claims are read; raise it with a change that may change a verdict. No trial depends on it
ENOUGH = 5  #: networks on each side, or pairs without a network in common
NEAR, STITCHES = 2.0, 3
READ_SINCE = "2026-11-23"  #: the readings that claims give a reason for
POWER, MOST = 0.8, 100  #: of a test that would decide, and the networks that are thought of
MARGIN = 0.3  #: percentage points
_TRIED = np.arange(LEAST, MOST + 1)
_SEAM = ["network_seed", "sender", "receiver", "sender_cut", "receiver_cut", "fit_data", "stitch", "control", "fit"]
ROUNDING = 1e-9  #: figures that differ by less are equal

Verdict = Literal["reproduced", "not reproduced", "undecided", "reported", "not measured"]
Direction = Literal["≤", "≥", "<", ">", ""]
REPRODUCED: Verdict = "reproduced"
NOT_REPRODUCED: Verdict = "not reproduced"
UNDECIDED: Verdict = "undecided"
REPORTED: Verdict = "reported"
NOT_MEASURED: Verdict = "not measured"


@final
@dataclass(frozen=True)
class Roles:
    """The data behind a claim's figures: those that fit the stitch, and those that score it and the baseline."""

    fitted: str = "training images of the receiver's task"
    scored: str = "test images of the receiver's task"
    baseline: str = "the receiver, on the same test images"


@final
@dataclass(frozen=True)
class Claim:
    """A statement that a threshold decides, or a report if ``threshold`` is ``None``.

    ``source`` is where in the paper; ``paper`` the paper's own figure in words, empty if its text gives none;
    ``ours`` says that the threshold is this project's. ``unit`` is that of figure and threshold. ``fit`` is the fit
    that the quantity is read of, in words. ``enough`` networks decide it. ``reading`` says why a sentence of the paper
    is read so, and since when, if it was read otherwise before.
    """

    statement: str
    source: str
    quantity: Quantity
    direction: Direction = ""
    threshold: float | None = None
    margin: float = 0.0
    unit: str = "pp"
    ours: bool = False
    paper: str = ""
    fit: str = "default"
    roles: Roles = Roles()
    enough: int = ENOUGH
    reading: str = ""

    def __post_init__(self) -> None:
        if (self.threshold is None) != (self.direction == ""):
            raise DataError(f"'{self.statement}': a threshold and a direction go together")

    @property
    def bound(self) -> float | None:
        """The threshold with its margin."""
        if self.threshold is None:
            return None
        return self.threshold + self.margin if self.direction in "≤<" else self.threshold - self.margin

    def decide(self, tables: Tables, level: float = LEVEL, before: "Decided | None" = None) -> "Decided":
        """Read the figure and decide. A claim without measurements has no figure and no verdict.

        ``before`` is the decision at another level, if there was one: its share of pairs does not depend on the level.
        """
        try:
            figure = self.quantity.estimate(tables, level)
        except (DataError, KeyError) as error:
            return Decided(self, None, NOT_MEASURED, str(error))
        read = self.fits_read(tables)
        count, open_ = len(read), int(not_converged(read).sum())
        fits = (
            f"{open_} of {count} fits not converged"
            if open_
            else f"{say_count(count, 'fit')} converged"
            if count
            else ""
        )
        verdict, reason = self._verdict(figure), ""
        if verdict in (REPRODUCED, NOT_REPRODUCED):
            reason = self._doubt(figure, open_, read)
        elif verdict == UNDECIDED:
            reason = self._say_wanted(figure) + (", if their fits converge" if open_ else "")
        share = self._share(tables) if before is None else before.share
        return Decided(self, figure, UNDECIDED if reason else verdict, reason, fits, share)

    def _verdict(self, figure: Figure) -> Verdict:
        if self.bound is None:
            return REPORTED
        if not figure.decides or figure.networks < self.enough:
            return UNDECIDED
        ends = self.holds(figure.low), self.holds(figure.high)
        return REPRODUCED if all(ends) else UNDECIDED if any(ends) else NOT_REPRODUCED

    def holds(self, value: float) -> bool:
        """Return whether a number is on the claimed side of the threshold."""
        assert self.bound is not None
        beyond = value - self.bound if self.direction in "≤<" else self.bound - value
        return beyond <= (-ROUNDING if self.direction in "<>" else ROUNDING)

    def _share(self, tables: Tables) -> Figure | None:
        """Return the share of pairs for which it holds by itself; none if it is a report, or not about pairs."""
        numbers = None if self.bound is None else self.quantity.of_pairs(tables)
        there = None if numbers is None else numbers.dropna()
        return None if there is None or there.empty else share_of(there.map(self.holds))

    def is_near(self, figure: Figure, *, ends: bool = False) -> bool:
        """Return whether a figure in percentage points is so near to the threshold that fits and stitches matter.

        With ``ends``, whether an end of its interval is.
        """
        if self.threshold is None or self.bound is None or self.unit not in ("pp", "%"):
            return False
        near = (figure.low, figure.high) if ends else (figure.value, *figure.deciding)
        return any(abs(number - least) < NEAR for number in near for least in (self.threshold, self.bound))

    def fits_read(self, tables: Tables) -> pd.DataFrame:
        """Return the trials that the figure is read of, each once, of fits that say whether they have converged."""
        wanted = [where for where in rows_read(self.quantity) if where.table == TRIALS]
        if not wanted:
            return pd.DataFrame()
        rows = pd.concat([where.select(tables) for where in wanted])
        once = rows.drop_duplicates([name for name in (*_SEAM, "score_data", "seed") if name in rows])
        return once[once["converged"].notna()] if "converged" in once else once.iloc[:0]

    def _doubt(self, figure: Figure, open_: int, read: pd.DataFrame) -> str:
        """Return the reason why a figure near the threshold does not decide; empty if it does."""
        near = self.is_near(figure)
        if open_ and (near or self.is_near(figure, ends=True)):
            which = "" if near else "an end of its interval is "
            return f"{which}less than {NEAR:g} {self.unit} from the threshold, and not every fit had converged"
        if near and len(read) and (read.groupby(_SEAM, dropna=False)["seed"].nunique() < STITCHES).any():
            return f"less than {NEAR:g} {self.unit} from the threshold, and not every seam has {STITCHES} stitches"
        return ""

    def _say_wanted(self, figure: Figure) -> str:
        """Describe how many networks would decide it, if they differ as those that were measured do."""
        bound = self.bound
        if bound is None or not figure.decides or figure.all_alike:
            return f"{self.enough} networks decide, at least"
        wanted = _find_least(self.quantity.power(figure, bound, _TRIED))
        return f"about {max(wanted, self.enough)} networks would decide it" if wanted else f"more than {MOST} networks"


def formerly(claim: Claim, quantity: Quantity, statement: str) -> Claim:
    """Return the report of how a claim was read before."""
    return replace(claim, statement=f"as read before: {statement}", quantity=quantity, direction="", threshold=None,
                   margin=0.0, ours=False, reading="")  # fmt: skip


def count_networks(distance: float, level: float = LEVEL) -> int:
    """Return the number of networks that decide, in ``POWER`` of cases, a figure so far from its threshold.

    ``distance`` is in standard deviations. By the t test; 0 if more than ``MOST`` are needed.
    """
    return _find_least(power_of_t(distance, _TRIED, level))


def _find_least(power: NDArray[np.float64]) -> int:
    """Return the fewest networks of which a test has ``POWER``, given that of ``_TRIED``; 0 if none of them has."""
    enough = _TRIED[power >= POWER]
    return int(enough[0]) if len(enough) else 0


def decide_all(claims: Sequence[Claim], tables: Tables) -> "tuple[Decided, ...]":
    """Decide the claims of one experiment, which share 5 % by Holm's method (1979).

    As long as k are left, those are decided whose intervals at 1 - 5 % / k are. Reports, and what has too few networks
    to be decided, take no share. The interval of a figure is the one that decided, or did not.
    """
    made = [claim.decide(tables) for claim in claims]
    left = [i for i, one in enumerate(made) if one.is_test]
    while left:
        for i in left:
            made[i] = claims[i].decide(tables, 1 - (1 - LEVEL) / len(left), made[i])
        open_ = [i for i in left if made[i].verdict == UNDECIDED]
        if len(open_) == len(left):
            break
        left = open_
    return tuple(made)


@final
@dataclass(frozen=True)
class Decided:
    """A claim with its figure and its verdict.

    ``reason`` explains a missing verdict, or says how to decide it; ``fits`` describes the convergence of the fits
    behind the figure; ``share`` is the share of pairs, in per cent, for which the claim holds by itself.
    """

    claim: Claim
    figure: Figure | None
    verdict: Verdict
    reason: str = ""
    fits: str = ""
    share: Figure | None = None

    @property
    def said(self) -> str:
        """The verdict with its reason: how to decide an undecided one, or the version of a figure without verdict."""
        if self.figure is None or not self.reason:
            return self.verdict
        return f"{self.verdict}{' ' if self.verdict == NOT_MEASURED else ': '}{self.reason}"

    @property
    def is_test(self) -> bool:
        """Whether enough was measured to decide it."""
        enough = self.figure is not None and self.figure.decides and self.figure.networks >= self.claim.enough
        return enough and self.claim.threshold is not None


def verdict_of(decided: "tuple[Decided, ...]") -> Verdict:
    """Return the joint verdict of a study's claims: the worst of them counts.

    Not reproduced if one claim is not; undecided if one is not decided; reports alone are reported.
    """
    verdicts = {one.verdict for one in decided}
    order: tuple[Verdict, ...] = (NOT_REPRODUCED, UNDECIDED, NOT_MEASURED, REPRODUCED)
    return next((verdict for verdict in order if verdict in verdicts), REPORTED if verdicts else NOT_MEASURED)
