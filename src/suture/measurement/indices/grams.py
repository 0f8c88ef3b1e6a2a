"""Inner products of all pairs of samples, in float64, from which kernels, distances and neighbours follow.

One pass over the features gives them for features that are centred; what centring took away is kept beside it, so that
the same pass serves what is not centred (cosines), and what is centred over features instead of samples (Pearson
correlations of samples), without the loss that comes of subtracting large numbers.

What is 0 but for rounding is made 0: the distance of two samples that are the same, and the length of a sample that
does not vary over its features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from suture.measurement.indices.layers import Layer

ROWS = 256  #: that are computed by one product; fixed, since bits may depend on it
ROUNDING = 2.0**-36  #: relative to the largest; what differs by less is the same, and what is less is 0


@dataclass(frozen=True, eq=False)
class Gram:
    """Inner products of n samples of p features. With C the centred matrix and μ the mean sample:"""

    products: Tensor  #: (n, n): CCᵀ
    sums: Tensor  #: (n,): the sums of the rows of C
    along: Tensor  #: (n,): C(μ - μ̄), where μ̄ is the mean of μ over its features
    centre: float  #: μ̄
    spread: float  #: ‖μ - μ̄‖²
    features: int  #: p

    @property
    def constant(self) -> bool:
        """Whether all samples are the same."""
        return not bool(self.products.diagonal().any())

    def squared_distances(self) -> Tensor:
        """Return ‖xᵢ - xⱼ‖², ``(n, n)``."""
        own = self.products.diagonal()
        largest = own.unsqueeze(0) + own.unsqueeze(1)
        return _above(largest - 2 * self.products, self._eps * largest).fill_diagonal_(0)

    def cosines(self) -> Tensor:
        """Return the cosine of every two samples, ``(n, n)``; 0 if one of them is 0."""
        means = self.sums / self.features + self.centre
        return _normalise(
            self._within_samples() + self.features * torch.outer(means, means), self._bound_rounding(means)
        )

    def correlations(self) -> Tensor:
        """Return Pearson's correlation over features of every two samples, ``(n, n)``; 0 if one does not vary."""
        means = self.sums / self.features + self.centre
        return _normalise(self._within_samples(), self._bound_rounding(means))

    def _within_samples(self) -> Tensor:
        """Return the inner products of samples whose own mean over features is taken out."""
        shifted = self.products - torch.outer(self.sums, self.sums) / self.features
        return shifted + self.along.unsqueeze(0) + self.along.unsqueeze(1) + self.spread

    def _bound_rounding(self, means: Tensor) -> Tensor:
        """Return how much of a sample's squared length may be nothing but rounding."""
        terms = self.products.diagonal() + self.sums**2 / self.features + 2 * self.along.abs()
        return self._eps * terms + (4 * torch.finfo(torch.float64).eps) ** 2 * self.features * means**2

    @property
    def _eps(self) -> float:
        return (8 + self.features) * torch.finfo(torch.float64).eps


def gram(layer: Layer) -> Gram:
    """Compute the inner products of a layer's samples, or give those that it keeps."""
    return layer.once("gram", _compute)


def _compute(layer: Layer) -> Gram:
    n, p = layer.samples, layer.features
    new = torch.zeros(0, dtype=torch.float64, device=layer.activations.device).new_zeros
    products, sums, along, means = new(n, n), new(n), new(n), []
    for columns, mean in layer.columns(torch.float64):
        for start in range(0, n, ROWS):  # the upper half alone, since it is symmetric
            products[start : start + ROWS, start:].addmm_(columns[start : start + ROWS], columns[start:].T)
        sums += columns.sum(1)
        along += columns @ mean
        means.append(mean)
    products = products.triu()
    products += products.triu(1).T
    mean = torch.cat(means)
    same = bool((mean == mean[0]).all())
    centre = mean[0] if same else mean.mean()
    spread = 0.0 if same else float((mean - centre).square().sum())
    return Gram(products, sums, along - centre * sums, float(centre), spread, p)


def off_diagonal(pairs: Tensor) -> Tensor:
    """Return the values of every two samples, i < j, ``(n (n - 1) / 2,)``."""
    return pairs[torch.ones_like(pairs, dtype=torch.bool).triu(1)]


def round_equal(values: Tensor) -> Tensor:
    """Return values of which those that differ by rounding alone are the same."""
    unit = float(values.abs().max()) * ROUNDING if values.numel() else 0.0
    return torch.round(values / unit) if unit else values


def unit_vector(values: Tensor, whole: Tensor | None = None) -> Tensor:
    """Return values as one vector of length 1; all 0 if they are rounding beside ``whole``, by default themselves."""
    vector = values.flatten()
    length = torch.linalg.vector_norm(vector)
    beside = torch.linalg.vector_norm(whole) if whole is not None else length
    return vector / length if length > ROUNDING * beside else torch.zeros_like(vector)


def _above(values: Tensor, least: Tensor) -> Tensor:
    return torch.where(values > least, values, 0)


def _normalise(products: Tensor, least: Tensor) -> Tensor:
    own = products.diagonal()
    scale = torch.where(own > least, own, torch.inf).rsqrt()
    return (products * scale.unsqueeze(0) * scale.unsqueeze(1)).clamp(-1, 1)
