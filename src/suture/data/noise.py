"""Clustered noise: a sender that is not a network and knows only the class of each image.

Every class has one centre, uniform in [0, 1) at every coordinate of the tensor that the stitch reads; a sample is its
class's centre plus Gaussian noise, clamped to [0, 1]. Centres are the same for all data, the noise never is. A stitch
that does as well with it as with a trained sender shows how the receiver uses class identity, not how the sender
represents the data. smith2024, appendix A, algorithms 1 and 2 (which do not give the scale of the noise; here 0.1).

Here every sample of a data set gets noise of its own class, so sizes and roles are those of the data, and it is joined
to the receiver's activation of the same image. If pairs are broken, the noise stays that of the sender's own sample, as
a network's activations do.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor

from suture.common.constants import CHUNK
from suture.common.errors import DataError, ShapeError
from suture.common.hashing import keyed_as
from suture.common.seeds import digest, generator
from suture.data import Samples

SCALE = 0.1  #: of the noise, where centres lie in [0, 1]
_REMEDY = "stitch a network instead, or leave out controls.clustered_noise"


@keyed_as("ClusteredNoise")
@final
@dataclass(frozen=True)
class ClusteredNoise:
    """A sender of noise around one random centre per class.

    ``shape`` is that of its activations, without the batch; ``classes`` how many there are, one centre each; ``scale``
    the standard deviation of the noise before it is clamped; ``seed`` decides centres and noise. Raises ``DataError``
    for fewer than two classes or a scale that is negative or not finite, ``ShapeError`` for an empty shape.
    """

    shape: tuple[int, ...]
    classes: int
    scale: float = SCALE
    seed: int = 0

    name: ClassVar[str] = ""  #: the table's sender: there is none

    def __post_init__(self) -> None:
        if not isinstance(self.shape, tuple) or isinstance(self.shape, torch.Size):
            object.__setattr__(self, "shape", tuple(self.shape))  # not of a cut's, which has a layout of tokens
        if not self.shape or min(self.shape) < 1:
            raise ShapeError(f"clustered noise of shape {self.shape} is empty; give a receiver's cut.shape")
        if self.classes < 2:
            raise DataError(
                f"clustered noise needs class labels, at least 2 classes, and there are {self.classes}; {_REMEDY}"
            )
        if not (math.isfinite(self.scale) and self.scale >= 0):
            raise DataError(f"clustered noise of scale {self.scale:g}; valid: 0 or more, for instance {SCALE:g}")

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over everything that decides the activations, in hexadecimal."""
        return digest("clustered noise", self.shape, self.classes, float(self.scale), self.seed)

    @cached_property
    def centres(self) -> Tensor:
        """The centres, ``(classes, *shape)``, float32 in [0, 1)."""
        random = generator("clustered noise", "centres", self.seed, self.shape)
        return torch.rand((self.classes, *self.shape), generator=random, dtype=torch.float32)

    def activations(self, samples: Samples) -> Tensor:
        """Draw the noise for samples, ``(n, *shape)``, float32 in [0, 1]: each its own label's centre and noise.

        It depends on the samples' images and labels alone, not on their pairs, their name, or what was drawn before.
        Raises ``DataError`` if the samples have other classes.
        """
        self.check(samples)
        centres, labels = self.centres, samples.labels.cpu()
        random = generator("clustered noise", "noise", self.seed, samples.image_fingerprint)
        out = torch.empty((len(samples), *self.shape))
        for start in range(0, len(samples), CHUNK):
            part = out[start : start + CHUNK]
            part.normal_(generator=random).mul_(self.scale)
            part.add_(centres[labels[start : start + CHUNK]]).clamp_(0, 1)
        return out

    def check(self, samples: Samples) -> None:
        """Raise ``DataError`` if the samples have another number of classes than there are centres."""
        if len(samples.classes) != self.classes:
            raise DataError(
                f"clustered noise has a centre for each of {self.classes} classes, but {samples.name} has "
                f"{len(samples.classes)}; make it with classes={len(samples.classes)}"
            )

    def check_fit(self, samples: Samples) -> None:
        """Raise ``DataError`` if all samples are of one class, so that there are no clusters to tell apart."""
        first = samples.labels[0]
        if bool((samples.labels == first).all()):
            raise DataError(
                f"clustered noise needs class labels, and all {len(samples)} samples of {samples.name} are of class "
                f"'{samples.classes[first]}'; give data of at least 2 classes, or {_REMEDY}"
            )
