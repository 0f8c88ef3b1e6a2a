"""Preprocessing of raw images into a network's inputs: resizing, channels and normalisation.

Every network owns its preprocessing. Token ids pass unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Self

import torch
from torch import Tensor, nn

from suture.common.errors import DataError
from suture.common.hashing import keyed_as
from suture.data.images import BEYOND, are_token_ids, as_given, check_pictures, check_range

Preprocessing = Callable[[Tensor], Tensor]


@keyed_as("Preprocess")
@dataclass(frozen=True)
class Preprocess:
    """Resizing, channels and normalisation, in this order, on float images in [0, 1].

    ``size`` is the side in pixels to resize to (bilinear, antialiased; ``None`` keeps it), ``channels`` is 3 to repeat
    a grey image (``None`` keeps it), ``mean`` and ``std`` are per channel in [0, 1] (one value serves all channels).
    """

    size: int | None = None
    channels: int | None = None
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        for name, side in (("size", self.size), ("channels", self.channels)):
            if side is not None and not (isinstance(side, int) and side > 0):
                raise DataError(f"preprocessing with {name}={side!r}: give a whole number above 0, or None")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not isinstance(values, tuple | list):
                raise DataError(
                    f"preprocessing with {name}={values!r:.80}: give a tuple of one number, {name}=(0.5,), or of one "
                    "for each channel"
                )
            if not values or not all(isinstance(value, Real) for value in values):
                raise DataError(f"preprocessing with {name}={values!r}: give one number, or one for each channel")
        if any(s <= 0 for s in self.std):
            raise DataError(f"preprocessing with std={self.std}: every standard deviation must be above 0")

    def __call__(self, images: Tensor) -> Tensor:
        """Map float images ``(N, C, H, W)`` to inputs of the first layer; return token ids unchanged.

        Raises ``DataError`` when the images' channels do not suit ``channels``, ``mean`` or ``std``, or when token ids
        are to be resized or normalised.
        """
        if are_token_ids(images):
            if self != Preprocess():
                check_pictures(str(self), images, "leave the preprocessing out")
            return images
        if self.size is not None and images.shape[-2:] != (self.size, self.size):
            images = torch.nn.functional.interpolate(
                images, size=(self.size, self.size), mode="bilinear", antialias=True
            )
        if self.channels is not None and images.shape[1] != self.channels:
            if images.shape[1] != 1:
                raise DataError(
                    f"preprocessing cannot turn {images.shape[1]} channels into {self.channels}; only a grey image "
                    "(1 channel) can be repeated"
                )
            images = images.expand(-1, self.channels, -1, -1)
        return (images - self._per_channel(self.mean, images)) / self._per_channel(self.std, images)

    def _per_channel(self, values: tuple[float, ...], images: Tensor) -> Tensor:
        if len(values) not in (1, images.shape[1]):
            raise DataError(
                f"preprocessing normalises {len(values)} channels, but the images have {images.shape[1]}; give one "
                f"value for all, one for each, or channels={len(values)} to repeat a grey image"
            )
        return torch.tensor(values, dtype=images.dtype, device=images.device).view(1, -1, 1, 1)


@keyed_as("Prepare")
class Prepare(nn.Module):
    """From raw images or token ids to the model's input, which has the floating type ``dtype`` if one is given."""

    def __init__(self, preprocess: Preprocessing, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.preprocess, self.dtype = preprocess, dtype

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> Self:
        """Bring the type along with the tensors: float32, unless another is given."""
        made = fn(torch.empty(0, dtype=self.dtype or torch.float32)).dtype
        self.dtype = None if self.dtype is None and made == torch.float32 else made
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Prepare images, or a copy of them if the preprocessing is the user's and might write to it.

        Raises ``DataError`` for floats that are not raw images.
        """
        if images.is_floating_point() and not torch.compiler.is_compiling():  # which no value decides
            check_range("the images that a network is given", images, BEYOND)
        given = as_given(images)
        if given is images and not isinstance(self.preprocess, Preprocess):
            given = images.clone()
        prepared = self.preprocess(given)
        return prepared if self.dtype is None or are_token_ids(prepared) else prepared.to(self.dtype)
