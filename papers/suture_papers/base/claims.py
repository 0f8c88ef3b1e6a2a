"""Claims: statements of a paper that a program decides from a study's tables.

A claim is data: a quantity, a direction, a threshold. It is *reproduced* if the whole interval of the measured
figure lies on the claimed side of the threshold, *not reproduced* if the whole of it lies on the other, and
*undecided* if the interval straddles the threshold, or if the networks are fewer than ``ENOUGH``. A *report* has no
threshold and no verdict: its figures are shown. Where there is no spread, or no normal number to make an interval of,
pairs are counted: a claim that ``counts`` is reproduced if it holds of at least ``MOST_PAIRS`` per cent of pairs by an
exact interval of their share, and not reproduced if it holds of fewer. Each verdict is wrong in at most 2.5 % of cases
if what is claimed lies exactly on the threshold and the networks' numbers are normal (benchmarks/decisions.py); the
claims of one experiment share that by Holm's method.

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
from suture_papers.base.quantities import (
    LEVEL,
    Figure,
    Quantity,
    better_of,
    power_of_t,
    rows_read,
    share_of,
    with_fit,
)

READING = 3  #: version of how claims are read; raise it with a change that may change a verdict. No trial depends on it
ENOUGH = 5  #: networks on each side, or pairs without a network in common
NEAR, STITCHES = 2.0, 3
MOST_PAIRS = 200 / 3  #: per cent: of what a paper says of a kind of network, if pairs are counted
LOOKS = (5, 8, 12)  #: numbers of networks at which a claim may be looked at, if that was declared beforehand
LOOK_SHARE = 0.44  #: of the error for each look: 97.8 % intervals for 95 % (benchmarks/evidence.py)
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

    ``counts`` if a fit either finds a class or does not: pairs are then counted, since a t interval misses a mean of
    many zeros. ``exact`` if it is algebra, of which no other network can differ. ``looks`` are the numbers of networks
    at which it is looked at, declared before the first.
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
    counts: bool = False
    exact: bool = False
    looks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if (self.threshold is None) != (self.direction == ""):
            raise DataError(f"'{self.statement}': a threshold and a direction go together")

    @property
    def bound(self) -> float | None:
        """The threshold with its margin."""
        if self.threshold is None:
            return None
        return self.threshold + self.margin if self.direction in "≤<" else self.threshold - self.margin

    def by_recipe(self, cut: bool = False) -> "Claim | None":
        """Return the same claim of the paper's recipe at the length it states; none if it reads no fit.

        A recipe that is ``cut`` gives a figure and never a verdict.
        """
        quantity = with_fit(self.quantity, "published" if cut else "recipe")
        if self.threshold is None or quantity == self.quantity:
            return None
        made = replace(self, quantity=quantity, enough=max(self.enough, ENOUGH), looks=(), fit="the paper's recipe")
        return replace(made, threshold=None, direction="", ours=False) if cut else made

    def decide(self, tables: Tables, level: float = LEVEL, before: "Decided | None" = None) -> "Decided":
        """Read the figure and decide. A claim without measurements has no figure and no verdict.

        ``before`` is what was decided at another level, if anything was: the share of pairs that is only shown has no
        level.
        """
        level = 1 - LOOK_SHARE * (1 - level) if self.looks else level
        try:
            figure = self.quantity.estimate(tables, level)
        except (DataError, KeyError) as error:
            return Decided(self, None, NOT_MEASURED, str(error))
        figure, counted = self._bounded(figure, tables)
        share = self._share(tables, level if counted else LEVEL) if before is None or counted else before.share
        read = self.fits_read(tables)
        count, open_ = len(read), int(not_converged(read).sum())
        fits = (
            f"{open_} of {count} fits not converged"
            if open_
            else f"{say_count(count, 'fit')} converged"
            if count
            else ""
        )
        verdict, reason = self._verdict(figure, share if counted else None), ""
        if verdict in (REPRODUCED, NOT_REPRODUCED):
            reason = self._doubt(figure, open_, read)
        elif verdict == UNDECIDED:
            reason = self._say_wanted(figure, counted) + (", and fits that converge" if open_ else "")
        return Decided(self, figure, UNDECIDED if reason else verdict, reason, fits, share, counted)

    def _bounded(self, figure: Figure, tables: Tables) -> tuple[Figure, bool]:
        """Return the figure with an exact bound where all pairs are alike, and whether pairs are counted instead.

        A share of images has the bound of one network's images: of n that agree, one more differs with a probability of
        at most 1 - p**(1/n). Of any other number that is alike nothing is known but how many pairs have it.
        """
        if self.bound is None or self.exact or not (self.counts or any(figure.alike)):
            return figure, False
        images = 0 if self.counts or self.unit not in ("pp", "%") else self._count_images(tables)
        if not images:
            return replace(figure, low=float("nan"), high=float("nan")), True
        grain = 100 * (1 - ((1 - figure.level) / 2) ** (1 / images))
        ends = figure.low - grain * figure.alike[0], figure.high + grain * figure.alike[1]
        figure = replace(figure, low=ends[0], high=ends[1])
        return (figure.clip(0.0, 100.0) if self.unit == "%" else figure), False

    def _count_images(self, tables: Tables) -> int:
        """Return how many images a network is scored on, the fewest there are; 0 if the tables do not say."""
        read = (where.select(tables) for where in rows_read(self.quantity))
        return min((int(rows["n"].min()) for rows in read if "n" in rows), default=0)

    def _verdict(self, figure: Figure, counted: Figure | None) -> Verdict:
        if self.bound is None:
            return REPORTED
        if not self.is_enough(figure) or not (figure.decides or counted):
            return UNDECIDED
        if counted is not None:
            low, high = (end + ROUNDING >= MOST_PAIRS for end in (counted.low, counted.high))
            return REPRODUCED if low else UNDECIDED if high else NOT_REPRODUCED
        ends = self.holds(figure.low), self.holds(figure.high)
        return REPRODUCED if all(ends) else UNDECIDED if any(ends) else NOT_REPRODUCED

    def is_enough(self, figure: Figure) -> bool:
        """Return whether the figure is of networks enough to be decided, and of as many as were declared."""
        return figure.networks >= self.enough and (not self.looks or figure.networks in self.looks)

    def holds(self, value: float) -> bool:
        """Return whether a number is on the claimed side of the threshold."""
        assert self.bound is not None
        beyond = value - self.bound if self.direction in "≤<" else self.bound - value
        return beyond <= (-ROUNDING if self.direction in "<>" else ROUNDING)

    def _share(self, tables: Tables, level: float) -> Figure | None:
        """Return of how many pairs by themselves it holds; none if it is a report, or no statement about pairs."""
        numbers = None if self.bound is None else self.quantity.of_pairs(tables)
        there = None if numbers is None else numbers.dropna()
        return None if there is None or there.empty else share_of(there.map(self.holds), level)

    def withstands(self, drift: float, made: "Decided", tables: Tables) -> bool:
        """Return whether the verdict stays if every fit finds ``drift`` points more or less.

        An accuracy that was found is a lower bound for its family of stitches, so a verdict on that side of the
        threshold always stays. Correlations and shares have no drift in points: they are only shown to be as they were.
        """
        figure, better = made.figure, better_of(self.quantity)
        if figure is None or self.threshold is None or self.unit not in ("pp", "%"):
            return True
        if better and made.verdict == (REPRODUCED if (better > 0) == (self.direction in "≥>") else NOT_REPRODUCED):
            return True
        for moved in (-drift, drift):
            other = replace(self, threshold=self.threshold + moved)
            if other._verdict(figure, other._share(tables, figure.level) if made.counted else None) != made.verdict:
                return False
        return True

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

    def _say_wanted(self, figure: Figure, counted: bool) -> str:
        """Say how many networks would decide it, if they differ as those that were measured do.

        They are new ones: to add networks until a claim is decided makes it wrong in 5.5 % of cases a side, unless the
        looks were declared (``benchmarks/evidence.py``).
        """
        bound = self.bound
        if later := [look for look in self.looks if look > figure.networks]:
            return f"the next look is at {later[0]} networks"
        if self.looks:
            return f"the looks were at {', '.join(map(str, self.looks))} networks"
        if counted and figure.networks >= self.enough:
            wanted = int(np.ceil(np.log((1 - figure.level) / 2) / np.log(MOST_PAIRS / 100)))
            return f"{wanted} disjoint pairs, if it holds for each, would decide it"
        if bound is None or not figure.decides or figure.all_alike:
            return f"at least {self.enough} networks are needed"
        wanted = _find_least(self.quantity.power(figure, bound, _TRIED))
        said = f"about {max(wanted, self.enough)} new networks would decide it"
        return said if wanted else f"more than {MOST} networks are needed"


def only_report(claim: Claim) -> Claim:
    """Return the claim without its threshold: its experiment cannot be decided here, for a reason that its page has."""
    return replace(claim, direction="", threshold=None, margin=0.0, ours=False, looks=())


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


def decide_by_recipe(claims: Sequence[Claim], tables: Tables) -> "dict[Claim, Decided]":
    """Decide the claims by the paper's recipe, as far as it was measured; they share their 5 % among themselves."""
    of_recipe = {claim: twin for claim in claims if (twin := claim.by_recipe()) is not None}
    made = dict(zip(of_recipe, decide_all(tuple(of_recipe.values()), tables), strict=True))
    for claim, one in list(made.items()):
        if one.figure is None:
            cut = claim.by_recipe(cut=True)
            assert cut is not None
            made[claim] = cut.decide(tables)
    return {claim: one for claim, one in made.items() if one.figure is not None}


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

    ``reason`` says why there is none, or what would decide it; ``fits`` how many the figure reads had converged;
    ``share`` of how many pairs by themselves the claim holds, in per cent, and ``counted`` whether that decides.
    ``recipe`` is the same by the paper's recipe; none if that was not measured, a report if it was cut.
    """

    claim: Claim
    figure: Figure | None
    verdict: Verdict
    reason: str = ""
    fits: str = ""
    share: Figure | None = None
    counted: bool = False
    recipe: "Decided | None" = None

    @property
    def said(self) -> str:
        """The verdict with its reason: how to decide an undecided one, or the version of a figure without verdict."""
        if self.figure is None or not self.reason:
            return self.verdict
        return f"{self.verdict} {self.reason}" if self.verdict == NOT_MEASURED else f"{self.verdict} ({self.reason})"

    @property
    def is_test(self) -> bool:
        """Whether enough was measured to decide it."""
        there = self.figure is not None and self.claim.is_enough(self.figure) and (self.figure.decides or self.counted)
        return there and self.claim.threshold is not None


def verdict_of(decided: "tuple[Decided, ...]") -> Verdict:
    """Return the joint verdict of a study's claims: the worst of them counts.

    Not reproduced if one claim is not; undecided if one is not decided; reports count if there is nothing else.
    """
    verdicts = {one.verdict for one in decided if one.claim.threshold is not None} or {one.verdict for one in decided}
    order: tuple[Verdict, ...] = (NOT_REPRODUCED, UNDECIDED, NOT_MEASURED, REPRODUCED)
    return next((verdict for verdict in order if verdict in verdicts), REPORTED if verdicts else NOT_MEASURED)
