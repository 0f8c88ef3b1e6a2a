"""Families that read a whole tensor at once, every position with weights of its own."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from suture.common.errors import ShapeError
from suture.common.hashing import keyed_as
from suture.core.stitches.base import (
    FEATURES,
    AffineMap,
    AffineStitch,
    Part,
    Shape,
    assign,
    chain,
    features_last,
    loader,
    width,
)

_BASIS = 256  #: basis tensors that a module is given at once


@keyed_as("ConvLinear")
@final
@dataclass(frozen=True)
class ConvLinear(AffineStitch):
    """Maps or tokens to a vector: a linear map of every position to ``channels`` features, then a linear map of all.

    On maps the first is a 1×1 convolution: oxford2025, "both a 1x1 convolutional and a fully connected layer when
    connecting a convolutional to a fully connected layer". ``channels`` is by default as many as the sender has; fewer
    make the second map, of ``channels · H · W`` features, smaller.

    In closed form a regression of all channels, see ``Averaging.spread``, of whose weight the first map keeps the
    ``channels`` leading directions (a truncated higher-order SVD). Raises ``ShapeError`` for ``channels`` below 1 or
    above the sender's.
    """

    channels: int | None = None
    joins: ClassVar[str] = "maps (C, H, W) or tokens (T, D) of at least as many channels to vectors (D,)"
    reads_raw: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.channels is not None and self.channels < 1:
            raise ShapeError(f"ConvLinear(channels={self.channels}): give at least 1, or None for the sender's")

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Return whether maps or tokens, of at least ``channels`` features, are to become a vector."""
        return len(sender) in (2, 3) and len(receiver) == 1 and (self.channels or 1) <= width(sender)

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the map of positions, ``Flatten`` and the map of all."""
        self.check(sender, receiver)
        features = width(sender)
        kept = self.channels or features
        first = nn.Conv2d(features, kept, 1) if len(sender) == 3 else nn.Linear(features, kept)
        return nn.Sequential(first, nn.Flatten(), nn.Linear(prod(sender) // features * kept, receiver[0]))

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Return both maps together; rows are samples."""
        first, _, last = cast("tuple[nn.Conv2d | nn.Linear, nn.Module, nn.Linear]", tuple(cast(nn.Sequential, stitch)))
        shape = tuple(sent.shape[1:])
        averaging = Averaging(shape, FEATURES)

        def load(affine: AffineMap) -> None:
            weight = averaging.spread(affine.weight, shape)
            kept = _leading(weight, len(first.weight))
            assign(first, "weight", kept)
            assign(first, "bias", torch.zeros(len(kept)))
            assign(last, "weight", _own_order(torch.einsum("kc,oc...->ok...", kept, weight)))
            assign(last, "bias", affine.bias)

        return [Part(averaging.rows, features_last, load)]


@keyed_as("FullLinear")
@final
@dataclass(frozen=True)
class FullLinear(AffineStitch):
    """A linear map of everything to everything, whatever the shapes: the "high capacity" stitch of oxford2025.

    It has as many parameters as the product of the two sizes, so it can do much of the work by itself: read its
    controls. In closed form a regression, see ``Averaging.spread``.
    """

    joins: ClassVar[str] = "any two shapes"
    reads_raw: ClassVar[bool] = True

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Return whether neither is empty."""
        return bool(sender and receiver)

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make ``Flatten``, an ``nn.Linear`` and ``Unflatten``."""
        self.check(sender, receiver)
        flat = nn.Flatten() if len(sender) > 1 else None
        shaped = nn.Unflatten(1, tuple(receiver)) if len(receiver) > 1 else None
        return chain(flat, nn.Linear(prod(sender), prod(receiver)), shaped)

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Return the map; rows are samples."""
        layer = _linear(stitch)
        shape = tuple(sent.shape[1:])
        averaging = Averaging(shape, FEATURES)

        def load(affine: AffineMap) -> None:
            assign(layer, "weight", _own_order(averaging.spread(affine.weight, shape)))
            assign(layer, "bias", affine.bias)

        return [Part(averaging.rows, lambda y: y.flatten(1), load)]

    def copy(self, stitch: nn.Module, other: nn.Module, sender: Shape) -> bool:
        """Read the other's map off its outputs for zero and for every basis tensor, in float64."""
        layer, size = _linear(stitch), prod(sender)
        exact = copy.deepcopy(other).double().eval()
        zero = torch.zeros(1, *sender, dtype=torch.float64, device=layer.weight.device)
        with torch.no_grad():
            bias = exact(zero).flatten(1)
            layer.bias.copy_(bias[0])
            for start in range(0, size, _BASIS):
                count = min(_BASIS, size - start)
                basis = torch.eye(count, size).to(zero).roll(start, 1).reshape(count, *sender)
                layer.weight[:, start : start + count] = (exact(basis).flatten(1) - bias).T.to(layer.weight)
        return True


@keyed_as("Probe")
@final
@dataclass(frozen=True)
class Probe(AffineStitch):
    """The linear probe: a linear map of a whole tensor to a vector, such as the outputs.

    A linear classifier of everything that passes through a cut (Alain & Bengio 2016, section 3; bansal2021, section 2,
    where it is one of the extremes that stitching lies between). As a stitch it joins a sender's cut to ``OUTPUT``,
    behind all of a receiver's layers.

    A tensor of more than ``features`` numbers is averaged over neighbouring positions, height and width (or the number
    of tokens) halved until it has no more, which leaves at least a number for every channel: ``features=1`` averages
    over all positions, ``None`` over none. The averaging is ours; of the 1,024 by default a convex fit is soon solved,
    and a layer of 64 channels keeps 4×4 positions. Raises ``ShapeError`` for ``features`` below 1.
    """

    features: int | None = FEATURES
    joins: ClassVar[str] = "any shape to a vector (D,)"
    reads_raw: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.features is not None and self.features < 1:
            raise ShapeError(f"Probe(features={self.features}): give at least 1, or None for everything at the cut")

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Return whether something is to become a vector."""
        return bool(sender) and len(receiver) == 1

    def reads(self, sender: Shape) -> int:
        """Return how many numbers of a sample are left to be mapped."""
        return Averaging(sender, self.features).left

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the averaging, ``Flatten`` and an ``nn.Linear``."""
        self.check(sender, receiver)
        averaging = Averaging(sender, self.features)
        return nn.Sequential(averaging, nn.Flatten(), nn.Linear(averaging.left, receiver[0]))

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Return the map; rows are samples."""
        averaging, _, layer = cast("tuple[Averaging, nn.Module, nn.Linear]", tuple(cast(nn.Sequential, stitch)))
        return [Part(lambda x: averaging(x.double()).flatten(1), features_last, loader(layer))]


@keyed_as("Averaging")
class Averaging(nn.Module):
    """Averages tensors of a shape over neighbouring positions; ``left`` is how many numbers of a sample are left.

    The longest sides of the grid of positions are halved until there are at most ``most`` numbers, if that can be.
    """

    def __init__(self, shape: Shape, most: int | None) -> None:
        super().__init__()
        channels, *places = _channels_first(torch.empty(1, *shape, device="meta")).shape[1:]
        self.places = tuple(places) if len(places) < 3 else (prod(places),)
        grid = self.places
        while most is not None and grid and channels * prod(grid) > most and max(grid) > 1:
            grid = tuple(max(1, size // 2) if size == max(grid) else size for size in grid)
        self.grid = grid
        self.left = channels * prod(self.grid)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, *shape)`` to ``(n, channels, *grid)``; to itself if nothing is averaged."""
        return x if self.grid == self.places else self._average(_channels_first(x))

    def rows(self, x: Tensor) -> Tensor:
        """Map ``(n, *shape)`` to float64 rows ``(n, left)``, channels first."""
        x = _channels_first(x.double())
        return (x if self.grid == self.places else self._average(x)).flatten(1)

    def spread(self, weight: Tensor, shape: Shape) -> Tensor:
        """Turn a weight of averages (out, left) into the same map of all features, channels first (out, channels, …).

        Averaging is linear, so a regression on averages is a member of the whole family, and the best one if nothing
        had to be averaged.
        """
        first = _channels_first(torch.empty(1, *shape, device="meta")).shape[1:]
        if self.grid == self.places:
            return weight.reshape(-1, *first)
        every = torch.eye(prod(self.places), dtype=torch.float64).reshape(prod(self.places), 1, *self.places)
        share = self._average(every).flatten(1)
        by_channel = weight.reshape(len(weight), first[0], -1)
        return (by_channel @ share.T.to(weight)).reshape(len(weight), *first)

    def _average(self, x: Tensor) -> Tensor:
        pool = nn.functional.adaptive_avg_pool2d if len(self.grid) == 2 else nn.functional.adaptive_avg_pool1d
        return pool(x.reshape(*x.shape[:2], *self.places), self.grid)  # type: ignore[arg-type]


def _leading(weight: Tensor, count: int) -> Tensor:
    """Return the ``count`` orthonormal directions (count, channels) that hold most of a weight (out, channels, …)."""
    channels = weight.shape[1]
    if count == channels:
        return torch.eye(channels, dtype=weight.dtype)
    by_channel = weight.movedim(1, 0).flatten(1)
    vectors: Tensor = torch.linalg.eigh(by_channel @ by_channel.T).eigenvectors
    return vectors[:, -count:].T


def _channels_first(x: Tensor) -> Tensor:
    """Give tokens ``(n, T, D)`` as ``(n, D, T)``; everything else unchanged."""
    return x.transpose(1, 2) if x.ndim == 3 else x


def _own_order(weight: Tensor) -> Tensor:
    """Bring a weight of tokens, (out, D, T), to the order of flattened tokens, (out, T, D); keep any other."""
    return weight.transpose(1, 2) if weight.ndim == 3 else weight


def _linear(stitch: nn.Module) -> nn.Linear:
    layers = [module for module in stitch.modules() if isinstance(module, nn.Linear)]
    return layers[0]
