"""Load whatever the user names as ``Data``: the embedded digits, hub ids, folders, tensors; images raw, decoded once.

Nothing is ever unpickled: tensors and arrays come as such, everything else is downloaded and parsed by ``datasets``.
Its columns are found by type (``Image``, ``ClassLabel``), its splits by name (``train``; ``test``, else
``validation``). Data without images may have sequences of token ids, a column of lists of integers (``input_ids`` if
there are several).

Images are decoded here, from the stored bytes, into one tensor. Pixels come out as the file says: 8 bits a channel,
grey if every image is grey, else RGB (alpha is dropped, palettes are looked up). A rotation noted in a photograph's
EXIF is applied, as ``datasets`` does.
"""

import operator
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import TensorDataset

from suture.common.errors import DataError
from suture.common.seeds import derive_seed
from suture.data.samples import Data, Samples, check_brightness, name_numbers, number_classes
from suture.data.tasks import Classification, Task
from suture.data.variants import stack

Array = Tensor | NDArray[Any]
TrainAndTest = tuple[tuple[Array, Array], tuple[Array, Array]]

ALIASES = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10"}  #: data sets with a name, and where the hub has them

_SOURCES = (
    "possible sources: 'digits', 'mnist', 'cifar10', a Hugging Face hub id ('owner/name'), a local folder, "
    "or tensors ((train images, train labels), (test images, test labels))"
)
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_LABEL_NAMES = ("label", "labels", "fine_label", "target", "class")
_TOKENS_NAME = "input_ids"
_SCORE_SPLITS = ("test", "validation", "valid")
_BATCH = 1000  #: encoded images read at a time, so that never all of them are in memory beside the decoded
_PARTS = ("train", "test")  #: the samples that a source gives, before validation is cut from the first
_DIGITS_SCORED = 597  #: of 1,797, so that 1,200 are left to fit and validate on
_GREY_MODES = ("1", "LA", "La")  #: PIL's modes of grey images besides "L"
_DEEP_MODES = ("I", "F")  #: the first letter of PIL's modes of more than 8 bits: "I", "I;16", "F", …


def load_data(
    source: str | os.PathLike[str] | TrainAndTest = "digits",
    *,
    name: str | None = None,
    classes: Sequence[str] | int | None = None,
    columns: tuple[str, str] | None = None,
    score_split: str | None = None,
    size: int | None = None,
    validation_fraction: float = 0.1,
    task: Task | None = None,
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
    aspect ratio). ``task`` says what the labels of tensors are if not one class per sample (``suture.tasks`` has what
    each takes); they are then left as they are, and may be ``None`` if the task needs none.

    Samples to score keep their order, unless they are sorted by class, as in a folder of images: then they are
    shuffled, always in the same way. Raises ``DataError`` when the source cannot be found, reached or measured on.
    """
    task = Classification() if task is None else task
    named = _name_classes(classes)
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    if path.count("+") == 1 and not Path(path).expanduser().is_dir():
        upper, lower = (part.strip() for part in path.split("+"))
        if not upper or not lower:
            raise DataError(f"cannot load {path!r}: '+' joins two sources, such as 'mnist+cifar10'; name both")
        _check_task("two sources", task)
        _refuse("two sources", classes=classes, columns=columns, score_split=score_split, size=size)
        above, below = (load_data(one, validation_fraction=validation_fraction) for one in (upper, lower))
        return stack(above, below, name)
    if isinstance(source, str | os.PathLike):
        _check_task(repr(path), task)
    match source:
        case str("digits"):
            _refuse("'digits'", classes=classes, columns=columns, score_split=score_split, size=size)
            name = name or "digits"
            pairs, class_names = _digits()
        case str() | os.PathLike():
            name = name or Path(path).expanduser().resolve().name
            pairs, class_names = _from_hub(path, name, named, columns, score_split, size)
        case ((_, _), (_, _)):
            _refuse("tensors", columns=columns, score_split=score_split, size=size)
            name = name or "tensors"
            pairs, class_names = _from_tensors(name, source, named, task)
        case _:
            raise DataError(f"cannot load data from {_in_words(source)}; {_SOURCES}")
    train, test = (
        Samples(f"{name}/{part}", *pair, class_names, task=task) for part, pair in zip(_PARTS, pairs, strict=True)
    )
    return Data.split(name, train, test, validation_fraction)


def _check_task(source: str, task: Task) -> None:
    if task != Classification():
        raise DataError(f"{source} has one class per sample; give data for {task} as tensors")


def _in_words(source: object) -> str:
    """Return what was given instead of data."""
    if not isinstance(source, tuple | list):
        return f"a {type(source).__name__}"
    said = f"a {type(source).__name__} of {', '.join(type(one).__name__ for one in source) or 'nothing'}"
    if any(isinstance(one, TensorDataset) for one in source):
        return f"{said} (of a TensorDataset give its .tensors)"
    return said


def _name_classes(classes: Sequence[str] | int | None) -> tuple[str, ...] | None:
    """Return the names of the classes, all different; those of a number are ``"0"``, ``"1"``, …"""
    if classes is None:
        return None
    if isinstance(classes, str | bool) or not isinstance(classes, Iterable | SupportsIndex):
        raise DataError(f"classes={classes!r} names no classes; give names, classes=('cat', 'dog'), or their number")
    if isinstance(classes, Iterable):
        names = tuple(map(str, classes))
    else:
        names = name_numbers(operator.index(classes), "the last of classes= would be")
    if len(set(names)) < max(len(names), 1):
        twice = next((name for name in names if names.count(name) > 1), None)
        raise DataError("classes is empty; name them all" if twice is None else f"two classes are called {twice!r}")
    return names


def _refuse(source: str, **options: object) -> None:
    """Refuse options that would be ignored."""
    given = [f"{option}=" for option, value in options.items() if value is not None]
    if given:
        raise DataError(f"load_data of {source} takes no {', '.join(given)}; leave it out")


_Pairs = list[tuple[Tensor, Tensor]]
"""Images and labels to fit and validate on, and to score."""


def _digits() -> tuple[_Pairs, tuple[str, ...]]:
    """Return the embedded digits, scaled from 0..16 to 0..255 without loss, always cut at the same place."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = torch.from_numpy(np.rint(digits.images * 255 / 16).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(digits.target.astype(np.int64))
    parts = train_test_split(
        np.arange(len(labels)),
        test_size=_DIGITS_SCORED,
        stratify=digits.target,
        random_state=derive_seed("digits") % 2**32,
    )
    return [(images[part], labels[part]) for part in map(torch.from_numpy, parts)], number_classes(labels)


# --- tensors and arrays -----------------------------------------------------------------------------------------------


def _from_tensors(
    name: str, given: TrainAndTest, classes: tuple[str, ...] | None, task: Task
) -> tuple[_Pairs, tuple[str, ...]]:
    names = [f"{name}/{part}" for part in _PARTS]
    images = [_images(part, x) for part, (x, _) in zip(names, given, strict=True)]
    if task == Classification():
        labels = [_labels(part, y) for part, (_, y) in zip(names, given, strict=True)]
        return list(zip(images, labels, strict=True)), classes or number_classes(*labels)
    targets = [
        task.default_targets(x) if y is None else _own(f"labels of {part!r}", y)
        for part, x, (_, y) in zip(names, images, given, strict=True)
    ]
    return list(zip(images, targets, strict=True)), classes or task.name_classes(targets)


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
            f"labels of {name!r} have dtype {labels.dtype}; they must be integers, class indices, or "
            "name what they are: task=tasks.Regression(), task=tasks.MultiLabel() …"
        )
    return labels.long()


def _own(what: str, values: Array) -> Tensor:
    """Return a copy on the CPU, which nobody else can change."""
    if isinstance(values, Tensor):
        return values.detach().cpu().clone()
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "uifb":
        got = f"array of {values.dtype}" if isinstance(values, np.ndarray) else type(values).__name__
        raise DataError(f"{what} are of type {got}; they must be a torch tensor or a numpy array of numbers")
    return torch.from_numpy(np.array(values, values.dtype.newbyteorder("="), order="C"))


# --- what ``datasets`` reads ------------------------------------------------------------------------------------------


def _from_hub(
    source: str,
    name: str,
    classes: tuple[str, ...] | None,
    columns: tuple[str, str] | None,
    score_split: str | None,
    size: int | None,
) -> tuple[_Pairs, tuple[str, ...]]:
    """Load what a hub id or a local folder has; a folder wins over a hub id."""
    splits = _load_splits(source)
    keys = ("train", _score_split(source, list(splits), score_split))
    features = splits["train"].features
    image_column, label_column = _choose_columns(source, features, columns)
    tokens = _is_tokens(features[image_column])
    if tokens and size is not None:
        raise DataError(f"{source!r} has token ids, which have no size in pixels; leave out size=")
    labels = [_read_labels(source, splits, key, label_column) for key in keys]
    names = getattr(features[label_column], "names", None)
    if names is not None and classes is not None:
        raise DataError(f"{source!r} names its own classes: {_quote(names)}; leave out classes=")
    class_names = classes or tuple(names or number_classes(*labels))
    images = []
    for key in keys:
        stored, part = splits[key].select_columns(image_column).with_format("arrow"), f"{name}/{key}"
        images.append(_read_tokens(stored, part) if tokens else _read_images(stored, part, size))
    return list(zip(images, labels, strict=True)), class_names


def _load_splits(source: str) -> Any:
    """Return the ``DatasetDict`` of the source, its labels and encoded images still in Arrow's memory map."""
    import datasets

    folder = Path(source).expanduser()
    if source and folder.is_dir():
        place = str(folder.resolve())
    else:
        place = ALIASES.get(source, source)
        if not _HUB_ID.fullmatch(place):
            near = get_close_matches(source, ("digits", *ALIASES), 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"no data {source!r}: neither a folder that exists nor a hub id; {_SOURCES}{meant}")
    try:
        with _quiet_bars():
            return datasets.load_dataset(place)
    except Exception as error:  # the hub's client raises what its many libraries raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"cannot load {source!r} ({reason}); {_SOURCES}") from error


@contextmanager
def _quiet_bars() -> Iterator[None]:
    """Hide the progress bars of ``datasets``, and leave its global setting as it was."""
    import datasets

    user_decided = datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is not None
    if user_decided or datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


def _score_split(source: str, splits: list[str], asked: str | None) -> str:
    if "train" not in splits:
        raise DataError(f"{source!r} has no split 'train' to fit on; its splits: {_quote(splits)}")
    valid = [split for split in splits if split != "train"]
    wanted = _SCORE_SPLITS if asked is None else (asked,)
    found = next((split for split in wanted if split in valid), None)
    if found is None:
        remedy = f"name one with score_split=…: {_quote(valid)}" if valid else "give it one besides 'train'"
        raise DataError(f"{source!r} has no split {' or '.join(map(repr, wanted))} to score on; {remedy}")
    return found


def _choose_columns(source: str, features: Mapping[str, Any], asked: tuple[str, str] | None) -> tuple[str, str]:
    """Return the column of images or token ids and the label column, by type; if types leave a choice, as asked."""
    import datasets

    images = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    tokens = [column for column, feature in features.items() if _is_tokens(feature)]
    images = images or [column for column in tokens if column == _TOKENS_NAME] or tokens
    named = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    integers = [column for column, feature in features.items() if _is_integer(feature)]
    labels = named or [column for column in integers if column in _LABEL_NAMES]
    if asked is not None:
        images = [column for column in images + tokens if column == asked[0]][:1]
        labels = [column for column in named + integers if column == asked[1]]
    if len(images) == len(labels) == 1:
        return images[0], labels[0]
    listing = ", ".join(f"{column!r} ({type(feature).__name__})" for column, feature in features.items())
    raise DataError(
        f"{source!r} needs one image column (found: {_quote(images)}) and one label column (found: "
        f"{_quote(labels) if labels else 'none, data without labels'}); its columns: {listing}; name an Image (or "
        "lists of token ids) and a ClassLabel or integer column with columns=(image, label)"
    )


def _is_integer(feature: Any) -> bool:
    from datasets import Value

    return isinstance(feature, Value) and feature.dtype.startswith(("int", "uint"))


def _is_tokens(feature: Any) -> bool:
    from datasets import LargeList, List

    listed = isinstance(feature, List | LargeList)
    return listed and _is_integer(feature.feature) and feature.feature.dtype != "uint8"  # those may be pixels


def _read_labels(source: str, splits: Any, key: str, column: str) -> Tensor:
    """Return the labels of a split, (N,) int64."""
    stored = splits[key].select_columns(column).with_format("arrow")[:].column(0)
    labels = np.array(stored.drop_null().to_numpy(), np.int64)
    if stored.null_count or (labels < 0).any():
        raise DataError(
            f"split {key!r} of {source!r} has samples without labels (null or -1); remove them, or score on "
            f"a split with labels by score_split=…; its splits: {_quote(list(splits))}"
        )
    return torch.from_numpy(labels)


def _read_tokens(split: Any, name: str) -> Tensor:
    """Return the token ids of a split, (N, T) int64."""
    stored = split[:].column(0).combine_chunks()
    if stored.null_count:
        raise DataError(f"{name!r} has {stored.null_count} samples without a sequence (null); remove their rows")
    lengths = stored.value_lengths().to_numpy(zero_copy_only=False)
    odd = np.flatnonzero(lengths != lengths[:1])
    if len(odd):
        raise DataError(
            f"sequence {odd[0]} of {name!r} has {lengths[odd[0]]} tokens, those before it {lengths[0]}; cut all to "
            "one length"
        )
    ids = stored.flatten()
    if ids.null_count:
        raise DataError(f"sequences of {name!r} have tokens without an id (null); remove them")
    return torch.from_numpy(np.array(ids.to_numpy(), np.int64).reshape(len(lengths), -1))


def _read_images(split: Any, name: str, size: int | None) -> Tensor:
    """Return the images of a split, decoded, (N, C, H, W) uint8; C = 1 if all are grey, else 3."""
    if size is not None and size < 1:
        raise DataError(f"size={size} of {name!r} is no size to resize images to; give a side of 1 pixel or more")
    pixels = np.empty((0, 0, 0, 0), np.uint8)
    rows = (row for batch in split.iter(batch_size=_BATCH) for row in batch.column(0).to_pylist())
    for index, row in enumerate(rows):
        image = _decode(row, f"image {index} of {name!r}", size)
        if index == 0:
            pixels = np.empty((len(split), *image.shape), np.uint8)
        if image.shape[1:] != pixels.shape[2:]:
            now, before = (f"{of.shape[-1]}×{of.shape[-2]}" for of in (image, pixels))
            raise DataError(
                f"image {index} of {name!r} is {now} pixels, those before it {before}; all "
                "must have one size: size=… resizes them to size × size"
            )
        if len(image) > pixels.shape[1]:
            pixels = np.repeat(pixels, len(image), axis=1)
        pixels[index] = image
    return torch.from_numpy(pixels)


def _decode(row: Mapping[str, Any] | None, what: str, size: int | None) -> NDArray[np.uint8]:
    """Return one image, of which ``datasets`` has the bytes or the path, as (C, H, W)."""
    encoded = row and (row["bytes"] or row["path"])
    if not encoded:
        raise DataError(f"{what} is missing; every sample needs an image: remove its row from the data")
    try:
        with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image:
            if image.mode.startswith(_DEEP_MODES):
                raise DataError(
                    f"{what} has mode {image.mode!r}, more than 8 bits a channel; convert it to 8 bits, or pass "
                    "float tensors in [0, 1] instead"
                )
            shown: Image.Image = ImageOps.exif_transpose(image) if "exif" in image.info else image
            if shown.mode not in ("L", "RGB"):
                shown = shown.convert("L" if shown.mode in _GREY_MODES else "RGB")
            if size is not None:
                shown = shown.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(shown)
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{what} cannot be decoded ({error}); replace it or remove its row") from error
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _quote(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
