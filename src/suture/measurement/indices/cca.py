"""Canonical correlation analysis (CCA): how far the directions that two layers span are the same.

The canonical correlations ρ₁ ≥ ρ₂ ≥ … of two layers are the cosines between the subspaces that their features span over
samples: the singular values of UₓᵀUᵧ, with U orthonormal bases (``bases``). There are c of them, as many as the smaller
rank. Three ways of making them one number:

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
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.base import RIGID, Transforms
from suture.measurement.indices.bases import Basis, OfBases, basis, cross
from suture.measurement.indices.layers import Layer

_ALL: Transforms = RIGID | {"stretching", "linear"}


@keyed_as("MeanCCA")
@dataclass(frozen=True)
class MeanCCA(OfBases):
    """The mean canonical correlation, in [0, 1]; 1 wherever a layer spans all that can vary over the samples."""

    called: ClassVar[str] = "mean_cca"

    @property
    def invariances(self) -> Transforms:
        """Every invertible linear map, and shifts."""
        return _ALL

    def between(self, x: Basis, y: Basis) -> float:
        """Return the mean cosine."""
        return _mean(x, y)


@keyed_as("SVCCA")
@dataclass(frozen=True)
class SVCCA(OfBases):
    """The mean canonical correlation of the largest directions, in [0, 1]; ``variance`` is the share they hold."""

    called: ClassVar[str] = "svcca"

    variance: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.variance <= 1:
            raise DataError(f"variance={self.variance}: give the share of the variance to keep, above 0 and at most 1")

    def prepare(self, layer: Layer) -> Basis:
        """Return the fewest of its directions that hold as much variance."""
        whole = basis(layer)
        held = whole.scales.square().cumsum(0)
        return whole.first(1 + int((held < (self.variance - 1e-12) * held[-1]).sum())) if whole.rank else whole

    def between(self, x: Basis, y: Basis) -> float:
        """Return the mean cosine."""
        return _mean(x, y)


@keyed_as("PWCCA")
@dataclass(frozen=True)
class PWCCA(OfBases):
    """The mean canonical correlation, weighted by what the directions carry, in [0, 1]."""

    called: ClassVar[str] = "pwcca"
    symmetric: ClassVar[bool] = False

    @property
    def invariances(self) -> Transforms:
        """The order of features, one scale for all, and shifts."""
        return frozenset({"permutation", "scaling", "translation"})

    def between(self, x: Basis, y: Basis) -> float:
        """Return the weighted mean cosine."""
        if not (x.rank and y.rank):
            return 0.0
        if x.full or y.full:
            return 1.0
        ours, cosines, theirs = torch.linalg.svd(cross(x, y), full_matrices=False)
        weights = x.loads(ours) if x.rank <= y.rank else y.loads(theirs.T)
        return _bound((weights * cosines.clamp(max=1)).sum() / weights.sum())


def _mean(x: Basis, y: Basis) -> float:
    if not (x.rank and y.rank):
        return 0.0
    if x.full or y.full:
        return 1.0
    return _bound(torch.linalg.svdvals(cross(x, y)).clamp(max=1).mean())


def _bound(value: Tensor) -> float:
    return min(1.0, max(0.0, float(value)))


mean_cca = MeanCCA()
svcca = SVCCA()
pwcca = PWCCA()
