"""Representational similarity analysis (RSA): do two layers find the same samples alike?

Of each layer the dissimilarity of every two samples is taken, and the index is the correlation, over all pairs of
samples, of the two layers' dissimilarities (Kriegeskorte, Mur & Bandettini 2008).

``dissimilarity`` is 1 less Pearson's correlation of the two samples over features (``correlation``, the usual one,
which neither the mean nor the length of a sample changes, but which depends on the axes: rotations and shifts change
it), or the distance between them (``euclidean``). A sample that is the same in all features is correlated with none.
``correlation`` is ``pearson``, of the dissimilarities themselves, or ``spearman``, of their ranks, those of equals
averaged.

Correlations take three samples, two dissimilarities being needed; with two, and if all samples are equally unlike,
the value is 0.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.base import RIGID, PreparedIndex, Transforms
from suture.measurement.indices.grams import gram, off_diagonal, round_equal, unit_vector
from suture.measurement.indices.layers import Layer

Correlation = Literal["pearson", "spearman"]
Dissimilarity = Literal["correlation", "euclidean"]


@keyed_as("RSA")
@dataclass(frozen=True)
class RSA(PreparedIndex[Tensor]):
    """The correlation of two layers' dissimilarities of samples, in [-1, 1]; 1 means the same order, or proportion."""

    called: ClassVar[str] = "rsa"
    pairwise: ClassVar[bool] = True

    correlation: Correlation = "pearson"
    dissimilarity: Dissimilarity = "correlation"

    def __post_init__(self) -> None:
        for name, allowed in (("correlation", Correlation), ("dissimilarity", Dissimilarity)):
            if getattr(self, name) not in get_args(allowed):
                raise DataError(f"{name}={getattr(self, name)!r}: give {' or '.join(map(repr, get_args(allowed)))}")

    @property
    def name(self) -> str:
        """``rsa_pearson`` or ``rsa_spearman``, and the dissimilarity if it is not the default."""
        other = "" if self.dissimilarity == "correlation" else f"(dissimilarity={self.dissimilarity!r})"
        return f"{self.called}_{self.correlation}{other}"

    @property
    def invariances(self) -> Transforms:
        """Of correlations, the order and the scale of features; of distances, all rigid motions too."""
        return RIGID if self.dissimilarity == "euclidean" else frozenset({"permutation", "scaling"})

    @property
    def bounds(self) -> tuple[float, float]:
        """-1 and 1."""
        return -1.0, 1.0

    def prepare(self, layer: Layer) -> Tensor:
        """Return the dissimilarities, or their ranks, as a vector of mean 0 and length 1."""
        of = gram(layer)
        unlike = of.squared_distances().sqrt() if self.dissimilarity == "euclidean" else 1 - of.correlations()
        values = off_diagonal(unlike)
        if self.correlation == "spearman":
            values = _ranks(round_equal(values))
        return unit_vector(values - values.mean(), values)

    def between(self, x: Tensor, y: Tensor) -> float:
        """Return their correlation."""
        return min(1.0, max(-1.0, float(x @ y)))


def _ranks(values: Tensor) -> Tensor:
    """Return ranks from 1, those of equal values averaged, in float64."""
    ordered, order = values.sort()
    _, group, counts = torch.unique_consecutive(ordered, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks = torch.empty(len(values), dtype=torch.float64, device=values.device)
    ranks[order] = (ends - (counts - 1) / 2)[group]
    return ranks


rsa_pearson = RSA()
rsa_spearman = RSA("spearman")
