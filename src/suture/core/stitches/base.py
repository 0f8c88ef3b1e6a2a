"""What a family of stitches is.

A *family* (``Conv(kernel=3)``, ``Orthogonal()``) says which shapes it joins and makes stitches, untrained, as plain
modules. Shapes are without the batch: maps ``(C, H, W)``, tokens ``(T, D)``, vectors ``(D,)``.

Most families are *affine*: their stitches are made of maps ``row ↦ W·row + b`` of rows of features (pixels, patches,
tokens or samples), each a ``Part`` of the stitch with its rows of the sender and its rows of the receiver. Given the
second moments of those rows, a family knows its own best ``W``: this is what least squares asks it for.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from suture.common.errors import ShapeError
from suture.common.formatting import spell
from suture.common.hashing import keyed_as

Shape = tuple[int, ...]
_FEW = 3  #: so many ridges cost less by one factorisation each than by eigenvalues
_SAFE = 1e-6  #: ridges from here on keep a covariance of float64 rows positive definite, whatever its rank


@keyed_as("Stitch")
class Stitch(ABC):
    """A family of stitches: which shapes it joins, and how one is made."""

    joins: ClassVar[str]  #: in words, for messages
    suggested: ClassVar[bool] = True  #: whether messages name it among the families that could join two shapes

    @abstractmethod
    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether a stitch of this family can join the two shapes (without the batch)."""

    @abstractmethod
    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make a stitch at its default initialisation; shapes are without the batch."""

    @classmethod
    def plainest(cls) -> Self:
        """Return the member that joins most shapes, for messages that say which families could."""
        return cls()

    def check(self, sender: Shape, receiver: Shape) -> None:
        """Raise ``ShapeError`` if the family cannot join the two shapes, naming those that can."""
        if self.accepts(sender, receiver):
            return
        raise ShapeError(
            f"{self} cannot join the sender's {spell_shape(sender)} to the receiver's {spell_shape(receiver)}; it "
            f"joins {self.joins}; {say_families(sender, receiver)}"
        )

    def __str__(self) -> str:
        """Return the call that makes it, without the settings that are default."""
        return spell(self)


@dataclass(frozen=True)
class AffineMap:
    """``row ↦ weight · row + bias``, with the first two moments of the rows that it was fitted on.

    ``weight`` is (out, in), ``bias`` (out,), ``mean`` and ``variance`` of the sender's rows (in,), ``out_variance`` of
    the mapped rows (out,); all in float64.
    """

    weight: Tensor
    bias: Tensor
    mean: Tensor
    variance: Tensor
    out_variance: Tensor


@dataclass(frozen=True)
class Moments:
    """Moments of paired rows, float64: means (features,), covariances ``xx`` (in, in) and ``xy`` (in, out), and the
    variances ``yy`` (out,).
    """

    mean_x: Tensor
    mean_y: Tensor
    xx: Tensor
    xy: Tensor
    yy: Tensor

    def error(self, weight: Tensor, bias: Tensor) -> float:
        """Mean squared error per row of ``y ≈ W x + b``, summed over the output features."""
        explained = (weight @ self.xx * weight).sum() - 2 * (weight * self.xy.T).sum() + self.yy.sum()
        return float(explained + (weight @ self.mean_x + bias - self.mean_y).square().sum())

    def regressions(self, ridges: Sequence[float]) -> Iterator[Tensor]:
        """Return the weight (out, in) of ridge regression for every ridge, relative to the mean variance of ``x``."""
        if len(ridges) <= _FEW and min(ridges) >= _SAFE:
            eye = torch.eye(len(self.xx)).to(self.xx)
            tried = [torch.linalg.cholesky_ex(self.xx + ridge * self.scale * eye) for ridge in ridges]
            if not any(failed for _, failed in tried):
                yield from (torch.cholesky_solve(self.xy, factor).T for factor, _ in tried)
                return
        values, vectors = torch.linalg.eigh(self.xx)
        projected = vectors.T @ self.xy
        for ridge in ridges:
            yield (vectors @ (projected / (values.clamp(min=0) + ridge * self.scale)[:, None])).T

    @property
    def scale(self) -> Tensor:
        """The mean variance of the features of ``x``: the unit of ridges."""
        return self.xx.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny)


@keyed_as("Scale")
class ScaleAndShift(nn.Module):
    """Scales and shifts every feature of the last dimension: ``weight · x + bias``."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, …, D)`` to ``(n, …, D)``."""
        return self.weight * x + self.bias


RawLayer = nn.Linear | nn.Conv2d | ScaleAndShift
"""A layer that can be rewritten for features that are scaled and shifted."""


@dataclass(frozen=True)
class Part:
    """One affine map inside a stitch.

    ``reads`` sees a batch of the sender's tensors as rows ``(rows, in)``, ``gives`` a batch of the receiver's as as
    many rows ``(rows, out)``; ``load`` sets the parameters and buffers by which the stitch computes an affine map in
    evaluation mode. ``most`` bounds the images that its moments are taken from, where every image has very many rows.
    Where the map serves several rows of the receiver alike, ``gives`` are their means, and ``each`` sees them one by
    one, for what a row varies by.
    """

    reads: Callable[[Tensor], Tensor]
    gives: Callable[[Tensor], Tensor]
    load: Callable[[AffineMap], None]
    most: int | None = None
    each: Callable[[Tensor], Tensor] | None = None


@keyed_as("AffineStitch")
class AffineStitch(Stitch):
    """A family whose stitches are made of affine maps of rows of features."""

    scales: ClassVar[bool] = True  #: whether a member with its outputs rescaled is a member
    shifts: ClassVar[bool] = True  #: whether a member with its outputs shifted is a member

    @abstractmethod
    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Give the affine maps that a built stitch is made of; ``sent`` are activations ``(n, *sender shape)``."""

    def candidates(self, known: Moments, ridges: Sequence[float]) -> Iterator[Tensor]:
        """Give the weights (out, in), within the family, of least error on these moments: one for every ridge."""
        yield from known.regressions(ridges)

    def copy(self, stitch: nn.Module, other: nn.Module, sender: Shape) -> bool:
        """Make a built stitch compute what another affine module does; whether the family knows how, by default not."""
        return False

    def raw_layers(self, stitch: nn.Module) -> Sequence[RawLayer]:
        """Return the layers that read the sender's own features, and may be rewritten for others; by default none."""
        return ()


def width(shape: Shape) -> int:
    """Return the number of features at every position: the channels of maps, else the last dimension."""
    return shape[0] if len(shape) == 3 else shape[-1]


def spell_shape(shape: Shape) -> str:
    """Return a shape in words: ``maps 64×8×8``."""
    kind = {1: "vector", 2: "tokens", 3: "maps"}.get(len(shape), "tensor")
    return f"{kind} {'×'.join(map(str, shape))}"


def say_families(sender: Shape, receiver: Shape) -> str:
    """Say which of the library's families join two shapes."""
    plainest = [(family.__name__, family.plainest()) for family in _families(Stitch)]  # type: ignore[type-abstract]
    able = [name for name, member in plainest if member.accepts(sender, receiver)]
    return f"families that can: {', '.join(able)}" if able else "no family can"


def _families(base: type[Stitch]) -> Iterator[type[Stitch]]:
    for family in base.__subclasses__():
        if family.__module__.startswith(f"{__package__}."):
            if not family.__abstractmethods__ and family.suggested:
                yield family
            yield from _families(family)


def loader(layer: nn.Module) -> Callable[[AffineMap], None]:
    """Return what sets a layer's weight and bias to those of an affine map."""

    def load(affine: AffineMap) -> None:
        assign(layer, "weight", affine.weight)
        assign(layer, "bias", affine.bias)

    return load


def assign(module: nn.Module, name: str, value: Tensor) -> None:
    """Copy a value, in whatever shape, into a parameter or buffer of a module."""
    with torch.no_grad():
        own = getattr(module, name)
        own.copy_(value.reshape(own.shape))
