"""A fit that starts from the solution of a narrower family.

Whatever a permutation can do, a linear map can: fitted first, it is a start from which the wider family can only gain.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import nn

from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.seeds import generator
from suture.core.stitches import AffineStitch, Identity, Stitch
from suture.core.stitches.positionwise import FEATURES
from suture.fits.base import Fit, FitReport, Problem, Side
from suture.fits.least_squares import LeastSquares

_CHUNK = 256
_ROOM = 2**24  #: numbers in all the noise
_EXACTLY = LeastSquares(ridges=(1e-12,), rescale=False)


@keyed_as("Narrower")
@final
@dataclass(frozen=True)
class Narrower(Fit):
    """The solution of another family, by its own ``fit``, as a member of this one.

    ``FullLinear`` copies any affine stitch. Else the member is found by least squares onto what the other stitch gives,
    which is exact if the other family is contained in this one (and its closed form is a whole one: see ``Conv`` for
    very many features), and else the closest member. A descent that starts here ends no worse than this on the fit
    data, nor, with patience, on the validation data. Raises ``FitError`` if this family is not affine.
    """

    family: Stitch
    by: Fit = LeastSquares()
    is_floor: ClassVar[bool] = True

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit a stitch of the narrower family and copy what it does."""
        if not isinstance(problem.family, AffineStitch):
            raise FitError(f"{problem.family} cannot start from {self.family}: it is not affine")
        shapes = [tuple(t.shape[1:]) for t in (problem.fit.activations, problem.fit.expected())]
        other = self.family.build(*shapes).to(next(stitch.parameters()).device)
        report = self.by.fit(replace(problem, family=self.family), other)
        if isinstance(self.family, AffineStitch | Identity) and problem.family.copy(stitch, other, shapes[0]):
            return report
        taught = _imitate(other.eval(), problem.fit, next(stitch.parameters()).device, problem.seed)
        _EXACTLY.fit(replace(problem, fit=taught, validation=taught), stitch)
        return report


def _imitate(stitch: nn.Module, side: Side, device: torch.device, seed: int) -> Side:
    """Return a side whose expected activations are what a stitch makes of the sender's, and of some noise.

    The noise, too small to matter elsewhere, says what the stitch does in directions in which the activations do not
    vary: fewer samples than features, dead units.
    """
    random, sent = generator("narrower", seed), side.activations
    count = min(2 * min(sent[0].numel(), FEATURES), max(64, _ROOM // sent[0].numel()))
    noise = torch.randn((count, *sent.shape[1:]), generator=random).to(sent)
    noise = sent.mean(0) + 1e-3 * sent.std(correction=0) * noise
    activations = torch.cat([sent, noise])[torch.randperm(len(sent) + count, generator=random)]
    with torch.no_grad():
        given = torch.cat([stitch(part.to(device)).cpu() for part in torch.split(activations, _CHUNK)])
    return replace(side, activations=activations, expected=lambda: given)
