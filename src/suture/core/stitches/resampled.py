"""Families between shapes that differ: every tensor is seen as maps, brought to the other's size, and seen back.

A vector is a map of one pixel. Tokens are a square grid of pixels, with a class token before them where their number is
a square and one; any other number is a line of pixels. The size changes on each axis by itself:

* **to shrink** from H to h: a convolution whose stride equals its kernel, ``k = ⌈H / h⌉`` (hernandez2022, section 1.2).
  If h does not divide H the map is first brought to ``k · h`` by nearest up-sampling, so every pixel is read and no
  weight is applied to padding: 7 → 4 is 7 → 8 and then a stride of 2. In closed form a patch of more than ``PATCH``
  features is averaged over neighbouring pixels first, and what is found for the averages is the map of their pixels.
* **to grow**: a 1×1 convolution of the nearest-up-sampled map (hernandez2022). It is applied before the up-sampling,
  which copies pixels and so gives the same for less.

A *class token* of the sender is mapped by a linear layer of its own to that of the receiver; if the receiver has none,
it becomes additional channels of every pixel, the same at all of them. A class token of the receiver to
which the sender has no counterpart is a linear map of the mean over the sender's pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isqrt, prod
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from suture.common.hashing import keyed_as
from suture.core.stitches.base import (
    PATCH,
    AffineMap,
    AffineStitch,
    Part,
    Shape,
    affordable_images,
    chain,
    features_first,
    load_conv,
    loader,
    with_batchnorms,
)
from suture.core.stitches.flattened import Averaging


@dataclass(frozen=True)
class Seen:
    """How a shape is seen as maps: their channels, height and width, and whether a class token comes before them."""

    kind: int  #: dimensions of the shape: 1 vector, 2 tokens, 3 maps
    channels: int
    height: int
    width: int
    class_token: bool = False

    @classmethod
    def of(cls, shape: Shape) -> "Seen":
        """See a vector, tokens or maps."""
        if len(shape) != 2:
            height, width = shape[1:] or (1, 1)
            return cls(len(shape), shape[0], height, width)
        tokens, channels = shape
        for extra in (0, 1):
            side = isqrt(tokens - extra)
            if side > 0 and side**2 == tokens - extra:
                return cls(2, channels, side, side, class_token=bool(extra))
        return cls(2, channels, 1, tokens)

    def maps(self, x: Tensor) -> Tensor:
        """See a batch as maps ``(n, channels, height, width)``, without the class token."""
        if self.kind != 2:
            return x if self.kind == 3 else x[:, :, None, None]
        grid = torch.unflatten(x[:, int(self.class_token) :], 1, (self.height, self.width))
        return grid.movedim(-1, 1)

    def summary(self, x: Tensor) -> Tensor:
        """Return the class token of a batch, or the mean over its pixels, ``(n, channels)``."""
        return x[:, 0] if self.class_token else self.maps(x).mean((2, 3))


@keyed_as("Summarised")
class Summarised(nn.Module):
    """Sees a batch as maps; with ``spread``, the class token as additional channels of every pixel."""

    def __init__(self, seen: Seen, spread: bool) -> None:
        super().__init__()
        self.seen, self.spread = seen, spread

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, *shape)`` to ``(n, channels, H, W)``, or twice the channels."""
        maps = self.seen.maps(x)
        if not self.spread:
            return maps
        return torch.cat([maps, self.seen.summary(x)[:, :, None, None].expand_as(maps)], 1)


@keyed_as("Tokens")
class Tokens(nn.Module):
    """Sees maps as tokens: ``(n, C, H, W)`` as ``(n, H · W, C)``."""

    def forward(self, x: Tensor) -> Tensor:
        """Make one token of every pixel, row by row."""
        return x.flatten(2).transpose(1, 2)


@keyed_as("WithClassToken")
class WithClassToken(nn.Module):
    """Puts a class token, a linear map of the sender's, before the tokens that ``patches`` gives."""

    def __init__(self, patches: nn.Module, seen: Seen, features: int) -> None:
        super().__init__()
        self.patches, self.seen = patches, seen
        self.token = nn.Linear(seen.channels, features)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, *shape)`` to ``(n, 1 + tokens, features)``."""
        token: Tensor = self.token(self.seen.summary(x))
        return torch.cat([token[:, None], self.patches(x)], 1)


@keyed_as("Regridded")
class _Regridded(AffineStitch):
    """A family that sees both tensors as maps, and changes the size of one to that of the other."""

    batchnorm: bool = False

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the convolution, what sees tensors as maps around it, and a map of the class token."""
        self.check(sender, receiver)
        seen, wanted = Seen.of(sender), Seen.of(receiver)
        seen, wanted = _on_grid(seen, wanted), _on_grid(wanted, seen)
        spread = seen.class_token and not wanted.class_token
        # The kernel and stride, and the size that the map is brought to before it, or after it for a kernel of 1.
        step = -(-seen.height // wanted.height), -(-seen.width // wanted.width)
        enlarged = step[0] * wanted.height, step[1] * wanted.width
        conv = with_batchnorms(nn.Conv2d(seen.channels * (1 + spread), wanted.channels, step, step), self.batchnorm)
        grow = None if enlarged == (seen.height, seen.width) else nn.Upsample(size=enlarged, mode="nearest")
        around = [grow, conv] if step != (1, 1) else [conv, grow]
        view = Summarised(seen, spread) if seen.kind != 3 else None
        made = chain(view, *around, Tokens() if wanted.kind == 2 else None)
        return WithClassToken(made, seen, wanted.channels) if wanted.class_token else made

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Give the convolution, whose rows are patches, and the map of the class token."""
        conv = next(module for module in stitch.modules() if isinstance(module, nn.Conv2d))
        kernel = cast("tuple[int, int]", conv.kernel_size)
        views = [module for module in stitch.modules() if isinstance(module, Summarised)]
        view = views[0] if views else Summarised(Seen.of(tuple(sent.shape[1:])), spread=False)
        seen = view.seen
        sizes = [module.size for module in stitch.modules() if isinstance(module, nn.Upsample)]
        size = cast("tuple[int, int]", sizes[0]) if sizes else (seen.height, seen.width)
        token = stitch.token if isinstance(stitch, WithClassToken) else None
        tokens = any(isinstance(module, Tokens) for module in stitch.modules())

        def reads(x: Tensor) -> Tensor:
            seen = view(x)
            grown = seen if seen.shape[2:] == size else nn.functional.interpolate(seen, size=size, mode="nearest")
            return nn.functional.unfold(grown, kernel, stride=kernel).movedim(1, 2).flatten(0, 1)

        def gives(y: Tensor) -> Tensor:
            return y[:, int(token is not None) :].flatten(0, 1) if tokens else features_first(y)

        def load(affine: AffineMap) -> None:
            load_conv(stitch, affine, kernel, torch.zeros(conv.in_channels))

        is_whole = size[0] % seen.height == size[1] % seen.width == 0
        if kernel == (1, 1) and not tokens and is_whole:
            # The map of pixels that are then copied: onto the means of the receiver's pixels that each becomes.
            times = size[0] // seen.height, size[1] // seen.width
            onto_means = lambda y: features_first(nn.functional.avg_pool2d(y, times))  # noqa: E731
            return [Part(lambda x: features_first(view(x)), onto_means, load, each=features_first)]
        positions = size[0] * size[1] // (kernel[0] * kernel[1])
        patch = _Patch((conv.in_channels, *kernel))
        merged = (patch.merge, patch.spread) if patch.is_large else (None, None)
        parts = [Part(reads, gives, load, affordable_images(positions, patch.averaging.left), None, *merged)]
        return parts if token is None else [*parts, Part(seen.summary, lambda y: y[:, 0], loader(token))]

    def raw_layers(self, stitch: nn.Module) -> Sequence[nn.Linear | nn.Conv2d]:
        """Return the convolution, unless a BatchNorm comes first, and the map of the class token."""
        wanted = nn.Linear if self.batchnorm else (nn.Linear, nn.Conv2d)
        return [module for module in stitch.modules() if isinstance(module, wanted)]


@keyed_as("StridedConv")
@final
@dataclass(frozen=True)
class StridedConv(_Regridded):
    """A convolution whose stride equals its kernel, to maps that are smaller in height, width or both.

    Ratios need not be whole, see above; an axis that does not shrink is up-sampled. hernandez2022, section 1.2; with
    ``batchnorm`` between two BatchNorms, as bansal2021 has its stitches.
    """

    batchnorm: bool = False
    joins: ClassVar[str] = "maps (C, H, W) to maps of less height, less width, or both"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether both are maps and an axis shrinks."""
        return len(sender) == len(receiver) == 3 and _shrinks(sender, receiver)


@keyed_as("UpsampledConv")
@final
@dataclass(frozen=True)
class UpsampledConv(_Regridded):
    """A 1×1 convolution of the nearest-up-sampled map, to maps that are larger; a vector is a map of one pixel.

    hernandez2022, section 1.2; with ``batchnorm`` between two BatchNorms, as bansal2021 has its stitches.
    """

    batchnorm: bool = False
    joins: ClassVar[str] = "maps (C, H, W) to maps of more height, more width, or both; vectors (D,) to maps"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether the receiver's are maps, and the sender's maps grow on an axis and shrink on none, or a vector."""
        if len(sender) != 3 or len(receiver) != 3:
            return (len(sender), len(receiver)) == (1, 3)
        return sender[1:] != receiver[1:] and not _shrinks(sender, receiver)


@keyed_as("MapsToTokens")
@final
@dataclass(frozen=True)
class MapsToTokens(_Regridded):
    """Maps to tokens, brought to the tokens' grid as above: to shrink, as a vision transformer's patch embedding does.

    A class token is a linear map of the mean over all pixels. A vector is a map of one pixel.
    """

    joins: ClassVar[str] = "maps (C, H, W) and vectors (D,) to tokens (T, D)"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether maps or a vector are to become tokens."""
        return len(sender) in (1, 3) and len(receiver) == 2


@keyed_as("TokensToMaps")
@final
@dataclass(frozen=True)
class TokensToMaps(_Regridded):
    """Tokens to maps: the tokens' grid brought to the maps' size, the class token among the channels of every pixel."""

    joins: ClassVar[str] = "tokens (T, D) to maps (C, H, W)"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether tokens are to become maps."""
        return len(sender) == 2 and len(receiver) == 3


@keyed_as("TokensToTokens")
@final
@dataclass(frozen=True)
class TokensToTokens(_Regridded):
    """Tokens to tokens of another number and width: grid to grid, class token to class token.

    Of as many tokens this is a linear map of every token, and another of the class token; ``Linear`` has one for all.
    """

    joins: ClassVar[str] = "tokens (T, D) to tokens (T', D')"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether both are tokens."""
        return len(sender) == len(receiver) == 2


class _Patch:
    """A patch ``(C, H, W)`` that becomes one pixel, and its averages over neighbours if it has very many features."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.averaging = Averaging(shape, PATCH)
        self.is_large = self.averaging.left < prod(shape)

    def merge(self, rows: Tensor) -> Tensor:
        """Average rows ``(n, C · H · W)`` over neighbouring pixels."""
        return self.averaging.rows(rows.reshape(-1, *self.shape))

    def spread(self, affine: AffineMap) -> AffineMap:
        """Return a map of averages as one of whole patches; each pixel is said to vary as its channel's averages do."""
        weight = self.averaging.spread(affine.weight, self.shape).flatten(1)
        taps = prod(self.shape[1:])
        mean, variance = (
            moment.reshape(self.shape[0], -1).mean(1).repeat_interleave(taps)
            for moment in (affine.mean, affine.variance)
        )
        return replace(affine, weight=weight, mean=mean, variance=variance)


def _shrinks(sender: Shape, receiver: Shape) -> bool:
    return sender[1] > receiver[1] or sender[2] > receiver[2]


def _on_grid(tokens: Seen, maps: Seen) -> Seen:
    """See tokens on the grid of maps, if they are as many as the maps have pixels."""
    count = tokens.height * tokens.width + tokens.class_token
    extra = count - maps.height * maps.width
    if tokens.kind != 2 or maps.kind != 3 or extra not in (0, 1):
        return tokens
    return Seen(2, tokens.channels, maps.height, maps.width, class_token=bool(extra))
