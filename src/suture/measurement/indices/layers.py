"""Activations as matrices, samples × features: what all indices have in common.

``flattened``: an image is a sample, and every value of its tensor a feature. ``pixels``: every position of a map, or
every token, is a sample, and its channels are the features (images × positions samples); two layers can then be
compared only if they have as many positions. Nothing is copied but the rows that are asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import frexp, isfinite, prod
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.validation import check_kind

_T = TypeVar("_T")
SamplesAs = Literal["flattened", "pixels"]
FEATURES = 2048  #: that are centred at a time
SAMPLES = 256  #: likewise, if rows are taken: sums over few samples are exact; both fixed, as bits depend on them
_SAFE = 30  #: powers of two that values may be from 1: their products' products then fit into float32
_LARGEST = 120  #: powers of two by which values are scaled; a float32 holds no more


def positions(shape: Sequence[int], samples_as: SamplesAs) -> int:
    """Return the samples that an image has if its activations are of this shape, without the batch."""
    if samples_as == "flattened":
        return 1
    return shape[0] if len(shape) == 2 else prod(shape[1:])


def check_samples_as(samples_as: str) -> None:
    """Raise ``DataError`` unless it is ``flattened`` or ``pixels``."""
    if samples_as not in get_args(SamplesAs):
        raise DataError(f"samples_as={samples_as!r}: give {' or '.join(map(repr, get_args(SamplesAs)))}")


@dataclass(frozen=True, eq=False)
class Layer:
    """Activations ``(images, …)`` read as a matrix, samples × features; ``name`` is for messages.

    Maps are (channels, height, width), tokens (tokens, channels). In ``kept`` indices keep what they have computed of
    it, for one another; without it, nothing is kept. Raises ``DataError`` unless there are two samples at least, one
    feature, and finite real floating values.
    """

    name: str
    activations: Tensor
    samples_as: SamplesAs = "flattened"
    kept: dict[Any, Any] | None = None

    def __post_init__(self) -> None:
        x = self.activations
        check_samples_as(self.samples_as)
        check_kind(self.name, x, Tensor, "a tensor of activations, such as torch.from_numpy(x)")
        if not x.is_floating_point():
            raise DataError(f"{self.name} is of {x.dtype}: give activations in a floating type")
        if x.ndim < 2 or x.numel() == 0 or self.samples < 2:
            raise DataError(f"{self.name} is {tuple(x.shape)}: give two samples or more, each with a feature or more")
        if not all(map(isfinite, self._range)):
            raise DataError(f"{self.name} is not finite everywhere: an index of it would mean nothing; leave it out")

    def once(self, name: str, compute: "Callable[[Layer], _T]") -> _T:
        """Return what is computed of this layer, kept under a name if anything is."""
        if self.kept is None:
            return compute(self)
        if name not in self.kept:
            self.kept[name] = compute(self)
        found: _T = self.kept[name]
        return found

    @property
    def positions(self) -> int:
        """The samples that an image has."""
        return positions(self.activations.shape[1:], self.samples_as)

    @property
    def samples(self) -> int:
        """The rows of the matrix."""
        return len(self.activations) * self.positions

    @property
    def features(self) -> int:
        """The columns of the matrix."""
        return self.activations[:1].numel() // self.positions

    def matrix(self, images: slice = slice(None)) -> Tensor:
        """Return the matrix, or its rows of some images, ``(samples, features)``: a view if it can be."""
        x = self.activations[images].detach()
        if self.samples_as == "pixels" and x.ndim != 3:
            x = x.flatten(2).transpose(1, 2) if x.ndim > 2 else x
        return x.reshape(-1, self.features)

    def centred_columns(self, dtype: torch.dtype, start: int = 0) -> Iterator[Tensor]:
        """Yield the matrix in ``dtype`` from row ``start`` on, some columns at a time, each centred over all rows.

        Means are taken in float64, and a constant column is exactly 0. Very small or large values are scaled by a power
        of two, the same for the whole layer.
        """
        for columns, _ in self.columns(dtype, start):
            yield columns

    def columns(self, dtype: torch.dtype, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the same, and the means ``(columns,)`` in float64 that were taken away."""
        for columns in torch.split(self.matrix(), FEATURES, 1):
            columns = self._scale(columns, dtype)
            mean = columns.sum(0, dtype=torch.float64) / self.samples
            if dtype == torch.float64:  # in float32 the mean of a constant is rounded to the constant
                mean = torch.where((columns == columns[0]).all(0), columns[0].double(), mean)
            yield columns[start:].to(dtype) - mean.to(dtype), mean

    def centred_rows(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield the same, some samples at a time, with all columns."""
        mean = torch.stack([rows.sum(0, dtype=torch.float64) for rows in self._rows(dtype)]).sum(0) / self.samples
        if dtype == torch.float64:
            first = self._scale(self.matrix(slice(1))[0], dtype)
            alike = torch.stack([(rows == first).all(0) for rows in self._rows(dtype)]).all(0)
            mean = torch.where(alike, first.double(), mean)
        for rows in self._rows(dtype):
            yield rows.to(dtype) - mean.to(dtype)

    def _rows(self, dtype: torch.dtype) -> Iterator[Tensor]:
        images = self.rows_at_a_time // self.positions
        for start in range(0, len(self.activations), images):
            yield self._scale(self.matrix(slice(start, start + images)), dtype)

    @property
    def rows_at_a_time(self) -> int:
        """The samples that ``centred_rows`` gives at a time, whole images."""
        return max(1, SAMPLES // self.positions) * self.positions

    @property
    def norm(self) -> float:
        """The root of the sum of all squares, in the scale of ``centred_columns`` in float64."""
        return float(torch.stack([rows.double().square().sum() for rows in self._rows(torch.float64)]).sum().sqrt())

    def _scale(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return what it is given, scaled if that must be, in ``dtype`` then."""
        low, high = self._range
        power = -frexp(max(abs(low), abs(high)))[1]
        return x if abs(power) <= _SAFE else x.to(dtype) * 2.0 ** max(-_LARGEST, min(_LARGEST, power))

    @cached_property
    def _range(self) -> tuple[float, float]:
        """The smallest and the largest value; not a number if one is none."""
        low, high = torch.aminmax(self.activations.detach())
        return float(low), float(high)


def layers(xs: Sequence[Tensor], side: str, samples_as: SamplesAs) -> list[Layer]:
    """Read activations as layers, named by their place. Raises ``DataError`` as ``Layer`` does, or without any."""
    if not len(xs):
        raise DataError(f"{side} is empty: give the activations of one layer at least")
    return [Layer(f"{side}[{i}]", x, samples_as) for i, x in enumerate(xs)]


def same_samples(of: Sequence[Layer]) -> int:
    """Return the samples that all layers have. Raises ``DataError`` naming one that has others than the first."""
    for layer in of:
        if layer.samples != of[0].samples:
            remedy = "" if layer.samples_as == "flattened" else "; layers of other sizes can be compared as 'flattened'"
            raise DataError(
                f"{layer.name} has {layer.samples:,} samples and {of[0].name} {of[0].samples:,}: give the activations "
                f"of the same images, in the same order{remedy}"
            )
    return of[0].samples
