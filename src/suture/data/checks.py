"""Checks of labelled images, before any work is done on them."""

from collections.abc import Iterator

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.data.preprocess import are_token_ids, things

SHARED = 0.1  #: of the test images, at most, may be among those trained on; real data sets repeat a few
FEW = 50  #: with fewer test images somebody tries a program, and may use any


def check_images(name: str, images: Tensor) -> None:
    """Raise ``DataError`` unless there are two or more raw images, or sequences of token ids.

    Images are (N, C, H, W), uint8 or floats in [0, 1]; token ids are (N, T), int64, from 0.
    """
    if not isinstance(images, Tensor):
        raise DataError(f"images of {name!r} are a {type(images).__name__}; they must be a torch tensor (N, C, H, W)")
    tokens = are_token_ids(images)
    if tokens and not images.shape[1]:
        raise DataError(f"the sequences of {name!r} are empty; give each at least one token")
    if not (images.ndim == 4 or tokens) or 0 in images.shape[1:]:
        raise DataError(
            f"images of {name!r} are {images.dtype} of shape {tuple(images.shape)}; they must be (N, C, H, W), none "
            "empty: give grey images a channel axis with images.unsqueeze(1), token ids as (N, T) int64"
        )
    if len(images) < 2:
        raise DataError(f"{name!r} has {_count(len(images))}; at least 2 are needed: give it more data")
    if tokens:
        _check_tokens(name, images)
        return
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise DataError(
            f"images of {name!r} have dtype {images.dtype}; they must be uint8 in 0..255 or floats in "
            "[0, 1]: convert them with images.to(torch.uint8) or images / 255"
        )
    if images.is_floating_point():
        _check_range(name, images)


def _check_tokens(name: str, ids: Tensor) -> None:
    if int(ids.min()) < 0:
        raise DataError(
            f"token ids of {name!r} begin at {int(ids.min())}; they are rows of an embedding and begin at 0: cut "
            "sequences to one length rather than fill them up"
        )


def check_brightness(name: str, images: Tensor) -> None:
    """Raise ``DataError`` for images that are all but black, because their numbers mean another range."""
    told = images.dtype == torch.uint8 or images.is_floating_point()
    brightest = float(images.max()) if told and images.numel() else 0.0
    if images.dtype == torch.uint8 and brightest == 1:
        raise DataError(
            f"images of {name!r} are uint8 and hold 0 and 1 alone; uint8 is read as 0..255, so they would be all but "
            "black: give images.float(), or images * 255"
        )
    if images.is_floating_point() and 0 < brightest < 1.001 / 255:
        raise DataError(
            f"images of {name!r} are floats of at most {brightest:g}, all but black; divide 0..255 by 255 once, not "
            "twice"
        )


def _check_range(name: str, images: Tensor) -> None:
    low, high = (bound.item() for bound in torch.aminmax(images.detach()))
    if not (low >= 0 and high <= 1):  # written so that NaN, which aminmax passes on, is refused too
        raise DataError(
            f"images of {name!r} range from {low:g} to {high:g}; floats must be finite and in [0, 1]: divide "
            "0..255 by 255, and leave normalisation to the network, which owns its preprocessing"
        )


def check_labels(name: str, labels: Tensor, count: int, classes: tuple[str, ...]) -> None:
    """Raise ``DataError`` unless there are ``count`` int64 labels, each an index into ``classes``."""
    if not isinstance(labels, Tensor):
        what = "none" if labels is None else f"a {type(labels).__name__}"
        raise DataError(
            f"{name!r} is data without labels ({what} given); each image needs the index of its class: pass "
            "labels as an int64 tensor (N,)"
        )
    if labels.dtype != torch.int64:
        raise DataError(
            f"labels of {name!r} have dtype {labels.dtype}; they must be class indices of dtype torch.int64: "
            "convert integers with labels.long()"
        )
    if labels.shape != (count,):
        raise DataError(
            f"labels of {name!r} have shape {tuple(labels.shape)}; its {_count(count)} need labels of shape "
            f"({count},), one class index each"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= len(classes):
        raise DataError(
            f"labels of {name!r} range from {low} to {high}; its {len(classes)} classes allow 0 to "
            f"{len(classes) - 1}: name every class in classes, and leave out samples without a label"
        )


def check_apart(name: str, train: Tensor, test: Tensor) -> None:
    """Raise ``DataError`` if more than ``SHARED`` of the test images are among those trained on."""
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype or len(test) < FEW:
        return
    known = set(_contents(train))
    shared = sum(content in known for content in _contents(test))
    if shared > SHARED * len(test):
        raise DataError(
            f"{shared:,} of the {len(test):,} test {things(test)} of {name!r} are among its training {things(test)}: "
            f"what is fitted to one must not be scored on it; give test {things(test)} of their own"
        )


def _contents(images: Tensor) -> Iterator[int]:
    """Yield a hash of each image."""
    for part in torch.split(images.detach(), 1024):
        content = part.cpu().contiguous().flatten(1).view(torch.uint8).numpy()
        yield from (hash(image.tobytes()) for image in content)


def _count(count: int) -> str:
    return f"{count} sample{'' if count == 1 else 's'}"
