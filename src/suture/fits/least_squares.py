"""The closed form: the map that best reproduces the receiver's own activations.

With rows ``x`` of the sender and ``y`` of the receiver (the same images, the same pixel, patch or token) the map
minimises

    Σ ‖W x + b − y‖² + λ‖W‖²

over the family, from moments that are accumulated in float64 over the whole fit data: averaging the solutions of
batches would be another, wrong, estimator. Every family brings its own solution given the moments (ridge regression;
reduced rank; Procrustes; linear assignment). ``λ`` is chosen on the validation data, whose error follows from its own
moments. Least squares shrinks outputs that it cannot predict, and a receiver's next ReLU or BatchNorm is off-scale for
shrunken inputs; so each output channel is rescaled about its mean to the standard deviation that the receiver has, if a
rescaled member is still one of the family.

``Narrower`` starts from the solution of a narrower family: whatever a permutation can do, a linear map can, and fitted
first it is a start from which the wider family can only gain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor, nn

from suture.common.constants import CHUNK
from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.mapped import release
from suture.common.phases import say_phase
from suture.common.scaling import unit_of
from suture.common.seeds import generator
from suture.core.stitches import AffineMap, AffineStitch, Identity, Moments, Part, Stitch
from suture.core.stitches.base import FEATURES, is_affine
from suture.fits.base import Fit, FitReport, Problem, Side

_ROUNDING = 8  #: units in the last place of its mean, below which what a feature varies by is rounding
_ROOM = 2**25  #: numbers in the rows of one step; of larger rows a step takes fewer samples
_NOISE = 2**24  #: numbers in all the noise by which ``Narrower`` teaches


def accumulate_moments(
    x: Tensor, y: Tensor, part: Part, dtype: torch.dtype = torch.float64, counted: Tensor | None = None
) -> Moments:
    """Accumulate the moments of the rows of two activation tensors ``(n, …)`` in one pass, in float64, on the CPU.

    They are computed where ``x`` is. Rows are shifted by the means of the first chunk, so that large means do not cost
    digits. ``dtype`` is the type of the products within a chunk. If rows are tokens, only those that are ``counted``,
    bool ``(n, T)``, are taken.
    """
    most = min(len(x), len(y), part.most or len(x))
    x, y = x.narrow(0, 0, most), y.narrow(0, 0, most).to(x.device)
    first, expected = part.solved(x[:1]), part.gives(y[:1])
    if len(first) != len(expected):
        raise FitError("the sender's and the receiver's activations have different numbers of rows")
    chunk = max(1, min(CHUNK, _ROOM // max(first.numel(), expected.numel())))

    def select(rows: Tensor, start: int) -> Tensor:
        there = None if counted is None else counted[start : start + chunk].flatten().to(rows.device)
        return rows if there is None or len(there) != len(rows) else rows[there]

    unit_x, unit_y = unit_of(x[:chunk]), unit_of(y[:chunk])

    def see(rows: Tensor, unit: float) -> Tensor:
        return rows.to(dtype) if unit == 1 else rows.to(dtype) / unit

    def centre(rows: Tensor, unit: float, shift: Tensor) -> Tensor:
        wide = see(rows, unit)
        return wide - shift if wide is rows else wide.sub_(shift)  # in place, because a step's rows are hundreds of MB

    shift_x = see(select(part.solved(x[:chunk]), 0), unit_x).mean(0)
    shift_y = see(select(part.gives(y[:chunk]), 0), unit_y).mean(0)
    sums: list[Tensor] = []
    count = many = 0
    for start in range(0, len(x), chunk):
        read, given = x[start : start + chunk], y[start : start + chunk]
        a = centre(select(part.solved(read), start), unit_x, shift_x)
        b = centre(select(part.gives(given), start), unit_y, shift_y)
        each = b if part.each is None else centre(part.each(given), unit_y, shift_y)
        release(read)
        release(given)
        new = [total.double() for total in (a.sum(0), b.sum(0), a.T @ a, a.T @ b, each.square().sum(0))]
        sums = [old + more for old, more in zip(sums, new, strict=True)] if sums else new
        count, many = count + len(a), many + len(each)
    mean_a, mean_b, aa, ab, bb = (total.cpu() / n for total, n in zip(sums, (*[count] * 4, many), strict=True))
    mean_x, xx = shift_x.double().cpu() + mean_a, aa - torch.outer(mean_a, mean_a)
    varies = (xx.diagonal() > (_ROUNDING * torch.finfo(dtype).eps * mean_x).square()).double()
    return Moments(
        mean_x=mean_x * unit_x,
        mean_y=(shift_y.double().cpu() + mean_b) * unit_y,
        xx=xx * varies * varies[:, None] * unit_x**2,
        xy=(ab - torch.outer(mean_a, mean_b)) * varies[:, None] * (unit_x * unit_y),
        yy=(bb - mean_b.square()) * unit_y**2,
    )


STRAIGHT = "the closed form is that of the affine members of the family; a descent from there uses the others"


@keyed_as("LeastSquares")
@dataclass(frozen=True)
class LeastSquares(Fit):
    """The member of the family closest to the receiver's own activations, in closed form.

    Of a family that also has members that are not affine, the closest affine one, which a note says.
    ``ridges`` are the candidates for λ, relative to the mean variance of the sender's features; the validation data
    chooses. ``rescale`` brings each output channel to the receiver's standard deviation, in families that allow it.
    Stitches without parameters stay as they are. Raises ``FitError`` for families that are not affine, and for ridges
    that are not above 0.
    """

    ridges: tuple[float, ...] = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
    rescale: bool = True

    def __post_init__(self) -> None:
        if not self.ridges or not all(ridge > 0 for ridge in self.ridges):
            raise FitError(f"LeastSquares(ridges={self.ridges}): name ridges above 0, for instance ridges=(1e-6,)")

    def count_steps(self, fits: int) -> tuple[float, float]:
        """Return 0 twice: a closed form takes none."""
        del fits
        return 0.0, 0.0

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Solve for every affine map of the stitch and load it."""
        if next(stitch.parameters(), None) is None:
            return FitReport()
        family = problem.family
        if not isinstance(family, AffineStitch):
            raise FitError(f"LeastSquares has no closed form for {family}; use TaskLoss(start=Random())")
        say_phase("closed form")
        for part in family.parts(stitch, problem.fit.activations):
            known, held_out = (
                accumulate_moments(side.activations, side.expected(), part, counted=side.counted)
                for side in (problem.fit, problem.validation)
            )
            part.load(part.whole(solve_closed_form(family, known, held_out, self.ridges, self.rescale)))
        return FitReport() if is_affine(family) else FitReport(notes=(STRAIGHT,))


def solve_closed_form(
    family: AffineStitch, known: Moments, held_out: Moments, ridges: Sequence[float], rescale: bool
) -> AffineMap:
    """Return the member of the family whose ridge has the least error on held-out moments, rescaled if wanted."""

    def bias(weight: Tensor) -> Tensor:
        return known.mean_y - weight @ known.mean_x if family.shifts else torch.zeros_like(known.mean_y)

    candidates = family.candidates(known, ridges)
    weight = min(candidates, key=lambda weight: held_out.error(weight, bias(weight)))
    variance = (weight @ known.xx * weight).sum(1).clamp(min=0)
    if rescale and family.scales:
        scale = torch.where(variance > 1e-12 * known.yy, (known.yy / variance).sqrt(), 1.0)
        weight, variance = weight * scale[:, None], variance * scale.square()
    return AffineMap(weight, bias(weight), known.mean_x, known.xx.diagonal().clamp(min=0), variance)


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

    @property
    def parts(self) -> tuple[Fit, ...]:
        """The fit of the other family."""
        return (self.by,)

    def fit(self, problem: Problem, stitch: nn.Module) -> FitReport:
        """Fit a stitch of the narrower family and copy its map."""
        if not isinstance(problem.family, AffineStitch):
            raise FitError(f"{problem.family} cannot start from {self.family}: it is not affine")
        other = self.family.build(*problem.shapes).to(next(stitch.parameters()).device)
        report = self.by.fit(replace(problem, family=self.family), other)
        straight = isinstance(self.family, Identity) or is_affine(self.family)
        if straight and problem.family.copy(stitch, other, problem.shapes[0]):
            return report
        taught = _imitate(other.eval(), problem.fit, next(stitch.parameters()).device, problem.seed)
        _EXACTLY.fit(replace(problem, fit=taught, validation=taught), stitch)
        return report


def _imitate(stitch: nn.Module, side: Side, device: torch.device, seed: int) -> Side:
    """Return a side whose expected activations are a stitch's outputs for the sender's activations and some noise.

    The noise is too small to matter elsewhere. It shows the stitch's map in directions in which the activations do not
    vary: with fewer samples than features, or with dead units.
    """
    random, sent = generator("narrower", seed), side.activations[:]  # which brings it into memory
    count = min(2 * min(sent[0].numel(), FEATURES), max(64, _NOISE // sent[0].numel()))
    noise = torch.randn((count, *sent.shape[1:]), generator=random).to(sent)
    unit = unit_of(sent)
    noise = sent.mean(0) + 1e-3 * unit * (sent / unit).std(correction=0) * noise
    activations = torch.cat([sent, noise])[torch.randperm(len(sent) + count, generator=random)]
    with torch.no_grad():
        given = torch.cat([stitch(part.to(device)).cpu() for part in torch.split(activations, CHUNK)])
    return replace(side, activations=activations, expected=lambda: given, counted=None)
