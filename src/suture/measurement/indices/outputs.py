"""Distances of what two networks answer: of outputs ``(n, classes)``, which must be of the same classes.

*Disagreement* is the share of samples that two networks put into different classes (Klabunde et al. 2025, section 4).
The *Jensen–Shannon divergence* of the probabilities p and q that the softmax of their outputs gives is
H((p + q) / 2) - (H(p) + H(q)) / 2, here in bits, the mean over samples.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.base import Layer, PreparedIndex, Transforms


@keyed_as("OfOutputs")
class OfOutputs(PreparedIndex[Tensor]):
    """A distance of two networks' outputs, in [0, 1]."""

    distance = True
    invariances: Transforms = frozenset()

    def reorder(self, prepared: Tensor, layer: Layer, order: Tensor) -> Tensor:
        """Return what was prepared, in another order."""
        return prepared[order.to(prepared.device)]

    def between(self, x: Tensor, y: Tensor) -> float:
        """Return the mean over samples. Raises ``DataError`` if the two have other classes."""
        if x.shape != y.shape:
            raise DataError(f"{self.name}: outputs of {x.shape[1]} and {y.shape[1]} classes cannot be compared")
        return min(1.0, max(0.0, float(self.apart(x, y).mean())))

    def apart(self, x: Tensor, y: Tensor) -> Tensor:
        """Return how far apart the two are on each sample, ``(n,)``."""
        raise NotImplementedError


@keyed_as("Disagreement")
@dataclass(frozen=True)
class Disagreement(OfOutputs):
    """The share of samples on which the largest outputs are of other classes."""

    called = "disagreement"

    def prepare(self, layer: Layer) -> Tensor:
        """Return the outputs."""
        return layer.matrix()

    def apart(self, x: Tensor, y: Tensor) -> Tensor:
        """Return 1 where the classes differ, else 0."""
        return (x.argmax(1) != y.argmax(1)).double()


@keyed_as("JensenShannon")
@dataclass(frozen=True)
class JensenShannon(OfOutputs):
    """The mean Jensen–Shannon divergence of the probabilities, in bits."""

    called = "jensen_shannon"

    def prepare(self, layer: Layer) -> Tensor:
        """Return the probabilities."""
        probabilities: Tensor = layer.matrix().double().softmax(1)
        return probabilities

    def apart(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the divergence of each sample."""
        return _entropy((x + y) / 2) - (_entropy(x) + _entropy(y)) / 2


def _entropy(p: Tensor) -> Tensor:
    bits: Tensor = -torch.special.xlogy(p, p).sum(1) / log(2)
    return bits


disagreement = Disagreement()
jensen_shannon = JensenShannon()
