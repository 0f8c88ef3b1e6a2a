"""Centred kernel alignment with a Gaussian kernel (RBF CKA).

With Kᵢⱼ = exp(-‖xᵢ - xⱼ‖² / 2σ²), L likewise, and H the centring matrix,

    CKA = ⟨HKH, HLH⟩ / (‖HKH‖ ‖HLH‖)        (Kornblith et al. 2019, section 3)

where σ is ``bandwidth`` times the median distance between two samples, of each layer by itself, so the scale of the
features does not matter. The smaller σ is, the more the value depends on near neighbours alone; with large σ it tends
to linear CKA (Alvarez 2021). It is biased upwards, as linear CKA is; ``debiased`` centres K as Székely & Rizzo (2014)
do, which makes ⟨·, ·⟩ the unbiased estimate of HSIC (Song et al. 2012). If more than half of all pairs of samples
are the same σ is 0, and K says which samples are the same. Two samples are always alike.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.base import PreparedIndex
from suture.measurement.indices.grams import gram, off_diagonal, unit_vector
from suture.measurement.indices.layers import Layer


@keyed_as("RBFCKA")
@dataclass(frozen=True)
class RBFCKA(PreparedIndex[Tensor]):
    """CKA with a Gaussian kernel, in [0, 1]; ``debiased`` in [-1, 1], of 4 samples or more.

    ``bandwidth`` is σ in units of the median distance; Kornblith et al. 2019 use 0.2 to 0.8.
    """

    called: ClassVar[str] = "rbf_cka"
    pairwise: ClassVar[bool] = True

    bandwidth: float = 0.5
    debiased: bool = False

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise DataError(f"bandwidth={self.bandwidth}: give a positive share of the median distance, such as 0.5")

    @property
    def bounds(self) -> tuple[float, float]:
        """From 0, or from -1 if it is debiased, to 1."""
        return (-1.0 if self.debiased else 0.0, 1.0)

    @property
    def least(self) -> int:
        """4 if it is debiased."""
        return 4 if self.debiased else 2

    def prepare(self, layer: Layer) -> Tensor:
        """Return the centred kernel as a vector of length 1."""
        squares = gram(layer).squared_distances()
        width = self.bandwidth * _median(off_diagonal(squares).sqrt())
        kernel = torch.expm1(-squares / (2 * width**2)) if width else -(squares > 0).double()  # less 1: as centred
        return unit_vector(_centre_unbiased(kernel) if self.debiased else _centre(kernel), kernel)

    def between(self, x: Tensor, y: Tensor) -> float:
        """Return their inner product."""
        low, high = self.bounds
        return min(high, max(low, float(x @ y)))


def _median(values: Tensor) -> float:
    ordered = values.sort().values
    return float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _centre(kernel: Tensor) -> Tensor:
    means = kernel.mean(0)
    return kernel - means.unsqueeze(0) - means.unsqueeze(1) + means.mean()


def _centre_unbiased(kernel: Tensor) -> Tensor:
    """Centre a kernel so that inner products are n (n - 3) times unbiased HSIC; its diagonal is 0 before and after.

    Székely & Rizzo 2014, definition 2.
    """
    n = len(kernel)
    sums = kernel.sum(0) / (n - 2)
    centred = kernel - sums.unsqueeze(0) - sums.unsqueeze(1) + sums.sum() / (n - 1)
    return centred.fill_diagonal_(0)


rbf_cka = RBFCKA()
