"""Families narrower than a linear map: of low rank, orthogonal, a permutation, one scale and shift for every feature.

They say how much freedom a stitch needs. Each maps the features of every position by the same matrix: of vectors
``(D,)``, tokens ``(T, D)``, or maps ``(C, H, W)``, whose features are the channels. Each has a closed form of its own,
and a parametrisation that gradient descent cannot leave.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from suture.common.errors import ShapeError
from suture.common.hashing import keyed_as
from suture.common.scaling import without_constant
from suture.core.stitches.base import (
    AffineMap,
    AffineStitch,
    Moments,
    Part,
    ScaleAndShift,
    Shape,
    assign,
    features_first,
    features_last,
    width,
)


@keyed_as("PerPixel")
class PerPixel(nn.Module):
    """Applies a module of the last dimension to the channels of maps ``(n, C, H, W)``."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, C, H, W)`` to ``(n, C', H, W)``."""
        out: Tensor = self.core(x.movedim(1, -1))
        return out.movedim(-1, 1)


@keyed_as("Assigned")
class Assigned(nn.Module):
    """Parametrises a permutation matrix by scores: the permutation whose scores have the largest sum.

    The gradient passes to the scores as if they were the matrix (the straight-through estimator of Ainsworth et al.
    2022, *Git Re-Basin*, section 3.3), so a descent can change the permutation and never leave the permutations.
    """

    def forward(self, scores: Tensor) -> Tensor:
        """Return the permutation matrix (D, D) of the scores (D, D)."""
        with torch.no_grad():
            from scipy.optimize import linear_sum_assignment  # which takes half a second to load

            rows, columns = linear_sum_assignment(scores.detach().double().cpu().numpy(), maximize=True)
            hard = torch.zeros_like(scores)
            hard[torch.as_tensor(rows), torch.as_tensor(columns)] = 1
        return hard + (scores - scores.detach())

    def right_inverse(self, matrix: Tensor) -> Tensor:
        """Return scores of a permutation matrix: itself."""
        return matrix


@keyed_as("PerPosition")
class PerPosition(AffineStitch):
    """A family that maps the features of every position, in its place, by one matrix."""

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Return whether both have the same positions, and features that the family can join."""
        if not 1 <= len(sender) == len(receiver) <= 3:
            return False
        maps = len(sender) == 3
        places = [shape[1:] if maps else shape[:-1] for shape in (sender, receiver)]
        return places[0] == places[1] and self._joins(width(sender), width(receiver))

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the map of features, applied to every pixel where the shapes are maps."""
        self.check(sender, receiver)
        core = self._core(width(sender), width(receiver))
        return PerPixel(core) if len(sender) == 3 else core

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Return the map of features; rows are pixels, tokens or samples."""
        rows, core = (features_first, stitch.core) if isinstance(stitch, PerPixel) else (features_last, stitch)
        return [Part(rows, rows, lambda affine: self._load(core, affine))]

    def _joins(self, inputs: int, outputs: int) -> bool:
        return inputs == outputs

    @abstractmethod
    def _core(self, inputs: int, outputs: int) -> nn.Module:
        """Make the map of the last dimension."""

    @abstractmethod
    def _load(self, core: nn.Module, affine: AffineMap) -> None:
        """Set the map of the last dimension."""


@keyed_as("LowRank")
@final
@dataclass(frozen=True)
class LowRank(PerPosition):
    """A linear map of at most a given rank: narrow to ``rank`` features, then widen.

    In closed form reduced-rank regression (Izenman 1975): of the ridge regression ``W`` with covariance ``S`` what lies
    in the ``rank`` leading eigenvectors of ``W S Wᵀ``. Each layer gets the root of its singular values on standardised
    features, so that a descent moves both alike. Raises ``ShapeError`` for a rank below 1, and for one larger than
    either number of features.
    """

    rank: int
    joins: ClassVar[str] = "vectors, tokens or maps to as many positions, with at least as many features as its rank"
    reads_raw: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ShapeError(f"LowRank(rank={self.rank}): give at least 1")

    def candidates(self, known: Moments, ridges: Sequence[float]) -> Iterator[Tensor]:
        """Give the reduced-rank regression for every ridge."""
        yield from reduced_regressions(known, ridges, self.rank)

    def _joins(self, inputs: int, outputs: int) -> bool:
        return self.rank <= min(inputs, outputs)

    def _core(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, self.rank), nn.Linear(self.rank, outputs))

    def _load(self, core: nn.Module, affine: AffineMap) -> None:
        narrow, widen = cast(nn.Sequential, core)
        std = without_constant(affine.variance.sqrt(), 1e-6)
        left, values, right = torch.linalg.svd(affine.weight * std, full_matrices=False)
        root = values[: self.rank].sqrt()
        narrowing = root[:, None] * right[: self.rank] / std
        assign(narrow, "weight", narrowing)
        assign(narrow, "bias", -narrowing @ affine.mean)
        assign(widen, "weight", left[:, : self.rank] * root)
        assign(widen, "bias", affine.bias + affine.weight @ affine.mean)


@keyed_as("Orthogonal")
@final
@dataclass(frozen=True)
class Orthogonal(PerPosition):
    """A rotation or reflection of the features, and a shift.

    In closed form the orthogonal Procrustes solution (Schönemann 1966): ``U Vᵀ`` of the singular vectors of the
    covariance of receiver and sender. The descent moves along ``exp`` of skew-symmetric matrices from there, and so
    makes no reflection of a rotation: a start at random is right for half of all problems.
    """

    joins: ClassVar[str] = "vectors, tokens or maps to as many positions with as many features"
    scales: ClassVar[bool] = False

    def candidates(self, known: Moments, ridges: Sequence[float]) -> Iterator[Tensor]:
        """Yield the Procrustes solution; no ridge enters."""
        left, _, right = torch.linalg.svd(known.xy.T)
        yield left @ right

    def _core(self, inputs: int, outputs: int) -> nn.Module:
        made = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(made.weight)
        return parametrizations.orthogonal(made, orthogonal_map="matrix_exp")

    def _load(self, core: nn.Module, affine: AffineMap) -> None:
        set_parametrised(core, affine.weight)
        assign(core, "bias", affine.bias)


@keyed_as("Permutation")
@final
@dataclass(frozen=True)
class Permutation(PerPosition):
    """A reordering of the features, and nothing else.

    In closed form a linear assignment: of all permutations ``P`` the one with the largest ``Σ y · P x``, which has the
    least squared error (Li et al. 2016, *Convergent Learning*, match units by their correlation in this way).

    To refine it on the task prefer ``TaskLoss(optimiser=SGD(0.1))``: Adam moves every score by steps of one size, which
    hides the swap that would gain most, and may stall where SGD arrives.
    """

    joins: ClassVar[str] = "vectors, tokens or maps to as many positions with as many features"
    scales: ClassVar[bool] = False
    shifts: ClassVar[bool] = False

    def candidates(self, known: Moments, ridges: Sequence[float]) -> Iterator[Tensor]:
        """Yield the best permutation; no ridge enters."""
        yield Assigned()(known.xy.T + torch.outer(known.mean_y, known.mean_x))

    def _core(self, inputs: int, outputs: int) -> nn.Module:
        made = nn.Linear(inputs, outputs, bias=False)
        with torch.no_grad():
            made.weight.copy_(torch.eye(inputs)[torch.randperm(inputs)])
        parametrize.register_parametrization(made, "weight", Assigned())
        return made

    def _load(self, core: nn.Module, affine: AffineMap) -> None:
        set_parametrised(core, affine.weight)


@keyed_as("Diagonal")
@final
@dataclass(frozen=True)
class Diagonal(PerPosition):
    """A scale and a shift for every feature; none is mixed with another.

    What is left of a stitch when units correspond one to one. In closed form a regression for every feature by itself.
    """

    joins: ClassVar[str] = "vectors, tokens or maps to as many positions with as many features"
    reads_raw: ClassVar[bool] = True

    def candidates(self, known: Moments, ridges: Sequence[float]) -> Iterator[Tensor]:
        """Yield the slope of every feature for every ridge."""
        for ridge in ridges:
            yield torch.diag(known.xy.diagonal() / (known.xx.diagonal() + ridge * known.scale))

    def _core(self, inputs: int, outputs: int) -> nn.Module:
        return ScaleAndShift(inputs)

    def _load(self, core: nn.Module, affine: AffineMap) -> None:
        assign(core, "weight", affine.weight.diagonal())
        assign(core, "bias", affine.bias)


def reduced_regressions(known: Moments, ridges: Sequence[float], rank: int) -> Iterator[Tensor]:
    """Give the weight (out, in) of reduced-rank regression for every ridge (Izenman 1975)."""
    for ridge, weight in zip(ridges, known.regressions(ridges), strict=True):
        spread = weight @ known.xx @ weight.T + ridge * known.scale * weight @ weight.T
        leading = torch.linalg.eigh(spread).eigenvectors[:, -rank:]
        yield leading @ (leading.T @ weight)


def set_parametrised(layer: Any, weight: Tensor) -> None:
    """Set a parametrised weight to a member of its family."""
    with torch.no_grad():
        layer.weight = weight.to(layer.weight)
