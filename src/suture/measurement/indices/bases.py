"""An orthonormal basis of what a layer's features span over samples, and how two such bases lie to each other.

With X (n × p) centred, X = U S Vᵀ. Indices that align two layers by linear maps depend on U and S alone (and one of
them on V). If there are more samples than features, rows are taken some at a time: R of X = QR is gathered block by
block, and U is never held. If there are more features, U is read off the Gram XXᵀ.

Directions that rounding alone could have made are left out, since some indices count every direction alike: those whose
singular value is below what storing the activations in their floating type may have added, ε ‖X‖ / √min(n, p), or below
10⁻¹⁰ of the largest (√(nε) of it if it comes of a Gram).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from suture.common.hashing import keyed_as
from suture.measurement.indices.base import PreparedIndex
from suture.measurement.indices.grams import gram
from suture.measurement.indices.layers import Layer

_SMALLEST = 1e-10


@dataclass(frozen=True, eq=False)
class Basis:
    """Directions of a layer of n samples and p features, in float64; r is its rank. One of the two maps is there."""

    layer: Layer
    scales: Tensor  #: (r,): the singular values, from large to small
    left: Tensor | None = None  #: (n, r): the directions over samples
    map: Tensor | None = None  #: (p, r): what makes them of the centred features

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

    def loads(self, mixed: Tensor) -> Tensor:
        """Return how strongly features go along mixed directions ``(r, c)``: Σⱼ |⟨uᶜ, xⱼ⟩| over all j, ``(c,)``."""
        if self.map is not None:
            return ((self.map * self.scales**2) @ mixed).abs().sum(0)
        assert self.left is not None
        directions = (self.left @ mixed).T
        sums = [(directions @ columns).abs().sum(1) for columns in self.layer.centred_columns(torch.float64)]
        return torch.stack(sums).sum(0)


@keyed_as("OfBases")
class OfBases(PreparedIndex[Basis]):
    """An index of the directions that two layers span."""

    def prepare(self, layer: Layer) -> Basis:
        """Return its directions."""
        return basis(layer)


def basis(layer: Layer) -> Basis:
    """Compute the directions of a layer, or give those that it keeps."""
    return layer.once("basis", _compute)


def cross(x: Basis, y: Basis) -> Tensor:
    """Return the inner products of the directions of two layers, ``(rank of x, rank of y)``."""
    products = x.scales.new_zeros(x.rank, y.rank)
    for a, b in zip(x.rows(), y.rows(), strict=True):
        products.addmm_(a.T, b)
    return products


def _compute(layer: Layer) -> Basis:
    return _of_few_features(layer) if layer.features < layer.samples else _of_many_features(layer)


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
