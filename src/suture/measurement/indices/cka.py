"""Linear centred kernel alignment (CKA) of two matrices, and of all pairs of layers of two networks at once.

With the columns of X (n × p) and Y (n × q) centred,

    CKA(X, Y) = ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) = ⟨XXᵀ, YYᵀ⟩ / (‖XXᵀ‖ ‖YYᵀ‖)        (Frobenius; Kornblith et al. 2019, eq. 4)

which lies in [0, 1] and does not change with orthogonal maps of the features, isotropic scaling and shifts; it does
with other linear maps. It is biased upwards if there are more features than samples; ``debiased`` puts the unbiased
estimate of HSIC (Song et al. 2012; Nguyen et al. 2021) in the place of each of the three products, which takes 4
samples or more and lies in [-1, 1]. If an operand does not vary CKA is 0/0, and is 0 here.

The usual loop computes the Gram matrices XXᵀ and YYᵀ again for every pair. Here each layer's is computed once, in the
upper half alone since it is symmetric, and one product of the stacked Grams gives all pairs. If samples are many and
features few, one product of the stacked features, XᵀY for all pairs, is cheaper; both are the same number, and the
operations counted decide. Grams are held in tiles of rows, so memory is bounded however many samples there are.

Products are taken in float32, of features centred by means in float64, some features (or samples) at a time; what is
added up afterwards, n² products for every pair, is added up in float64, where what rounding left of the means is taken
out too. With float64 activations everything is float64.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.base import Index
from suture.measurement.indices.layers import Layer, SamplesAs, layers, same_samples

ROWS = 256  #: of a Gram that are computed by one product; fixed, since the bits of a result may depend on it
MEMORY = 2**30  #: bytes that Grams, or products of features, may take
_ENTRIES = 2**16  #: of every Gram that are put into float64 at a time
_PRODUCTS = (torch.float32, torch.float64, torch.bfloat16)


@keyed_as("LinearCKA")
@dataclass(frozen=True)
class LinearCKA(Index):
    """Linear CKA, in [0, 1]; ``debiased`` in [-1, 1], of 4 samples or more. Kornblith et al. 2019, eq. 4."""

    called: ClassVar[str] = "linear_cka"

    debiased: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """From 0, or from -1 if it is debiased, to 1."""
        return (-1.0 if self.debiased else 0.0, 1.0)

    @property
    def least(self) -> int:
        """4 if it is debiased."""
        return 4 if self.debiased else 2

    def check(self, name: str, samples: int, features: int) -> None:
        """Raise ``DataError`` if it is debiased and there are fewer than 4 samples; more are never too many."""
        _check_samples(samples, self.debiased)

    def _pairs(self, rows: Sequence[Layer], columns: Sequence[Layer]) -> Tensor:
        return _all_pairs(list(rows), list(columns), self.debiased, None, MEMORY).cpu()


linear_cka = LinearCKA()


def linear_cka_all(
    xs: Sequence[Tensor],
    ys: Sequence[Tensor] | None = None,
    *,
    debiased: bool = False,
    samples_as: SamplesAs = "flattened",
    products: torch.dtype | None = None,
    memory: int = MEMORY,
) -> Tensor:
    """Compare all layers of ``xs`` with all of ``ys`` by linear CKA, ``(len(xs), len(ys))`` in float64.

    Each is the activations of the same n images in the same order, ``(n, …)``, all on one device; without ``ys``,
    ``xs`` are compared with themselves. ``samples_as`` says whether an image is a sample (``flattened``), or every
    position of a map and every token (``pixels``). ``products`` is the type of the matrix products, float32 unless an
    activation is float64; bfloat16 is faster on processors that have it, and less exact. ``memory`` bounds in bytes
    what is held beside the activations, down to ``ROWS`` rows of every Gram.

    Raises ``DataError`` naming the layer if activations are not finite, not floating, of other numbers of samples,
    or too few.
    """
    ours = layers(xs, "xs", samples_as)
    return _all_pairs(ours, ours if ys is None else layers(ys, "ys", samples_as), debiased, products, memory)


def _check_samples(n: int, debiased: bool) -> None:
    if debiased and n < 4:
        raise DataError(f"debiased CKA of {n} samples does not exist: give 4 or more, or leave it biased")


def _all_pairs(
    ours: list[Layer], theirs: list[Layer], debiased: bool, products: torch.dtype | None, memory: int
) -> Tensor:
    seen: dict[int, Layer] = {}
    for layer in (*ours, *theirs):
        seen.setdefault(id(layer.activations), layer)
    every = list(seen.values())
    n = same_samples(every)
    _check_samples(n, debiased)
    wide = any(layer.activations.dtype == torch.float64 for layer in every)
    dtype = products if products is not None else torch.float64 if wide else torch.float32
    if dtype not in _PRODUCTS:
        raise DataError(f"products={dtype}: give {', '.join(map(str, _PRODUCTS))}")
    place = {key: i for i, key in enumerate(seen)}
    rows, columns = ([place[id(layer.activations)] for layer in side] for side in (ours, theirs))
    gather = _by_features if _features_are_cheaper(every, rows, columns) else _by_grams
    asked = _Asked(every, rows, columns, dtype, memory)
    return _align(gather(asked), n, debiased, torch.finfo(asked.held).eps)


@dataclass(frozen=True, eq=False)
class _Asked:
    """Which layers are compared with which, by their places in ``every``, the type of products, and bytes to hold."""

    every: list[Layer]
    rows: list[int]
    columns: list[int]
    dtype: torch.dtype
    memory: int

    @property
    def held(self) -> torch.dtype:
        """The type in which products are held."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def device(self) -> torch.device:
        return self.every[0].activations.device


@dataclass(frozen=True, eq=False)
class _GramSums:
    """What there is to know of the Grams K and L of rows and columns, all in float64.

    ``cross`` is Σ KᵢⱼLᵢⱼ of every pair; of the Gram of each row and each column, ``own`` is Σ Kᵢⱼ², ``sums``
    (layers, n) are its row sums and ``diagonal`` (layers, n) its diagonal; each a pair, rows first.
    """

    cross: Tensor
    own: tuple[Tensor, Tensor]
    sums: tuple[Tensor, Tensor]
    diagonal: tuple[Tensor, Tensor]


def _features_are_cheaper(every: list[Layer], rows: list[int], columns: list[int]) -> bool:
    """Return whether products of features take fewer operations than the upper halves of Grams."""
    n = every[0].samples
    p = [layer.features for layer in every]
    ours, theirs = sum(p[i] for i in rows), sum(p[j] for j in columns)
    return 2 * (ours * theirs + sum(size**2 for size in p)) < n * sum(p)


# --- by Grams ---------------------------------------------------------------------------------------------------------


def _by_grams(asked: _Asked) -> _GramSums:
    n, count = asked.every[0].samples, len(asked.every)
    new = torch.zeros(0, dtype=torch.float64, device=asked.device).new_zeros
    cross, own = new(len(asked.rows), len(asked.columns)), new(count)
    sums, diagonal = new(count, n), new(count, n)
    for tile in _tiles(n, asked.memory // (count * asked.held.itemsize)):
        outer = torch.zeros(count, sum(_sizes(tile, n)[0]), dtype=asked.held, device=asked.device)
        inner = torch.zeros(count, sum(_sizes(tile, n)[1]), dtype=asked.held, device=asked.device)
        for i, layer in enumerate(asked.every):
            _fill(layer, tile, asked.dtype, outer[i], inner[i])
        _add_sums(tile, n, outer, inner, sums, diagonal)
        for grams, times in ((outer, 2), (inner, 1)):  # what is off the diagonal stands for its mirror image too
            for part in torch.split(grams, _ENTRIES, 1):
                exact = part.double()
                cross += times * (exact[asked.rows] @ exact[asked.columns].T)
                own += times * exact.square().sum(1)
    halves = [(of[asked.rows], of[asked.columns]) for of in (own, sums, diagonal)]
    return _GramSums(cross, *halves)


def _tiles(n: int, entries: int) -> Iterator[list[tuple[int, int]]]:
    """Yield groups of blocks of rows (first, end) that hold at most so many entries, one block at least."""
    tile: list[tuple[int, int]] = []
    for start in range(0, n, ROWS):
        block = (start, min(start + ROWS, n))
        if tile and sum(map(sum, _sizes([*tile, block], n))) > entries:
            yield tile
            tile = []
        tile.append(block)
    yield tile


def _sizes(tile: list[tuple[int, int]], n: int) -> tuple[list[int], list[int]]:
    """Return the entries of every block right of the diagonal's square, and of the square."""
    return [(end - start) * (n - end) for start, end in tile], [(end - start) ** 2 for start, end in tile]


def _blocks(tile: list[tuple[int, int]], n: int, outer: Tensor, inner: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the same entries as matrices, ``(…, rows, columns)``: right of the square, and the square."""
    parts = (torch.split(of, sizes, -1) for of, sizes in zip((outer, inner), _sizes(tile, n), strict=True))
    for (start, end), right, square in zip(tile, *parts, strict=True):
        yield right.unflatten(-1, (end - start, n - end)), square.unflatten(-1, (end - start, end - start))


def _fill(layer: Layer, tile: list[tuple[int, int]], dtype: torch.dtype, outer: Tensor, inner: Tensor) -> None:
    """Add up a layer's Gram over its features, in the upper blocks of a tile."""
    first = tile[0][0]
    blocks = list(_blocks(tile, layer.samples, outer, inner))
    for columns in layer.centred_columns(outer.dtype, first):
        factors = columns.to(dtype)
        for (start, end), (right, square) in zip(tile, blocks, strict=True):
            left = factors[start - first : end - first]
            _add_product(square, left, left.T)
            _add_product(right, left, factors[end - first :].T)


def _add_product(to: Tensor, a: Tensor, b: Tensor) -> None:
    if a.dtype == to.dtype:
        to.addmm_(a, b)
    elif to.numel():
        to.add_(a @ b)


def _add_sums(
    tile: list[tuple[int, int]], n: int, outer: Tensor, inner: Tensor, sums: Tensor, diagonal: Tensor
) -> None:
    for (start, end), (right, square) in zip(tile, _blocks(tile, n, outer, inner), strict=True):
        sums[:, start:end] += right.sum(2, dtype=torch.float64) + square.sum(2, dtype=torch.float64)
        sums[:, end:] += right.sum(1, dtype=torch.float64)
        diagonal[:, start:end] = square.diagonal(dim1=1, dim2=2)


# --- by features ------------------------------------------------------------------------------------------------------


def _by_features(asked: _Asked) -> _GramSums:
    n, p = asked.every[0].samples, [layer.features for layer in asked.every]
    own, shifts, diagonal = _by_itself(asked)
    cross = own.new_zeros(len(asked.rows), len(asked.columns))
    columns = [p[j] for j in asked.columns]
    shift = torch.cat([shifts[j] for j in asked.columns])
    for group in _groups([p[i] for i in asked.rows], asked.memory // (8 * sum(columns))):
        chosen = [asked.rows[i] for i in group]
        moments = torch.outer(torch.cat([shifts[i] for i in chosen]), shift) / -n
        for parts in _row_chunks(asked):
            a, b = (torch.cat([parts[i] for i in side], 1) for side in (chosen, asked.columns))
            moments += a.T @ b
        for i, rows in zip(group, torch.split(moments, [p[i] for i in chosen]), strict=True):
            cross[i] = torch.stack([block.square().sum() for block in torch.split(rows, columns, 1)])
    halves = [(of[asked.rows], of[asked.columns]) for of in (own, own.new_zeros(len(p), n), diagonal)]
    return _GramSums(cross, *halves)


def _by_itself(asked: _Asked) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return of every layer ‖XᵀX‖², the column sums that rounding left, and the diagonal of XXᵀ."""
    n, count = asked.every[0].samples, len(asked.every)
    new = torch.zeros(0, dtype=torch.float64, device=asked.device).new_zeros
    squares = [new(layer.features, layer.features) for layer in asked.every]
    shifts = [new(layer.features) for layer in asked.every]
    diagonal, done = new(count, n), 0
    for parts in _row_chunks(asked):
        for i, part in enumerate(parts):
            squares[i] += part.T @ part
            shifts[i] += part.sum(0, dtype=torch.float64)
            diagonal[i, done : done + len(part)] = part.double().square().sum(1)
        done += len(parts[0])
    centred = [square - torch.outer(shift, shift) / n for square, shift in zip(squares, shifts, strict=True)]
    return torch.stack([square.square().sum() for square in centred]), shifts, diagonal


def _row_chunks(asked: _Asked) -> Iterator[list[Tensor]]:
    """Yield some centred samples of every layer at a time."""
    for parts in zip(*(layer.centred_rows(asked.held) for layer in asked.every), strict=True):
        yield [part.to(asked.dtype) for part in parts]


def _groups(sizes: list[int], limit: int) -> Iterator[list[int]]:
    """Yield places in a list, in groups whose sizes add up to no more than ``limit``, one at least."""
    group: list[int] = []
    for i, size in enumerate(sizes):
        if group and sum(sizes[j] for j in group) + size > limit:
            yield group
            group = []
        group.append(i)
    yield group


# --- what both give ---------------------------------------------------------------------------------------------------


def _align(sums: _GramSums, n: int, debiased: bool, eps: float) -> Tensor:
    """Return CKA of all pairs; 0 if a layer's product with itself is nothing but rounding."""
    hsic = _sum_debiased if debiased else _sum_biased
    value = hsic(sums.cross, sums.sums, sums.diagonal, n, lambda a, b: a @ b.T)
    for axis, own in enumerate(sums.own):
        u, d = sums.sums[axis], sums.diagonal[axis]
        norm = hsic(own, (u, u), (d, d), n, lambda a, b: (a * b).sum(1))
        varies = norm > n * (4 * eps) ** 2 * own
        scale = torch.where(varies, norm.clamp(min=0).rsqrt(), 0)
        value *= scale.unsqueeze(1 - axis)
    return value.clamp(-1 if debiased else 0, 1)


_Pair = tuple[Tensor, Tensor]
_Dot = Callable[[Tensor, Tensor], Tensor]


def _sum_biased(cross: Tensor, sums: _Pair, diagonal: _Pair, n: int, dot: _Dot) -> Tensor:
    """Return (n - 1)² times HSIC, of Grams that are centred here."""
    u, v = sums
    return cross - 2 / n * dot(u, v) + dot(u.sum(1, keepdim=True), v.sum(1, keepdim=True)) / n**2


def _sum_debiased(cross: Tensor, sums: _Pair, diagonal: _Pair, n: int, dot: _Dot) -> Tensor:
    """Return n (n - 3) times unbiased HSIC (Song et al. 2012, eq. 5) of Grams without their diagonals."""
    u, v = (row - d for row, d in zip(sums, diagonal, strict=True))
    total = dot(u.sum(1, keepdim=True), v.sum(1, keepdim=True)) / ((n - 1) * (n - 2))
    return cross - dot(*diagonal) + total - 2 / (n - 2) * dot(u, v)
