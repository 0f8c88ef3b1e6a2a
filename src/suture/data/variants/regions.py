"""Variants that change the same place of every image: a region blacked out (oxford2025, section 4.3), or a trigger."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.data.preprocess import check_pictures
from suture.data.samples import Data, Samples
from suture.data.variants.base import Variant, change_all


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

    def __call__(self, data: Data) -> Data:
        """Return the data with the rectangle in every image."""
        check_pictures("a rectangle", data.example)
        height, width = data.fit.images.shape[2:]
        if self.top + self.height > height or self.left + self.width > width:
            raise DataError(
                f"{self.summary}: images of {data.name} are {height}×{width}; the rectangle must lie within"
            )

        def change(samples: Samples) -> Samples:
            images = samples.images.clone()
            value = round(255 * self.value) if images.dtype == torch.uint8 else self.value
            images[:, :, self.top : self.top + self.height, self.left : self.left + self.width] = value
            return replace(samples, images=images)

        return change_all(data, self.summary, change)
