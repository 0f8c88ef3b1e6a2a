"""Families that treat every position alike and keep its place: nothing, a linear map, a convolution."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast, final

import torch
from torch import Tensor, nn

from suture.common.errors import ShapeError
from suture.common.hashing import keyed_as
from suture.core.stitches.base import AffineMap, AffineStitch, Part, Shape, Stitch, assign, loader

FEATURES = 1024  #: the most features of one row for which normal equations are solved
WORK = 2e11  #: the most multiply-adds for moments of rows that are patches


@keyed_as("Identity")
@final
@dataclass(frozen=True)
class Identity(Stitch):
    """No stitch: plugs the sender into the receiver as it is (bansal2021, section 2, "direct plugging in")."""

    joins: ClassVar[str] = "equal shapes"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether the shapes are equal."""
        return sender == receiver

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make a module without parameters."""
        self.check(sender, receiver)
        return nn.Identity()


@keyed_as("Linear")
@final
@dataclass(frozen=True)
class Linear(AffineStitch):
    """A linear map of the last dimension with a bias: vectors, or every token or pixel by the same map.

    bansal2021, appendix A (ViT: token-wise 768 → 768); oxford2025 (between fully connected layers).
    """

    joins: ClassVar[str] = "vectors (D,) to vectors, and tokens (T, D) or maps (H, W, D) to as many"

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether both are vectors, or all dimensions but the last agree."""
        return len(sender) == len(receiver) >= 1 and sender[:-1] == receiver[:-1]

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make an ``nn.Linear``."""
        self.check(sender, receiver)
        return nn.Linear(sender[-1], receiver[-1])

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Give the stitch itself; rows are samples, tokens or pixels."""
        return [Part(features_last, features_last, loader(stitch))]

    def raw_layers(self, stitch: nn.Module) -> Sequence[nn.Linear]:
        """Return the stitch itself."""
        return [cast(nn.Linear, stitch)]


@keyed_as("Conv")
@final
@dataclass(frozen=True)
class Conv(AffineStitch):
    """A convolution that keeps height and width, with a BatchNorm before and after unless ``batchnorm=False``.

    ``kernel`` is odd; the map is padded by ``kernel // 2`` zeros, which behind a BatchNorm stand for the channels'
    means. 1×1 with BatchNorms: bansal2021, section 2 (larger kernels: figure 4); without: hernandez2022. The BatchNorms
    add nothing to what a 1×1 convolution can express and only help optimisation.

    In closed form a larger kernel sees patches as rows, of which there are very many: moments are taken from as many
    images as ``WORK`` allows, and of a kernel with more than ``FEATURES`` features in a patch only the middle is solved
    for. Raises ``ShapeError`` for kernels that are even or below 1.
    """

    kernel: int = 1
    batchnorm: bool = True
    joins: ClassVar[str] = "maps (C, H, W) to maps of the same height and width"

    def __post_init__(self) -> None:
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ShapeError(f"Conv(kernel={self.kernel}): a kernel that keeps the size is odd: 1, 3, 5, 7, 9, …")

    def accepts(self, sender: Shape, receiver: Shape) -> bool:
        """Whether both are maps of the same height and width."""
        return len(sender) == len(receiver) == 3 and sender[1:] == receiver[1:]

    def build(self, sender: Shape, receiver: Shape) -> nn.Module:
        """Make the convolution, or ``BatchNorm(in) → Conv(in → out, no bias) → BatchNorm(out)``."""
        self.check(sender, receiver)
        return with_batchnorms(nn.Conv2d(sender[0], receiver[0], self.kernel, padding=self.kernel // 2), self.batchnorm)

    def parts(self, stitch: nn.Module, sent: Tensor) -> Sequence[Part]:
        """Give the convolution; rows are pixels with those around them."""
        channels, height, width = sent.shape[1:]
        kernel = self.kernel
        while kernel > 1 and channels * kernel**2 > FEATURES:
            kernel -= 2
        most = None if kernel == 1 else affordable_images(height * width, channels * kernel**2)
        means = kernel > 1 and self.batchnorm
        padded_with = channel_means(sent[:most]) if means else torch.zeros(channels, device=sent.device)

        def reads(x: Tensor) -> Tensor:
            return unfold_patches(x.double() - padded_with[:, None, None], kernel) if kernel > 1 else features_first(x)

        def load(affine: AffineMap) -> None:
            load_conv(stitch, affine, (kernel, kernel), padded_with)

        return [Part(reads, features_first, load, most)]

    def copy(self, stitch: nn.Module, other: nn.Module, sender: Shape) -> bool:
        """Put the kernel of another such stitch, of no larger a side, into the middle of this one's."""
        mine, theirs = (list(one) if isinstance(one, nn.Sequential) else [one] for one in (stitch, other))
        if [type(layer) for layer in mine] != [type(layer) for layer in theirs]:
            return False
        own, smaller = (next(layer for layer in layers if isinstance(layer, nn.Conv2d)) for layers in (mine, theirs))
        side = smaller.kernel_size[0]
        same = nn.Conv2d(own.in_channels, own.out_channels, side, padding=side // 2, bias=own.bias is not None)
        if side > self.kernel or repr(smaller) != repr(same):
            return False
        kernel = torch.zeros_like(own.weight)
        around = (self.kernel - side) // 2
        kernel[..., around : around + side, around : around + side] = smaller.weight
        for layer, model in zip(mine, theirs, strict=True):
            layer.load_state_dict(model.state_dict() | ({"weight": kernel} if layer is own else {}))
        return True

    def raw_layers(self, stitch: nn.Module) -> Sequence[nn.Conv2d]:
        """Return the convolution, unless a BatchNorm comes first."""
        return () if self.batchnorm else [cast(nn.Conv2d, stitch)]


def chain(*modules: nn.Module | None) -> nn.Module:
    """Put the modules that are there one after another; one alone is itself."""
    there = [module for module in modules if module is not None]
    return there[0] if len(there) == 1 else nn.Sequential(*there)


def with_batchnorms(conv: nn.Conv2d, batchnorm: bool) -> nn.Module:
    """Put a convolution between two BatchNorms, if they are wanted; its bias is then the second one's."""
    if not batchnorm:
        return conv
    conv.bias = None
    return nn.Sequential(nn.BatchNorm2d(conv.in_channels), conv, nn.BatchNorm2d(conv.out_channels))


def features_last(x: Tensor) -> Tensor:
    """See ``(n, …, D)`` as rows ``(n · …, D)``."""
    return x.reshape(-1, x.shape[-1])


def features_first(x: Tensor) -> Tensor:
    """See maps ``(n, C, H, W)`` as rows ``(n · H · W, C)``: every pixel a row."""
    return x.movedim(1, -1).reshape(-1, x.shape[1])


def unfold_patches(x: Tensor, kernel: int) -> Tensor:
    """See maps as rows ``(n · H · W, C · kernel²)``: every pixel with those around it, zeros beyond the border."""
    return nn.functional.unfold(x, kernel, padding=kernel // 2).movedim(1, 2).flatten(0, 1)


def channel_means(x: Tensor) -> Tensor:
    """Return the mean of every channel of maps ``(n, C, H, W)``, in float64."""
    parts = torch.split(x, 256)
    return torch.stack([part.double().mean((2, 3)).sum(0) for part in parts]).sum(0) / len(x)


def affordable_images(positions: int, features: int) -> int:
    """Say how many images give moments of ``features`` at so many positions for ``WORK``; at least 256."""
    return max(256, int(WORK / (positions * features**2)))


def load_conv(stitch: nn.Module, affine: AffineMap, kernel: tuple[int, int], shift: Tensor) -> None:
    """Give a convolution, perhaps between BatchNorms, a map of patches ``W · (patch − shift) + b``.

    ``kernel`` is that of the patches; a larger convolution gets it in its middle. ``shift`` (channels,) is what was
    taken from each channel; the running statistics of the BatchNorms are those of the rows fitted on.
    """
    norms = [module for module in stitch.modules() if isinstance(module, nn.BatchNorm2d)]
    conv = next(module for module in stitch.modules() if isinstance(module, nn.Conv2d))
    weight = affine.weight.reshape(conv.out_channels, conv.in_channels, *kernel)
    full = weight.new_zeros(conv.weight.shape)
    top, left = ((own - size) // 2 for own, size in zip(conv.kernel_size, kernel, strict=True))
    full[:, :, top : top + kernel[0], left : left + kernel[1]] = weight
    if not norms:
        assign(conv, "weight", full)
        assign(conv, "bias", affine.bias)
        return
    before, after = norms
    taps = kernel[0] * kernel[1]
    mean, variance = (moment[taps // 2 :: taps] for moment in (affine.mean, affine.variance))
    spread = (variance + before.eps).sqrt()
    out_spread = (affine.out_variance + after.eps).sqrt()
    _set_norm(before, shift + mean, variance, torch.ones_like(spread), torch.zeros_like(spread))
    assign(conv, "weight", full * spread[:, None, None])
    middle = weight.sum((2, 3)) @ mean + affine.bias
    _set_norm(after, torch.zeros_like(middle), affine.out_variance, out_spread, middle)


def _set_norm(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, scale: Tensor, shift: Tensor) -> None:
    for name, value in (("running_mean", mean), ("running_var", variance), ("weight", scale), ("bias", shift)):
        assign(norm, name, value)
