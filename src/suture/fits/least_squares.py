"""The closed form: the affine map that best reproduces the receiver's own activations.

With rows ``x`` of the sender and ``y`` of the receiver (the same images, the same pixel or token) the map minimises

    Σ ‖W x + b − y‖² + λ‖W‖²

through the normal equations, from moments that are accumulated in float64 over the whole fit data: averaging the
solutions of batches would be another, wrong, estimator. ``λ`` is chosen on the validation data, whose error follows
from its own moments. Least squares shrinks what it cannot predict, and a receiver's next ReLU or BatchNorm is off-scale
for shrunken inputs; so each output channel is rescaled about its mean to the standard deviation that the receiver has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suture.errors import FitError
from suture.fits.problem import Fit, FitReport, Problem, Side
from suture.stitches import AffineMap, AffineStitch

CHUNK = 256  #: samples per accumulation step; fixed, since sums depend on their grouping


@dataclass(frozen=True)
class Moments:
    """Moments of paired rows, float64: means (features,), covariances ``xx`` (in, in) and ``xy`` (in, out), and the
    variances ``yy`` (out,).
    """

    mean_x: Tensor
    mean_y: Tensor
    xx: Tensor
    xy: Tensor
    yy: Tensor

    def error(self, affine_weight: Tensor, bias: Tensor) -> float:
        """Mean squared error per row of ``y ≈ W x + b``, summed over the output features."""
        w = affine_weight
        explained = (w @ self.xx * w).sum() - 2 * (w * self.xy.T).sum() + self.yy.sum()
        return float(explained + (w @ self.mean_x + bias - self.mean_y).square().sum())


def moments(x: Tensor, y: Tensor, family: AffineStitch) -> Moments:
    """Accumulate the moments of the rows of two activation tensors ``(n, …)`` in one pass, in float64.

    Rows are shifted by the means of the first chunk, so that large means do not cost digits.
    """
    if len(family.rows(x[:1])) != len(family.rows(y[:1])):
        raise FitError("the sender's and the receiver's activations have different numbers of rows")
    shift_x = family.rows(x[:CHUNK]).double().mean(0)
    shift_y = family.rows(y[:CHUNK]).double().mean(0)
    sums: list[Tensor] = []
    count = 0
    for start in range(0, len(x), CHUNK):
        a = family.rows(x[start : start + CHUNK]).double() - shift_x
        b = family.rows(y[start : start + CHUNK]).double() - shift_y
        new = [a.sum(0), b.sum(0), a.T @ a, a.T @ b, b.square().sum(0)]
        sums = [old + more for old, more in zip(sums, new, strict=True)] if sums else new
        count += len(a)
    mean_a, mean_b, aa, ab, bb = (total / count for total in sums)
    return Moments(
        mean_x=shift_x + mean_a,
        mean_y=shift_y + mean_b,
        xx=aa - torch.outer(mean_a, mean_a),
        xy=ab - torch.outer(mean_a, mean_b),
        yy=bb - mean_b.square(),
    )


@dataclass(frozen=True)
class LeastSquares(Fit):
    """Ridge regression onto the receiver's own activations, in closed form.

    ``ridges`` are the candidates for λ, relative to the mean variance of the sender's features; the validation data
    chooses. ``rescale`` brings each output channel to the receiver's standard deviation. Stitches without parameters
    stay as they are. Raises ``FitError`` for families that are not affine, and for ridges that are not above 0.
    """

    ridges: tuple[float, ...] = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
    rescale: bool = True

    def __post_init__(self) -> None:
        if not self.ridges or not all(ridge > 0 for ridge in self.ridges):
            raise FitError(f"LeastSquares(ridges={self.ridges}): name ridges above 0, for instance ridges=(1e-6,)")

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Solve for the affine map and load it into the stitch."""
        if next(stitch.parameters(), None) is None:
            return FitReport()
        family = problem.family
        if not isinstance(family, AffineStitch):
            raise FitError(f"LeastSquares has no closed form for {family}; use TaskLoss(start=Random())")
        known = _moments_of(problem.fit, family)
        weight = self._solve(known, _moments_of(problem.validation, family))
        variance = (weight @ known.xx * weight).sum(1).clamp(min=0)
        if self.rescale:
            scale = torch.where(variance > 1e-12 * known.yy, (known.yy / variance).sqrt(), 1.0)
            weight, variance = weight * scale[:, None], variance * scale.square()
        bias = known.mean_y - weight @ known.mean_x
        family.load(stitch, AffineMap(weight, bias, known.mean_x, known.xx.diagonal().clamp(min=0), variance))
        return FitReport()

    def _solve(self, known: Moments, held_out: Moments) -> Tensor:
        """The weight (out, in) whose ridge has the least error on held-out moments."""
        values, vectors = torch.linalg.eigh(known.xx)
        scale = values.mean().clamp(min=torch.finfo(torch.float64).tiny)
        projected = vectors.T @ known.xy
        candidates: Iterator[Tensor] = (
            (vectors @ (projected / (values.clamp(min=0) + ridge * scale)[:, None])).T for ridge in self.ridges
        )
        return min(candidates, key=lambda weight: held_out.error(weight, known.mean_y - weight @ known.mean_x))


def _moments_of(side: Side, family: AffineStitch) -> Moments:
    return moments(side.activations, side.expected(), family)
