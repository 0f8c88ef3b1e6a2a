"""Decode images (PNG, JPEG, …) into one tensor; only this file knows PIL.

Pixels come out as the file says: 8 bits a channel, grey if every image is grey, else RGB (alpha is
dropped, palettes are looked up). A rotation noted in a photograph's EXIF is applied, as ``datasets`` does.
"""

from collections.abc import Iterable
from io import BytesIO
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from suture.common.errors import DataError

_GREY_MODES = ("1", "LA", "La")  # PIL's modes of grey images besides "L"
_DEEP_MODES = ("I", "F")  # the first letter of PIL's modes of more than 8 bits: "I", "I;16", "F", …


class Encoded(TypedDict):
    """An encoded image as ``datasets`` stores it: its bytes, or where they lie."""

    bytes: bytes | None
    path: str | None


def decode_images(rows: Iterable[Encoded | None], count: int, *, name: str, size: int | None) -> Tensor:
    """Decode ``count`` images to a uint8 tensor (N, C, H, W), C = 1 if all are grey, else 3.

    ``size`` resizes each to ``size`` × ``size`` pixels (bilinear; the aspect ratio is not kept). Raises
    ``DataError`` when an image cannot be decoded, or when sizes differ and no ``size`` is given.
    """
    if size is not None and size < 1:
        raise DataError(f"size={size} of {name!r} is no size to resize images to; give a side of 1 pixel or more")
    pixels = np.empty((0, 0, 0, 0), np.uint8)
    for index, row in enumerate(rows):
        image = _decode(row, f"image {index} of {name!r}", size)
        if index == 0:
            pixels = np.empty((count, *image.shape), np.uint8)
        if image.shape[1:] != pixels.shape[2:]:
            raise DataError(
                f"image {index} of {name!r} is {_size(image)} pixels, those before it {_size(pixels)}; all "
                "must have one size: size=… resizes them to size × size"
            )
        if len(image) > pixels.shape[1]:
            pixels = np.repeat(pixels, len(image), axis=1)
        pixels[index] = image
    return torch.from_numpy(pixels)


def _decode(row: Encoded | None, what: str, size: int | None) -> NDArray[np.uint8]:
    """Return one image as (C, H, W)."""
    encoded = row and (row["bytes"] or row["path"])
    if not encoded:
        raise DataError(f"{what} is missing; every sample needs an image: remove its row from the data")
    try:
        with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as opened:
            return _pixels(opened, what, size)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{what} cannot be decoded ({error}); replace it or remove its row") from error


def _pixels(image: Image.Image, what: str, size: int | None) -> NDArray[np.uint8]:
    if image.mode.startswith(_DEEP_MODES):
        raise DataError(
            f"{what} has mode {image.mode!r}, more than 8 bits a channel; convert it to 8 bits, or pass "
            "float tensors in [0, 1] instead"
        )
    if "exif" in image.info:
        image = ImageOps.exif_transpose(image)
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode in _GREY_MODES else "RGB")
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _size(images: NDArray[Any]) -> str:
    return f"{images.shape[-1]}×{images.shape[-2]}"
