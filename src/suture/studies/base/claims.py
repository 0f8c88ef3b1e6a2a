"""Claims: statements of a paper that a program decides from a study's tables.

A claim is data: a quantity, a direction, a threshold. It is *reproduced* if the whole interval of the measured
figure lies on the claimed side of the threshold, *not reproduced* if the whole of it lies on the other, and
*undecided* if the interval straddles the threshold, or if the seeds are too few for one. A *report* has no
threshold and no verdict: its figures are shown.

"No worse than", "≥ the baseline" and "= 1.0" carry a margin of ``MARGIN`` percentage points in the claim's favour.
"""

from dataclasses import dataclass
from typing import Literal, final

from suture.common.errors import DataError
from suture.studies.base.quantities import Figure, Quantity, Tables

MARGIN = 0.3  #: percentage points
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
    """Which data a claim's figures are of: what fits the stitch, what it and the baseline are scored on."""

    fitted: str = "training images of the receiver's task"
    scored: str = "test images of the receiver's task"
    baseline: str = "the receiver, on the same test images"


@final
@dataclass(frozen=True)
class Claim:
    """A statement that a threshold decides, or a report if ``threshold`` is ``None``.

    ``source`` is where in the paper; ``paper`` the paper's own figure in words, empty if its text gives none;
    ``ours`` says that the threshold is this project's. ``unit`` is that of figure and threshold. ``fit`` is the fit
    that the quantity is read of, in words.
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

    def __post_init__(self) -> None:
        if (self.threshold is None) != (self.direction == ""):
            raise DataError(f"'{self.statement}': a threshold and a direction go together")

    @property
    def bound(self) -> float | None:
        """The threshold with its margin."""
        if self.threshold is None:
            return None
        return self.threshold + self.margin if self.direction in "≤<" else self.threshold - self.margin

    def decide(self, tables: Tables) -> "Decided":
        """Read the figure and decide. What was not measured has no figure and no verdict."""
        try:
            figure = self.quantity.estimate(tables)
        except (DataError, KeyError) as error:
            return Decided(self, None, NOT_MEASURED, str(error))
        return Decided(self, figure, self._verdict(figure))

    def _verdict(self, figure: Figure) -> Verdict:
        bound = self.bound
        if bound is None:
            return REPORTED
        if not figure.decides:
            return UNDECIDED
        below = self.direction in "≤<"
        low, high, limit = (figure.low, figure.high, bound) if below else (-figure.high, -figure.low, -bound)
        touching = -ROUNDING if self.direction in "<>" else ROUNDING
        if high <= limit + touching:
            return REPRODUCED
        return NOT_REPRODUCED if low > limit + touching else UNDECIDED


@final
@dataclass(frozen=True)
class Decided:
    """A claim with what was measured, and the verdict; ``reason`` says why there is no figure."""

    claim: Claim
    figure: Figure | None
    verdict: Verdict
    reason: str = ""


def verdict_of(decided: "tuple[Decided, ...]") -> Verdict:
    """Return what a study's claims say together: the worst of them counts.

    Not reproduced if one claim is not; undecided if one is not decided; reports alone are reported.
    """
    verdicts = {one.verdict for one in decided}
    order: tuple[Verdict, ...] = (NOT_REPRODUCED, UNDECIDED, NOT_MEASURED, REPRODUCED)
    return next((verdict for verdict in order if verdict in verdicts), REPORTED if verdicts else NOT_MEASURED)
