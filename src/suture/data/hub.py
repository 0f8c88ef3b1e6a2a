"""What ``datasets`` reads: ids of the hub, local folders, a ``Dataset`` and a ``DatasetDict`` of its own.

Nothing is ever unpickled. Columns are found by type (``Image``, ``ClassLabel``), splits by name (``train``; ``test``,
else ``validation``). Data without images may have sequences of token ids, a column of lists of integers (``input_ids``
if there are several), with their mask, token types and positions in columns beside it. Lengths may differ: shorter
sequences are filled up and masked.

Images are decoded here, from the stored bytes, into one tensor. Pixels come out as the file says: 8 bits a channel,
grey if every image is grey, else RGB (alpha is dropped, palettes are looked up). A rotation noted in a photograph's
EXIF is applied, as ``datasets`` does. A dataset with a transform of its own (``set_transform``) is read through it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from suture.common.errors import DataError
from suture.data.inputs import SIDES, Inputs, fill_up, join_inputs
from suture.data.reading import Columns, Pixels, Whole, read_mask, read_picture
from suture.data.tasks import IGNORED, Classification, MultiLabel, Task

ALIASES = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10"}  #: data sets with a name, and where the hub has them
SOURCES = (
    "possible sources: 'digits', 'mnist', 'cifar10', a Hugging Face hub id ('owner/name'), a local folder, "
    "or (train, test) as tensors (images, labels), Datasets or DataLoaders"
)

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_LABEL_NAMES = ("label", "labels", "fine_label", "target", "class")
_TARGET_NAMES = (*_LABEL_NAMES, "targets", "mask", "annotation", "segmentation_mask")  # of tasks with other targets
_TOKENS_NAME = "input_ids"
_SCORE_SPLITS = ("test", "validation", "valid")
_BATCH = 1000  #: encoded images read at a time, so that never all of them are in memory beside the decoded


def load_splits(source: str) -> Any:
    """Return the ``DatasetDict`` of a folder or a hub id, its labels and encoded images still in Arrow's memory map.

    A folder wins over an id. Raises ``DataError`` if there is neither, or it cannot be loaded.
    """
    folder = Path(source).expanduser()
    if source and folder.is_dir():
        place = str(folder.resolve())
    else:
        place = ALIASES.get(source, source)
        if source and folder.is_file():
            raise DataError(f"{source!r} is a file, and data are a folder or a hub id; give the folder of a data set")
        if not _HUB_ID.fullmatch(place):
            near = get_close_matches(source, ("digits", *ALIASES), 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise DataError(f"no data {source!r}: neither a folder that exists nor a hub id; {SOURCES}{meant}")
    import datasets

    try:
        with _quiet_bars():
            return datasets.load_dataset(place)
    except Exception as error:  # the hub's client raises what its many libraries raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"cannot load {source!r} ({reason}); {SOURCES}") from error


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


def is_of_datasets(thing: object) -> bool:
    """Return whether a thing is one of ``datasets``' own, without importing it for all others."""
    return type(thing).__module__.partition(".")[0] == "datasets"


def has_transform(dataset: Any) -> bool:
    """Return whether a dataset of ``datasets`` has a transform of its own."""
    form = getattr(dataset, "format", None)
    return isinstance(form, dict) and form.get("type") == "custom"


def choose_splits(source: str, splits: Mapping[str, Any], asked: str | None, is_cut: bool) -> list[str]:
    """Return the splits to fit and to score on; if the data are cut (``split=``), that to cut."""
    if is_cut and len(splits) == 1:
        return list(splits)
    if "train" not in splits:
        raise DataError(f"{source!r} has no split 'train' to fit on; its splits: {_quote(list(splits))}")
    return ["train"] if is_cut else ["train", _score_split(source, list(splits), asked)]


def _score_split(source: str, splits: list[str], asked: str | None) -> str:
    valid = [split for split in splits if split != "train"]
    wanted = _SCORE_SPLITS if asked is None else (asked,)
    found = next((split for split in wanted if split in valid), None)
    if found is None:
        one = f"name one with score_split=…: {_quote(valid)}" if valid else "give it one besides 'train'"
        raise DataError(
            f"{source!r} has no split {' or '.join(map(repr, wanted))} to score on; {one}, or cut 'train': split=0.2"
        )
    return found


def read_splits(
    source: str, splits: Mapping[str, Any], keys: Sequence[str], columns: Columns | None, size: int | None, task: Task
) -> list[Whole]:
    """Read splits that ``datasets`` has, images decoded, without its own transforms."""
    import datasets

    for key in keys:
        if not isinstance(splits[key], datasets.Dataset):
            raise DataError(
                f"{source!r} is a {type(splits[key]).__name__}, which can only be read from its beginning; load it "
                "without streaming=True"
            )
    features = splits[keys[0]].features
    image_column, label_column = _choose_columns(source, features, columns, task)
    tokens = _is_tokens(features[image_column])
    if tokens and size is not None:
        raise DataError(f"{source!r} has token ids, which have no size in pixels; leave out size=")
    held = [None if label_column is None else splits[key].features.get(label_column) for key in keys]
    labels = [
        None if label_column is None else _read_labels(source, splits, key, label_column, feature, size, task)
        for key, feature in zip(keys, held, strict=True)
    ]
    names = [
        tuple(getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None) or ())
        for feature in held
    ]
    images = []
    for key in keys:
        part = f"{source}/{key}"
        if tokens:
            beside = [column for column in SIDES if column in features and column != image_column]
            images.append(_read_tokens(splits[key], [image_column, *beside], part))
        else:
            stored = splits[key].select_columns(image_column).with_format("arrow")
            images.append((_read_images(stored, part, size), ()))
    return [
        Whole(image, label, own, inputs=inputs)
        for (image, inputs), label, own in zip(images, labels, names, strict=True)
    ]


def _choose_columns(source: str, features: Mapping[str, Any], asked: Columns | None, task: Task) -> Columns:
    """Return the column of images or token ids and the label column, by type; if types leave a choice, as asked.

    There is no label column for a task that needs none, unless ``labels`` are the token ids of a text again.
    """
    import datasets

    pictures = [column for column, feature in features.items() if isinstance(feature, datasets.Image)]
    tokens = [column for column, feature in features.items() if _is_tokens(feature)]
    images = [column for column in pictures if column not in _TARGET_NAMES] or pictures  # which may be masks
    images = images or [column for column in tokens if column == _TOKENS_NAME] or tokens
    named = [column for column, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    integers = [column for column, feature in features.items() if _is_integer(feature)]
    labels = named or [column for column in integers if column in _LABEL_NAMES]
    if task != Classification():
        named, integers = list(features), []
        labels = [column for column in features if column in _TARGET_NAMES and column not in images[:1]]
        if not task.labelled:
            labels = [column for column in labels if column in tokens and images == [_TOKENS_NAME]]
    if asked is not None:
        images = [column for column in pictures + tokens if column == asked[0]][:1]
        labels = [column for column in named + integers if column == asked[1]]
    if len(images) == 1 and (len(labels) == 1 or (not labels and not task.labelled)):
        return images[0], labels[0] if labels else None
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


def _read_labels(source: str, splits: Any, key: str, column: str, feature: Any, size: int | None, task: Task) -> Tensor:
    """Return the labels of a split, (N,) int64, or what another task takes."""
    from datasets import Image as Picture

    if task != Classification():
        if isinstance(feature, Picture):
            rows = splits[key].with_format(None).select_columns(column)
            masks = [read_mask(row[column], size) for row in rows]
            if len({mask.shape for mask in masks}) > 1:
                raise DataError(f"masks of {source!r} have different sizes; size=… resizes them with the images")
            return torch.stack(masks)
        return _read_targets(source, splits[key].with_format(None)[column][:], feature, task)
    stored = splits[key].select_columns(column).with_format("arrow")[:].column(0)
    labels = np.array(stored.drop_null().to_numpy(), np.int64)
    if stored.null_count or (labels < 0).any():
        raise DataError(
            f"split {key!r} of {source!r} has samples without labels (null or -1); remove them, or score on "
            f"a split with labels by score_split=…; its splits: {_quote(list(splits))}"
        )
    return torch.from_numpy(labels)


def _read_targets(source: str, values: Sequence[Any], feature: Any, task: Task) -> Tensor:
    """Return numbers, or lists of them, as a tensor; lists of named classes, for ``MultiLabel``, as 0 and 1 of each."""
    names = getattr(getattr(feature, "feature", None), "names", None)
    if names and isinstance(task, MultiLabel):
        marked = torch.zeros(len(values), len(names), dtype=torch.int64)
        for row, indices in zip(marked, values, strict=True):
            row[indices] = 1
        return marked
    try:
        if len(set(map(len, values if isinstance(values[0], list) else ()))) > 1:  # of tokens
            return nn.utils.rnn.pad_sequence([torch.as_tensor(row) for row in values], True, IGNORED)
        return torch.as_tensor(values)
    except (TypeError, ValueError) as error:
        raise DataError(f"labels of {source!r} are no numbers of one shape for every sample ({error})") from error


def _read_tokens(split: Any, columns: Sequence[str], name: str) -> tuple[Tensor, Inputs]:
    """Return the token ids of a split, (N, T) int64, or with what the other columns have, (N, columns, T)."""
    flat, lengths = dict[str, Tensor](), torch.empty(0)
    for column in columns:
        stored = split.select_columns(column).with_format("arrow")[:].column(0).combine_chunks()
        if stored.null_count:
            raise DataError(f"{name!r} has {stored.null_count} samples without a sequence (null); remove their rows")
        found = torch.from_numpy(np.array(stored.value_lengths().to_numpy(zero_copy_only=False), np.int64))
        lengths = lengths if flat else found
        odd = (found != lengths).nonzero()
        if len(odd):
            raise DataError(f"{column!r} of sequence {int(odd[0])} of {name!r} has another length than {columns[0]!r}")
        numbers = stored.flatten()
        if numbers.null_count:
            raise DataError(f"sequences of {name!r} have tokens without an id (null); remove them")
        flat[column] = torch.from_numpy(np.array(numbers.to_numpy(), np.int64))
    if not len(lengths):
        return torch.empty((0, 0), dtype=torch.int64), ()
    return join_inputs(fill_up(flat, lengths))


def _read_images(split: Any, name: str, size: int | None) -> Tensor:
    """Return the images of a split, decoded, (N, C, H, W) uint8; C = 1 if all are grey, else 3."""
    if size is not None and size < 1:
        raise DataError(f"size={size} of {name!r} is no size to resize images to; give a side of 1 pixel or more")
    pixels = Pixels(name, len(split), "all must have one size: size=… resizes them to size × size")
    rows = (row for batch in split.iter(batch_size=_BATCH) for row in batch.column(0).to_pylist())
    for index, row in enumerate(rows):
        pixels.add(torch.from_numpy(_decode(row, f"image {index} of {name!r}", size))[None])
    return pixels.images if pixels.done else torch.empty((0, 0, 0, 0), dtype=torch.uint8)


def _decode(row: Mapping[str, Any] | None, what: str, size: int | None) -> NDArray[np.uint8]:
    """Return one image, of which ``datasets`` has the bytes or the path, as (C, H, W)."""
    encoded = row and (row["bytes"] or row["path"])
    if not encoded:
        raise DataError(f"{what} is missing; every sample needs an image: remove its row from the data")
    try:
        with Image.open(BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image:
            return read_picture(image, what, size).copy()
    except (OSError, SyntaxError, ValueError) as error:
        raise DataError(f"{what} cannot be decoded ({error}); replace it or remove its row") from error


def _quote(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
