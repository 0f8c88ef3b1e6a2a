"""Reading with ``datasets``: ids of the hub, local folders, and its own ``Dataset`` and ``DatasetDict``.

Nothing is ever unpickled. Columns are found by type (``Image``, ``ClassLabel``), splits by name (``train``; ``test``,
else ``validation``). Data without images may have sequences of token ids, a column of lists of integers (``input_ids``
if there are several), with their mask, token types and positions in columns beside it. Lengths may differ: shorter
sequences are padded and masked.

Pixels come out as the file says: 8 bits a channel, grey if every image is grey, else RGB (alpha is dropped, palettes
are looked up). A rotation noted in a photograph's EXIF is applied, as ``datasets`` does. A dataset with a transform of
its own (``set_transform``) is read through it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from os.path import commonpath
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.formatting import first_line
from suture.common.mapped import ROWS, empty, fill
from suture.common.seeds import generator
from suture.data.inputs import SIDES
from suture.data.reading import Columns, Whole, read_dataset
from suture.data.tasks import Classification, MultiLabel, Task

ALIASES = {"mnist": "ylecun/mnist", "cifar10": "uoft-cs/cifar10"}  #: data sets with a name, and where the hub has them
SOURCES = (
    "possible sources: 'digits', 'mnist', 'cifar10', a Hugging Face hub id ('owner/name'), a local folder, "
    "(train, test) as tensors (images, labels), Datasets or DataLoaders, or what datasets.load_dataset(…) gives"
)

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_LABEL_NAMES = ("label", "labels", "fine_label", "target", "class")
_TARGET_NAMES = (*_LABEL_NAMES, "targets", "mask", "annotation", "segmentation_mask")  # of tasks with other targets
_TOKENS_NAME = "input_ids"
_SCORE_SPLITS = ("test", "validation", "valid")


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
            return _name_by_outermost(Path(place), datasets.load_dataset(place))
    except Exception as error:  # the hub's client raises what its many libraries raise
        raise DataError(f"cannot load {source!r} ({first_line(error)}); {SOURCES}") from error


def _name_by_outermost(folder: Path, splits: Any) -> Any:
    """Take the classes of a folder of images from the outermost folders, as torchvision's ``ImageFolder`` does.

    ``datasets`` takes the innermost: in ``train/cat/indoors/1.png`` the class would be ``indoors``.
    """
    import datasets

    below: dict[str, list[tuple[str, ...]]] = {}
    for key, rows in splits.items():
        if rows.info.builder_name != "imagefolder" or {*rows.features} != {"image", "label"}:
            return splits
        paths = [Path(one["path"]) for one in rows.cast_column("image", datasets.Image(decode=False))["image"]]
        if not all(path.is_relative_to(folder) for path in paths):  # in an archive
            return splits
        several, named = len(splits) > 1, all(path.is_relative_to(folder / key) for path in paths)
        root = Path(commonpath([path.parent for path in paths])) if several else folder / key if named else folder
        below[key] = [path.relative_to(root).parts[:-1] for path in paths]
    places = [one for of_split in below.values() for one in of_split]
    if not all(places) or not any(len(one) > 1 for one in places):
        return splits
    names = sorted({one[0] for one in places})
    kind = datasets.ClassLabel(names=names)
    numbers = {key: [names.index(one[0]) for one in of_split] for key, of_split in below.items()}
    named_again = {
        key: rows.remove_columns("label").add_column("label", numbers[key], feature=kind)
        for key, rows in splits.items()
    }
    return datasets.DatasetDict(named_again)


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
    if is_cut:
        return ["train"]
    valid = [split for split in splits if split != "train"]
    wanted = _SCORE_SPLITS if asked is None else (asked,)
    found = next((split for split in wanted if split in valid), None)
    if found is None:
        one = f"name one with score_split=…: {_quote(valid)}" if valid else "give it one besides 'train'"
        raise DataError(
            f"{source!r} has no split {' or '.join(map(repr, wanted))} to score on; {one}, or cut 'train': split=0.2"
        )
    return ["train", found]


def read_splits(
    source: str,
    splits: Mapping[str, Any],
    keys: Sequence[str],
    columns: Columns | None,
    size: int | None,
    task: Task,
    decoded: int | None = None,
) -> list[Whole]:
    """Read splits that ``datasets`` has, images decoded, without its own transforms.

    If ``decoded`` is given, only so many images of classes are, and the others are noise.
    """
    import datasets

    for key in keys:
        if not isinstance(splits[key], datasets.Dataset):
            raise DataError(
                f"{source!r} is a {type(splits[key]).__name__}, which can only be read from its beginning; load it "
                "without streaming=True"
            )
    features = splits[keys[0]].features
    image, label = _choose_columns(source, features, columns, task)
    tokens = _is_tokens(features[image])
    if tokens and size is not None:
        raise DataError(f"{source!r} has token ids, which have no size in pixels; leave out size=")
    beside = [column for column in SIDES if tokens and column in features and column not in (image, label)]
    wanted = [image, *([] if label is None else [label]), *beside]
    found = []
    for key in keys:
        if missing := [column for column in wanted if column not in splits[key].features]:
            raise DataError(
                f"split {key!r} of {source!r} has no column {missing[0]!r}, as {keys[0]!r} has; its columns: "
                f"{_quote(list(splits[key].features))}; name columns alike"
            )
        rows = splits[key].with_format(None).select_columns(wanted)
        rows = rows if tokens else rows.cast_column(image, datasets.Image())  # in whatever mode the file has
        feature = None if label is None else rows.features[label]
        listed = getattr(getattr(feature, "feature", None), "names", None)
        if label is not None and task == Classification():
            _check_labels(source, splits, key, label)
        if listed and isinstance(task, MultiLabel):
            rows = _Marked(rows, label, len(listed))
        every = len(rows)
        is_sketch = decoded is not None and decoded < every and not tokens and task == Classification()
        if decoded is not None and is_sketch:
            labels = torch.from_numpy(rows.with_format("arrow")[:].column(label).to_numpy().astype("int64"))
            rows = rows.select(range(0, every, every // decoded))
        whole = read_dataset(rows, f"{source}/{key}", (image, label), size, task.labelled)
        if is_sketch:
            whole = replace(whole, images=_fill_up(whole.images, every, key), labels=labels)
        names = tuple(getattr(feature, "names", None) or listed or ())
        found.append(replace(whole, classes=names, transforms=""))
    return found


def _fill_up(images: Tensor, count: int, key: str) -> Tensor:
    """Return so many images, those that are not given noise, which is the same each time."""
    random = generator("sketch", key)
    left = count - len(images)
    noise = (
        torch.randint(256, (min(ROWS, left - done), *images.shape[1:]), generator=random, dtype=images.dtype)
        for done in range(0, left, ROWS)
    )
    return fill(empty((count, *images.shape[1:]), images.dtype), chain([images], noise))


@dataclass(frozen=True)
class _Marked:
    """Rows whose lists of classes, in the column ``label``, are 0 and 1 for each of ``classes``."""

    rows: Any
    label: str | None
    classes: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str | None, Any]:
        row: dict[str | None, Any] = self.rows[index]
        return row | {self.label: [int(one in row[self.label]) for one in range(self.classes)]}


def _check_labels(source: str, splits: Mapping[str, Any], key: str, column: str) -> None:
    """Refuse a split with samples without a label, as the hub has them in test splits."""
    labels = splits[key].select_columns(column).with_format("arrow")[:].column(0)
    if labels.null_count or (labels.to_numpy() < 0).any():
        raise DataError(
            f"split {key!r} of {source!r} has samples without labels (null or -1); remove them, or score on "
            f"a split with labels by score_split=…; its splits: {_quote(list(splits))}"
        )


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


def _quote(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
