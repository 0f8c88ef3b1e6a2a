"""Indices that align two layers by linear maps: CCA, SVCCA, PWCCA, Procrustes, linear regression.

With X (n × p) centred, X = U S Vᵀ, they depend on U and S alone (PWCCA on V too): on an orthonormal basis of what a
layer's features span over samples, and how two such bases lie to each other. If there are more samples than features,
rows are taken some at a time: R of X = QR is gathered block by block, and U is never held. If there are more features,
U is read off the Gram XXᵀ. Directions that rounding alone could have made are left out, since some indices count every
direction alike: those whose singular value is below what storing the activations in their floating type may have added,
ε ‖X‖ / √min(n, p), or below 10⁻¹⁰ of the largest (√(nε) of it if it comes of a Gram).

*Canonical correlation analysis*: how far the directions that two layers span are the same. The canonical correlations
ρ₁ ≥ ρ₂ ≥ … of two layers are the cosines between the subspaces that their features span over samples: the singular
values of UₓᵀUᵧ. There are c of them, as many as the smaller rank. Three ways of making them one number:

- the *mean* of the c correlations (Kornblith et al. 2019, table 1, mean CCA correlation ρ̄), which no invertible linear
  map changes, and which therefore counts a direction of noise as much as any;
- *SVCCA*, the mean after each layer is cut down to its largest directions that hold 99 % of its variance (Raghu et al.
  2017);
- *PWCCA*, the mean weighted by how strongly the features of a layer go along each canonical direction h,
  α = Σⱼ |⟨h, xⱼ⟩| (Morcos et al. 2018, section 3). The layer is that of the lower rank, as in the authors' code, the
  first of two equals; so the order of two layers may matter.

A layer of n - 1 features or more usually spans all that can vary over n samples. Then it contains whatever the other
spans, all correlations are 1, and CCA and PWCCA say nothing: give more samples than features, ``pixels`` for maps, or
take SVCCA, whose directions are fewer. CCA is biased upwards long before that.

*What is left* of the difference between two layers after one is mapped onto the other as well as can be:

- *Procrustes*: the best rotation. With X and Y centred and scaled to ‖X‖ = ‖Y‖ = 1 (Frobenius), features of the
  narrower one padded by 0, the least squared distance that a rotation leaves is 2 - 2‖XᵀY‖₊, with ‖·‖₊ the sum of the
  singular values (Schönemann 1966; Ding, Denain & Steinhardt 2021). ‖XᵀY‖₊ is the similarity, in [0, 1]; scipy's
  ``procrustes``, which also fits the scale, gives 1 - ‖XᵀY‖₊². Its arc cosine is a metric on layers (Williams et al.
  2021, eq. 11).
- *linear regression*: the best linear map. R² of the second layer's features fitted by least squares from the first's,
  over all features together, on the same samples (Kornblith et al. 2019, section 3, R²_LR), in the order of stitching:
  what the sender says linearly of the receiver. With as many features as samples it is 1 whatever they are.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import acos, pi

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.base import RIGID, Layer, PreparedIndex
from suture.measurement.indices.grams import gram

_SMALLEST = 1e-10


# --- bases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions of a layer of n samples and p features, in float64; r is its rank. ``left`` or ``map`` is there."""

    layer: Layer
    scales: Tensor  #: (r,): the singular values, from large to small
    left: Tensor | None = None  #: (n, r): the directions over samples
    map: Tensor | None = None  #: (p, r): what makes them of the centred features
    order: Tensor | None = None  #: (images,): in which they are met, if it is another

    @property
    def rank(self) -> int:
        """The number of directions."""
        return len(self.scales)

    @property
    def full(self) -> bool:
        """Whether they span all that can vary over the samples, n - 1 directions."""
        return self.rank == self.layer.samples - 1

    def first(self, count: int) -> "Basis":
        """Return the directions with the largest singular values."""
        left, of = (part if part is None else part[:, :count] for part in (self.left, self.map))
        return replace(self, scales=self.scales[:count], left=left, map=of)

    def rows(self) -> Iterator[Tensor]:
        """Yield the directions, some samples at a time, ``(samples, r)``."""
        if self.left is not None:
            yield from torch.split(self.left, self.layer.rows_at_a_time)
        elif self.map is not None:
            for rows in self.layer.centred_rows(torch.float64):
                yield rows @ self.map

    @cached_property
    def dense(self) -> Tensor:
        """The directions of all samples in their own order, ``(n, r)``."""
        return self.left if self.left is not None else torch.cat(list(self.rows()))

    def loads(self, mixed: Tensor) -> Tensor:
        """Return how strongly features go along mixed directions ``(r, c)``: Σⱼ |⟨uᶜ, xⱼ⟩| over all j, ``(c,)``."""
        if self.map is not None:
            return ((self.map * self.scales**2) @ mixed).abs().sum(0)
        assert self.left is not None
        directions = (self.left @ mixed).T
        sums = [(directions @ columns).abs().sum(1) for columns, _ in self.layer.columns(torch.float64)]
        return torch.stack(sums).sum(0)


def basis(layer: Layer) -> Basis:
    """Compute the directions of a layer, or give those that it keeps."""
    compute = _of_few_features if layer.features < layer.samples else _of_many_features
    return layer.once("basis", lambda: compute(layer))


def _of_few_features(layer: Layer) -> Basis:
    triangle = torch.zeros(0, layer.features, dtype=torch.float64, device=layer.activations.device)
    for rows in layer.centred_rows(torch.float64):
        triangle = torch.linalg.qr(torch.cat([triangle, rows]), mode="r").R
    _, scales, right = torch.linalg.svd(triangle, full_matrices=False)
    rank = _rank(layer, scales, _SMALLEST)
    return Basis(layer, scales[:rank], map=right[:rank].T / scales[:rank])


def _of_many_features(layer: Layer) -> Basis:
    squares, left = torch.linalg.eigh(gram(layer).products)
    scales = squares.clamp(min=0).sqrt().flip(0)
    rank = _rank(layer, scales, (layer.samples * torch.finfo(torch.float64).eps) ** 0.5)
    return Basis(layer, scales[:rank], left=left.flip(1)[:, :rank])


def _rank(layer: Layer, scales: Tensor, smallest: float) -> int:
    stored = torch.finfo(layer.activations.dtype).eps * layer.norm / min(layer.samples, layer.features) ** 0.5
    rank = int((scales > max(stored, smallest * float(scales[0]))).sum())
    return min(rank, layer.samples - 1)


def cross(x: Basis, y: Basis) -> Tensor:
    """Return the inner products of the directions of two layers, ``(rank of x, rank of y)``."""
    if y.order is not None:
        images = y.dense.reshape(-1, y.layer.positions, y.rank)
        permuted: Tensor = x.dense.T @ images[y.order.to(images.device)].flatten(0, 1)
        return permuted
    products = x.scales.new_zeros(x.rank, y.rank)
    for a, b in zip(x.rows(), y.rows(), strict=True):
        products.addmm_(a.T, b)
    return products


@keyed_as("OfBases")
class OfBases(PreparedIndex[Basis]):
    """An index of the directions that two layers span."""

    def prepare(self, layer: Layer) -> Basis:
        """Return its directions."""
        return basis(layer)

    def reorder(self, prepared: Basis, layer: Layer, order: Tensor) -> Basis:
        """Return its directions, met in another order."""
        return replace(prepared, order=order, left=prepared.dense)

    def between(self, x: Basis, y: Basis) -> float:
        """Compare two layers; one that does not vary is like nothing."""
        return min(1.0, max(0.0, float(self.similarity(x, y)))) if x.rank and y.rank else 0.0

    @abstractmethod
    def similarity(self, x: Basis, y: Basis) -> Tensor | float:
        """Compare two layers that vary, in [0, 1] but for rounding."""


# --- canonical correlations -------------------------------------------------------------------------------------------


def _mean_cosine(x: Basis, y: Basis) -> Tensor | float:
    return 1.0 if x.full or y.full else torch.linalg.svdvals(cross(x, y)).clamp(max=1).mean()


@keyed_as("MeanCCA")
@dataclass(frozen=True)
class MeanCCA(OfBases):
    """The mean canonical correlation, in [0, 1]; 1 wherever a layer spans all that can vary over the samples."""

    called = "mean_cca"
    invariances = RIGID | {"stretching", "linear"}

    def similarity(self, x: Basis, y: Basis) -> Tensor | float:
        """Return the mean cosine."""
        return _mean_cosine(x, y)


@keyed_as("SVCCA")
@dataclass(frozen=True)
class SVCCA(OfBases):
    """The mean canonical correlation of the largest directions, in [0, 1]; ``variance`` is the share they hold."""

    called = "svcca"

    variance: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.variance <= 1:
            raise DataError(f"variance={self.variance}: give the share of the variance to keep, above 0 and at most 1")

    def prepare(self, layer: Layer) -> Basis:
        """Return the fewest of its directions that hold as much variance."""
        whole = basis(layer)
        held = whole.scales.square().cumsum(0)
        return whole.first(1 + int((held < (self.variance - 1e-12) * held[-1]).sum())) if whole.rank else whole

    def similarity(self, x: Basis, y: Basis) -> Tensor | float:
        """Return the mean cosine."""
        return _mean_cosine(x, y)


@keyed_as("PWCCA")
@dataclass(frozen=True)
class PWCCA(OfBases):
    """The mean canonical correlation, weighted by the share of the layer along each direction, in [0, 1]."""

    called = "pwcca"
    symmetric = False
    invariances = RIGID - {"orthogonal"}

    def similarity(self, x: Basis, y: Basis) -> Tensor | float:
        """Return the weighted mean cosine."""
        if x.full or y.full:
            return 1.0
        ours, cosines, theirs = torch.linalg.svd(cross(x, y), full_matrices=False)
        weights = x.loads(ours) if x.rank <= y.rank else y.loads(theirs.T)
        mean: Tensor = (weights * cosines.clamp(max=1)).sum() / weights.sum()
        return mean


# --- what is left -----------------------------------------------------------------------------------------------------


@keyed_as("Procrustes")
@dataclass(frozen=True)
class Procrustes(OfBases):
    """How well a rotation aligns one layer with the other, in [0, 1]."""

    called = "procrustes"

    def similarity(self, x: Basis, y: Basis) -> Tensor | float:
        """Return the nuclear norm of XᵀY, both of length 1."""
        a, b = (of.scales / torch.linalg.vector_norm(of.scales) for of in (x, y))
        norm: Tensor = torch.linalg.svdvals(a.unsqueeze(1) * cross(x, y) * b).sum()
        return norm


@keyed_as("ProcrustesAngle")
@dataclass(frozen=True)
class ProcrustesAngle(OfBases):
    """The angle that a rotation leaves between two layers, a distance in [0, π/2].

    The arc cosine of the similarity, so the angle of a layer to itself is 0 but for 10⁻⁷.
    """

    called = "procrustes_angle"
    distance = True
    bounds = (0.0, pi / 2)

    def similarity(self, x: Basis, y: Basis) -> Tensor | float:
        """Return that of the best rotation."""
        return procrustes.similarity(x, y)

    def between(self, x: Basis, y: Basis) -> float:
        """Return the arc cosine of the similarity, in radians."""
        return acos(super().between(x, y))


@keyed_as("LinearRegression")
@dataclass(frozen=True)
class LinearRegression(OfBases):
    """R² of the second layer fitted linearly from the first, in [0, 1].

    Of the first layer no invertible linear map changes it; of the second, rigid motions and scaling do not.
    """

    called = "linear_regression"
    symmetric = False

    def similarity(self, x: Basis, y: Basis) -> Tensor | float:
        """Return the share of the second layer's variance within the span of the first."""
        return 1.0 if x.full else (cross(x, y) * y.scales).square().sum() / y.scales.square().sum()


mean_cca = MeanCCA()
svcca = SVCCA()
pwcca = PWCCA()
procrustes = Procrustes()
procrustes_angle = ProcrustesAngle()
linear_regression = LinearRegression()
