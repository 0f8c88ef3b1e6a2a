"""Raw images and sequences of token ids, as tensors: their kinds and sizes in words, checks, and content.

Images are ``(N, C, H, W)``, uint8 in 0..255 or floats in [0, 1]. Sequences are ``(N, T)`` int64, or with masks and such
``(N, columns, T)`` (``data.inputs``).
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.mapped import pieces
from suture.data.inputs import Inputs, content_of, counted
from suture.data.tasks import Task

MANY = 2**20  #: classes, at most; more come of a label that is none
BEYOND = 0.5  #: by which floats may leave [0, 1], as an attack makes them; normalised ones leave it further


def are_token_ids(raw: Tensor) -> bool:
    """Return whether a network is fed sequences of token ids, ``(N, T)`` int64, rather than images.

    With their masks and such they are ``(N, columns, T)``.
    """
    return raw.ndim in (2, 3) and raw.dtype == torch.int64


def things(raw: Tensor) -> str:
    """Return the word for samples: images, or sequences of token ids."""
    return "sequences" if are_token_ids(raw) else "images"


def sizes(raw: Tensor) -> str:
    """Return the size of each sample in words: ``3×32×32`` of images, ``64 tokens`` of sequences."""
    return f"{raw.shape[-1]} tokens" if are_token_ids(raw) else "×".join(map(str, raw.shape[1:]))


def check_pictures(what: str, raw: Tensor, instead: str = "leave it out") -> None:
    """Raise ``DataError`` for token ids if the thing named is meant for images."""
    if are_token_ids(raw):
        raise DataError(f"{what} is for images, and these are token ids; {instead}")


def as_given(raw: Tensor) -> Tensor:
    """Convert raw images to floats in [0, 1]; token ids pass unchanged. Raises ``DataError`` as ``as_floats`` does."""
    return raw if are_token_ids(raw) else as_floats(raw)


def as_floats(images: Tensor) -> Tensor:
    """Convert raw images to floats in [0, 1]; floats pass unchanged.

    Raises ``DataError`` for any other type, whose range is unknown.
    """
    if are_token_ids(images):
        raise DataError("token ids are not images: they have no brightness, and no gradient")
    if images.is_floating_point():
        return images
    if images.dtype != torch.uint8:
        raise DataError(f"raw images are uint8 in 0..255 or floats in [0, 1], not {images.dtype}; convert them")
    return images.float() / 255


def as_compared(raw: Tensor) -> Iterator[Tensor]:
    """Yield each sample as one of flat numbers in which equal images are equal, whatever type they were given in.

    Floats that are all k / 255, up to the rounding of their type, are bytes; other floats are compared as float32.
    Half precision distinguishes less: float16 may be 1/8 of a level off, and bfloat16 always counts as bytes.
    Token ids stay as they are, with the columns beside them.
    """
    flat = raw.cpu().flatten(1)
    if not raw.is_floating_point():
        yield from flat.contiguous()
        return
    whole = (flat.double() * 255).round()
    off = max(torch.finfo(raw.dtype).eps / 2, torch.finfo(torch.float32).eps)  # x * (1 / 255) rounds twice
    are_bytes = ((flat.double() - whole / 255).abs() <= off).all(1)
    for is_bytes, floats, of_bytes in zip(are_bytes, flat.float() + 0.0, whole.to(torch.uint8), strict=True):
        yield of_bytes if is_bytes else floats  # adding 0 made one zero of two


def check_images(name: str, images: Tensor, inputs: Inputs = ()) -> None:
    """Raise ``DataError`` unless there are two or more raw images, or sequences of token ids.

    Images are (N, C, H, W), uint8 or floats in [0, 1]; token ids are (N, T), int64, from 0, or with their masks and
    such (N, columns, T), a column for each of ``inputs``.
    """
    if not isinstance(images, Tensor):
        raise DataError(f"images of {name!r} are a {type(images).__name__}; they must be a torch tensor (N, C, H, W)")
    tokens = are_token_ids(images) and tuple(images.shape[1:-1]) == ((len(inputs),) if inputs else ())
    if tokens and not images.shape[-1]:
        raise DataError(f"the sequences of {name!r} are empty; give each at least one token")
    if not (images.ndim == 4 or tokens) or 0 in images.shape[1:]:
        raise DataError(
            f"images of {name!r} are {images.dtype} of shape {tuple(images.shape)}; they must be (N, C, H, W), none "
            "empty: give grey images a channel axis with images.unsqueeze(1), token ids as (N, T) int64"
        )
    if len(images) < 2:
        count = f"{len(images)} sample{'' if len(images) == 1 else 's'}"
        raise DataError(f"{name!r} has {count}; at least 2 are needed: give it more data")
    there = counted(images, inputs) if tokens else None
    if there is not None and not bool(there.any(1).all()):
        raise DataError(f"every position of a sequence of {name!r} is masked; leave it out")
    if tokens and (lowest := int((content_of(images) if there is None else content_of(images)[there]).min())) < 0:
        raise DataError(
            f"token ids of {name!r} begin at {lowest}; they are rows of an embedding and begin at 0: for padded "
            "sequences, give an attention_mask that is 0 at the padding"
        )
    if images.is_floating_point():
        check_range(f"images of {name!r}", images)
    elif not tokens and images.dtype != torch.uint8:
        raise DataError(
            f"images of {name!r} have dtype {images.dtype}; they must be uint8 in 0..255 or floats in "
            "[0, 1]: convert them with images.to(torch.uint8) or images / 255"
        )


def has_channels_last(images: Tensor) -> bool:
    """Return whether images are (N, H, W, C), as arrays mostly are: 1 or 3 channels, at the end and nowhere else."""
    return images.ndim == 4 and images.shape[3] in (1, 3) and min(images.shape[1:3]) >= 8


def check_range(what: str, images: Tensor, beyond: float = 0.0) -> None:
    """Raise ``DataError`` unless float images are finite and in [0, 1], or not further than ``beyond`` from it."""
    bounds = torch.stack([torch.stack(torch.aminmax(part)) for part in pieces(images, 1024)])
    low, high = (bound.item() for bound in torch.aminmax(bounds))
    if not (low >= -beyond and high <= 1 + beyond):  # written so that NaN, which aminmax passes on, is refused too
        raise DataError(
            f"{what} range from {low:g} to {high:g}; floats must be finite and in [0, 1]: divide 0..255 by 255, and "
            "leave normalisation to the network, which owns its preprocessing"
        )


def check_brightness(name: str, images: Tensor) -> None:
    """Raise ``DataError`` for images that would be all but black, because they were meant for another range."""
    told = images.dtype == torch.uint8 or images.is_floating_point()
    brightest = max(float(part.max()) for part in pieces(images)) if told and images.numel() else 0.0
    if images.dtype == torch.uint8 and brightest == 1:
        raise DataError(
            f"images of {name!r} are uint8 and hold 0 and 1 alone; uint8 is read as 0..255, so they would be "
            "nearly black: give images.float(), or images * 255"
        )
    if images.is_floating_point() and 0 < brightest < 1.001 / 255:
        raise DataError(
            f"images of {name!r} are floats of at most {brightest:g}, nearly black; divide 0..255 by 255 once, not "
            "twice"
        )


def check_labels(name: str, labels: Tensor, count: int, classes: tuple[str, ...], task: Task) -> None:
    """Raise ``DataError`` unless there are labels for so many samples, such as the task takes."""
    if not isinstance(labels, Tensor):
        what = "none" if labels is None else f"a {type(labels).__name__}"
        raise DataError(
            f"{name!r} is data without labels ({what} given); each image needs the index of its class: pass "
            "labels as an int64 tensor (N,), or task=OwnOutputs() to compare networks without labels"
        )
    if len(labels.shape) == 0 or len(labels) != count:
        raise DataError(
            f"labels of {name!r} have shape {tuple(labels.shape)}; its {count} samples need labels of shape "
            f"({count},), one class index each"
        )
    task.check(name, labels, classes)


def number_classes(*labels: Tensor) -> tuple[str, ...]:
    """Return names for classes that have none: ``"0"`` to the highest label."""
    return name_numbers(max((int(part.max()) for part in labels if len(part)), default=-1) + 1, "the highest label is")


def name_numbers(count: int, because: str) -> tuple[str, ...]:
    """Return the names of so many classes, ``"0"``, ``"1"``, …

    Raises ``DataError`` if there are more than ``MANY``; ``because`` begins to say why there are so many.
    """
    if count > MANY:
        raise DataError(
            f"{because} {count - 1:,}, and at most {MANY:,} classes can be told apart; number them from 0: "
            "labels.unique(return_inverse=True)[1]"
        )
    return tuple(map(str, range(count)))


def tensor_digest(tensor: Tensor) -> str:
    """Return a SHA-256 over dtype, shape and values; a tensor that is not contiguous is copied a part at a time."""
    content = hashlib.sha256(repr((tensor.dtype, tuple(tensor.shape))).encode())
    for part in pieces(tensor):
        content.update(part.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()
