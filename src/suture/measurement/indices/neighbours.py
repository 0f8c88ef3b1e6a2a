"""Neighbours: do two layers find the same samples next to each other?

Huh et al. 2024 ("The Platonic Representation Hypothesis", section 3 and appendix A) take for every sample the k others
that are nearest to it, by the inner product of features scaled to length 1, their cosine. With 𝒮ₓ(i) and 𝒮ᵧ(i) the
neighbours of sample i in the two layers:

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
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.base import RIGID, PreparedIndex, Transforms
from suture.measurement.indices.grams import Gram, gram, off_diagonal, round_equal, unit_vector
from suture.measurement.indices.layers import Layer

Nearness = Literal["cosine", "euclidean"]


@keyed_as("MutualKNN")
@dataclass(frozen=True)
class MutualKNN(PreparedIndex[Tensor]):
    """The share of ``k`` nearest neighbours that two layers have in common, in [0, 1].

    ``nearest`` is by ``cosine``, as in the paper, or by ``euclidean`` distance, which shifts do not change.
    """

    called: ClassVar[str] = "mutual_knn"
    pairwise: ClassVar[bool] = True

    k: int = 10
    nearest: Nearness = "cosine"

    def __post_init__(self) -> None:
        _check_k(self.k)
        if self.nearest not in get_args(Nearness):
            raise DataError(f"nearest={self.nearest!r}: give {' or '.join(map(repr, get_args(Nearness)))}")

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
class CKNNA(PreparedIndex[Tensor]):
    """Kernel alignment on ``k`` mutual nearest neighbours, in [-1, 1]; nearly always in [0, 1]."""

    called: ClassVar[str] = "cknna"
    pairwise: ClassVar[bool] = True

    k: int = 10

    def __post_init__(self) -> None:
        _check_k(self.k)

    @property
    def invariances(self) -> Transforms:
        """Rotations and scaling."""
        return RIGID - {"translation"}

    @property
    def bounds(self) -> tuple[float, float]:
        """-1 and 1."""
        return -1.0, 1.0

    def prepare(self, layer: Layer) -> Tensor:
        """Return the centred kernel where samples are neighbours, else 0, as a vector of length 1."""
        of = gram(layer)
        kernel = of.cosines()
        centred = kernel - kernel.mean(1, keepdim=True)
        return unit_vector(torch.where(_neighbours(of, kernel, self.k), centred, 0), kernel)

    def between(self, x: Tensor, y: Tensor) -> float:
        """Return their inner product, in which only pairs that both layers call neighbours count."""
        return min(1.0, max(-1.0, float(x @ y)))


def _check_k(k: int) -> None:
    if k < 1:
        raise DataError(f"k={k}: give the number of neighbours, 1 or more")


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


mutual_knn = MutualKNN()
cknna = CKNNA()
