"""Centred kernel alignment (CKA): whether two layers find the same samples alike, by inner products or nearness.

With the columns of X (n × p) and Y (n × q) centred,

    linear CKA(X, Y) = ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) = ⟨XXᵀ, YYᵀ⟩ / (‖XXᵀ‖ ‖YYᵀ‖)     (Frobenius; Kornblith et al. 2019, eq. 4)

which lies in [0, 1] and does not change with orthogonal maps of the features, isotropic scaling and shifts; it does
with other linear maps. With Kᵢⱼ = exp(-‖xᵢ - xⱼ‖² / 2σ²), L likewise, and H the centring matrix,

    RBF CKA = ⟨HKH, HLH⟩ / (‖HKH‖ ‖HLH‖)        (Kornblith et al. 2019, section 3)

where σ is ``bandwidth`` times the median distance between two samples, of each layer by itself, so the scale of the
features does not matter. The smaller σ is, the more the value depends on near neighbours alone; with large σ it tends
to linear CKA (Alvarez 2021). If more than half of all pairs of samples are the same σ is 0, and K says which samples
are the same. Two samples are always alike.

Both are biased upwards, linear CKA if there are more features than samples; ``debiased`` puts the unbiased estimate of
HSIC (Song et al. 2012; Nguyen et al. 2021) in the place of each of the three products, which takes 4 samples or more
and lies in [-1, 1]. If an operand does not vary CKA is 0/0, and is 0 here.

The usual loop computes the Gram matrices XXᵀ and YYᵀ again for every pair. Here, for linear CKA, each layer's is
computed once, in the upper half alone since it is symmetric, and one product of the stacked Grams gives all pairs. If
samples are many and features few, one product of the stacked features, XᵀY for all pairs, is cheaper; both are the same
number, and the operations counted decide. Grams are held some rows at a time, so memory is bounded however many samples
there are; the products of features that are cheaper take less memory than the activations.

Products are taken in float32, of features centred by means in float64, some features (or samples) at a time; what is
added up afterwards, n² products for every pair, is added up in float64, where what rounding left of the means is taken
out too. With float64 activations, of one layer or more, everything is float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.base import MOST, Index, Layer
from suture.measurement.indices.calibration import Null
from suture.measurement.indices.grams import ROWS, OfPairs, add_products, gram, mirror, of_length_1, off_diagonal

MEMORY = 2**30  #: bytes that the rows of Grams may take
_ENTRIES = 2**16  #: of every Gram that are put into float64 at a time


@keyed_as("Debiasable")
class _Debiasable(Index):
    """An index that estimates HSIC, biased or ``debiased``."""

    debiased: bool

    @property
    def bounds(self) -> tuple[float, float]:
        """From 0, or from -1 if it is debiased, to 1."""
        return (-1.0 if self.debiased else 0.0, 1.0)

    @property
    def least(self) -> int:
        """4 if it is debiased."""
        return 4 if self.debiased else 2

    def _centred(self, kernel: Tensor) -> Tensor:
        """Return a kernel, or several, centred so that inner products are HSIC, of length 1."""
        return of_length_1(_centre_unbiased(kernel) if self.debiased else _centre(kernel), kernel)


# --- linear -----------------------------------------------------------------------------------------------------------


@keyed_as("LinearCKA")
@dataclass(frozen=True)
class LinearCKA(_Debiasable, OfPairs):
    """Linear CKA, in [0, 1]; ``debiased`` in [-1, 1], of 4 samples or more. Kornblith et al. 2019, eq. 4."""

    called = "linear_cka"

    debiased: bool = False

    def check(self, name: str, samples: int, features: int) -> None:
        """Raise ``DataError`` for too few samples; there are never too many."""
        super().check(name, min(samples, MOST), features)

    def prepare(self, layer: Layer) -> Tensor:
        """Return the centred Gram matrix, of length 1."""
        dtype = torch.float64 if layer.activations.dtype == torch.float64 else torch.float32
        products = torch.zeros(layer.samples, layer.samples, dtype=dtype, device=layer.activations.device)
        for features, _ in layer.columns(dtype):
            add_products(products, features)
        return self._centred(mirror(products).double())

    def _null(self, rows: Sequence[Layer], columns: Sequence[Layer], permutations: int) -> Null:
        if rows[0].samples <= MOST:
            return super()._null(rows, columns, permutations)
        values = self._pairs(rows, columns)  # whose Gram matrices no memory holds
        return Null(values, torch.full((1, *values.shape), torch.nan), torch.full_like(values, torch.nan), 1)

    def _pairs(self, rows: Sequence[Layer], columns: Sequence[Layer]) -> Tensor:
        distinct: dict[int, Layer] = {}
        for layer in (*rows, *columns):
            distinct.setdefault(id(layer.activations), layer)
        every, places = list(distinct.values()), {key: place for place, key in enumerate(distinct)}
        i, j = ([places[id(layer.activations)] for layer in side] for side in (rows, columns))
        wide = any(layer.activations.dtype == torch.float64 for layer in every)
        dtype = torch.float64 if wide else torch.float32
        sum_up = _by_features if _features_are_cheaper(every, i, j) else _by_grams
        cross, own, sums, diagonal = sum_up(every, i, j, dtype)

        n = every[0].samples
        if self.debiased:  # n (n - 3) times unbiased HSIC (Song et al. 2012, eq. 5), of Grams without their diagonals
            sums = sums - diagonal
            total = sums.sum(1)
            centring = torch.outer(total, total) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (sums @ sums.T)
            centring -= diagonal @ diagonal.T
        else:  # (n - 1)² times HSIC, of Grams that are centred here
            total = sums.sum(1)
            centring = torch.outer(total, total) / n**2 - 2 / n * (sums @ sums.T)
        norm = own + centring.diagonal()
        varies = norm > n * (4 * torch.finfo(dtype).eps) ** 2 * own  # else it is nothing but rounding
        scale = torch.where(varies, norm.clamp(min=0).rsqrt(), 0)
        values = (cross + centring[i][:, j]) * scale[i].unsqueeze(1) * scale[j]
        return values.clamp(*self.bounds).cpu()


_Sums = tuple[Tensor, Tensor, Tensor, Tensor]
"""What there is to know of the Grams K of every layer: Σ KᵢⱼLᵢⱼ of all pairs of rows and columns; and of each layer
Σ Kᵢⱼ², its row sums ``(layers, n)`` and its diagonal ``(layers, n)``; all in float64."""


def _features_are_cheaper(every: list[Layer], rows: list[int], columns: list[int]) -> bool:
    """Return whether products of features take fewer operations than the upper halves of Grams."""
    p = [layer.features for layer in every]
    ours, theirs = sum(p[i] for i in rows), sum(p[j] for j in columns)
    return 2 * (ours * theirs + sum(size**2 for size in p)) < every[0].samples * sum(p)


def _by_grams(every: list[Layer], rows: list[int], columns: list[int], dtype: torch.dtype) -> _Sums:
    n, count, device = every[0].samples, len(every), every[0].activations.device
    new = torch.zeros(0, dtype=torch.float64, device=device).new_zeros
    cross, own, sums, diagonal = new(len(rows), len(columns)), new(count), new(count, n), new(count, n)
    start = 0
    while start < n:
        held = MEMORY // (count * dtype.itemsize * (n - start)) // ROWS * ROWS
        end = min(n, start + max(held, ROWS))
        grams = torch.zeros(count, end - start, n - start, dtype=dtype, device=device)
        for layer, upper in zip(every, grams, strict=True):
            for features, _ in layer.columns(dtype, start):
                add_products(upper, features)
        own_products = grams.triu_().diagonal(dim1=1, dim2=2).double()
        diagonal[:, start:end] = own_products
        sums[:, start:end] += grams.sum(2, dtype=torch.float64) - own_products
        sums[:, start:] += grams.sum(1, dtype=torch.float64)
        for part in torch.split(grams.flatten(1), _ENTRIES, 1):  # each stands for its mirror image too
            exact = part.double()
            cross += 2 * (exact[rows] @ exact[columns].T)
            own += 2 * exact.square().sum(1)
        start = end
    return cross - diagonal[rows] @ diagonal[columns].T, own - diagonal.square().sum(1), sums, diagonal


def _by_features(every: list[Layer], rows: list[int], columns: list[int], dtype: torch.dtype) -> _Sums:
    n, p = every[0].samples, [layer.features for layer in every]
    new = torch.zeros(0, dtype=torch.float64, device=every[0].activations.device).new_zeros
    down, across = [p[i] for i in rows], [p[j] for j in columns]
    moments, squares, shifts = new(sum(down), sum(across)), [new(size, size) for size in p], [new(size) for size in p]
    diagonal, done = new(len(p), n), 0
    for parts in zip(*(layer.centred_rows(dtype) for layer in every), strict=True):
        a, b = (torch.cat([parts[i] for i in side], 1) for side in (rows, columns))
        moments += a.T @ b
        for i, part in enumerate(parts):
            squares[i] += part.T @ part
            shifts[i] += part.sum(0, dtype=torch.float64)
            diagonal[i, done : done + len(part)] = part.double().square().sum(1)
        done += len(parts[0])
    moments -= torch.outer(*(torch.cat([shifts[i] for i in side]) for side in (rows, columns))) / n
    cross = [[block.square().sum() for block in torch.split(of, across, 1)] for of in torch.split(moments, down)]
    own = [(squares[i] - torch.outer(shift, shift) / n).square().sum() for i, shift in enumerate(shifts)]
    return torch.stack([torch.stack(row) for row in cross]), torch.stack(own), new(len(p), n), diagonal


# --- of nearness ------------------------------------------------------------------------------------------------------


@keyed_as("RBFCKA")
@dataclass(frozen=True)
class RBFCKA(_Debiasable, OfPairs):
    """CKA with a Gaussian kernel, in [0, 1]; ``debiased`` in [-1, 1], of 4 samples or more.

    ``bandwidth`` is σ in units of the median distance; Kornblith et al. 2019 use 0.2 to 0.8.
    """

    called = "rbf_cka"

    bandwidth: float = 0.5
    debiased: bool = False

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise DataError(f"bandwidth={self.bandwidth}: give a positive share of the median distance, such as 0.5")

    def prepare(self, layer: Layer) -> Tensor:
        """Return the centred kernel, of length 1."""
        squares = gram(layer).squared_distances()
        ordered = off_diagonal(squares).sqrt().sort().values
        median = float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        width = self.bandwidth * median
        kernel = torch.expm1(-squares / (2 * width**2)) if width else -(squares > 0).double()  # less 1: as centred
        return self._centred(kernel)


def _centre(kernel: Tensor) -> Tensor:
    means = kernel.mean(-1, keepdim=True)
    return kernel - means - means.mT + means.mean(-2, keepdim=True)


def _centre_unbiased(kernel: Tensor) -> Tensor:
    """Centre a kernel so that inner products are n (n - 3) times unbiased HSIC; without their diagonals.

    Székely & Rizzo 2014, definition 2.
    """
    n = kernel.shape[-1]
    kernel = kernel - torch.diag_embed(kernel.diagonal(dim1=-2, dim2=-1))
    sums = kernel.sum(-1, keepdim=True) / (n - 2)
    centred = kernel - sums - sums.mT + sums.sum(-2, keepdim=True) / (n - 1)
    return centred - torch.diag_embed(centred.diagonal(dim1=-2, dim2=-1))


# --- of batches -------------------------------------------------------------------------------------------------------


@keyed_as("MinibatchCKA")
@dataclass(frozen=True)
class MinibatchCKA(_Debiasable, OfPairs):
    """Linear CKA of batches of images, debiased in [-1, 1]: the mean HSIC over batches, for any number of samples.

    Each of the three products is estimated without bias in every batch, so the size of a batch, at most ``batch``
    images, makes it less exact and not larger (Nguyen et al. 2021, section 3.1 and eq. 4). Batches are of equal size;
    the few last images that this leaves over are not used. It takes ``2 · batch / n`` of the products of linear CKA.
    """

    called = "minibatch_cka"
    pairwise = False

    batch: int = 100
    debiased: bool = True

    def __post_init__(self) -> None:
        if self.batch < 4:
            raise DataError(f"batch={self.batch}: give the images of a batch, 4 or more")

    def check(self, name: str, samples: int, features: int) -> None:
        """Raise ``DataError`` for too few samples; there are never too many."""
        super().check(name, min(samples, MOST), features)

    def prepare(self, layer: Layer) -> Tensor:
        """Return the centred Gram matrices of all batches, ``(batches, samples, samples)``, together of length 1."""
        dtype = torch.float64 if layer.activations.dtype == torch.float64 else torch.float32
        size = max(4, layer.images // -(-layer.images // self.batch))  # of three images there is no unbiased estimate
        rows = (layer.taken(part) for part in torch.split(torch.arange(layer.images // size * size), size))
        grams = []
        for part in rows:
            gram_ = torch.zeros(part.samples, part.samples, dtype=dtype, device=layer.activations.device)
            for features, _ in part.columns(dtype):
                gram_.addmm_(features, features.T)
            grams.append(gram_)
        return self._centred(torch.stack(grams).double())


linear_cka = LinearCKA()
rbf_cka = RBFCKA()
minibatch_cka = MinibatchCKA()
