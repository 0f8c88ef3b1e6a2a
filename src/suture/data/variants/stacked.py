"""Two data sets in one image, the first above the second, class *i* with class *i*: MNIST-CIFAR.

Source: oxford2025, section 4.3, whose figure shows an image 64 pixels high and 32 wide (its fully connected layer reads
16 × 13 × 5 values) and whose text does not say which half is on top; here the digit, as in the MNIST-CIFAR of Shah et
al. 2020, *The Pitfalls of Simplicity Bias in Neural Networks*. The label is always the lower image's.

Stacked images are known by their shape: twice as high as wide. All variants here change every role.
"""

from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.data.preprocess import check_pictures
from suture.data.samples import Data, Samples
from suture.data.variants.base import Variant, change_all, list_names, order_of

_CHUNK = 256  #: images scaled at once, to bound the memory of their floats


def stack(upper: Data, lower: Data, name: str | None = None) -> Data:
    """Put images of one data set above those of another, in each role, class *i* with class *i*.

    The upper images are scaled to the lower ones' size, which must be square (bilinear, smoothed if they shrink);
    grey ones get three channels if the other has them; floats become uint8, to the nearest of 255 levels. In each
    role and class there are as many as both have: the k-th of the one with the k-th of the other, in the lower's order.
    Labels and classes are the lower's. Raises ``DataError`` if the two have not as many classes, the lower images
    are not square, channels cannot be joined, or a role has no two samples in common.
    """
    for data in (upper, lower):
        check_pictures("putting one above another", data.example)
    height, width = lower.fit.images.shape[2:]
    if height != width:
        raise DataError(
            f"images of {lower.name} are {width}×{height}; the lower half must be square: load them by size="
        )
    if len(upper.classes) != len(lower.classes):
        raise DataError(
            f"{upper.name} has {len(upper.classes)} classes and {lower.name} {len(lower.classes)}; class i is paired "
            "with class i, so give two data sets with as many"
        )
    channels = {data.fit.images.shape[1] for data in (upper, lower)}
    if len(channels) > 1 and channels != {1, 3}:
        raise DataError(
            f"{upper.name} has {upper.fit.images.shape[1]} channels and {lower.name} {lower.fit.images.shape[1]}; "
            "only grey can be joined with colour, 1 with 3: give both the same"
        )
    name = name or f"{upper.name}+{lower.name}"
    pairs = [(getattr(upper, role), getattr(lower, role), role) for role in ("fit", "validation", "score")]
    fit, validation, score = (
        _stack_role(above, below, f"{name}/{role}", max(channels)) for above, below, role in pairs
    )
    return Data(name, fit=fit, validation=validation, score=score)


@keyed_as("Decorrelated")
@final
@dataclass(frozen=True)
class Decorrelated(Variant):
    """Stacked images whose upper halves are permuted at random over the whole role; labels stay the lower half's.

    Changes every role. Raises ``DataError`` for data that are not stacked.
    """

    seed: int = 0

    @property
    def summary(self) -> str:
        """The word, and the seed if it is not 0."""
        return f"decorrelated{f' (seed {self.seed})' if self.seed else ''}"

    def __call__(self, data: Data) -> Data:
        """Return the data with the upper halves in a random order."""
        middle = _middle(data, self.summary)

        def change(samples: Samples) -> Samples:
            images = samples.images.clone()
            order = order_of(samples, "decorrelated", self.seed).to(images.device)
            images[:, :, :middle] = samples.images[order, :, :middle]
            return replace(samples, images=images)

        return change_all(data, self.summary, change)


@keyed_as("BlackedOut")
@final
@dataclass(frozen=True)
class BlackedOut(Variant):
    """Stacked images with one half set to 0.

    ``side`` is ``upper`` or ``lower``, or the name of the data set there, as in the name of the data: ``mnist`` or
    ``cifar10`` of ``mnist+cifar10``. Changes every role. Raises ``DataError`` for any other, and for data that are not
    stacked.
    """

    side: str

    @property
    def summary(self) -> str:
        """What is black."""
        return f"with {self.side} blacked out"

    def __call__(self, data: Data) -> Data:
        """Return the data with one half black."""
        middle = _middle(data, self.summary)
        half = slice(middle) if self._is_upper(data) else slice(middle, None)

        def change(samples: Samples) -> Samples:
            images = samples.images.clone()
            images[:, :, half] = 0
            return replace(samples, images=images)

        return change_all(data, self.summary, change)

    def _is_upper(self, data: Data) -> bool:
        known = {"upper": True, "lower": False}
        names = [part.partition(" ")[0] for part in data.name.split("+")]
        if len(set(names)) == len(names) == 2:
            known |= {names[0]: True, names[1]: False}
        if self.side not in known:
            raise DataError(f"{data.name} has no side '{self.side}' to black out; valid: {list_names(tuple(known))}")
        return known[self.side]


def _middle(data: Data, what: str) -> int:
    """Return the first row of the lower half. Raises ``DataError`` if images are not twice as high as wide."""
    check_pictures(what, data.example)
    height, width = data.fit.images.shape[2:]
    if height != 2 * width:
        raise DataError(
            f"{what}: images of {data.name} are {width}×{height}, not one above another; give stacked data, such as "
            "mnist+cifar10"
        )
    return int(width)


def _stack_role(above: Samples, below: Samples, name: str, channels: int) -> Samples:
    upper, lower = _match(above.labels.cpu(), below.labels.cpu(), len(below.classes))
    if len(lower) < 2:
        raise DataError(
            f"{above.name} and {below.name} share {len(lower)} samples, class by class, and 2 are needed; give more"
        )
    size = below.images.shape[2]
    images = torch.empty((len(lower), channels, 2 * size, size), dtype=torch.uint8, device=below.images.device)
    for start in range(0, len(lower), _CHUNK):
        part = slice(start, start + _CHUNK)
        for half, samples, indices in ((slice(size), above, upper), (slice(size, None), below, lower)):
            images[part, :, half] = _scale(samples.images[indices[part].to(samples.images.device)], size)
    return Samples(name, images, below.labels[lower.to(below.labels.device)], below.classes)


def _match(above: Tensor, below: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the indices of the upper and lower image of every pair, (N,) int64 each, in the lower's order."""
    upper = torch.full((len(below),), -1)
    for label in range(classes):
        mine, yours = torch.where(above == label)[0], torch.where(below == label)[0]
        count = min(len(mine), len(yours))
        upper[yours[:count]] = mine[:count]
    lower = torch.where(upper >= 0)[0]
    return upper[lower], lower


def _scale(images: Tensor, size: int) -> Tensor:
    """Return images (N, C, size, size) in 0..255, uint8."""
    if images.dtype == torch.uint8 and images.shape[2:] == (size, size):
        return images
    pixels = images.float() if images.dtype == torch.uint8 else images.float() * 255
    if pixels.shape[2:] != (size, size):
        pixels = F.interpolate(pixels, (size, size), mode="bilinear", antialias=max(pixels.shape[2:]) > size)
    return pixels.clamp(0, 255).round().to(torch.uint8)
