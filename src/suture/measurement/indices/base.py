"""Similarity indices: methods that compare two layers, with their settings and invariances.

An index is a frozen object: ``linear_cka(x, y)`` compares two layers, ``linear_cka.all(xs, ys)`` all pairs of two
lists, and ``linear_cka(x, y, debiased=True)`` is ``LinearCKA(debiased=True)(x, y)``. Most prepare a layer once (its
kernel, its neighbours, a basis) and then compare what was prepared, so the work that grows with the features is done
once a layer and not once a pair.

All indices keep these rules. Two layers are compared on the same samples, in the same order. A layer that does not vary
is like nothing, itself included: similarities are 0, distances the largest there is. No value is ever not a number.
What is added up is float64 (but for the products of linear CKA), on the device of the activations.

Activations are read as a matrix, samples × features. ``flattened``: an image is a sample, and every value of its tensor
a feature. ``pixels``: every position of a map, or every token, is a sample, and its channels are the features (images ×
positions samples). Two maps of unequal size are then pooled to the smaller height and width by adaptive averages, as
ReSi does it (Klabunde et al. 2025; ``align_spatial_dimensions`` of their code), because interpolating to the larger
would make samples that say nothing new; other layers are compared only if they have as many positions. ``mean``,
``first`` and ``last``: an image is a sample, and its features are the mean over positions of a map or over tokens, or
the first token (the class token of most transformers), or the last (of causal ones). Nothing is copied but what is
pooled and the rows that are asked for.

*Invariances* are changes of the features of either layer, or of both, under which the value does not change:

===============  ==============================================================================
permutation      the features in another order
orthogonal       any rotation or reflection of the feature space
scaling          all features times one number, which may be negative
translation      a vector added to every sample
stretching       every feature times a number of its own, none 0
linear           any invertible linear map
===============  ==============================================================================
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from math import isfinite, prod
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.common.scaling import power_near
from suture.common.validation import check_kind
from suture.measurement.indices.calibration import GROUPS, PERMUTATIONS, Null, random_orders

SamplesAs = Literal["flattened", "pixels", "mean", "first", "last"]
Transform = Literal["permutation", "orthogonal", "scaling", "translation", "stretching", "linear"]
Transforms = frozenset[Transform]

RIGID: Transforms = frozenset({"permutation", "orthogonal", "scaling", "translation"})
MEMORY = 2**30  #: bytes that prepared layers may take, two of them at least
MOST = 10_000  #: samples of which an index holds all pairs: 800 MB a matrix
FEATURES = 2048  #: that are centred at a time
SAMPLES = 1024  #: likewise, if rows are taken; both fixed, as bits depend on them. 256 took 1.5 times as long

Kept = TypeVar("Kept")
Prepared = TypeVar("Prepared")


# --- layers -----------------------------------------------------------------------------------------------------------


def positions(shape: Sequence[int], samples_as: SamplesAs) -> int:
    """Return how many samples an image gives if its activations are of this shape, without the batch."""
    if samples_as != "pixels":
        return 1
    return shape[0] if len(shape) == 2 else prod(shape[1:])


def comparable(
    rows: Sequence[Sequence[int]], columns: Sequence[Sequence[int]], samples_as: SamplesAs
) -> Iterator[tuple[list[int], list[int], tuple[int, int] | None]]:
    """Yield places of rows and columns that can be compared, and the size to which their maps are to be pooled.

    By shapes without the batch; the size is ``None`` if they stay.
    """
    grids = [
        [tuple(of[1:]) if samples_as == "pixels" and len(of) == 3 else (positions(of, samples_as),) for of in side]
        for side in (rows, columns)
    ]
    for one, other in product(*map(dict.fromkeys, grids)):
        down, across = (
            [i for i, grid in enumerate(side) if grid == of] for side, of in zip(grids, (one, other), strict=True)
        )
        if one == other or (prod(one) == prod(other) and min(len(one), len(other)) == 1):
            yield down, across, None
        elif len(one) == len(other) == 2:
            yield down, across, (min(one[0], other[0]), min(one[1], other[1]))


def check_choice(name: str, value: str, choices: Any) -> None:
    """Raise ``DataError`` unless a setting is one of the words of a ``Literal``."""
    if value not in get_args(choices):
        raise DataError(f"{name}={value!r}: give {' or '.join(map(repr, get_args(choices)))}")


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
        check_choice("samples_as", self.samples_as, SamplesAs)
        check_kind(self.name, x, Tensor, "a tensor of activations, such as torch.from_numpy(x)")
        if not x.is_floating_point():
            raise DataError(f"{self.name} is of {x.dtype}: give activations in a floating type")
        if x.ndim < 2 or x.numel() == 0 or self.samples < 2:
            raise DataError(f"{self.name} is {tuple(x.shape)}: give two samples or more, each with a feature or more")
        object.__setattr__(self, "activations", self._reduced(x))
        if not all(map(isfinite, self._range)):
            raise DataError(
                f"{self.name} is not finite everywhere: an index of it would mean nothing; leave it out, or the "
                "samples that are not"
            )

    def _reduced(self, x: Tensor) -> Tensor:
        """Return one vector per image if ``samples_as`` asks for one; a layer of vectors stays as it is."""
        if self.samples_as in ("flattened", "pixels") or x.ndim == 2:
            return x
        if self.samples_as == "mean":
            wide = torch.promote_types(x.dtype, torch.float32)
            return x.mean(1, dtype=wide) if x.ndim == 3 else x.flatten(2).mean(2, dtype=wide)
        if x.ndim != 3:
            raise DataError(f"{self.name} is {tuple(x.shape)}, which has no tokens: give samples_as='mean'")
        return x[:, 0 if self.samples_as == "first" else -1]

    def once(self, key: object, compute: Callable[[], Kept]) -> Kept:
        """Return the result of ``compute`` for this layer, kept under ``key`` if the layer keeps results."""
        if self.kept is None:
            return compute()
        if key not in self.kept:
            self.kept[key] = compute()
        found: Kept = self.kept[key]
        return found

    def taken(self, images: Tensor) -> "Layer":
        """Return the layer on some of its images, in this order and in the scale of all of them."""
        found = replace(self, activations=self.activations[images.to(self.activations.device)], kept=None)
        vars(found)["_range"] = self._range  # parts that are added up, such as batches, must share one scale
        return found

    def pooled(self, size: tuple[int, int] | None) -> "Layer":
        """Return the layer with its maps pooled to a height and width, ``None`` for as they are."""
        x = self.activations
        if size is None or x.shape[2:] == size:
            return self
        pooled = adaptive_avg_pool2d(x.to(torch.promote_types(x.dtype, torch.float32)), size)
        return replace(self, activations=pooled, kept=None if self.kept is None else {})

    @property
    def images(self) -> int:
        """How many images there are."""
        return len(self.activations)

    @property
    def positions(self) -> int:
        """How many samples an image gives."""
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

    def columns(self, dtype: torch.dtype, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the matrix in ``dtype`` from row ``start`` on, some columns at a time, each centred over all rows.

        With each come the means ``(columns,)`` that were taken away, which are taken in float64; a constant column is
        exactly 0. Very small or large values are scaled by a power of two, the same for the whole layer.
        """
        for columns in torch.split(self.matrix(), FEATURES, 1):
            columns = self._scale(columns, dtype)
            mean = columns.sum(0, dtype=torch.float64) / self.samples
            if dtype == torch.float64:  # in float32 the mean of a constant is rounded to the constant
                mean = torch.where((columns == columns[0]).all(0), columns[0].double(), mean)
            yield columns[start:].to(dtype) - mean.to(dtype), mean

    def centred_rows(self, dtype: torch.dtype) -> Iterator[Tensor]:
        """Yield the matrix, centred likewise, some samples at a time, with all columns."""
        mean = torch.stack([rows.sum(0, dtype=torch.float64) for rows in self._rows(dtype)]).sum(0) / self.samples
        if dtype == torch.float64:
            first = self._scale(self.matrix(slice(1))[0], dtype)
            alike = torch.stack([(rows == first).all(0) for rows in self._rows(dtype)]).all(0)
            mean = torch.where(alike, first.double(), mean)
        for rows in self._rows(dtype):
            yield rows.to(dtype) - mean.to(dtype)

    def _rows(self, dtype: torch.dtype, most: int | None = None) -> Iterator[Tensor]:
        images = max(1, most // self.positions) if most is not None else self.rows_at_a_time // self.positions
        for start in range(0, len(self.activations), images):
            yield self._scale(self.matrix(slice(start, start + images)), dtype)

    @property
    def rows_at_a_time(self) -> int:
        """The samples that ``centred_rows`` gives at a time, whole images."""
        return max(1, SAMPLES // self.positions) * self.positions

    @property
    def norm(self) -> float:
        """The root of the sum of all squares, in the scale of ``columns`` in float64."""
        # 256 rows at a time, because there may be many features
        sums = [rows.double().square().sum() for rows in self._rows(torch.float64, 256)]
        return float(torch.stack(sums).sum().sqrt())

    def _scale(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the values; if they are very small or large, scaled, and in ``dtype``."""
        unit = power_near(max(map(abs, self._range)))
        return x if unit == 1 else x.to(dtype) / unit

    @cached_property
    def _range(self) -> tuple[float, float]:
        """The smallest and the largest value; nan if there is one among the values."""
        low, high = torch.aminmax(self.activations.detach())
        return float(low), float(high)


def layers(xs: Sequence[Tensor], side: str, samples_as: SamplesAs) -> list[Layer]:
    """Read activations as layers, named by their place. Raises ``DataError`` as ``Layer`` does, and for none."""
    if not len(xs):
        raise DataError(f"{side} is empty: give the activations of one layer at least")
    return [Layer(f"{side}[{i}]", x, samples_as) for i, x in enumerate(xs)]


def same_samples(of: Sequence[Layer]) -> int:
    """Return how many samples all layers have. Raises ``DataError`` naming the first layer that has another number."""
    for layer in of:
        if layer.samples != of[0].samples:
            remedy = "" if layer.samples_as != "pixels" else "; layers of other sizes can be compared as 'flattened'"
            raise DataError(
                f"{layer.name} has {layer.samples:,} samples and {of[0].name} {of[0].samples:,}: give the activations "
                f"of the same images, in the same order{remedy}"
            )
    return of[0].samples


# --- indices ----------------------------------------------------------------------------------------------------------


@keyed_as("Index")
@dataclass(frozen=True)
class Index(ABC):
    """A representational similarity index, or a distance, with its settings."""

    called: ClassVar[str]  #: its name, without settings
    symmetric: ClassVar[bool] = True  #: whether the order of the two layers does not matter
    distance: ClassVar[bool] = False  #: whether larger means less alike
    pairwise: ClassVar[bool] = False  #: whether it holds all pairs of samples, and so takes ``MOST`` at most

    @property
    def name(self) -> str:
        """Its name, with the settings that are not the default: ``rbf_cka``, ``rbf_cka(bandwidth=0.2)``."""
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{self.called}({', '.join(given)})" if given else self.called

    @property
    def invariances(self) -> Transforms:
        """The changes of features under which it keeps its value; by default rigid motions and scaling."""
        return RIGID

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value that it can have; by default 0 and 1."""
        return 0.0, 1.0

    @property
    def best(self) -> float:
        """The value of two layers that are the same."""
        return self.bounds[0] if self.distance else self.bounds[1]

    @property
    def least(self) -> int:
        """The fewest samples that it can compare."""
        return 2

    def check(self, name: str, samples: int, features: int) -> None:
        """Raise ``DataError`` if a layer of this name has too few samples for this index, or too many."""
        if samples < self.least:
            raise DataError(f"{self.name} of {samples} samples is not defined: give {self.least} or more")
        held = samples if self.pairwise else min(samples, features)
        if held > MOST:
            raise DataError(
                f"{name} has {samples:,} samples of {features:,} features, of which {self.name} would hold {held:,}² "
                f"numbers: give fewer images, {MOST:,} samples at most, or samples_as='flattened'"
            )

    def __call__(self, x: Tensor, y: Tensor, *, samples_as: SamplesAs = "flattened", **settings: Any) -> float:
        """Compare two layers, activations ``(n, …)`` of the same images; ``settings`` are those of the index.

        ``samples_as`` and errors are those of ``all``.
        """
        return float(self.all([x], [y], samples_as=samples_as, **settings))

    def all(
        self,
        xs: Sequence[Tensor],
        ys: Sequence[Tensor] | None = None,
        *,
        samples_as: SamplesAs = "flattened",
        **settings: Any,
    ) -> Tensor:
        """Compare all layers of ``xs`` with all of ``ys``, ``(len(xs), len(ys))`` in float64 on the CPU.

        Each is the activations of the same n images in the same order, ``(n, …)``, all on one device; without ``ys``,
        ``xs`` are compared with themselves. ``samples_as`` says whether an image is a sample (``flattened``), or every
        position of a map and every token (``pixels``).

        Raises ``DataError`` naming the layer if activations are not finite, not floating, of other numbers of
        samples, too few or too many.
        """
        index = replace(self, **settings) if settings else self
        rows = layers(xs, "xs", samples_as)
        columns = rows if ys is None else layers(ys, "ys", samples_as)
        if not all(layer.activations.ndim == 4 for layer in (*rows, *columns)):
            same_samples([*rows, *columns])
        return index.pairs(rows, columns)

    def pairs(self, rows: Sequence[Layer], columns: Sequence[Layer]) -> Tensor:
        """Compare all rows with all columns, as ``all`` does; nan where that cannot be."""
        values = torch.full((len(rows), len(columns)), torch.nan, dtype=torch.float64)
        with torch.no_grad():
            for at, ours, theirs in self._blocks(rows, columns):
                values[at] = self._pairs(ours, theirs)
        return values

    def null(self, rows: Sequence[Layer], columns: Sequence[Layer], permutations: int = PERMUTATIONS) -> Null:
        """Compare all rows with all columns, also with the columns' images permuted, and estimate standard errors.

        ``permutations`` is how many there are at least. Pairs that cannot be compared are nan.
        """
        with torch.no_grad():
            parts = [(at, self._null(ours, theirs, permutations)) for at, ours, theirs in self._blocks(rows, columns)]
        count = max((len(part.permuted) for _, part in parts), default=1)
        freedom = max((part.freedom for _, part in parts), default=1)
        every = torch.full((2 + count, len(rows), len(columns)), torch.nan, dtype=torch.float64)
        for (down, across), part in parts:
            every[0, down, across], every[1, down, across] = part.values, part.errors
            every[2:, down, across] = part.permuted
        return Null(every[0], every[2:], every[1], freedom)

    def _blocks(
        self, rows: Sequence[Layer], columns: Sequence[Layer]
    ) -> Iterator[tuple[Any, list[Layer], list[Layer]]]:
        """Yield the places of layers that can be compared at once, and both sides there."""
        ours, theirs = ([layer.activations.shape[1:] for layer in side] for side in (rows, columns))
        for down, across, size in comparable(ours, theirs, rows[0].samples_as):
            made = {
                id(layer): layer.pooled(size) for layer in (*(rows[i] for i in down), *(columns[j] for j in across))
            }
            sides = [made[id(rows[i])] for i in down], [made[id(columns[j])] for j in across]
            same_samples([*sides[0], *sides[1]])
            for layer in made.values():
                self.check(layer.name, layer.samples, layer.features)
            yield (torch.tensor(down).unsqueeze(1), torch.tensor(across)), *sides

    def _null(self, rows: Sequence[Layer], columns: Sequence[Layer], permutations: int) -> Null:
        """Compute everything anew for each permutation, and without each group of images."""
        orders = random_orders(rows[0].images, permutations)
        permuted = [self._pairs(rows, [layer.taken(order) for layer in columns]) for order in orders]
        return Null(self._pairs(rows, columns), torch.stack(permuted), self._errors(rows, columns), GROUPS - 1)

    def _errors(self, rows: Sequence[Layer], columns: Sequence[Layer]) -> Tensor:
        """Return standard errors by the jackknife of groups of images; nan if there are too few."""
        images = rows[0].images
        groups = random_orders(images, 1)[0].tensor_split(GROUPS)
        if images < GROUPS or (images - len(groups[0])) * rows[0].positions < self.least:
            return torch.full((len(rows), len(columns)), torch.nan, dtype=torch.float64)
        without = []
        for group in groups:
            kept = torch.ones(images, dtype=torch.bool).index_fill(0, group, False).nonzero().flatten()
            parts = {id(layer): layer.taken(kept) for layer in (*rows, *columns)}
            without.append(self._pairs(*([parts[id(layer)] for layer in side] for side in (rows, columns))))
        return ((GROUPS - 1) * torch.stack(without).var(0, correction=0)).sqrt()

    @abstractmethod
    def _pairs(self, rows: Sequence[Layer], columns: Sequence[Layer]) -> Tensor:
        """Return the values; the layers have been checked."""


@keyed_as("PreparedIndex")
@dataclass(frozen=True)
class PreparedIndex(Index, Generic[Prepared]):
    """An index that prepares every layer by itself, then compares the prepared layers."""

    @abstractmethod
    def prepare(self, layer: Layer) -> Prepared:
        """Prepare one layer for comparison."""

    @abstractmethod
    def between(self, x: Prepared, y: Prepared) -> float:
        """Compare two prepared layers."""

    def _pairs(self, rows: Sequence[Layer], columns: Sequence[Layer]) -> Tensor:
        values = torch.zeros(len(rows), len(columns), dtype=torch.float64)
        for group in self._groups(columns):
            prepared = {id(columns[j]): self.prepare(columns[j]) for j in group}
            for i, row in enumerate(rows):
                mine = prepared[id(row)] if id(row) in prepared else self.prepare(row)
                for j in group:
                    values[i, j] = self.between(mine, prepared[id(columns[j])])
        return values

    def reorder(self, prepared: Prepared, layer: Layer, order: Tensor) -> Prepared:
        """Return ``prepare``'s result for the layer's images in another order; by default by preparing them again."""
        return self.prepare(layer.taken(order))

    def _null(self, rows: Sequence[Layer], columns: Sequence[Layer], permutations: int) -> Null:
        orders = random_orders(rows[0].images, permutations)
        values = torch.zeros(1 + permutations, len(rows), len(columns), dtype=torch.float64)
        ours = [self.prepare(layer) for layer in rows]
        for j, column in enumerate(columns):
            theirs = self.prepare(column)
            for k in range(1 + permutations):
                other = self.reorder(theirs, column, orders[k - 1]) if k else theirs
                for i, mine in enumerate(ours):
                    values[k, i, j] = self.between(mine, other)
        return Null(values[0], values[1:], self._errors(rows, columns), GROUPS - 1)

    def _groups(self, columns: Sequence[Layer]) -> Iterator[list[int]]:
        """Yield the places of layers, in groups that fit into memory when prepared, of at least one each."""
        group: list[int] = []
        held = 0
        for j, layer in enumerate(columns):
            size = 8 * layer.samples * (layer.samples if self.pairwise else min(layer.samples, layer.features))
            if group and held + size > MEMORY:
                yield group
                group, held = [], 0
            group.append(j)
            held += size
        yield group
