"""Families between shapes that differ: every tensor is seen as maps, brought to the other's size, and seen back.

A vector is a map of one pixel. Tokens are a grid of pixels behind prefix tokens (class token, registers), by the layout
that the shape of a cut has (``network.layouts``). A plain shape has none: then a square number of tokens is a square
grid, one more is a class token, and any other number is a line of pixels. Where maps are a line of as many pixels as
the tokens' grid has, as ``flatten(2)`` leaves of a grid, pixels and tokens pair one by one. Else the size changes on
each axis by itself:

* **to shrink** from H to h: a convolution whose stride equals its kernel, ``k = ⌈H / h⌉`` (hernandez2022, section 1.2).
  If h does not divide H the map is first brought to ``k · h`` by nearest up-sampling, so every pixel is read and no
  weight is applied to padding: 7 → 4 is 7 → 8 and then a stride of 2. In closed form a patch of more than ``PATCH``
  features is averaged over neighbouring pixels first, and what is found for the averages is the map of their pixels.
* **to grow**: a 1×1 convolution of the nearest-up-sampled map (hernandez2022). It is applied before the up-sampling,
  which copies pixels and so gives the same for less.

Each *prefix token* of the receiver has a linear layer of its own. It reads the sender's prefix token in the same place,
or the first if the sender has fewer. If the sender has none, it reads the mean over the sender's pixels. If only the
sender has prefix tokens, the first becomes additional channels of every pixel, the same at all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isqrt, prod
from operator import itemgetter
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from suture.common.hashing import keyed_as
from suture.common.warning import warn
from suture.core.network.layouts import TokenShape
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
    spell_shape,
    with_batchnorms,
)
from suture.core.stitches.flattened import Averaging


@dataclass(frozen=True)
class Seen:
    """A shape seen as maps: their channels, height and width, and the number of prefix tokens before them."""

    kind: int  #: dimensions of the shape: 1 vector, 2 tokens, 3 maps
    channels: int
    height: int
    width: int
    prefix: int = 0
    is_guess: bool = False  #: whether only the number of tokens says so

    @classmethod
    def of(cls, shape: Shape) -> "Seen":
        """See a vector, tokens or maps."""
        if len(shape) != 2:
            height, width = shape[1:] or (1, 1)
            return cls(len(shape), shape[0], height, width)
        tokens, channels = shape
        if isinstance(shape, TokenShape) and not shape.is_square:
            return cls(2, channels, *(shape.grid or (1, tokens)), shape.prefix)
        for extra in (0, 1):
            side = isqrt(tokens - extra)
            if side > 0 and side**2 == tokens - extra:
                return cls(2, channels, side, side, extra, is_guess=True)
        return cls(2, channels, 1, tokens, is_guess=True)

    def maps(self, x: Tensor) -> Tensor:
        """See a batch as maps ``(n, channels, height, width)``, without the prefix tokens."""
        if self.kind != 2:
            return x if self.kind == 3 else x[:, :, None, None]
        grid = torch.unflatten(x[:, self.prefix :], 1, (self.height, self.width))
        return grid.movedim(-1, 1)

    def summary(self, x: Tensor, place: int = 0) -> Tensor:
        """Return the prefix token at a place of a batch, or the first, or the mean over its pixels, ``(n, channels)``.

        The first is taken where there are fewer, and the mean where there are none.
        """
        if not self.prefix:
            return self.maps(x).mean((2, 3))
        return x[:, place if place < self.prefix else 0]


@keyed_as("Summarised")
class Summarised(nn.Module):
    """Sees a batch as maps; with ``spread``, the first prefix token as additional channels of every pixel."""

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
class WithPrefix(nn.Module):
    """Puts prefix tokens, each a linear map of one of the sender's, before the tokens that ``patches`` gives."""

    def __init__(self, patches: nn.Module, seen: Seen, prefix: int, features: int) -> None:
        super().__init__()
        self.patches, self.seen = patches, seen
        self.token = nn.Linear(seen.channels, features)
        self.others = nn.ModuleList(nn.Linear(seen.channels, features) for _ in range(prefix - 1))

    @property
    def layers(self) -> Sequence[nn.Module]:
        """The map of each prefix token."""
        return [self.token, *self.others]

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(n, *shape)`` to ``(n, prefix + tokens, features)``."""
        tokens = [token(self.seen.summary(x, i))[:, None] for i, token in enumerate(self.layers)]
        return torch.cat([*tokens, self.patches(x)], 1)


@keyed_as("Regridded")
class _Regridded(AffineStitch):
    """A family that sees both tensors as maps, and changes the size of one to that of the other."""

    batchnorm: bool = False

    def check(self, sender: Shape, receiver: Shape) -> None:
        """Raise ``ShapeError`` if the family cannot join the two shapes; warn if the grid of tokens is unknown."""
        super().check(sender, receiver)
        for side, shape in (("sender", sender), ("receiver", receiver)):
            if isinstance(shape, TokenShape) and shape.grid is None:
                seen = Seen.of(shape)
                guess = (
                    f"{seen.height}×{seen.width} behind {seen.prefix} prefix tokens" if shape.is_square else "a line"
                )
                warn(
                    f"{self} takes the {side}'s {spell_shape(shape)} for {guess}, because their grid is unknown; name "
                    "it: Network(…, tokens=(prefix tokens, (height, width))), or (0, None) for a line"
                )

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the convolution, the reshaping around it that treats tensors as maps, and maps of the prefix tokens."""
        self.check(sender, receiver)
        seen, wanted = Seen.of(sender), Seen.of(receiver)
        seen, wanted = _on_grid(seen, wanted), _on_grid(wanted, seen)
        spread = bool(seen.prefix and not wanted.prefix)
        # The kernel and stride, and the size that the map is brought to before it, or after it for a kernel of 1.
        step = -(-seen.height // wanted.height), -(-seen.width // wanted.width)
        enlarged = step[0] * wanted.height, step[1] * wanted.width
        conv = with_batchnorms(nn.Conv2d(seen.channels * (1 + spread), wanted.channels, step, step), self.batchnorm)
        grow = None if enlarged == (seen.height, seen.width) else nn.Upsample(size=enlarged, mode="nearest")
        around = [grow, conv] if step != (1, 1) else [conv, grow]
        view = Summarised(seen, spread) if seen.kind != 3 else None
        made = chain(view, *around, Tokens() if wanted.kind == 2 else None)
        return WithPrefix(made, seen, wanted.prefix, wanted.channels) if wanted.prefix else made

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Return the convolution, whose rows are patches, and the maps of the prefix tokens."""
        conv = next(module for module in stitch.modules() if isinstance(module, nn.Conv2d))
        kernel = cast("tuple[int, int]", conv.kernel_size)
        views = [module for module in stitch.modules() if isinstance(module, Summarised)]
        view = views[0] if views else Summarised(Seen.of(tuple(sent.shape[1:])), spread=False)
        seen = view.seen
        sizes = [module.size for module in stitch.modules() if isinstance(module, nn.Upsample)]
        size = cast("tuple[int, int]", sizes[0]) if sizes else (seen.height, seen.width)
        prefix = stitch.layers if isinstance(stitch, WithPrefix) else ()
        tokens = any(isinstance(module, Tokens) for module in stitch.modules())

        def reads(x: Tensor) -> Tensor:
            seen = view(x)
            grown = seen if seen.shape[2:] == size else nn.functional.interpolate(seen, size=size, mode="nearest")
            return nn.functional.unfold(grown, kernel, stride=kernel).movedim(1, 2).flatten(0, 1)

        def gives(y: Tensor) -> Tensor:
            return y[:, len(prefix) :].flatten(0, 1) if tokens else features_first(y)

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
        for i, token in enumerate(prefix):
            parts.append(Part(partial(seen.summary, place=i), itemgetter((slice(None), i)), loader(token)))
        return parts

    def raw_layers(self, stitch: nn.Module) -> Sequence[nn.Linear | nn.Conv2d]:
        """Return the convolution, unless a BatchNorm comes first, and the maps of the prefix tokens."""
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
        """Return whether both are maps and an axis shrinks."""
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
        """Return whether the receiver has maps, and the sender a vector or maps larger on no axis."""
        if len(sender) != 3 or len(receiver) != 3:
            return (len(sender), len(receiver)) == (1, 3)
        return sender[1:] != receiver[1:] and not _shrinks(sender, receiver)


@keyed_as("MapsToTokens")
@final
@dataclass(frozen=True)
class MapsToTokens(_Regridded):
    """Maps to tokens, brought to the tokens' grid as above: to shrink, as a vision transformer's patch embedding does.

    Each prefix token is a linear map of the mean over all pixels. A vector is a map of one pixel.
    """

    joins: ClassVar[str] = "maps (C, H, W) and vectors (D,) to tokens (T, D)"
    version: ClassVar[int] = 2  #: of the grid that it takes

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Return whether maps or a vector are to become tokens."""
        return len(sender) in (1, 3) and len(receiver) == 2


@keyed_as("TokensToMaps")
@final
@dataclass(frozen=True)
class TokensToMaps(_Regridded):
    """Tokens to maps: the grid brought to the maps' size, the first prefix token among the channels of every pixel."""

    joins: ClassVar[str] = "tokens (T, D) to maps (C, H, W)"
    version: ClassVar[int] = 2  #: of the grid that it takes

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Return whether tokens are to become maps."""
        return len(sender) == 2 and len(receiver) == 3


@keyed_as("TokensToTokens")
@final
@dataclass(frozen=True)
class TokensToTokens(_Regridded):
    """Tokens to tokens, perhaps of another number and width: grid to grid, prefix token to prefix token.

    Of as many tokens this is a linear map of every patch, and one more for each prefix token; ``Linear`` has one for
    all.
    """

    joins: ClassVar[str] = "tokens (T, D) to tokens (T', D')"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Return whether both are tokens."""
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
    """See tokens on the grid of maps, if they are as many as the maps have pixels.

    That is so if the tokens' grid is a guess, and if the maps are a line of pixels, as ``flatten(2)`` leaves of a grid.
    """
    if tokens.kind != 2 or maps.kind != 3:
        return tokens
    patches, pixels = tokens.height * tokens.width, maps.height * maps.width
    extra = patches + tokens.prefix - pixels
    if tokens.is_guess and extra in (0, 1):
        return Seen(2, tokens.channels, maps.height, maps.width, extra)
    is_line = 1 in (maps.height, maps.width)
    return replace(tokens, height=maps.height, width=maps.width) if is_line and patches == pixels else tokens
