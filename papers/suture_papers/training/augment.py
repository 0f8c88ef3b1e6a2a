"""Random changes of the images of a batch, each image its own, so that a network is trained on more than it is given.

Images are raw, ``(n, C, H, W)``, uint8 in 0..255 or floats in [0, 1], on any device, and keep their size. Random
numbers are drawn on the CPU and moved, so that the same generator gives the same crops and colours on every device.

Crops and mirroring for supervised training are those of He et al. 2016, *Deep Residual Learning for Image Recognition*,
arXiv:1512.03385, section 4.2. The views of contrastive training are those of Chen et al. 2020, *A Simple Framework for
Contrastive Learning of Visual Representations*, arXiv:2002.05709 (SimCLR), appendices A and B.9.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suture.common.errors import DataError
from suture.extend import as_floats, check_pictures, keyed_as

Box = tuple[Tensor, Tensor, Tensor, Tensor]
"""Top, left, height and width in pixels of one part of each image, each ``(n,)`` int64."""

ATTEMPTS = 10  #: at a box that lies inside the image, before it is cut from the middle; as torchvision
GREY = (0.2989, 0.587, 0.114)  #: what red, green and blue give to grey (ITU-R 601-2), as torchvision


@keyed_as("Augmentation")
class Augmentation(ABC):
    """A random change of each image of a batch."""

    @abstractmethod
    def __call__(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Change raw images ``(n, C, H, W)``, on any device; ``random`` is a generator of the CPU."""


@keyed_as("Unchanged")
@dataclass(frozen=True)
class Unchanged(Augmentation):
    """No augmentation."""

    def __call__(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Return the images themselves; nothing is drawn."""
        return images


@keyed_as("CropFlip")
@dataclass(frozen=True)
class CropFlip(Augmentation):
    """A random crop of the image with a black border of ``crop`` pixels, then mirrored left to right every other time.

    The image keeps its size and its type.
    """

    crop: int = 4
    flip: bool = True

    def __call__(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Crop and mirror each image at random; without either, the images themselves."""
        check_pictures("CropFlip", images, "use Unchanged()")
        n = len(images)
        if self.crop:
            top, left = (torch.randint(2 * self.crop + 1, (n, 1), generator=random)[:, 0] for _ in range(2))
            images = _shift(images, self.crop, top, left)
        return mirror(images, torch.rand(n, generator=random) < 0.5) if self.flip else images


@keyed_as("SimCLRView")
@dataclass(frozen=True)
class SimCLRView(Augmentation):
    """One view of SimCLR for CIFAR-10: a random part of the image, mirrored or not, in other colours.

    The part has a share of the area within ``area`` and a ratio of width to height within ``ratio``, and is resized
    to the image's size (bilinear). With probability ``jittered`` brightness, contrast and saturation are multiplied by
    a factor within 1 ± 0.8·``strength`` and hue is turned by up to ± 0.2·``strength`` of the circle, each image by its
    own; with probability ``grey`` the image then turns grey. There is no blur (appendix B.9). The four changes of
    colour come in one random order per batch, where torchvision draws one per image. Grey images, of one channel, know
    brightness and contrast only.
    """

    strength: float = 0.5
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    jittered: float = 0.8
    grey: float = 0.2
    flip: bool = True

    def __call__(self, images: Tensor, random: torch.Generator) -> Tensor:
        """Return one view of each image, as floats in [0, 1].

        Raises ``DataError`` for images that are neither grey (1 channel) nor coloured (3).
        """
        check_pictures("SimCLRView", images, "use Unchanged()")
        if images.shape[1] not in (1, 3):
            raise DataError(f"SimCLRView knows images of 1 or 3 channels, not {images.shape[1]}; use CropFlip")
        n, _, height, width = images.shape
        images = resize(as_floats(images), random_boxes(n, height, width, self.area, self.ratio, random))
        if self.flip:
            images = mirror(images, torch.rand(n, generator=random) < 0.5)
        for change, amounts in self._jitter(n, random):
            images = change(images, amounts)
        greyed = torch.rand(n, generator=random) < self.grey
        return torch.where(_per_image(greyed, images), turn_grey(images), images)

    def _jitter(self, n: int, random: torch.Generator) -> list[tuple[Callable[[Tensor, Tensor], Tensor], Tensor]]:
        """Return the changes of colour in the order of this batch, each with its amounts ``(n,)``.

        Nothing for some images.
        """
        chosen = torch.rand(n, generator=random) < self.jittered
        spreads = 0.8 * self.strength, 0.8 * self.strength, 0.8 * self.strength, 0.2 * self.strength
        amounts = [chosen * spread * (2 * torch.rand(n, generator=random) - 1) for spread in spreads]
        changes = [
            (brighten, 1 + amounts[0]),
            (scale_contrast, 1 + amounts[1]),
            (saturate, 1 + amounts[2]),
            (turn_hue, amounts[3]),
        ]
        return [changes[i] for i in torch.randperm(len(changes), generator=random).tolist()]


def mirror(images: Tensor, chosen: Tensor) -> Tensor:
    """Return the images, those that are ``chosen`` ``(n,)`` mirrored left to right."""
    indices = chosen.nonzero()[:, 0].to(images.device)
    return images.index_copy(0, indices, images.index_select(0, indices).flip(-1))


def _shift(images: Tensor, border: int, top: Tensor, left: Tensor) -> Tensor:
    """Return each image's part at ``top``, ``left`` (n,), of its own size, of the image with a border of zeros.

    A window on each place in memory, as a view, of which one is copied for each image and channel: five times as fast
    as reading single pixels.
    """
    n, channels, height, width = images.shape
    padded = nn.functional.pad(images, (border,) * 4).contiguous()
    down, across = padded.stride(1), padded.stride(2)
    places = padded.numel() - (height - 1) * across - width + 1
    windows = padded.as_strided((places, height, width), (1, across, 1))
    corners = torch.arange(n * channels).view(n, channels) * down + (top * across + left)[:, None]
    return windows.index_select(0, corners.view(-1).to(images.device)).view_as(images)


def random_boxes(
    n: int, height: int, width: int, area: tuple[float, float], ratio: tuple[float, float], random: torch.Generator
) -> Box:
    """Draw parts of ``n`` images: area uniform, ratio of width to height uniform in its logarithm, place uniform.

    The first of ten draws that fits into the image; if none does, its middle, as wide or as high as ``ratio`` lets
    it be. This is torchvision's ``RandomResizedCrop.get_params``.
    """
    areas = height * width * torch.empty(ATTEMPTS, n, dtype=torch.float64).uniform_(*area, generator=random)
    logs = torch.empty(ATTEMPTS, n, dtype=torch.float64).uniform_(*map(math.log, ratio), generator=random)
    sides = torch.stack([(areas / logs.exp()).sqrt(), (areas * logs.exp()).sqrt()]).round().long()
    middle = min(height, round(width / ratio[0])), min(width, round(height * ratio[1]))
    fitting = ((sides > 0) & (sides <= torch.tensor([height, width])[:, None, None])).all(0)
    first = fitting.byte().argmax(0)
    high, wide = torch.where(fitting.any(0), sides[:, first, torch.arange(n)], torch.tensor(middle)[:, None])
    free = torch.stack([height - high, width - wide])
    places = ((free + 1) * torch.rand(2, n, dtype=torch.float64, generator=random)).long().minimum(free)
    top, left = torch.where(fitting.any(0), places, free // 2)
    return top, left, high, wide


def resize(images: Tensor, boxes: Box) -> Tensor:
    """Resize one part of each float image ``(n, C, H, W)`` in [0, 1] to ``H`` × ``W`` (bilinear).

    A part is never larger than the image, so that there is nothing to smooth against aliasing.
    """
    top, left, high, wide = (edge.to(images.device) for edge in boxes)
    rows = _interpolate(top, high, images.shape[-2]).to(images.dtype)
    columns = _interpolate(left, wide, images.shape[-1]).to(images.dtype)
    n, channels, height, width = images.shape
    down = rows @ images.transpose(1, 2).flatten(2)
    across = down.view(n, -1, width) @ columns.transpose(1, 2)
    return across.view(n, height, channels, width).transpose(1, 2).contiguous().clamp_(0, 1)


def _interpolate(start: Tensor, length: Tensor, side: int) -> Tensor:
    """Return the weights of input pixels in each output pixel of a line of ``side``, ``(n, side, side)``.

    Only the ``length`` input pixels from ``start`` on count.
    """
    pixels = torch.arange(side, device=start.device)
    at = (pixels + 0.5) * (length / side)[:, None] - 0.5
    at = at.clamp(min=0).minimum(length[:, None] - 1)
    return (1 - (at[:, :, None] - (pixels - start[:, None])[:, None]).abs()).clamp(min=0)


def brighten(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply the brightness of each image by a factor of its own: a mixture with black."""
    return (images * _per_image(factors, images)).clamp(0, 1)


def scale_contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply the contrast of each image by a factor of its own: a mixture with the image's mean grey."""
    return _mix(images, turn_grey(images).mean((1, 2, 3), keepdim=True), factors)


def saturate(images: Tensor, factors: Tensor) -> Tensor:
    """Multiply the saturation of each image by a factor of its own: a mixture with the grey image."""
    return images if images.shape[1] == 1 else _mix(images, turn_grey(images), factors)


def turn_hue(images: Tensor, shifts: Tensor) -> Tensor:
    """Turn the hue of each image by its own share of the circle; value and saturation stay."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    divisor = torch.where(chroma == 0, 1, chroma)
    otherwise = torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor)
    hue = torch.where(value == red, (green - blue) / divisor, otherwise)  # in sixths of the circle, red at 0
    hue = (hue + 6 * _per_image(shifts, images)[:, 0]).remainder(6)
    bright = torch.stack([(hue - 3).abs() - 1, 2 - (hue - 2).abs(), 2 - (hue - 4).abs()], 1).clamp_(0, 1)
    return value[:, None] - chroma[:, None] * (1 - bright)


def turn_grey(images: Tensor) -> Tensor:
    """Return the images ``(n, 1 or 3, H, W)`` in grey, ``(n, 1, H, W)``."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)
    return (GREY[0] * red + GREY[1] * green + GREY[2] * blue)[:, None]


def _mix(images: Tensor, others: Tensor, factors: Tensor) -> Tensor:
    share = _per_image(factors, images)
    return (share * images + (1 - share) * others).clamp(0, 1)


def _per_image(values: Tensor, images: Tensor) -> Tensor:
    """Return one value ``(n,)`` for each image in the shape of images; numbers in the images' type."""
    kind = images.dtype if values.is_floating_point() else values.dtype
    return values.to(images.device, kind).view(-1, 1, 1, 1)
