"""What an index is: a method that compares two layers, with its settings and with what it promises.

An index is a frozen object: ``linear_cka(x, y)`` compares two layers, ``linear_cka.all(xs, ys)`` all pairs of two
lists, and ``linear_cka(x, y, debiased=True)`` is ``LinearCKA(debiased=True)(x, y)``. Most prepare a layer once (its
kernel, its neighbours, a basis) and then compare what was prepared, so the work that grows with the features is done
once a layer and not once a pair.

All indices keep these rules. Two layers are compared on the same samples, in the same order. A layer that does not vary
is like nothing, itself included: similarities are 0, distances the largest there is. No value is ever not a number.
What is added up is float64 (but for the products of linear CKA), on the device of the activations.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.measurement.indices.layers import Layer, SamplesAs, layers, same_samples

Transform = Literal["permutation", "orthogonal", "scaling", "translation", "stretching", "linear"]
Transforms = frozenset[Transform]

RIGID: Transforms = frozenset({"permutation", "orthogonal", "scaling", "translation"})
MEMORY = 2**30  #: bytes that prepared layers may take, two of them at least
MOST = 10_000  #: samples of which an index holds all pairs: 800 MB a matrix

Prepared = TypeVar("Prepared")


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
        """The changes of features under which it keeps its value; most keep it under rigid motions and scaling."""
        return RIGID

    @property
    def bounds(self) -> tuple[float, float]:
        """The smallest and the largest value; most lie in [0, 1]."""
        return 0.0, 1.0

    @property
    def least(self) -> int:
        """The samples that it takes."""
        return 2

    def check(self, name: str, samples: int, features: int) -> None:
        """Raise ``DataError`` if a layer of this name has too few samples for this index, or too many."""
        if samples < self.least:
            raise DataError(f"{self.name} of {samples} samples does not exist: give {self.least} or more")
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
        return index.pairs(rows, rows if ys is None else layers(ys, "ys", samples_as))

    def pairs(self, rows: Sequence[Layer], columns: Sequence[Layer]) -> Tensor:
        """Compare all rows with all columns, as ``all`` does."""
        same_samples([*rows, *columns])
        for layer in (*rows, *columns):
            self.check(layer.name, layer.samples, layer.features)
        with torch.no_grad():
            return self._pairs(rows, columns)

    @abstractmethod
    def _pairs(self, rows: Sequence[Layer], columns: Sequence[Layer]) -> Tensor:
        """Return the values, of layers that can be compared."""


@keyed_as("PreparedIndex")
@dataclass(frozen=True)
class PreparedIndex(Index, Generic[Prepared]):
    """An index that prepares every layer by itself, then compares what was prepared."""

    @abstractmethod
    def prepare(self, layer: Layer) -> Prepared:
        """Compute all that is needed of one layer."""

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

    def _groups(self, columns: Sequence[Layer]) -> Iterator[list[int]]:
        """Yield places of layers, in groups that can be held prepared together, one at least."""
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
