"""Indices of all pairs of samples: do two layers find the same samples alike (RSA), or next to each other?

Both, and kernels (``cka``), follow from the inner products of all pairs, in float64. One pass over the features gives
them for features that are centred; what centring took away is kept beside it, so that the same pass serves what is not
centred (cosines), and what is centred over features instead of samples (Pearson correlations of samples), without the
loss that comes of subtracting large numbers. What is 0 but for rounding is made 0: the distance of two samples that are
the same, and the length of a sample that does not vary over its features.

*Representational similarity analysis* takes of each layer the dissimilarity of every two samples; the index is the
correlation, over all pairs of samples, of the two layers' dissimilarities (Kriegeskorte, Mur & Bandettini 2008).
``dissimilarity`` is 1 less Pearson's correlation of the two samples over features (``correlation``, the usual one,
which neither the mean nor the length of a sample changes, but which depends on the axes: rotations and shifts change
it), or the distance between them (``euclidean``). A sample that is the same in all features is correlated with none.
``correlation`` is ``pearson``, of the dissimilarities themselves, or ``spearman``, of their ranks, those of equals
averaged. Correlations take three samples, two dissimilarities being needed; with two, and if all samples are equally
unlike, the value is 0.

*Neighbours*: Huh et al. 2024 ("The Platonic Representation Hypothesis", section 3 and appendix A) take for every sample
the k others that are nearest to it, by the inner product of features scaled to length 1, their cosine. With 𝒮ₓ(i) and
𝒮ᵧ(i) the neighbours of sample i in the two layers:

- *mutual k-nearest neighbours* is the mean over i of |𝒮ₓ(i) ∩ 𝒮ᵧ(i)| / k;
- *CKNNA* is CKA that looks at neighbours alone: Align(K, L) / √(Align(K, K) Align(L, L)) with
  Align(K, L) = Σᵢⱼ α(i, j) (Kᵢⱼ - K̄ᵢ)(Lᵢⱼ - L̄ᵢ), where K̄ᵢ is the mean of row i of the kernel K, and α(i, j) is 1
  where j ≠ i is a neighbour of i in both layers, else 0. (The authors' code puts an unbiased estimate of HSIC in its
  place; this is the formula of the paper.)

By chance k-nearest neighbours agree in k / (n - 1) on average, so the value says little unless k ≪ n; k is n - 1 at
most, where it is always 1. Among others that are equally near, the first in the order of the samples are taken. Layers
that find all samples equally near are like nothing; two samples are always neighbours.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.base import RIGID, Layer, PreparedIndex, Transforms, check_choice

ROWS = 256  #: that are computed by one product; fixed, since bits may depend on it
ROUNDING = 2.0**-36  #: relative to the largest; values that differ by less are the same, and what is less is 0

Correlation = Literal["pearson", "spearman"]
Dissimilarity = Literal["correlation", "euclidean"]
Nearness = Literal["cosine", "euclidean"]


# --- inner products ---------------------------------------------------------------------------------------------------


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
        """Return how much of a sample's squared length may be mere rounding."""
        terms = self.products.diagonal() + self.sums**2 / self.features + 2 * self.along.abs()
        return self._eps * terms + (4 * torch.finfo(torch.float64).eps) ** 2 * self.features * means**2

    @property
    def _eps(self) -> float:
        return (8 + self.features) * torch.finfo(torch.float64).eps


def add_products(to: Tensor, factors: Tensor) -> None:
    """Add the inner products of all rows of ``factors``, in the first rows of the upper half, as many as there are."""
    for start in range(0, len(to), ROWS):
        to[start : start + ROWS, start:].addmm_(factors[start : min(start + ROWS, len(to))], factors[start:].T)


def gram(layer: Layer) -> Gram:
    """Compute the inner products of a layer's samples, or give those that it keeps."""
    return layer.once("gram", lambda: _compute(layer))


def _compute(layer: Layer) -> Gram:
    n, p = layer.samples, layer.features
    new = torch.zeros(0, dtype=torch.float64, device=layer.activations.device).new_zeros
    products, sums, along, means = new(n, n), new(n), new(n), []
    for columns, mean in layer.columns(torch.float64):
        add_products(products, columns)
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
    """Return the values, those that differ by rounding alone made the same."""
    unit = float(values.abs().max()) * ROUNDING if values.numel() else 0.0
    return torch.round(values / unit) if unit else values


def unit_vector(values: Tensor, whole: Tensor | None = None) -> Tensor:
    """Return values as one vector of length 1; all 0 if they are mere rounding beside ``whole``."""
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


@keyed_as("OfVectors")
class OfVectors(PreparedIndex[Tensor]):
    """An index that makes a vector of length 1 of all pairs of samples, and compares two by their inner product."""

    pairwise = True

    def between(self, x: Tensor, y: Tensor) -> float:
        """Return the inner product, which is the cosine of two vectors."""
        low, high = self.bounds
        return min(high, max(low, float(x @ y)))


# --- RSA --------------------------------------------------------------------------------------------------------------


@keyed_as("RSA")
@dataclass(frozen=True)
class RSA(OfVectors):
    """The correlation of two layers' dissimilarities of samples, in [-1, 1]; 1 means the same order, or proportion."""

    called = "rsa"
    bounds = (-1.0, 1.0)

    correlation: Correlation = "pearson"
    dissimilarity: Dissimilarity = "correlation"

    def __post_init__(self) -> None:
        check_choice("correlation", self.correlation, Correlation)
        check_choice("dissimilarity", self.dissimilarity, Dissimilarity)

    @property
    def name(self) -> str:
        """``rsa_pearson`` or ``rsa_spearman``, and the dissimilarity if it is not the default."""
        other = "" if self.dissimilarity == "correlation" else f"(dissimilarity={self.dissimilarity!r})"
        return f"{self.called}_{self.correlation}{other}"

    @property
    def invariances(self) -> Transforms:
        """Of correlations, the order and the scale of features; of distances, all rigid motions too."""
        return RIGID if self.dissimilarity == "euclidean" else RIGID - {"orthogonal", "translation"}

    def prepare(self, layer: Layer) -> Tensor:
        """Return the dissimilarities, or their ranks, as a vector of mean 0 and length 1."""
        of = gram(layer)
        unlike = of.squared_distances().sqrt() if self.dissimilarity == "euclidean" else 1 - of.correlations()
        values = off_diagonal(unlike)
        if self.correlation == "spearman":
            values = _ranks(round_equal(values))
        return unit_vector(values - values.mean(), values)


def _ranks(values: Tensor) -> Tensor:
    """Return ranks from 1, those of equal values averaged, in float64."""
    ordered, order = values.sort()
    _, group, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = torch.empty(len(values), dtype=torch.float64, device=values.device)
    ranks[order] = (ends - (counts - 1) / 2)[group]
    return ranks


# --- neighbours -------------------------------------------------------------------------------------------------------


def _check_k(k: int) -> None:
    if k < 1:
        raise DataError(f"k={k}: give the number of neighbours, 1 or more")


@keyed_as("MutualKNN")
@dataclass(frozen=True)
class MutualKNN(PreparedIndex[Tensor]):
    """The share of ``k`` nearest neighbours that two layers have in common, in [0, 1].

    ``nearest`` is by ``cosine``, as in the paper, or by ``euclidean`` distance, which shifts do not change.
    """

    called = "mutual_knn"
    pairwise = True

    k: int = 10
    nearest: Nearness = "cosine"

    def __post_init__(self) -> None:
        _check_k(self.k)
        check_choice("nearest", self.nearest, Nearness)

    @property
    def invariances(self) -> Transforms:
        """Rotations and scaling; by distance, shifts too."""
        return RIGID if self.nearest == "euclidean" else RIGID - {"translation"}

    def prepare(self, layer: Layer) -> Tensor:
        """Return whether the second sample is a neighbour of the first, ``(n, n)``."""
        of = gram(layer)
        return _neighbours(of, of.cosines() if self.nearest == "cosine" else -of.squared_distances(), self.k)

    def between(self, x: Tensor, y: Tensor) -> float:
        """Return the share that both have."""
        return float((x & y).sum()) / (len(x) * min(self.k, len(x) - 1))


@keyed_as("CKNNA")
@dataclass(frozen=True)
class CKNNA(OfVectors):
    """Kernel alignment on ``k`` mutual nearest neighbours, in [-1, 1]; nearly always in [0, 1]."""

    called = "cknna"
    invariances = RIGID - {"translation"}
    bounds = (-1.0, 1.0)

    k: int = 10

    def __post_init__(self) -> None:
        _check_k(self.k)

    def prepare(self, layer: Layer) -> Tensor:
        """Return the centred kernel where samples are neighbours, else 0: of two, pairs count that are so in both."""
        of = gram(layer)
        kernel = of.cosines()
        centred = kernel - kernel.mean(1, keepdim=True)
        return unit_vector(torch.where(_neighbours(of, kernel, self.k), centred, 0), kernel)


def _neighbours(of: Gram, nearness: Tensor, k: int) -> Tensor:
    """Return the k nearest others of each sample, ``(n, n)`` bool; none if all pairs are equally near."""
    n = len(nearness)
    near = round_equal(nearness)
    chosen = torch.zeros_like(near, dtype=torch.bool)
    pairs = off_diagonal(near)
    if of.constant or (n > 2 and bool((pairs == pairs[0]).all())):
        return chosen
    order = near.fill_diagonal_(-torch.inf).sort(dim=1, descending=True, stable=True).indices
    return chosen.scatter_(1, order[:, : min(k, n - 1)], True)


rsa_pearson = RSA()
rsa_spearman = RSA("spearman")
mutual_knn = MutualKNN()
cknna = CKNNA()
