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
  where j ≠ i is a neighbour of i in both layers, else 0.
- *CKNNA, unbiased*, as the authors' code computes it (``metrics.py`` of minyoungg/platonic-rep): Align is the unbiased
  estimate of HSIC (Song et al. 2012, eq. 5) of α ∘ K and α ∘ L, which are not symmetric. Its first term counts only
  pairs that are neighbours both ways, and the order of the layers matters a little. The 10⁻⁶ that the code adds to the
  denominator is left out.

By chance k-nearest neighbours agree in k / (n - 1) on average, so the value says little unless k ≪ n; k is n - 1 at
most, where it is always 1. Among others that are equally near, the first in the order of the samples are taken. Layers
that find all samples equally near are like nothing; two samples are always neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from scipy.stats import rankdata
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.base import RIGID, Layer, PreparedIndex, Transforms, check_choice
from suture.measurement.indices.calibration import Null, correlate, influence_errors

ROWS = 256  #: that are computed by one product; fixed, since bits may depend on it
ROUNDING = 2.0**-36  #: relative to a value, by which another is the same; and to all, below which what is left is 0

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

    def squared_distances(self) -> Tensor:
        """Return ‖xᵢ - xⱼ‖², ``(n, n)``."""
        own = self.products.diagonal()
        largest = own.unsqueeze(0) + own.unsqueeze(1)
        return _above(largest - 2 * self.products, self._eps * largest).fill_diagonal_(0)

    def unlike_directions(self, within_samples: bool = False) -> Tensor:
        """Return 1 less the cosine of every two samples, ``(n, n)``; 1 if one of them is 0.

        ``within_samples`` takes the mean over features out of each first, which makes it 1 less Pearson's correlation.
        From distances, ‖x - y‖² - (‖x‖ - ‖y‖)² over 2 ‖x‖ ‖y‖, which loses nothing where all samples point one way.
        """
        own, means = self.products.diagonal(), self.sums / self.features + self.centre
        largest, unlike = own.unsqueeze(1) + own, self.squared_distances()
        shifts, squares = self.along, self.spread
        if within_samples:
            own = own - self.sums**2 / self.features
            unlike = unlike - (self.sums.unsqueeze(1) - self.sums) ** 2 / self.features
        else:
            shifts, squares = shifts + self.centre * self.sums, squares + self.features * self.centre**2
        moved = own + 2 * shifts
        lengths = torch.where(moved + squares > self._bound_rounding(means), moved + squares, 0).sqrt()
        both, together = lengths.unsqueeze(1) * lengths, lengths.unsqueeze(1) + lengths
        longer = (moved.unsqueeze(1) - moved) / together
        rounding = largest + 2 * longer.abs() * (moved.abs().unsqueeze(1) + moved.abs()) / together
        unlike = _above(unlike - longer**2, self._eps * rounding) / (2 * both)
        return torch.where(both > 0, unlike.clamp(max=2), 1.0).fill_diagonal_(0)

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


def mirror(upper: Tensor) -> Tensor:
    """Return the symmetric matrix with this upper half; entries below the diagonal are ignored."""
    upper = upper.triu()
    return upper + upper.triu(1).T


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
    products = mirror(products)
    mean = torch.cat(means)
    same = bool((mean == mean[0]).all())
    centre = mean[0] if same else mean.mean()
    spread = 0.0 if same else float((mean - centre).square().sum())
    return Gram(products, sums, along - centre * sums, float(centre), spread, p)


def off_diagonal(pairs: Tensor) -> Tensor:
    """Return the values of every two samples, i < j, ``(n (n - 1) / 2,)``."""
    return pairs[torch.ones_like(pairs, dtype=torch.bool).triu(1)]


def round_equal(values: Tensor) -> Tensor:
    """Return the values, those that differ by rounding alone made the same, each by its own size."""
    mantissa, exponent = torch.frexp(values)
    return torch.ldexp((mantissa / ROUNDING).round() * ROUNDING, exponent)


def of_length_1(values: Tensor, whole: Tensor | None = None) -> Tensor:
    """Return values scaled to length 1; all 0 if they are mere rounding beside ``whole``."""
    length = torch.linalg.vector_norm(values)
    beside = torch.linalg.vector_norm(whole) if whole is not None else length
    return values / length if length > ROUNDING * beside else torch.zeros_like(values)


def _above(values: Tensor, least: Tensor) -> Tensor:
    return torch.where(values > least, values, 0)


@keyed_as("OfVectors")
class OfPairs(PreparedIndex[Tensor]):
    """An index that makes a matrix of length 1 of all pairs of samples, and compares two by their inner product.

    It may be of several blocks of samples, ``(blocks, samples, samples)``.
    """

    pairwise = True
    directed: ClassVar[bool] = False  #: whether a pair of samples counts in both directions by itself

    def between(self, x: Tensor, y: Tensor) -> float:
        """Return the inner product, which is the cosine of two matrices."""
        low, high = self.bounds
        return min(high, max(low, float(x.flatten() @ y.flatten())))

    def _null(self, rows: Sequence[Layer], columns: Sequence[Layer], permutations: int) -> Null:
        """Permute rows and columns of a matrix, prepared once, in place of permuting images."""
        parts, errors = [], torch.zeros(len(rows), len(columns), dtype=torch.float64)
        values = torch.zeros_like(errors)
        for across in self._groups(columns):
            theirs = {id(columns[j]): self.prepare(columns[j]) for j in across}
            for down in self._groups(rows):
                ours = [theirs[id(rows[i])] if id(rows[i]) in theirs else self.prepare(rows[i]) for i in down]
                sides = ours, [theirs[id(columns[j])] for j in across]
                at = torch.tensor(down).unsqueeze(1), torch.tensor(across)
                values[at] = torch.tensor([[self.between(x, y) for y in sides[1]] for x in ours], dtype=torch.float64)
                samples = rows[0].positions, self.directed
                permuted = correlate(*sides, permutations, *samples)[1:]
                parts.append((down, across, permuted))
                errors[at] = influence_errors(*sides, values[at], *samples)
        every = torch.zeros(len(parts[0][2]), *values.shape, dtype=torch.float64)
        for down, across, permuted in parts:
            every[:, torch.tensor(down).unsqueeze(1), torch.tensor(across)] = permuted
        return Null(values, every, errors, rows[0].images - 1)


# --- RSA --------------------------------------------------------------------------------------------------------------


@keyed_as("RSA")
@dataclass(frozen=True)
class RSA(OfPairs):
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
        """Return the dissimilarities, or their ranks, as a symmetric matrix of mean 0 and length 1."""
        of = gram(layer)
        unlike = of.squared_distances().sqrt() if self.dissimilarity == "euclidean" else of.unlike_directions(True)
        values = off_diagonal(unlike)
        if self.correlation == "spearman":
            # from 1, those of equal values averaged
            values = torch.from_numpy(rankdata(round_equal(values).cpu().numpy())).to(values.device)
        upper = torch.zeros_like(unlike)
        upper[torch.ones_like(unlike, dtype=torch.bool).triu(1)] = of_length_1(values - values.mean(), values) / 2**0.5
        return upper + upper.T


# --- neighbours -------------------------------------------------------------------------------------------------------


def _check_k(k: int) -> None:
    if k < 1:
        raise DataError(f"k={k}: give the number of neighbours, 1 or more")


@keyed_as("MutualKNN")
@dataclass(frozen=True)
class MutualKNN(OfPairs):
    """The share of ``k`` nearest neighbours that two layers have in common, in [0, 1], of k + 2 samples or more.

    ``nearest`` is by ``cosine``, as in the paper, or by ``euclidean`` distance, which shifts do not change.
    """

    called = "mutual_knn"
    directed = True

    k: int = 10
    nearest: Nearness = "cosine"

    def __post_init__(self) -> None:
        _check_k(self.k)
        check_choice("nearest", self.nearest, Nearness)

    @property
    def least(self) -> int:
        """Two more than neighbours, since all others are always common."""
        return self.k + 2

    @property
    def invariances(self) -> Transforms:
        """Rotations and scaling; by distance, shifts too."""
        return RIGID if self.nearest == "euclidean" else RIGID - {"translation"}

    def prepare(self, layer: Layer) -> Tensor:
        """Return whether the second sample is a neighbour of the first, ``(n, n)``, of length 1."""
        of = gram(layer)
        unlike = of.unlike_directions() if self.nearest == "cosine" else of.squared_distances()
        return of_length_1(_neighbours(unlike, self.k).double())


@keyed_as("CKNNA")
@dataclass(frozen=True)
class CKNNA(OfPairs):
    """Kernel alignment on ``k`` mutual nearest neighbours, in [-1, 1]; nearly always in [0, 1]."""

    called = "cknna"
    directed = True
    invariances = RIGID - {"translation"}
    bounds = (-1.0, 1.0)

    k: int = 10

    def __post_init__(self) -> None:
        _check_k(self.k)

    def prepare(self, layer: Layer) -> Tensor:
        """Return the centred kernel where samples are neighbours, else 0: of two, pairs count that are so in both."""
        unlike = gram(layer).unlike_directions()
        centred = unlike.mean(1, keepdim=True) - unlike
        return of_length_1(torch.where(_neighbours(unlike, self.k), centred, 0), unlike)


@dataclass(frozen=True, eq=False)
class Near:
    """The cosines of n samples, and which are neighbours, met in an order."""

    kernel: Tensor  #: (n, n), in the samples' own order
    chosen: Tensor  #: (n, n) bool, likewise
    order: Tensor  #: (n,): the samples as they are met

    def pairs(self) -> Tensor:
        """Return the places of all neighbours as they are met, ``(2, pairs)``."""
        found: Tensor = self.order.argsort()[self.chosen.nonzero().T]
        return found

    def align(self, other: "Near") -> float:
        """Return the unbiased estimate of HSIC on common neighbours, times n (n - 3)."""
        n, (i, j) = len(self.order), other.pairs()
        here, there = (of.order for of in (self, other))
        i, j = (at[self.chosen[here[i], here[j]]] for at in (i, j))
        both = self.chosen[here[j], here[i]] & other.chosen[there[j], there[i]]
        ours, theirs = self.kernel[here[i], here[j]], other.kernel[there[i], there[j]]
        through = (ours.new_zeros(n).index_add(0, at, of) for at, of in ((j, ours), (i, theirs)))
        sums = ours.sum() * theirs.sum() / ((n - 1) * (n - 2)) - 2 / (n - 2) * torch.dot(*through)
        return float((ours * theirs)[both].sum() + sums)


@keyed_as("UnbiasedCKNNA")
@dataclass(frozen=True)
class UnbiasedCKNNA(PreparedIndex[tuple[Near, float]]):
    """Kernel alignment on ``k`` mutual nearest neighbours by the authors' code, in [-1, 1]."""

    called = "cknna_unbiased"
    symmetric = False
    pairwise = True
    invariances = RIGID - {"translation"}
    bounds = (-1.0, 1.0)

    k: int = 10

    def __post_init__(self) -> None:
        if self.k < 2:
            raise DataError(f"k={self.k}: give the number of neighbours, 2 or more")

    @property
    def least(self) -> int:
        """One more than neighbours, 4 at least."""
        return max(4, self.k + 1)

    def prepare(self, layer: Layer) -> tuple[Near, float]:
        """Return the neighbours, and their alignment with themselves; 0 if that is not above 0."""
        unlike = gram(layer).unlike_directions()
        near = Near(1 - unlike, _neighbours(unlike, self.k), torch.arange(len(unlike)).to(unlike.device))
        own = near.align(near)
        return near, own if own > ROUNDING * self.k * len(unlike) else 0.0

    def reorder(self, prepared: tuple[Near, float], layer: Layer, order: Tensor) -> tuple[Near, float]:
        """Return the same, met in another order."""
        near, own = prepared
        samples = torch.arange(layer.samples).reshape(-1, layer.positions)[order].flatten()
        return replace(near, order=samples.to(near.order.device)), own

    def between(self, x: tuple[Near, float], y: tuple[Near, float]) -> float:
        """Compare two layers; one that does not vary is like nothing."""
        return min(1.0, max(-1.0, x[0].align(y[0]) / (x[1] * y[1]) ** 0.5)) if x[1] and y[1] else 0.0


def _neighbours(unlike: Tensor, k: int) -> Tensor:
    """Return the k nearest others of each sample, ``(n, n)`` bool; none if all pairs are equally far."""
    n = len(unlike)
    chosen = torch.zeros_like(unlike, dtype=torch.bool)
    far = round_equal(unlike)
    pairs = off_diagonal(far)
    if not pairs.any() or (n > 2 and bool((pairs == pairs[0]).all())):
        return chosen
    order = far.fill_diagonal_(torch.inf).sort(dim=1, stable=True).indices
    return chosen.scatter_(1, order[:, : min(k, n - 1)], True)


rsa_pearson = RSA()
rsa_spearman = RSA("spearman")
mutual_knn = MutualKNN()
cknna = CKNNA()
cknna_unbiased = UnbiasedCKNNA()
