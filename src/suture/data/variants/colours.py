"""Grey digits in colour: what a network sees of a class is its shape, its colour, or both.

Every pixel that is not 0 becomes white, every other the image's background colour. There are ten base colours, one for
each class, those of Bahng et al. 2020, *Learning De-biased Representations with Biased Representations*. An image's
background is one of them, jittered.

The source, smith2024, appendix A, says that "the base RGB background values are modified by a random 10 % per image
(such that the colour is always flat …)", and that this keeps a network from learning "specific RGB values". Read here
as: each of R, G and B of an image is shifted by its own amount, uniform in ± 10 % of the range (± 25.5 of 255), then
brought back into 0..255 and rounded. (Shifts in proportion to the value would leave every 0 a 0 and half of the pure
colours exact.) The same in every role.

For one seed the four variants draw the same shifts, and ``Digit``, ``Colour`` and ``ColourOnly`` the same colours:
``Digit`` and ``Colour`` are the same images with different targets. All keep the names of the classes, so that networks
trained on one can be scored on another: class *i* of ``Colour`` is the colour that belongs to digit *i*. Images become
uint8 with three channels. All change every role.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.common.seeds import generator
from suture.data.preprocess import check_pictures
from suture.data.samples import Data, Samples
from suture.data.variants.base import Variant, change_all

BASE_COLOURS = (
    (255, 0, 0),
    (0, 255, 0),
    (0, 0, 255),
    (225, 225, 0),
    (225, 0, 225),
    (0, 255, 255),
    (255, 128, 0),
    (255, 0, 128),
    (128, 0, 255),
    (128, 128, 128),
)
"""Red, green and blue of each class's colour, 0..255, in the order of the classes."""

_CHUNK = 4096  #: images painted at once, to bound memory


@keyed_as("Grey3")
@final
@dataclass(frozen=True)
class Grey3(Variant):
    """Grey images in three equal channels, for networks that take colour. Changes every role.

    Raises ``DataError`` for images of more than one channel.
    """

    @property
    def summary(self) -> str:
        """The number of channels."""
        return "in 3 channels"

    def __call__(self, data: Data) -> Data:
        """Return the data with the grey channel three times."""
        check_pictures("grey3", data.example)
        channels = data.fit.images.shape[1]
        if channels != 1:
            raise DataError(f"{data.name} has {channels} channels; grey3 is for grey images of 1: leave it out")
        return change_all(data, self.summary, lambda s: replace(s, images=s.images.repeat(1, 3, 1, 1)))


@keyed_as("Coloured")
@dataclass(frozen=True)
class _Coloured(Variant):
    """Digits on coloured backgrounds; abstract.

    ``jitter`` is the largest shift of R, G and B, a share of 255; ``seed`` decides shifts and random colours.
    """

    jitter: float = 0.1
    seed: int = 0

    kind: ClassVar[str]  #: what it is called in the names of data
    by_class: ClassVar[bool] = False  #: whether the colour is that of the class, and not drawn
    targets_colour: ClassVar[bool] = False  #: whether the label is the colour's, and not the digit's
    digits: ClassVar[bool] = True  #: whether the digit is painted

    def __post_init__(self) -> None:
        if not (math.isfinite(self.jitter) and 0 <= self.jitter <= 1):
            raise DataError(f"a jitter of {self.jitter:g}; valid: 0 to 1, such as 0.1 for 10 % of the range of colours")

    @property
    def summary(self) -> str:
        """The kind, and what is not as in the paper."""
        jitter = "" if self.jitter == 0.1 else f", jitter {100 * self.jitter:g} %"
        return f"{self.kind}{jitter}{f' (seed {self.seed})' if self.seed else ''}"

    def __call__(self, data: Data) -> Data:
        """Return the data in colour."""
        check_pictures("colour", data.example)
        if not 2 <= len(data.classes) <= len(BASE_COLOURS):
            raise DataError(
                f"{data.name} has {len(data.classes)} classes, and there are {len(BASE_COLOURS)} base colours; give "
                f"data of 2 to {len(BASE_COLOURS)} classes"
            )
        return change_all(data, self.summary, self._change)

    def _change(self, samples: Samples) -> Samples:
        _check_grey(samples)
        random = generator("variant", "colours", samples.image_fingerprint, self.seed)
        drawn = torch.randint(len(samples.classes), (len(samples),), generator=random)
        shifts = (2 * torch.rand(len(samples), 3, generator=random) - 1) * 255 * self.jitter
        drawn = drawn.to(samples.labels.device)
        colours = samples.labels if self.by_class else drawn
        backgrounds = (torch.tensor(BASE_COLOURS)[colours.cpu()] + shifts).clamp_(0, 255).round_().to(torch.uint8)
        white = samples.images[:, 0] != 0
        images = _paint(backgrounds.to(samples.images.device), white if self.digits else torch.zeros_like(white))
        return replace(samples, images=images, labels=drawn if self.targets_colour else samples.labels)


@keyed_as("Correlated")
@final
@dataclass(frozen=True)
class Correlated(_Coloured):
    """Digits whose background colour is their class's: shape and colour both tell the class."""

    kind: ClassVar[str] = "correlated"
    by_class: ClassVar[bool] = True


@keyed_as("Digit")
@final
@dataclass(frozen=True)
class Digit(_Coloured):
    """Digits on a background of any colour, drawn uniformly; the digit is the target."""

    kind: ClassVar[str] = "digit"


@keyed_as("Colour")
@final
@dataclass(frozen=True)
class Colour(_Coloured):
    """Digits on a background of any colour, drawn uniformly; the colour is the target."""

    kind: ClassVar[str] = "colour"
    targets_colour: ClassVar[bool] = True


@keyed_as("ColourOnly")
@final
@dataclass(frozen=True)
class ColourOnly(_Coloured):
    """A colour, drawn uniformly, and no digit; the colour is the target."""

    kind: ClassVar[str] = "colour only"
    targets_colour: ClassVar[bool] = True
    digits: ClassVar[bool] = False


def _check_grey(samples: Samples) -> None:
    images = samples.images
    if images.shape[1] != 1 and not (images.shape[1] == 3 and bool((images == images[:, :1]).all())):
        raise DataError(
            f"images of {samples.name} have {images.shape[1]} channels and are not grey; colours are painted on grey "
            "digits, such as those of mnist or digits"
        )


def _paint(backgrounds: Tensor, white: Tensor) -> Tensor:
    """Return images (N, 3, H, W) uint8: white where told, else the background (N, 3)."""
    out = torch.empty((len(white), 3, *white.shape[1:]), dtype=torch.uint8, device=white.device)
    for start in range(0, len(white), _CHUNK):
        part = slice(start, start + _CHUNK)
        out[part] = torch.where(white[part, None], 255, backgrounds[part, :, None, None])
    return out
