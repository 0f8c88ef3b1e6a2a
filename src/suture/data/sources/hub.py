"""Image-classification data of the Hugging Face hub, or of a local folder that ``datasets`` reads.

The columns are found by type (``Image``, ``ClassLabel``), the splits by name (``train``; ``test``, else
``validation``). ``datasets`` downloads and parses; the images are decoded here, once, from the stored bytes. Data
without images may have sequences of token ids, a column of lists of integers (``input_ids`` if there are several).
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.data.samples import Samples, number_classes
from suture.data.sources.decode import Encoded, decode_images

SOURCES = (
    "possible sources: 'digits', 'mnist', 'cifar10', a Hugging Face hub id ('owner/name'), a local folder, "
    "or tensors ((train images, train labels), (test images, test labels))"
)
_ALIASES = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10"}
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_LABEL_NAMES = ("label", "labels", "fine_label", "target", "class")
_TOKENS_NAME = "input_ids"
_SCORE_SPLITS = ("test", "validation", "valid")
_BATCH = 1000  #: encoded images read at a time, so that never all of them are in memory beside the decoded


def from_hub(
    source: str,
    name: str,
    *,
    classes: Sequence[str] | None,
    columns: tuple[str, str] | None,
    score_split: str | None,
    size: int | None,
) -> tuple[Samples, Samples]:
    """Load the training and the scoring samples of a hub id or a local folder; a folder wins over a hub id.

    ``classes`` names integer labels that the source has no names for. Raises ``DataError`` when the source
    cannot be loaded, or its splits, columns, labels or images are not what can be measured on.
    """
    splits = _load_splits(source)
    keys = ("train", _score_split(source, list(splits), score_split))
    features = splits["train"].features
    image_column, label_column = _choose_columns(source, features, columns)
    labels = [_read_labels(source, splits[key], label_column, key, list(splits)) for key in keys]
    class_names = _class_names(source, features[label_column], classes, labels)
    if _is_tokens(features[image_column]):
        if size is not None:
            raise DataError(f"{source!r} has token ids, which have no size in pixels; leave out size=")
        images = [_read_tokens(splits[key], image_column, f"{name}/{key}") for key in keys]
    else:
        images = [_read_images(splits[key], image_column, f"{name}/{key}", size) for key in keys]
    return (
        Samples(f"{name}/train", images[0], labels[0], class_names),
        Samples(f"{name}/test", images[1], labels[1], class_names),
    )


def _load_splits(source: str) -> Any:
    """Return the ``DatasetDict`` of the source, its labels and encoded images still in Arrow's memory map."""
    import datasets

    resolved = _resolve(source)
    try:
        with _quiet_bars():
            return datasets.load_dataset(resolved)
    except Exception as error:  # the hub's client raises what its many libraries raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"cannot load {source!r} ({reason}); {SOURCES}") from error


def _resolve(source: str) -> str:
    """Return the absolute folder, or the hub id, that a source stands for."""
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        return str(folder.resolve())
    hub_id = _ALIASES.get(source, source)
    if not _HUB_ID.fullmatch(hub_id):
        near = get_close_matches(source, ("digits", *_ALIASES), 1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise DataError(f"no data {source!r}: neither a folder that exists nor a hub id; {SOURCES}{meant}")
    return hub_id


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


def _choose_columns(source: str, features: Any, asked: tuple[str, str] | None) -> tuple[str, str]:
    """Return the column of images or token ids and the label column, by type; if types leave a choice, as asked."""
    from datasets import ClassLabel, Image

    images = [column for column, feature in features.items() if isinstance(feature, Image)]
    tokens = [column for column, feature in features.items() if _is_tokens(feature)]
    images = images or [column for column in tokens if column == _TOKENS_NAME] or tokens
    named = [column for column, feature in features.items() if isinstance(feature, ClassLabel)]
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


def _read_labels(source: str, split: Any, column: str, key: str, splits: list[str]) -> Tensor:
    """Return the labels of a split, (N,) int64."""
    stored = split.select_columns(column).with_format("arrow")[:].column(0)
    labels = np.array(stored.drop_null().to_numpy(), np.int64)
    if stored.null_count or (labels < 0).any():
        raise DataError(
            f"split {key!r} of {source!r} has samples without labels (null or -1); remove them, or score on "
            f"a split with labels by score_split=…; its splits: {_quote(splits)}"
        )
    return torch.from_numpy(labels)


def _class_names(source: str, feature: Any, classes: Sequence[str] | None, labels: list[Tensor]) -> tuple[str, ...]:
    names = getattr(feature, "names", None)
    if names is None:
        return tuple(classes) if classes is not None else number_classes(*labels)
    if classes is not None:
        raise DataError(f"{source!r} names its own classes: {_quote(names)}; leave out classes=")
    return tuple(names)


def _read_images(split: Any, column: str, name: str, size: int | None) -> Tensor:
    """Return the images of a split, decoded, (N, C, H, W) uint8."""
    batches = split.select_columns(column).with_format("arrow").iter(batch_size=_BATCH)
    rows: Iterator[Encoded | None] = (row for batch in batches for row in batch.column(0).to_pylist())
    return decode_images(rows, len(split), name=name, size=size)


def _read_tokens(split: Any, column: str, name: str) -> Tensor:
    """Return the token ids of a split, (N, T) int64."""
    stored = split.select_columns(column).with_format("arrow")[:].column(0)
    if stored.null_count:
        raise DataError(f"{name!r} has {stored.null_count} samples without a sequence (null); remove their rows")
    lengths = stored.combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    odd = np.flatnonzero(lengths != lengths[:1])
    if len(odd):
        raise DataError(
            f"sequence {odd[0]} of {name!r} has {lengths[odd[0]]} tokens, those before it {lengths[0]}; cut all to "
            "one length"
        )
    ids = stored.combine_chunks().flatten()
    if ids.null_count:
        raise DataError(f"sequences of {name!r} have tokens without an id (null); remove them")
    return torch.from_numpy(np.array(ids.to_numpy(), np.int64).reshape(len(lengths), -1))


def _quote(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
