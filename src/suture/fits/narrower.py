"""Starting where a narrower family ended.

Whatever a permutation can do, a linear map can: fitted first, it is a start from which the wider family can only gain.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from suture.errors import FitError
from suture.fits.least_squares import LeastSquares
from suture.fits.problem import Fit, FitReport, Problem, Side
from suture.stitches import AffineStitch, Stitch

_CHUNK = 256
_EXACTLY = LeastSquares(ridges=(1e-12,), rescale=False)


@final
@dataclass(frozen=True)
class Narrower(Fit):
    """The solution of another family, by its own ``fit``, as a member of this one.

    The member is found by least squares onto what the other stitch gives, which is exact where the other family is
    contained in this one, and else the closest member. A descent that starts here ends no worse than this on the fit
    data, nor on the validation data. Raises ``FitError`` where this family is not affine.
    """

    family: Stitch
    by: Fit = LeastSquares()
    is_floor: ClassVar[bool] = True

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit a stitch of the narrower family and copy what it does."""
        if not isinstance(problem.family, AffineStitch):
            raise FitError(f"{problem.family} cannot start from {self.family}: it is not affine")
        shapes = (tuple(t.shape[1:]) for t in (problem.fit.activations, problem.fit.expected()))
        other = self.family.build(*shapes).to(next(stitch.parameters()).device)
        report = self.by.fit(replace(problem, family=self.family), other)
        other.eval()
        taught = [_given_by(other, side) for side in (problem.fit, problem.validation)]
        _EXACTLY.fit(replace(problem, fit=taught[0], validation=taught[1]), stitch)
        return report


def _given_by(stitch: nn.Module, side: Side) -> Side:
    """The side, with what a stitch makes of its activations in place of the receiver's own."""
    device = next(stitch.parameters()).device
    with torch.no_grad():
        parts = [stitch(part.to(device)).cpu() for part in torch.split(side.activations, _CHUNK)]
    given: Tensor = torch.cat(parts)
    return replace(side, expected=lambda: given)
