"""What is left of the difference between two layers after one is mapped onto the other as well as can be.

- *Procrustes*: the best rotation. With X and Y centred and scaled to ‖X‖ = ‖Y‖ = 1 (Frobenius), features of the
  narrower one padded by 0, the least squared distance that a rotation leaves is 2 - 2‖XᵀY‖₊, with ‖·‖₊ the sum of the
  singular values (Schönemann 1966; Ding, Denain & Steinhardt 2021). ‖XᵀY‖₊ is the similarity, in [0, 1]; scipy's
  ``procrustes``, which also fits the scale, gives 1 - ‖XᵀY‖₊². Its arc cosine is a metric on layers (Williams et al.
  2021, eq. 11).
- *linear regression*: the best linear map. R² of the second layer's features fitted by least squares from the first's,
  over all features together, on the same samples (Kornblith et al. 2019, section 3, R²_LR), in the order of stitching:
  what the sender says linearly of the receiver. With as many features as samples it is 1 whatever they are.
"""

from dataclasses import dataclass
from math import acos, pi
from typing import ClassVar

import torch

from suture.common.hashing import keyed_as
from suture.measurement.indices.bases import Basis, OfBases, cross


@keyed_as("Procrustes")
@dataclass(frozen=True)
class Procrustes(OfBases):
    """How far a rotation takes one layer to the other, in [0, 1]."""

    called: ClassVar[str] = "procrustes"

    def between(self, x: Basis, y: Basis) -> float:
        """Return the nuclear norm of XᵀY, both of length 1."""
        if not (x.rank and y.rank):
            return 0.0
        if x.layer.kept is None:
            return _similarity(x, y)
        key = ("procrustes", y.layer)
        if key not in x.layer.kept:
            x.layer.kept[key] = _similarity(x, y)
        return float(x.layer.kept[key])


@keyed_as("ProcrustesAngle")
@dataclass(frozen=True)
class ProcrustesAngle(OfBases):
    """The angle that a rotation leaves between two layers, a distance in [0, π/2].

    The arc cosine of the similarity, so the angle of a layer to itself is 0 but for 10⁻⁷.
    """

    called: ClassVar[str] = "procrustes_angle"
    distance: ClassVar[bool] = True

    @property
    def bounds(self) -> tuple[float, float]:
        """0 and a right angle."""
        return 0.0, pi / 2

    def between(self, x: Basis, y: Basis) -> float:
        """Return the arc cosine of the similarity, in radians."""
        return acos(procrustes.between(x, y))


@keyed_as("LinearRegression")
@dataclass(frozen=True)
class LinearRegression(OfBases):
    """R² of the second layer fitted linearly from the first, in [0, 1].

    Of the first layer no invertible linear map changes it; of the second, rigid motions and scaling do not.
    """

    called: ClassVar[str] = "linear_regression"
    symmetric: ClassVar[bool] = False

    def between(self, x: Basis, y: Basis) -> float:
        """Return the share of the second layer's variance within the span of the first."""
        if not (x.rank and y.rank):
            return 0.0
        if x.full:
            return 1.0
        return min(1.0, float((cross(x, y) * y.scales).square().sum() / y.scales.square().sum()))


def _similarity(x: Basis, y: Basis) -> float:
    a, b = (of.scales / torch.linalg.vector_norm(of.scales) for of in (x, y))
    return min(1.0, float(torch.linalg.svdvals(a.unsqueeze(1) * cross(x, y) * b).sum()))


procrustes = Procrustes()
procrustes_angle = ProcrustesAngle()
linear_regression = LinearRegression()
