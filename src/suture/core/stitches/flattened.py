"""Families that read a whole tensor at once, every position with weights of its own."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from suture.common.errors import ShapeError
from suture.common.hashing import keyed_as
from suture.core.stitches.base import AffineMap, AffineStitch, Part, Shape, assign, width
from suture.core.stitches.positionwise import FEATURES, features_last, stacked

_BASIS = 256  #: basis tensors that a module is given at once


@keyed_as("ConvLinear")
@final
@dataclass(frozen=True)
class ConvLinear(AffineStitch):
    """Maps or tokens to a vector: a linear map of every position to ``channels`` features, then a linear map of all.

    On maps the first is a 1×1 convolution: oxford2025, "both a 1x1 convolutional and a fully connected layer when
    connecting a convolutional to a fully connected layer". ``channels`` is by default as many as the sender has; fewer
    make the second map, of ``channels · H · W`` features, smaller.

    In closed form a regression of all channels, see ``pooled``, of whose weight the first map keeps the ``channels``
    leading directions (a truncated higher-order SVD). Raises ``ShapeError`` for ``channels`` below 1 or above the
    sender's.
    """

    channels: int | None = None
    joins: ClassVar[str] = "maps (C, H, W) or tokens (T, D) of at least as many channels to vectors (D,)"

    def __post_init__(self) -> None:
        if self.channels is not None and self.channels < 1:
            raise ShapeError(f"ConvLinear(channels={self.channels}): give at least 1, or None for the sender's")

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether maps or tokens, of at least ``channels`` features, are to become a vector."""
        return len(sender) in (2, 3) and len(receiver) == 1 and (self.channels or 1) <= width(sender)

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the map of positions, ``Flatten`` and the map of all."""
        self.check(sender, receiver)
        features = width(sender)
        kept = self.channels or features
        first = nn.Conv2d(features, kept, 1) if len(sender) == 3 else nn.Linear(features, kept)
        return nn.Sequential(first, nn.Flatten(), nn.Linear(prod(sender) // features * kept, receiver[0]))

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Give both maps together; rows are samples."""
        first, _, last = cast("tuple[nn.Conv2d | nn.Linear, nn.Module, nn.Linear]", tuple(cast(nn.Sequential, stitch)))
        pool, unpool = pooled(tuple(channels_first(sent[:1]).shape[1:]))

        def load(affine: AffineMap) -> None:
            weight = unpool(affine.weight)
            kept = _leading(weight, len(first.weight))
            assign(first, "weight", kept)
            assign(first, "bias", torch.zeros(len(kept)))
            assign(last, "weight", _own_order(torch.einsum("kc,oc...->ok...", kept, weight)))
            assign(last, "bias", affine.bias)

        return [Part(lambda x: pool(channels_first(x.double())), features_last, load)]

    def raw_layers(self, stitch: nn.Module) -> Sequence[nn.Linear | nn.Conv2d]:
        """The map of positions."""
        return [cast("nn.Conv2d | nn.Linear", cast(nn.Sequential, stitch)[0])]


@keyed_as("FullLinear")
@final
@dataclass(frozen=True)
class FullLinear(AffineStitch):
    """A linear map of everything to everything, whatever the shapes: the "high capacity" stitch of oxford2025.

    It has as many parameters as the product of the two sizes, so it can do much of the work by itself: read its
    controls. In closed form a regression, see ``pooled``.
    """

    joins: ClassVar[str] = "any two shapes"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether neither is empty."""
        return bool(sender and receiver)

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make ``Flatten``, an ``nn.Linear`` and ``Unflatten``."""
        self.check(sender, receiver)
        flat = nn.Flatten() if len(sender) > 1 else None
        shaped = nn.Unflatten(1, receiver) if len(receiver) > 1 else None
        return stacked(flat, nn.Linear(prod(sender), prod(receiver)), shaped)

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Give the map; rows are samples."""
        layer = _linear(stitch)
        pool, unpool = pooled(tuple(channels_first(sent[:1]).shape[1:]))

        def load(affine: AffineMap) -> None:
            assign(layer, "weight", _own_order(unpool(affine.weight)))
            assign(layer, "bias", affine.bias)

        return [Part(lambda x: pool(channels_first(x.double())), lambda y: y.flatten(1), load)]

    def copy(self, stitch: nn.Module, other: nn.Module, sender: Shape) -> bool:
        """Read the other's map off what it gives for zero and for every basis tensor, in float64."""
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

    def raw_layers(self, stitch: nn.Module) -> Sequence[nn.Linear]:
        """The map."""
        return [_linear(stitch)]


def pooled(shape: Shape) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """How features ``(n, *shape)``, channels first, are averaged over neighbours to at most ``FEATURES`` a sample.

    Gives the averaging, to rows ``(n, pooled)``, and what turns a weight of those (out, pooled) into the same map of
    all features ``(out, *shape)``: averaging is linear, so a regression on averages is a member of the whole family,
    and the best one where nothing had to be averaged.
    """
    places = shape[1:] if len(shape) < 4 else (prod(shape[1:]),)
    grid = averaged_to(places, shape[0], FEATURES)
    if grid == places:
        return lambda x: x.flatten(1), lambda weight: weight.reshape(-1, *shape)
    average = nn.functional.adaptive_avg_pool2d if len(places) == 2 else nn.functional.adaptive_avg_pool1d
    size = grid if len(places) == 2 else grid[0]
    every = torch.eye(prod(places), dtype=torch.float64).reshape(prod(places), 1, *places)
    share: Tensor = average(every, size).flatten(1)  # type: ignore[arg-type]

    def pool(x: Tensor) -> Tensor:
        averaged: Tensor = average(x.reshape(-1, shape[0], *places), size)  # type: ignore[arg-type]
        return averaged.flatten(1)

    def unpool(weight: Tensor) -> Tensor:
        by_channel = weight.reshape(len(weight), shape[0], -1)
        return (by_channel @ share.T.to(weight)).reshape(len(weight), *shape)

    return pool, unpool


def averaged_to(places: Shape, channels: int, most: int) -> Shape:
    """The grid that positions are averaged to, longest sides halved, for at most so many features where that can be."""
    grid = places
    while len(grid) and channels * prod(grid) > most and max(grid) > 1:
        grid = tuple(max(1, size // 2) if size == max(grid) else size for size in grid)
    return grid


def _leading(weight: Tensor, count: int) -> Tensor:
    """The ``count`` orthonormal directions (count, channels) that hold most of a weight (out, channels, …)."""
    channels = weight.shape[1]
    if count == channels:
        return torch.eye(channels, dtype=weight.dtype)
    by_channel = weight.movedim(1, 0).flatten(1)
    vectors: Tensor = torch.linalg.eigh(by_channel @ by_channel.T).eigenvectors
    return vectors[:, -count:].T


def channels_first(x: Tensor) -> Tensor:
    """Tokens ``(n, T, D)`` as ``(n, D, T)``; everything else as it is."""
    return x.transpose(1, 2) if x.ndim == 3 else x


def _own_order(weight: Tensor) -> Tensor:
    """A weight of tokens, (out, D, T), in the order in which tokens are flattened, (out, T, D); others as they are."""
    return weight.transpose(1, 2) if weight.ndim == 3 else weight


def _linear(stitch: nn.Module) -> nn.Linear:
    layers = [module for module in stitch.modules() if isinstance(module, nn.Linear)]
    return layers[0]
