"""Changes of a data set: the same data with one thing changed, a rectangle of every image, or two sets stacked.

A change is applied to the samples of a role. One that spoils a network's training changes the *training*
roles, fit and validation, and leaves score unchanged: the network's gaps show on the true data. One that sets
another task, or makes another kind of image, changes every role. Write your own by extending ``Variant``.
"""

import difflib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.common.validation import check_kind
from suture.data.images import check_pictures
from suture.data.roles import Data
from suture.data.samples import Samples
from suture.data.tasks import Task

__all__ = ["VARIANTS", "Covered", "Variant", "class_index", "list_names", "stack", "vary"]

_SCALED = 256  #: images scaled at once, to bound the memory of their floats


@keyed_as("Variant")
class Variant(ABC):
    """One change of a data set: a function from ``Data`` to ``Data``, with its settings.

    ``everywhere`` is whether it changes score too, and not the training roles alone; ``tasks`` are those
    whose labels it can change, none if it leaves labels alone.
    """

    everywhere = True
    tasks: ClassVar[tuple[Task, ...]] = ()

    @property
    @abstractmethod
    def summary(self) -> str:
        """The few words that go into the names of the data and of the samples it changes: ``without truck``."""

    @abstractmethod
    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the changed samples of one role of the data. Raises ``DataError`` if they cannot be changed so."""

    def __call__(self, data: Data) -> Data:
        """Return the changed data; the given data stay unchanged. Raises ``DataError`` if they cannot be changed so."""
        if self.tasks and not isinstance(data.fit.task, tuple(map(type, self.tasks))):
            raise DataError(
                f"'{self.summary}' needs a class for each sample, and the task of {data.name} is {data.fit.task.name}; "
                "change the labels before load_data"
            )
        if data.fit.sent is not None:
            raise DataError(
                f"'{self.summary}' changes images that all networks read, and {data.name} has a view for each network; "
                "change the arrays before load_views"
            )
        name = f"{data.name} {self.summary}"
        changed: dict[str, Any] = {}
        for role in ("fit", "validation", "score") if self.everywhere else ("fit", "validation"):
            samples: Samples = getattr(data, role)
            ours = samples.name.startswith(f"{data.name}/")
            renamed = f"{name}{samples.name.removeprefix(data.name)}" if ours else f"{samples.name} ({name})"
            changed[role] = replace(self.change(samples, data), name=renamed)
        return replace(data, name=name, **changed)


def vary(data: Data, *variants: Variant) -> Data:
    """Apply variants in order, the first one first."""
    for variant in variants:
        data = variant(data)
    return data


def class_index(name: str, data: Data, what: str) -> int:
    """Return the label of a class by its name. Raises ``DataError`` with the nearest name if the data lack it."""
    check_kind(what, name, str, "the name of a class")
    check_kind("data", data, Data, "data with classes: load_data(…)")
    if name not in data.classes:
        near = difflib.get_close_matches(name, data.classes, n=1)
        meant = f"did you mean '{near[0]}'? " if near else ""
        raise DataError(f"{what}: {data.name} has no class '{name}'; {meant}its classes: {list_names(data.classes)}")
    return data.classes.index(name)


def list_names(names: tuple[str, ...], most: int = 20) -> str:
    """Return names for a message, the first of them if there are very many."""
    more = f", … ({len(names)} in all)" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more


# --- parts of images --------------------------------------------------------------------------------------------------


@keyed_as("Covered")
@final
@dataclass(frozen=True)
class Covered(Variant):
    """A rectangle of every image set to one value: a region blacked out, or a trigger.

    ``top`` and ``left`` are where it begins and ``height`` and ``width`` how large it is, in pixels; ``value`` is in
    [0, 1], as raw images are. Changes every role. Raises ``DataError`` if it is empty, or not within the images.
    """

    top: int
    left: int
    height: int
    width: int
    value: float = 0.0

    def __post_init__(self) -> None:
        if min(self.top, self.left) < 0 or min(self.height, self.width) < 1:
            place = f"{self.height}×{self.width} pixels at ({self.top}, {self.left})"
            raise DataError(f"{place}: a rectangle begins at 0 or later and is at least 1×1 pixels large")
        if not (math.isfinite(self.value) and 0 <= self.value <= 1):
            raise DataError(f"a region of value {self.value:g}; valid: 0 (black) to 1, whatever the images' type")

    @property
    def summary(self) -> str:
        """How large it is, where, and its value if it is not black."""
        colour = "blacked out" if self.value == 0 else f"set to {self.value:g}"
        return f"with {self.height}×{self.width} pixels at ({self.top}, {self.left}) {colour}"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples with the rectangle in every image."""
        check_pictures("a rectangle", samples.images)
        height, width = samples.images.shape[2:]
        bottom, right = self.top + self.height, self.left + self.width
        if bottom > height or right > width:
            raise DataError(
                f"{self.summary}: images of {data.name} are {height}×{width}; the rectangle must lie within"
            )
        images = samples.images.clone()
        images[:, :, self.top : bottom, self.left : right] = (
            round(255 * self.value) if images.dtype == torch.uint8 else self.value
        )
        return replace(samples, images=images)


# --- two data sets in one image ---------------------------------------------------------------------------------------


def stack(upper: Data, lower: Data, name: str | None = None) -> Data:
    """Put images of one data set above those of another, in each role, class *i* with class *i*: MNIST-CIFAR.

    oxford2025, section 4.3, shows an image 64 pixels high and 32 wide (its fully connected layer reads 16 × 13 × 5
    values) and does not say which half is on top; here the digit, as in the MNIST-CIFAR of Shah et al. 2020, *The
    Pitfalls of Simplicity Bias in Neural Networks*. Stacked images are recognised by their shape, twice as high as
    wide.

    The upper images are scaled to the lower ones' size, which must be square (bilinear, smoothed if they shrink);
    grey ones get three channels if the other has them; floats become uint8, to the nearest of 255 levels. Each role
    and class has as many as both data sets have: the k-th of one with the k-th of the other, in the lower's order.
    Labels and classes are the lower's. Raises ``DataError`` if the two differ in how many classes they have, the lower
    images are not square, channels cannot be joined, or a role has no two samples in common.
    """
    for data in (upper, lower):
        check_pictures("putting one above another", data.fit.images)
    height, width = lower.fit.images.shape[2:]
    if height != width:
        raise DataError(
            f"images of {lower.name} are {width}×{height}; the lower half must be square: load them by size="
        )
    if len(upper.classes) != len(lower.classes):
        raise DataError(
            f"{upper.name} has {len(upper.classes)} classes and {lower.name} {len(lower.classes)}; class i is paired "
            "with class i, so give two data sets with equally many"
        )
    channels = {data.fit.images.shape[1] for data in (upper, lower)}
    if len(channels) > 1 and channels != {1, 3}:
        raise DataError(
            f"{upper.name} has {upper.fit.images.shape[1]} channels and {lower.name} {lower.fit.images.shape[1]}; "
            "only grey can be joined with colour, 1 with 3: give both the same"
        )
    name = name or f"{upper.name}+{lower.name}"
    roles = {
        role: _stack_role(getattr(upper, role), getattr(lower, role), f"{name}/{role}", max(channels))
        for role in ("fit", "validation", "score")
    }
    return Data(name, roles["fit"], roles["validation"], roles["score"], apart=upper.apart or lower.apart)


def _stack_role(above: Samples, below: Samples, name: str, channels: int) -> Samples:
    partner = torch.full((len(below),), -1)  # of each lower image, the upper one that it is paired with
    for label in range(len(below.classes)):
        mine, yours = (torch.where(samples.labels.cpu() == label)[0] for samples in (above, below))
        count = min(len(mine), len(yours))
        partner[yours[:count]] = mine[:count]
    lower = torch.where(partner >= 0)[0]
    if len(lower) < 2:
        raise DataError(
            f"{above.name} and {below.name} share {len(lower)} samples, class by class, and 2 are needed; give more"
        )
    size = below.images.shape[2]
    images = torch.empty((len(lower), channels, 2 * size, size), dtype=torch.uint8, device=below.images.device)
    for part in torch.split(torch.arange(len(lower)), _SCALED):
        for half, samples, indices in ((slice(size), above, partner[lower]), (slice(size, None), below, lower)):
            images[part, :, half] = _scale(samples.images[indices[part].to(samples.images.device)], size)
    return replace(below, name=name, images=images, labels=below.labels[lower.to(below.labels.device)])


def _scale(images: Tensor, size: int) -> Tensor:
    """Return images (N, C, size, size) in 0..255, uint8."""
    if images.dtype == torch.uint8 and images.shape[2:] == (size, size):
        return images
    pixels = images.float() if images.dtype == torch.uint8 else images.float() * 255
    if pixels.shape[2:] != (size, size):
        pixels = F.interpolate(pixels, (size, size), mode="bilinear", antialias=max(pixels.shape[2:]) > size)
    return pixels.clamp(0, 255).round().to(torch.uint8)


VARIANTS: dict[str, type[Variant] | Variant] = {"covered": Covered}
"""Every change, by its name on the command line."""
