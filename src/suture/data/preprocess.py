"""From raw images to what a network was trained on.

Raw images are ``(N, C, H, W)``: ``uint8`` in 0..255 or floats in [0, 1]. A network owns the way from there to its
first layer (resizing, channels, normalisation), so that two networks are fed the same raw images.
Instead of images there may be token ids, ``(N, T)`` int64, which pass unchanged.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suture.common.errors import DataError
from suture.common.hashing import keyed_as

Preprocessing = Callable[[Tensor], Tensor]


def are_token_ids(raw: Tensor) -> bool:
    """Return whether what a network is fed are sequences of token ids, ``(N, T)`` int64, rather than images."""
    return raw.ndim == 2 and raw.dtype == torch.int64


def things(raw: Tensor) -> str:
    """Return what samples are called: images, or sequences of token ids."""
    return "sequences" if are_token_ids(raw) else "images"


def sizes(raw: Tensor) -> str:
    """Return how large each sample is: ``3×32×32`` of images, ``64 tokens`` of sequences."""
    shape = "×".join(map(str, raw.shape[1:]))
    return f"{shape} tokens" if are_token_ids(raw) else shape


def check_pictures(what: str, raw: Tensor, instead: str = "leave it out") -> None:
    """Raise ``DataError`` for token ids if ``what`` is meant for images."""
    if are_token_ids(raw):
        raise DataError(f"{what} is for images, and these are token ids; {instead}")


def as_given(raw: Tensor) -> Tensor:
    """Bring raw images to floats in [0, 1]; token ids pass unchanged. Raises ``DataError`` as ``as_floats`` does."""
    return raw if are_token_ids(raw) else as_floats(raw)


def as_floats(images: Tensor) -> Tensor:
    """Bring raw images to floats in [0, 1]; floats pass unchanged.

    Raises ``DataError`` for any other type, whose range nobody can know.
    """
    if are_token_ids(images):
        raise DataError("token ids are no images: they have no brightness, and no gradient")
    if images.is_floating_point():
        return images
    if images.dtype != torch.uint8:
        raise DataError(f"raw images are uint8 in 0..255 or floats in [0, 1], not {images.dtype}; convert them")
    return images.float() / 255


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
        if any(s <= 0 for s in self.std):
            raise DataError(f"preprocessing with std={self.std}: every standard deviation must be above 0")

    def __call__(self, images: Tensor) -> Tensor:
        """Map float images ``(N, C, H, W)`` to what the first layer takes; token ids to themselves.

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

    def forward(self, images: Tensor) -> Tensor:
        """Prepare images; a copy of them, if the preprocessing is the user's and might write to it."""
        given = as_given(images)
        if given is images and not isinstance(self.preprocess, Preprocess):
            given = images.clone()
        prepared = self.preprocess(given)
        return prepared if self.dtype is None else prepared.to(self.dtype)
