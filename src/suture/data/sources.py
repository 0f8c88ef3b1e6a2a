"""Loading of ``Data`` from tensors, datasets, loaders, folders and hub ids; images raw, decoded once.

Nothing is ever unpickled: tensors and arrays come as such, the datasets of torch as they give their samples
(``reading``), and everything else is downloaded and parsed by ``datasets`` (``hub``). Large data lie in mapped files
(``common.mapped``), once as they are read and once in their roles.
"""

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from suture.common.errors import DataError
from suture.common.mapped import ROWS, empty, fill, pieces
from suture.common.seeds import derive_seed, generator
from suture.common.warning import warn
from suture.data import hub
from suture.data.changes import stack
from suture.data.hub import SOURCES
from suture.data.images import are_token_ids, check_brightness, name_numbers, number_classes
from suture.data.inputs import content_of, join_inputs, lengthen, says_nothing
from suture.data.reading import IGNORED_PIXEL, Columns, Whole, is_dataset, name_of, read_dataset
from suture.data.roles import Data, keep_apart
from suture.data.samples import Samples
from suture.data.tasks import IGNORED, Classification, DenseClassification, NextToken, Regression, Task

Array = Tensor | NDArray[Any]
Pair = tuple[Array, Array | None]
TrainAndTest = tuple[Pair, Pair]

SKETCHED = 256  #: images of each split that a sketch decodes, evenly spread: all may be of another size or grey
_PARTS = ("train", "test")  #: the samples that a source gives, before validation is cut from the first
_DIGITS_SCORED = 597  #: of 1,797, so that 1,200 are left to fit and validate on


def load_data(
    source: Any = "digits",
    *,
    name: str | None = None,
    classes: Sequence[str] | int | None = None,
    columns: Columns | None = None,
    score_split: str | None = None,
    split: float | None = None,
    size: int | None = None,
    validation_fraction: float = 0.1,
    task: Task | None = None,
) -> Data:
    """Load samples in their three roles: fit, validation (cut from the training data) and score.

    ``source`` is one of

    - ``"digits"``: scikit-learn's 1,797 handwritten digits, 8×8 grey, embedded; 597, stratified, are score;
    - ``"mnist"``, ``"cifar10"``, or the id of any data set of images or token ids on the Hugging Face hub;
    - a local folder that ``datasets`` reads (parquet, a folder of images for each class); it wins over an id;
    - two of these joined by ``+``: the images of the first above those of the second (``"mnist+cifar10"``; see
      ``variants.stack``); a folder of that very name wins;
    - a ``DatasetDict``, or a pair ``(train, test)`` of a ``datasets.Dataset``, a torch ``Dataset`` or a ``DataLoader``,
      whose transforms are then part of the data;
    - tensors or arrays ``((train images, train labels), (test images, test labels))``: images (N, C, H, W) or
      (N, H, W), uint8 in 0..255 or floats in [0, 1] (brought to float32), or sequences of token ids (N, T), integers
      of more than a byte, from 0, or a mapping of these with their ``attention_mask`` and such; labels (N,) integers,
      for a language model the token ids again, not shifted, or None. All copied.

    Samples of text in datasets may have any length: they are padded and masked, and masked positions are ignored
    everywhere.

    ``split`` takes one set of samples for the pair, or ``train`` of a folder or a hub id, and cuts from it the share
    (0.2) or the number (1000) to score on, drawn at random by a seed of its content.

    ``name`` replaces the source's own; ``classes`` names the classes if the source does not (tensors, columns of
    integers), or says how many there are (default ``"0"`` to the highest label). ``columns`` names the image and the
    label column, or entry of samples that are mappings, if types and names leave a choice; ``score_split`` is the split
    of a folder, hub id or ``DatasetDict`` to score on (default ``test``, else ``validation``); ``size`` the side in
    pixels to resize encoded images to while decoding (bilinear, not keeping the aspect ratio). ``task`` gives the
    meaning of labels if it is not one class per sample (see ``suture.tasks``); they may be ``None`` if it needs none.

    Samples to score keep their order, unless they are sorted by class, as in a folder of images: then they are
    shuffled, always in the same way. Raises ``DataError`` when the source cannot be found, reached or measured on.
    """
    task = Classification() if task is None else task
    return _load(source, name, classes, columns, score_split, split, size, validation_fraction, task)


def sketch_data(source: Any, *, classes: Sequence[str] | int | None, split: float | None, size: int | None) -> Data:
    """Load data of which there are as many as ``load_data`` finds, and only ``SKETCHED`` images are read.

    The others are noise of their size, each another. So counts and sizes are right, and the time to decode a large data
    set is saved where nothing is measured. Of a source that has no encoded images everything is read.
    """
    return _load(source, None, classes, None, None, split, size, 0.1, Classification(), SKETCHED)


def _load(
    source: Any,
    name: str | None,
    classes: Sequence[str] | int | None,
    columns: Columns | None,
    score_split: str | None,
    split: float | None,
    size: int | None,
    validation_fraction: float,
    task: Task,
    decoded: int | None = None,
) -> Data:
    """Load data by ``load_data``'s settings; if not all images shall be ``decoded``, so many of each split."""
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    if path.count("+") == 1 and not Path(path).expanduser().is_dir():
        upper, lower = (part.strip() for part in path.split("+"))
        if not upper or not lower:
            raise DataError(f"cannot load {path!r}: '+' joins two sources, such as 'mnist+cifar10'; name both")
        _check_task("two sources", task)
        _refuse("two sources", classes=classes, columns=columns, score_split=score_split, split=split, size=size)
        above, below = (load_data(one, validation_fraction=validation_fraction) for one in (upper, lower))
        return stack(above, below, name)
    name, parts = _load_parts(source, name, classes, columns, score_split, split, size, task, decoded)
    train, test = parts if split is None else _cut(parts.pop(), split, name)
    return Data.split(name, train, test, validation_fraction)


def load_views(
    sender: Any,
    receiver: Any,
    *,
    name: str | None = None,
    classes: Sequence[str] | int | None = None,
    columns: tuple[Columns | None, Columns | None] = (None, None),
    score_split: str | None = None,
    split: float | None = None,
    size: int | None = None,
    validation_fraction: float = 0.1,
    task: Task | None = None,
) -> Data:
    """Load samples of which each network reads its own view, such as an image and its caption, in their three roles.

    ``sender`` is the source of the view that the sender reads and ``receiver`` of the other; each is one that
    ``load_data`` takes: two pairs of arrays, two columns of a ``datasets`` table, one text by two tokenisers. They are
    of the same samples, in the same order, and give the same labels. ``columns`` are those of the sender's source and
    of the receiver's, ``(("image", "label"), ("input_ids", "label"))``; the other settings are those of ``load_data``
    and hold for both.

    Make each network with its own example, ``data.for_sender.example`` and ``data.for_receiver.example``. Samples are
    pairs, their positions and tokens are not: a stitch needs a receiver's cut at which a sample is one vector. Samples
    that share a view, such as two captions of one image, are on one side of a cut. Raises ``DataError`` as
    ``load_data`` does, and if the views differ in their number of samples, or in labels.
    """
    task = Classification() if task is None else task
    if not isinstance(columns, tuple) or len(columns) != 2 or not all(one is None or len(one) == 2 for one in columns):
        raise DataError(f"columns={columns!r}: give those of both sources, ((image, label), (input_ids, label))")
    sources = zip((sender, receiver), columns, strict=True)
    (one, sent), (other, received) = (
        _load_parts(source, name, classes, chosen, score_split, split, size, task) for source, chosen in sources
    )
    name = one if one == other else f"{one} and {other}"
    parts = [
        replace(own, name=f"{name}/{part}", sent=view) for part, own, view in zip(_PARTS, received, sent, strict=False)
    ]
    train, test = parts if split is None else _cut(parts.pop(), split, name)
    return Data.split(name, train, test, validation_fraction)


def _load_parts(
    source: Any,
    name: str | None,
    classes: Sequence[str] | int | None,
    columns: Columns | None,
    score_split: str | None,
    split: float | None,
    size: int | None,
    task: Task,
    decoded: int | None = None,
) -> tuple[str, list[Samples]]:
    """Load the name and the samples of a source: those to train on and those to score, or all if they are to be cut."""
    named = _name_classes(classes)
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    if split is not None and score_split is not None:
        raise DataError(
            f"split={split:g} and score_split={score_split!r} both choose the samples to score; give one of them"
        )
    if hub.is_of_datasets(source) and isinstance(source, dict):  # streams too are of one
        name = name or next((name_of(part) for part in source.values()), "data")
        wholes = _read_splits(name, source, columns, score_split, split, size, task)
    elif path == "digits":
        _check_task("'digits'", task)
        _refuse("'digits'", classes=classes, columns=columns, score_split=score_split, split=split, size=size)
        name, wholes = name or "digits", _digits()
    elif isinstance(source, str | os.PathLike):
        name = name or Path(path).expanduser().resolve().name
        found = hub.load_splits(path)
        wholes = _read_splits(name, found, columns, score_split, split, size, task, decoded)
    else:
        _refuse("data that is not a folder, hub id or DatasetDict", score_split=score_split)
        name, wholes = _read_pair(source, name, columns, split, size, task)
    wholes = _ignore_pixels(wholes, named, task)
    class_names = _find_classes(name, wholes, named, task)
    if not _are_arrays(source[0] if isinstance(source, tuple | list) else source):
        wholes = _level(wholes, task)
    parts = [
        Samples(
            f"{name}/{part}",
            whole.images,
            whole.labels,  # type: ignore[arg-type]
            class_names,
            task=task,
            transforms=whole.transforms,
            inputs=whole.inputs,
        )
        for part, whole in zip(_PARTS, wholes, strict=False)
    ]
    return name, parts


def _read_splits(
    name: str,
    splits: Any,
    columns: Columns | None,
    score_split: str | None,
    split: float | None,
    size: int | None,
    task: Task,
    decoded: int | None = None,
) -> list[Whole]:
    """Read the splits that ``datasets`` has, through their transforms if they have some."""
    keys = hub.choose_splits(name, splits, score_split, split is not None)
    if any(hub.has_transform(splits[key]) for key in keys):
        return [_with_targets(_read(splits[key], f"{name}/{key}", columns, size, task), task) for key in keys]
    return [_with_targets(whole, task) for whole in hub.read_splits(name, splits, keys, columns, size, task, decoded)]


def _read_pair(
    source: Any, name: str | None, columns: Columns | None, split: float | None, size: int | None, task: Task
) -> tuple[str, list[Whole]]:
    """Read ``(train, test)``, or one set of samples that is to be cut; return their name, too."""
    wanted = "(train, test), or one with split=0.2, the share to score"
    if is_dataset(source) or (
        split is not None and _are_arrays(source) and isinstance(source[0], Tensor | np.ndarray | Mapping)
    ):
        if split is None:
            raise DataError(f"cannot load data from {_in_words(source)} alone; give {wanted}")
        given = [source]
    elif (
        isinstance(source, tuple | list)
        and len(source) == 2
        and all(is_dataset(one) or _are_arrays(one) for one in source)
    ):
        if split is not None:
            raise DataError(
                f"split={split:g} cuts one set of samples, and there are two; give one, or leave out split="
            )
        given = list(source)
    else:
        raise DataError(f"cannot load data from {_in_words(source)}; {SOURCES}")
    if _are_arrays(given[0]):
        _refuse("tensors", columns=columns, size=size)
    name = name or ("tensors" if _are_arrays(given[0]) else name_of(given[0]))
    names = [f"{name}/{part}" for part in _PARTS]
    plain = all(hub.is_of_datasets(one) and not hub.has_transform(one) for one in given)
    if plain:
        splits = dict(zip(_PARTS, given, strict=False))
        wholes = hub.read_splits(name, splits, list(splits), columns, size, task)
    else:
        wholes = [_read(one, part, columns, size, task) for one, part in zip(given, names, strict=False)]
    return name, [_with_targets(whole, task) for whole in wholes]


def _read(given: Any, name: str, columns: Columns | None, size: int | None, task: Task) -> Whole:
    """Read one set of samples."""
    if not _are_arrays(given):
        whole = read_dataset(given, name, columns, size, task.labelled)
        return replace(whole, labels=_labels(name, whole.labels)) if task == Classification() else whole
    found, labels = given
    if isinstance(found, Mapping):
        images, inputs = join_inputs({key: _own(f"{key} of {name!r}", value) for key, value in found.items()})
    else:
        images, inputs = found, ()
    images = images if inputs else _images(name, images)
    if task == Classification():
        return Whole(images, _labels(name, labels), inputs=inputs)
    return Whole(images, None if labels is None else _own(f"labels of {name!r}", labels), inputs=inputs)


def _level(wholes: Sequence[Whole], task: Task) -> list[Whole]:
    """Return the parts without columns that hold nothing, sequences padded to one length, with a mask if any has."""
    told = {
        one.name for whole in wholes for i, one in enumerate(whole.inputs) if not says_nothing(one, whole.images[:, i])
    }
    wholes = [_keep(whole, [i for i, one in enumerate(whole.inputs) if one.name in told]) for whole in wholes]
    longest = max(whole.images.shape[-1] for whole in wholes)
    names = [whole.inputs[0].name for whole in wholes if whole.inputs]
    found = []
    for whole in wholes:
        images, inputs, labels = whole.images, whole.inputs, whole.labels
        short = longest - images.shape[-1]
        if are_token_ids(images) and (short or bool(names) != bool(inputs)):
            images, inputs = lengthen(images, inputs, longest, *names[:1])
            if isinstance(task, DenseClassification | NextToken) and labels is not None:
                labels = functional.pad(labels, (0, short), value=IGNORED)
        found.append(replace(whole, images=images, inputs=inputs, labels=labels))
    return found


def _keep(whole: Whole, columns: list[int]) -> Whole:
    """Return samples with these columns alone; with the first alone they have but one input."""
    if len(columns) == len(whole.inputs):
        return whole
    if columns == [0]:
        return replace(whole, images=whole.images[:, 0].contiguous(), inputs=())
    return replace(whole, images=whole.images[:, columns], inputs=tuple(whole.inputs[i] for i in columns))


def _are_arrays(given: Any) -> bool:
    """Return whether these are meant as images and labels."""
    return isinstance(given, tuple | list) and len(given) == 2 and not is_dataset(given[0])


def _with_targets(whole: Whole, task: Task) -> Whole:
    """Return the samples with labels of the type that the task takes, or those it makes of inputs without."""
    labels = whole.labels
    if labels is None:
        return replace(whole, labels=task.default_targets(content_of(whole.images)))
    if isinstance(task, Regression):
        labels = labels if labels.is_floating_point() else labels.float()
        labels = labels[:, None] if labels.ndim == 1 else labels
    elif isinstance(task, DenseClassification) and not labels.is_floating_point():
        ignored = labels == IGNORED_PIXEL if labels.dtype == torch.uint8 else torch.tensor(False)
        labels = labels.long().masked_fill(ignored, IGNORED)
    return replace(whole, labels=labels)


def _ignore_pixels(wholes: list[Whole], named: tuple[str, ...] | None, task: Task) -> list[Whole]:
    """Return masks in which 255 does not count, whatever integers they are of; it does if classes go beyond it."""
    masks = [whole.labels for whole in wholes if whole.labels is not None and whole.labels.ndim >= 3]
    if not isinstance(task, DenseClassification) or not masks or any(mask.is_floating_point() for mask in masks):
        return wholes
    count = max(len(named or ()), *(len(whole.classes) for whole in wholes))
    if count > IGNORED_PIXEL or max(int(mask.max()) for mask in masks) != IGNORED_PIXEL:
        return wholes
    ignored = [None if whole.labels is None else whole.labels == IGNORED_PIXEL for whole in wholes]
    return [
        whole
        if where is None or whole.labels is None
        else replace(whole, labels=whole.labels.masked_fill(where, IGNORED))
        for whole, where in zip(wholes, ignored, strict=True)
    ]


def _find_classes(name: str, wholes: Sequence[Whole], named: tuple[str, ...] | None, task: Task) -> tuple[str, ...]:
    """Return the names of the classes: those of the source, else those given, else numbers."""
    own = {whole.classes for whole in wholes if whole.classes}
    if len(own) > 1:
        first, second = (", ".join(map(repr, names[:20])) for names in sorted(own)[:2])
        raise DataError(
            f"the two parts of {name!r} have different classes: {first}, and {second}; give both the same, in "
            "one order "
            "(in datasets: cast_column, with one ClassLabel for both)"
        )
    if own and named is not None:
        raise DataError(f"{name!r} names its own classes: {', '.join(map(repr, next(iter(own))))}; leave out classes=")
    if named or own:
        return named or own.pop()
    labels = [whole.labels for whole in wholes if whole.labels is not None]
    numbered = number_classes(*labels) if task == Classification() else task.name_classes(labels)
    if isinstance(task, Classification | DenseClassification):
        ranges = [(int(known.min()), int(known.max())) for part in labels if len(known := part[part != IGNORED])]
        least = min((low for low, _ in ranges), default=0)
        apart = len(ranges) == 2 and ranges[0][0] != ranges[1][0] and np.ptp(ranges[0]) == np.ptp(ranges[1]) > 0
        if apart and least >= 0:  # negative ones are refused
            (low, high), (lower, higher) = ranges
            warn(
                f"the labels to fit of {name!r} run from {low} to {high}, and those to score from {lower} to {higher}, "
                f"and {len(numbered)} classes are taken: number both alike, or name the classes, classes=(…)"
            )
        if least > 0:
            warn(
                f"the labels of {name!r} begin at {least}, and {len(numbered)} classes are taken, from 0 on: give "
                f"labels - {least} if there are {len(numbered) - least}, or classes={len(numbered)} if none is missing"
            )
    return numbered


def _cut(samples: Samples, split: float, name: str) -> tuple[Samples, Samples]:
    """Cut samples into those to train on and those to score, at random, always in the same way."""
    is_share = isinstance(split, float) and 0 < split < 1
    count = round(split * len(samples)) if is_share else split
    if isinstance(split, bool) or count != int(count) or not 2 <= count <= len(samples) - 4:
        raise DataError(
            f"split={split!r} of {len(samples):,} samples of {name!r}: give the share to score, such as 0.2, or how "
            f"many, 2 to {len(samples) - 4:,}"
        )
    order = torch.randperm(len(samples), generator=generator("split", samples.fingerprint))
    test, train = keep_apart(order, samples.copies, int(count))
    return samples.take(train, f"{name}/train"), samples.take(test, f"{name}/test")


def _check_task(source: str, task: Task) -> None:
    if task != Classification():
        raise DataError(f"{source} has one class per sample; give other data for {task}")


def _in_words(source: object) -> str:
    """Describe the type of a source that is not data."""
    if not isinstance(source, tuple | list):
        return f"a {type(source).__name__}"
    return f"a {type(source).__name__} of {', '.join(type(one).__name__ for one in source) or 'nothing'}"


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


def _digits() -> list[Whole]:
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
    return [Whole(images[part], labels[part]) for part in map(torch.from_numpy, parts)]


# --- tensors and arrays -----------------------------------------------------------------------------------------------


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
        values = values.detach()
        return fill(empty(values.shape, values.dtype), pieces(values)) if values.ndim else values.cpu().clone()
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "uifb":
        got = f"array of {values.dtype}" if isinstance(values, np.ndarray) else type(values).__name__
        raise DataError(f"{what} are of type {got}; they must be a torch tensor or a numpy array of numbers")
    native, starts = values.dtype.newbyteorder("="), range(0, len(values) if values.ndim else 0, ROWS)
    first = torch.from_numpy(np.array(values if not values.ndim else values[:0], native, order="C"))
    rows = (torch.from_numpy(np.array(values[start : start + ROWS], native, order="C")) for start in starts)
    return fill(empty(values.shape, first.dtype), rows) if values.ndim else first
