"""The best of several fits: for when the infimum over the family is wanted, and not one way towards it.

bansal2021, section 2, defines the stitching penalty by the smallest loss over the family. Every descent only bounds it
from above: one from least squares begins where the receiver's own activations are matched best, which need not be near
what its task needs; one from a random start is far from converged after the steps that are usual. The best of them is
the better number, and which fit gave it is worth knowing. It is chosen as ``Converged`` chooses among its looks.
"""

import copy
import math
from dataclasses import dataclass, replace
from itertools import chain
from typing import final

from torch import nn

from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.seeds import drawing
from suture.core.stitches.base import Shape
from suture.fits.averaged import Look, err_always, find_best, validate
from suture.fits.base import Fit, FitReport, Problem
from suture.fits.converged import Converged
from suture.fits.descent import Random, TaskLoss
from suture.fits.optimisers import Adam, Cosine

PUBLISHED_START = TaskLoss(
    start=Random(),
    optimiser=Adam(lr=1e-3),
    schedule=Cosine(),
    steps=2_000,
    batch=128,
    check=390,
    patience=None,
    retries=0,
    standardise=False,
)
"""bansal2021's fit in a sixtieth of its steps, which is ours."""


@keyed_as("BestOf")
@final
@dataclass(frozen=True)
class BestOf(Fit):
    """The one of several fits with the least error on the validation data.

    Of those whose errors chance does not tell from the least, it is the one with the lowest loss.

    Each begins with a copy of the same unfitted stitch and the same random numbers, and so gives what it would give
    alone; of equals the first is kept. The report counts the steps of all; else it is that of the one that was kept,
    and names it, and has converged if all have, which it cannot say if one of them cannot. Raises ``FitError`` if no
    fit is named, or one twice, or none gives a finite loss, and the errors of the fits.
    """

    fits: tuple[Fit, ...] = (Converged(), PUBLISHED_START)

    def __post_init__(self) -> None:
        if not self.fits:
            raise FitError("BestOf(fits=()): name fits to choose from, for instance fits=(LeastSquares(), Converged())")
        for fit in self.fits:
            if self.fits.count(fit) > 1:
                raise FitError(f"BestOf names {fit} twice, which gives the same stitch twice; measure with more seeds")

    def reads(self, shape: Shape) -> float:
        """Return the largest number of samples that one of its fits reads."""
        return max(fit.reads(shape) for fit in self.fits)

    @property
    def parts(self) -> tuple[Fit, ...]:
        """Its fits."""
        return self.fits

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit a copy of the stitch by each fit, and load the best result into the stitch."""
        if not stitch.state_dict():
            return replace(self.fits[0].fit(problem, stitch), kept=str(self.fits[0]))
        device = next(chain(stitch.parameters(), stitch.buffers())).device
        steps = 0
        found: list[tuple[Look, Fit, FitReport]] = []
        for fit in self.fits:
            own = copy.deepcopy(stitch)
            with drawing(device):
                report = fit.fit(problem, own)
            steps += report.steps
            most = len(problem.validation.labels)
            wrong, loss = validate(problem, problem.suffix, own.eval(), most, device)
            look = Look(own.state_dict(), wrong, loss, 0, err_always(problem, most))
            if math.isfinite(look.loss):
                found.append((look, fit, report))
        if not found:
            raise FitError(f"no fit of {problem.where} has a finite validation loss; try a smaller learning rate")
        best = find_best([look for look, _, _ in found])
        kept, report = next((fit, report) for look, fit, report in found if look is best)
        stitch.load_state_dict(best.state)
        stitch.eval()
        known = [each.converged for _, _, each in found]
        converged = None if None in known else all(known)
        named = report.kept or str(kept)
        return replace(report, steps=steps, converged=converged, kept=named, validation_loss=best.loss)

    def __str__(self) -> str:
        """Return the call that makes it."""
        return "BestOf()" if self == BestOf() else f"BestOf(fits=({', '.join(map(str, self.fits))}))"
