"""Load whatever the user names as ``Data``, its images raw and decoded once.

Nothing is ever unpickled: tensors and arrays come as such, files in the formats that ``datasets`` parses.
"""

import operator
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from suture.common.errors import DataError
from suture.common.seeds import derive_seed
from suture.data.samples import Data, Samples, check_brightness, number_classes
from suture.data.sources.hub import SOURCES, from_hub
from suture.data.variants.stacked import stack

Array = Tensor | NDArray[Any]
TrainAndTest = tuple[tuple[Array, Array], tuple[Array, Array]]

_DIGITS_SCORED = 597  # of 1,797, so that 1,200 are left to fit and validate on


def load_data(
    source: str | os.PathLike[str] | TrainAndTest = "digits",
    *,
    name: str | None = None,
    classes: Sequence[str] | int | None = None,
    columns: tuple[str, str] | None = None,
    score_split: str | None = None,
    size: int | None = None,
    validation_fraction: float = 0.1,
) -> Data:
    """Load labelled images in their three roles: fit, validation (cut from the training data) and score.

    ``source`` is one of

    - ``"digits"``: scikit-learn's 1,797 handwritten digits, 8×8 grey, embedded; 597, stratified, are score;
    - ``"mnist"``, ``"cifar10"``, or the id of any image-classification data set on the Hugging Face hub;
    - a local folder that ``datasets`` reads (parquet, a folder of images for each class); it wins over an id;
    - two of these joined by ``+``: the images of the first above those of the second (``"mnist+cifar10"``; see
      ``variants.stack``); a folder of that very name wins;
    - tensors or arrays ``((train images, train labels), (test images, test labels))``: images (N, C, H, W) or
      (N, H, W), uint8 in 0..255 or floats in [0, 1] (brought to float32), or sequences of token ids (N, T), integers
      of more than a byte, from 0; labels (N,) integers, for a language model the tokens that come next. All copied.

    ``name`` replaces the source's own; ``classes`` names the classes if the source does not (tensors, columns of
    integers), or says how many there are (default ``"0"`` to the highest label). For the hub and folders: ``columns``
    names the image and the label column if types leave a choice, ``score_split`` the split to score on (default
    ``test``, else ``validation``), ``size`` the side in pixels to resize to while decoding (bilinear, not keeping the
    aspect ratio).

    Samples to score keep their order, unless they lie class by class, as in a folder of images: then they are shuffled,
    always alike. Raises ``DataError`` when the source cannot be found, reached or measured on.
    """
    pair, named = _pair(source), _name_classes(classes)
    if pair is not None:
        _refuse("two sources", classes=classes, columns=columns, score_split=score_split, size=size)
        upper, lower = (load_data(one, validation_fraction=validation_fraction) for one in pair)
        return stack(upper, lower, name)
    match source:
        case str("digits"):
            _refuse("'digits'", classes=classes, columns=columns, score_split=score_split, size=size)
            name = name or "digits"
            train, test = _digits(name)
        case str() | os.PathLike():
            path = os.fspath(source)
            name = name or Path(path).expanduser().resolve().name
            train, test = from_hub(path, name, classes=named, columns=columns, score_split=score_split, size=size)
        case ((_, _), (_, _)):
            _refuse("tensors", columns=columns, score_split=score_split, size=size)
            name = name or "tensors"
            train, test = _from_tensors(name, source, named)
        case _:
            raise DataError(f"cannot load data from {_in_words(source)}; {SOURCES}")
    return Data.split(name, train, test, validation_fraction)


def _pair(source: object) -> tuple[str, str] | None:
    """Return the two sources that ``A+B`` names; ``None`` for one source."""
    if not isinstance(source, str | os.PathLike):
        return None
    path = os.fspath(source)
    if not isinstance(path, str) or Path(path).expanduser().is_dir() or path.count("+") != 1:
        return None
    upper, _, lower = (part.strip() for part in path.partition("+"))
    if not upper or not lower:
        raise DataError(f"cannot load {path!r}: '+' joins two sources, such as 'mnist+cifar10'; name both")
    return upper, lower


def _in_words(source: object) -> str:
    """Return what was given instead of data."""
    if not isinstance(source, tuple | list):
        return f"a {type(source).__name__}"
    said = f"a {type(source).__name__} of {', '.join(type(one).__name__ for one in source) or 'nothing'}"
    if any(isinstance(one, TensorDataset) for one in source):
        return f"{said} (of a TensorDataset give its .tensors)"
    return said


def _name_classes(classes: Sequence[str] | int | None) -> tuple[str, ...] | None:
    """Return the names of the classes, all different; so many classes are called ``"0"``, ``"1"``, …"""
    if classes is None:
        return None
    if isinstance(classes, str | bool) or not isinstance(classes, Iterable | SupportsIndex):
        raise DataError(f"classes={classes!r} names no classes; give names, classes=('cat', 'dog'), or their number")
    names = tuple(map(str, classes if isinstance(classes, Iterable) else range(operator.index(classes))))
    if len(set(names)) < max(len(names), 1):
        twice = next((name for name in names if names.count(name) > 1), None)
        raise DataError("classes is empty; name them all" if twice is None else f"two classes are called {twice!r}")
    return names


def _refuse(source: str, **options: object) -> None:
    """Refuse options that would be ignored."""
    given = [f"{option}=" for option, value in options.items() if value is not None]
    if given:
        raise DataError(f"load_data of {source} takes no {', '.join(given)}; leave it out")


def _digits(name: str) -> tuple[Samples, Samples]:
    """Return the embedded digits, 0..16 brought to 0..255 without loss, cut once and for all."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.from_numpy(np.rint(digits.images * 255 / 16).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=_DIGITS_SCORED,
        stratify=digits.target,
        random_state=derive_seed("digits") % 2**32,
    )
    everything = Samples(name, images, labels, number_classes(labels))
    return (
        everything.take(torch.from_numpy(train), f"{name}/train"),
        everything.take(torch.from_numpy(test), f"{name}/test"),
    )


def _from_tensors(name: str, pairs: TrainAndTest, classes: tuple[str, ...] | None) -> tuple[Samples, Samples]:
    (train_images, train_labels), (test_images, test_labels) = pairs
    train, test = f"{name}/train", f"{name}/test"
    labels = _labels(train, train_labels), _labels(test, test_labels)
    class_names = classes if classes is not None else number_classes(*labels)
    return (
        Samples(train, _images(train, train_images), labels[0], class_names),
        Samples(test, _images(test, test_images), labels[1], class_names),
    )


def _images(name: str, values: Array) -> Tensor:
    """Return images as (N, C, H, W), floats as float32; token ids as (N, T), int64."""
    images = _own(f"images of {name!r}", values)
    if images.ndim == 2 and images.dtype == torch.uint8:
        raise DataError(
            f"images of {name!r} are bytes of shape {tuple(images.shape)}, which may be flat images or token ids; "
            "reshape images to (N, C, H, W), or give token ids as int64"
        )
    if images.ndim == 2 and images.dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        return images.long()
    if images.ndim == 4 and images.shape[-1] in (1, 3) and images.shape[1] > 4:
        raise DataError(
            f"images of {name!r} have shape {tuple(images.shape)}, which looks like (N, H, W, C); they must "
            "be (N, C, H, W): transpose them with axes (0, 3, 1, 2)"
        )
    check_brightness(name, images)
    if images.is_floating_point():
        images = images.float()
    return images.unsqueeze(1) if images.ndim == 3 else images


def _labels(name: str, values: Array | None) -> Tensor:
    """Return labels as (N,), integers as int64."""
    if values is None:
        raise DataError(f"{name!r} is data without labels; pass one class index for each image, (N,) integers")
    labels = _own(f"labels of {name!r}", values)
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(
            f"labels of {name!r} have dtype {labels.dtype}; they must be integers, class indices; "
            "regression and several labels an image are not supported"
        )
    return labels.long()


def _own(what: str, values: Array) -> Tensor:
    """Return a copy that no one else can change, on the CPU."""
    if isinstance(values, Tensor):
        return values.detach().cpu().clone()
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "uifb":
        got = f"array of {values.dtype}" if isinstance(values, np.ndarray) else type(values).__name__
        raise DataError(f"{what} are of type {got}; they must be a torch tensor or a numpy array of numbers")
    return torch.from_numpy(np.array(values, values.dtype.newbyteorder("="), order="C"))
