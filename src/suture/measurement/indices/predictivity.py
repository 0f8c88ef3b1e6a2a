"""Linear predictivity: how well a linear map predicts one layer from the other on images that it was not fitted on.

It is the label-free neighbour of stitching: a linear stitch is fitted from the sender's layer to the receiver's, and
judged by R² on held-out images, over all features together (Schrimpf et al. 2018, neural predictivity). Images are put
at random into ``folds`` parts; each is predicted by ridge regression fitted on the others, X and Y centred by the means
of these. Its penalty is chosen from ``PENALTIES`` within the images that are fitted, by generalised cross-validation
(Golub, Heath & Wahba 1979, eq. 1.4): the n ‖(I - H) Y‖² / (n - tr H)² of the hat matrix H is least. So no layer is well
predicted because it has few samples or the other many features, and R² may be negative: worse than the mean.

With ``reverse`` the sender's layer is predicted from the receiver's (Muzellec & Kar 2025, reverse predictivity).

Ridge regression does not change if features are rotated. So a layer X = U S Vᵀ is the matrix U S of its directions over
all samples, whatever its features are, and for all penalties the singular vectors of U S on each part are enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.common.seeds import generator
from suture.measurement.indices.base import Layer, PreparedIndex
from suture.measurement.indices.bases import basis
from suture.measurement.indices.calibration import Null

PENALTIES = 10.0 ** torch.arange(-6, 2.5, 0.5, dtype=torch.float64)  #: in units of the mean squared length of a sample


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Some images held out, and the basis that predicts them from the others: m fitted samples, r directions."""

    fitted: Tensor  #: their places (m,)
    held: Tensor  #: (k,)
    left: Tensor  #: (m, r): the singular vectors of the fitted samples, centred
    scales: Tensor  #: (r,): their singular values
    seen: Tensor  #: (k, r): the held-out samples along the right singular vectors


@dataclass(frozen=True, eq=False)
class Folded:
    """A layer in coordinates of its directions, ``(samples, rank)``, to predict or to be predicted from."""

    x: Tensor
    positions: int
    folds: int

    @cached_property
    def parts(self) -> list[HeldOut]:
        """The predictors of each part from the others."""
        images, made = len(self.x) // self.positions, []
        order = torch.randperm(images, generator=generator("folds", images))
        within = torch.arange(self.positions)
        for part in order.tensor_split(self.folds):
            there = torch.zeros(images, dtype=torch.bool).index_fill(0, part, True)
            held, fitted = (
                (of.nonzero() * self.positions + within).flatten().to(self.x.device) for of in (there, ~there)
            )
            mean = self.x[fitted].mean(0)
            left, scales, right = torch.linalg.svd(self.x[fitted] - mean, full_matrices=False)
            made.append(HeldOut(fitted, held, left, scales, (self.x[held] - mean) @ right.T))
        return made

    def predict(self, y: Tensor) -> float:
        """Return R² of another layer ``(samples, rank)`` on images that were not fitted."""
        missed = y.new_zeros(())
        for part in self.parts:
            mean = y[part.fitted].mean(0)
            centred = y[part.fitted] - mean
            along, m = part.left.T @ centred, len(centred)
            squares = part.scales.square()
            penalties = PENALTIES.to(y.device) * squares.sum() / m
            left_over = penalties.unsqueeze(1) / (squares + penalties.unsqueeze(1)).clamp(min=torch.finfo(y.dtype).tiny)
            explained = along.square().sum(1)
            errors = (centred.square().sum() - explained.sum()).clamp(min=0) + left_over.square() @ explained
            freedom = m - 1 - len(squares) + left_over.sum(1)  # the mean is fitted, too
            best = int((errors / freedom.square()).argmin())
            shrunk = part.scales / (squares + penalties[best]).clamp(min=torch.finfo(y.dtype).tiny)
            missed += (y[part.held] - mean - (part.seen * shrunk) @ along).square().sum()
        return 1 - float(missed / (y - y.mean(0)).square().sum())


@keyed_as("LinearPredictivity")
@dataclass(frozen=True)
class LinearPredictivity(PreparedIndex[Folded]):
    """R² of the second layer on held-out images, by ridge regression from the first; in [-1, 1], 0 for the mean.

    ``reverse`` predicts the first from the second. Values below -1 are -1.
    """

    called = "linear_predictivity"
    symmetric = False
    bounds = (-1.0, 1.0)

    folds: int = 5
    reverse: bool = False

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise DataError(f"folds={self.folds}: give the parts that are held out in turn, 2 or more")

    @property
    def least(self) -> int:
        """Two a fold."""
        return 2 * self.folds

    def prepare(self, layer: Layer) -> Folded:
        """Return the layer in coordinates of its directions."""
        of = basis(layer)
        return Folded(of.dense * of.scales, layer.positions, self.folds)

    def reorder(self, prepared: Folded, layer: Layer, order: Tensor) -> Folded:
        """Return its images in another order."""
        images = prepared.x.reshape(-1, prepared.positions, prepared.x.shape[1])
        return replace(prepared, x=images[order.to(images.device)].flatten(0, 1))

    def between(self, x: Folded, y: Folded) -> float:
        """Predict the second layer from the first; 0 if one of them does not vary."""
        return min(1.0, max(-1.0, x.predict(y.x))) if x.x.shape[1] and y.x.shape[1] else 0.0

    def _pairs(self, rows: Sequence[Layer], columns: Sequence[Layer]) -> Tensor:
        if self.reverse:
            return replace(self, reverse=False)._pairs(columns, rows).T
        return super()._pairs(rows, columns)

    def _null(self, rows: Sequence[Layer], columns: Sequence[Layer], permutations: int) -> Null:
        if not self.reverse:
            return super()._null(rows, columns, permutations)
        null = replace(self, reverse=False)._null(columns, rows, permutations)
        return Null(null.values.mT, null.permuted.mT, null.errors.mT, null.freedom)


linear_predictivity = LinearPredictivity()
