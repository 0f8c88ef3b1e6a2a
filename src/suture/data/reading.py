"""Reading of a map-style ``Dataset``, a ``DataLoader``, or anything that returns samples by their number.

A ``DataLoader`` is read in the order of its dataset, by its own workers and ``collate_fn``: the samples of its batches,
each once. One that shuffles and drops the last leaves out others each time, so of it all are read, and a warning says
so. Samples are pairs ``(image, label)``, or mappings with an
entry for each; token ids may have their mask, token types and positions beside them, and any length. Images are
tensors, arrays or PIL's; floats that are 8-bit pixels divided by 255, as ``ToTensor`` makes them, are kept as bytes:
the same images, to rounding, in a quarter of the space.

The transforms of a dataset are part of the data. They must give the same each time, because every network is fed the
same images: a few samples are read twice.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Subset, default_collate

from suture.common.errors import DataError
from suture.common.mapped import empty, fill, pieces
from suture.common.warning import warn
from suture.data.images import check_brightness, check_range
from suture.data.inputs import CONTENT, SIDES, Input, Inputs, fill_up, join_inputs
from suture.data.tasks import IGNORED

IMAGE_KEYS = ("image", "img", "images", "pixel_values", "input_ids", "inputs", "x")
LABEL_KEYS = ("label", "labels", "fine_label", "target", "targets", "class", "y")
IGNORED_PIXEL = 255  #: of a mask that is an image, by the convention of VOC and ADE20K
TWICE = 32  #: samples read twice; of a flip by chance, that all are alike happens once in four billion times
_BATCH = 64  #: samples read at a time
_GREY_MODES = ("1", "LA", "La")  #: PIL's modes of grey images besides "L"
_DEEP_MODES = ("I", "F")  #: the first letter of PIL's modes of more than 8 bits: "I", "I;16", "F", …
_ROUNDING = 1e-4  #: of 255, by which a float may be off a byte: transforms that scale pixels differ in their last bit
_TOLD = 200  #: letters of what is said of transforms, at most

Columns = tuple[str, str | None]


@dataclass(frozen=True)
class Whole:
    """All samples of a source: images (N, C, H, W) or token ids (N, T), labels, and names of classes if it has them.

    Token ids with their masks and such are (N, columns, T), and ``inputs`` describes the columns.
    """

    images: Tensor
    labels: Tensor | None
    classes: tuple[str, ...] = ()
    transforms: str = ""
    inputs: Inputs = ()


class Pixels:
    """Images that come one after the other, ``count`` in all, of one size; large ones lie in a mapped file.

    They are grey until one has colour, and bytes until one has a value between two of the 256.
    """

    def __init__(self, name: str, count: int, remedy: str) -> None:
        self.name, self.count, self.remedy = name, count, remedy
        self.images = torch.empty(0)
        self.done = 0

    def add(self, images: Tensor) -> None:
        """Take in images (n, C, H, W), uint8 in 0..255 or floats in [0, 1].

        Raises ``DataError`` for any other, and if they are not like those before.
        """
        images = self._check(images)
        if not self.done:
            self.images = empty((self.count, *images.shape[1:]), images.dtype)
        before, now = self.images.shape[1:], images.shape[1:]
        if before[1:] != now[1:]:
            sizes = ["×".join(map(str, reversed(of[1:]))) for of in (now, before)]
            raise DataError(
                f"image {self.done} of {self.name!r} is {sizes[0]} pixels, those before it {sizes[1]}; {self.remedy}"
            )
        if {before[0], now[0]} not in ({1, 3}, {before[0]}):
            raise DataError(
                f"image {self.done} of {self.name!r} has {now[0]} channels, those before it {before[0]}; give "
                "all the same number"
            )
        channels, dtype = max(before[0], now[0]), torch.promote_types(self.images.dtype, images.dtype)
        if (channels, dtype) != (before[0], self.images.dtype):
            known = (_widen(part, channels, dtype) for part in pieces(self.images[: self.done]))
            self.images = fill(empty((self.count, channels, *now[1:]), dtype), known)
        fill(self.images[self.done :], [_widen(images, channels, dtype)])
        self.done += len(images)

    def _check(self, images: Tensor) -> Tensor:
        kind = f"{images.dtype} of shape {tuple(images.shape[1:])}"
        if images.ndim == 3:
            images = images.unsqueeze(1)
        if images.ndim != 4 or not (images.dtype == torch.uint8 or images.is_floating_point()):
            raise DataError(
                f"samples of {self.name!r} are {kind}; give images (C, H, W), uint8 in 0..255 or floats in [0, 1], or "
                "token ids (T,) int64"
            )
        if images.shape[-1] in (1, 3) and images.shape[1] > 4:
            raise DataError(
                f"images of {self.name!r} have shape {tuple(images.shape[1:])}, which looks like (H, W, C); they must "
                "be (C, H, W): transpose them with axes (2, 0, 1)"
            )
        if not images.is_floating_point():
            return images
        images = images.float()
        check_range(f"images of {self.name!r}", images)
        scaled = images * 255
        pixels = scaled.round()
        return pixels.to(torch.uint8) if float((scaled - pixels).abs().max()) <= _ROUNDING else images


def _widen(images: Tensor, channels: int, dtype: torch.dtype) -> Tensor:
    scaled = images if images.dtype == dtype else images.float() / 255
    return scaled.expand(-1, channels, -1, -1)


def read_picture(image: Image.Image, what: str, size: int | None) -> NDArray[np.uint8]:
    """Return the pixels of PIL's image, (C, H, W): grey or RGB, as the file says."""
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
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def read_mask(image: Image.Image, size: int | None) -> Tensor:
    """Return the class of every pixel of a mask, (H, W) int64; ``IGNORED`` where it is 255."""
    if size is not None:
        image = image.resize((size, size), Image.Resampling.NEAREST)
    mask = torch.from_numpy(np.array(image)).long()
    return mask.masked_fill(mask == IGNORED_PIXEL, IGNORED)


def is_dataset(thing: object) -> bool:
    """Return whether a thing gives samples by their number, or is a loader of such."""
    if isinstance(thing, str | bytes | Tensor | np.ndarray | Sequence | Mapping):
        return False
    streams = isinstance(thing, DataLoader | IterableDataset) or type(thing).__name__ == "IterableDataset"
    return streams or (hasattr(thing, "__getitem__") and hasattr(thing, "__len__"))


def name_of(given: Any) -> str:
    """Return the default name of a dataset: that of the innermost dataset, or of its class."""
    inner = given
    while is_dataset(deeper := getattr(inner, "dataset", None)):
        inner = deeper
    info = getattr(inner, "info", None)
    return str(getattr(info, "dataset_name", None) or type(inner).__name__)


def read_dataset(given: Any, name: str, columns: Columns | None, size: int | None, labelled: bool) -> Whole:
    """Return all samples of a dataset or loader, in the dataset's order.

    ``columns`` names the entries of samples that are mappings, if known names leave a choice. ``size`` is the side to
    resize PIL's images to. Raises ``DataError`` for samples that cannot be read, or differ each time.
    """
    if size is not None and size < 1:
        raise DataError(f"size={size} of {name!r} is not a size to resize images to; give a side of 1 pixel or more")
    loader = given if isinstance(given, DataLoader) else None
    dataset: Any = given if loader is None else loader.dataset
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise DataError(
            f"{name!r} is a {type(dataset).__name__}, which can only be read from its beginning; give a map-style "
            "Dataset, with __len__ and __getitem__"
        )
    own = loader is not None and loader.collate_fn is not default_collate
    if loader is not None and loader.batch_size is None and loader.batch_sampler is None:
        raise DataError(f"the DataLoader {name!r} makes no batches (batch_size=None); give its dataset instead")
    collate: Callable[[list[Any]], Any] = loader.collate_fn if own and loader is not None else list
    order = list(range(len(dataset))) if loader is None else _list_drawn(loader, name)
    if not order:
        raise DataError(f"{name!r} has no samples; give it some")
    transforms = describe_transforms(dataset, collate if own else None)

    names: dict[str, None] = {}  # of several inputs

    def parse(batch: Any, numbers: Sequence[int]) -> tuple[list[Tensor], list[Tensor]]:
        if not own:
            images, targets = [], []
            for i, item in zip(numbers, batch, strict=True):
                image, label = _pair(item, f"sample {i} of {name!r}", columns)
                kind = "sample" if isinstance(image, Mapping) else "image"
                images.append(_inputs(image, f"{kind} {i} of {name!r}", size)[None])
                names.update(dict.fromkeys(image if isinstance(image, Mapping) else ()))
                target = _label(label, f"sample {i} of {name!r}", size, labelled)
                targets += [] if target is None else [target[None]]
            return images, targets
        what = f"a batch of {name!r}"
        image, label = _pair(batch, what, columns)
        if isinstance(image, Mapping):
            names.update(dict.fromkeys(image))
            image = torch.stack([torch.as_tensor(column).long() for column in image.values()], 1)
        target = _label(label, what, size, labelled)
        for part in (image, target):
            if part is not None and (not isinstance(part, Tensor) or len(part) != len(numbers)):
                got = f"a tensor of {len(part)}" if isinstance(part, Tensor) else f"a {type(part).__name__}"
                raise DataError(
                    f"the collate_fn of {name!r} makes {got} of {len(numbers)} samples; it must give pairs "
                    "(images, labels) of tensors, a row for each sample"
                )
        return [image.as_subclass(Tensor).detach().cpu()], [] if target is None else [target]

    def read(numbers: Sequence[int]) -> list[list[Tensor]]:
        try:
            return list(parse(collate([dataset[i] for i in numbers]), numbers))
        except DataError:
            raise
        except Exception as error:  # whatever a user's dataset raises
            raise _unreadable(dataset, numbers, name, error) from error

    _check_steady(read, order[:: -(-len(order) // TWICE)], name, transforms)
    again = DataLoader(
        Subset(dataset, order),
        (loader.batch_size if own and loader is not None else None) or _BATCH,
        collate_fn=collate,
        num_workers=loader.num_workers if loader is not None else 0,
        worker_init_fn=loader.worker_init_fn if loader is not None else None,
        multiprocessing_context=loader.multiprocessing_context if loader is not None else None,
        generator=torch.Generator(),  # else it would draw from the program's own
    )
    remedy = "all must have one size: size=… resizes PIL's images, or put a Resize((side, side)) into its transforms"
    pixels, tokens, labels, done = Pixels(name, len(order), remedy), list[Tensor](), list[Tensor](), 0
    batches = iter(again)
    while done < len(order):
        numbers = order[done : done + (again.batch_size or _BATCH)]
        try:
            images, targets = parse(next(batches), numbers)
        except DataError:
            raise
        except Exception as error:
            raise _unreadable(dataset, numbers, name, error) from error
        for part in images:
            if names or _is_tokens(part):
                tokens.append(part)
            else:
                pixels.add(part)
        labels += targets
        done += len(numbers)
    if pixels.done:
        check_brightness(name, pixels.images)
    found, inputs = _join_tokens(tokens, list(names), name, own) if tokens else (pixels.images, ())
    return Whole(found, _join(labels, name) if labels else None, _classes(dataset), transforms, inputs)


def _list_drawn(loader: "DataLoader[Any]", name: str) -> list[int]:
    """Return the numbers of the samples that a loader draws. Raises ``DataError`` if they differ each time."""
    whole = list(range(len(loader.dataset)))  # type: ignore[arg-type]
    sampler, is_plain = loader.sampler, type(loader.batch_sampler) is BatchSampler
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise DataError(
            f"the DataLoader {name!r} is a {type(loader).__name__}, whose __iter__ is its own and may give other "
            "batches than its dataset; give that dataset, or torch.utils.data.Subset(dataset, indices) of it"
        )
    if is_plain and type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(whole):
        left = len(whole) % (loader.batch_size or 1) if loader.drop_last else 0
        if left:
            warn(
                f"the DataLoader {name!r} shuffles and leaves out {left} of {len(whole)} samples, different ones"
                " each time (drop_last=True); all samples are used"
            )
        return whole

    def draw() -> list[int]:
        return sorted({int(number) for number in chain.from_iterable(loader.batch_sampler or ())})

    with torch.random.fork_rng([]):
        once, again = draw(), draw()
    if once != again:
        raise DataError(
            f"the sampler of {name!r} draws different samples each time; give a fixed choice as a dataset: "
            "torch.utils.data.Subset(dataset, indices)"
        )
    return once


def _unreadable(dataset: Any, numbers: Sequence[int], name: str, error: Exception) -> DataError:
    """Return the error that says which sample cannot be read, and why."""
    among = f"one of the samples {min(numbers)} to {max(numbers)}"
    for number in numbers:
        try:
            dataset[number]
        except Exception:  # as before
            among = f"sample {number}"
            break
    return DataError(f"{among} of {name!r} cannot be read ({type(error).__name__}: {error}); mend it, or leave it out")


def _is_tokens(part: Tensor) -> bool:
    return part.ndim == 2 and not part.is_floating_point() and part.dtype not in (torch.uint8, torch.bool)


def _join_tokens(parts: Sequence[Tensor], names: Sequence[str], name: str, are_batches: bool) -> tuple[Tensor, Inputs]:
    """Return token ids (n, T), or with their side inputs (n, columns, T), of all parts, padded to one length."""
    parts = [part if part.ndim == 3 else part[:, None] for part in parts]
    names = names or [CONTENT[0]]
    lengths = torch.cat([torch.full((len(part),), part.shape[-1]) for part in parts])
    if are_batches and len(set(lengths.tolist())) > 1 and not any(Input(one).is_mask for one in names):
        raise DataError(
            f"batches of {name!r} are padded to {int(lengths.min())} and to {int(lengths.max())} tokens, without"
            " a mask that marks the real ones; let the collate_fn give an attention_mask"
        )
    flat = {one: torch.cat([part[:, i].flatten() for part in parts]) for i, one in enumerate(names)}
    return join_inputs(fill_up(flat, lengths))


def _check_steady(read: Callable[[Sequence[int]], list[list[Tensor]]], few: Sequence[int], name: str, how: str) -> None:
    with torch.random.fork_rng([]):
        first, second = read(few), read(few)
    for one, other in zip(first, second, strict=True):
        if not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True)):
            through = f", through {how}" if how else ""
            raise DataError(
                f"samples of {name!r} change each time they are read{through}: all networks must be fed the "
                "same; give the Dataset with the transforms of an evaluation, such as Resize and CenterCrop, without "
                "random ones"
            )


def _pair(item: Any, what: str, columns: Columns | None) -> tuple[Any, Any]:
    """Return the image and the label of a sample, or of a batch; ``None`` if it has no label."""
    if isinstance(item, tuple | list) and len(item) == 2 and isinstance(item[0], Mapping):
        item, columns = {**item[0], LABEL_KEYS[0]: item[1]}, columns and (columns[0], LABEL_KEYS[0])
    if isinstance(item, Mapping):
        asked = columns or (None, None)
        image, label = (_choose(item, what, *one) for one in zip(asked, (IMAGE_KEYS, LABEL_KEYS), strict=True))
        if image is None:
            raise DataError(
                f"{what} has {', '.join(map(repr, item)) or 'nothing'}, and no image under a known name "
                f"({', '.join(IMAGE_KEYS)}); name the entries: columns=(image, label)"
            )
        beside = {key: item[key] for key in SIDES if key in item}
        return {image: item[image], **beside} if beside else item[image], None if label is None else item[label]
    if not isinstance(item, tuple | list):
        return item, None
    if len(item) == 1:
        return item[0], None
    if len(item) != 2:
        kinds = ", ".join(type(one).__name__ for one in item)
        raise DataError(f"{what} is {len(item)} things ({kinds}); give pairs (image, label)")
    return item[0], item[1]


def _choose(item: Mapping[str, Any], what: str, asked: str | None, known: Sequence[str]) -> str | None:
    if asked is not None:
        if asked not in item:
            raise DataError(f"{what} has no {asked!r}; it has {', '.join(map(repr, item))}")
        return asked
    found = [key for key in known if key in item]
    if len(found) > 1:
        raise DataError(f"{what} has {' and '.join(map(repr, found))}; choose: columns=(image, label)")
    return found[0] if found else None


def _inputs(image: Any, what: str, size: int | None) -> Tensor:
    """Return the image of a sample, or its token ids (T,), or these with their side inputs (columns, T)."""
    if not isinstance(image, Mapping):
        return _image(image, what, size)
    parts = {key: _image(one, f"{key} of {what}", size) for key, one in image.items()}
    lengths = {key: tuple(part.shape) for key, part in parts.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(f"the inputs of {what} differ in length: {lengths}; give each token one of each")
    return torch.stack([part.long() for part in parts.values()])


def _image(image: Any, what: str, size: int | None) -> Tensor:
    """Return the image of a sample as a tensor, (C, H, W) or (H, W), or its token ids (T,)."""
    if isinstance(image, Image.Image):
        return torch.from_numpy(read_picture(image, what, size).copy())
    if isinstance(image, list | tuple) and image and all(isinstance(token, int) for token in image):
        image = np.array(image, np.int64)
    if isinstance(image, np.ndarray) and image.dtype.kind in "uifb":
        image = torch.from_numpy(np.ascontiguousarray(image))
    if image is None:
        raise DataError(f"{what} is missing; remove its row from the data")
    if not isinstance(image, Tensor):
        raise DataError(f"{what} is a {type(image).__name__}; give a tensor, an array or PIL's image, (C, H, W)")
    if size is not None:
        raise DataError(f"{what} is a tensor, and size= resizes PIL's images; put a Resize into the transforms")
    return image.as_subclass(Tensor).detach().cpu()


def _label(label: Any, what: str, size: int | None, labelled: bool) -> Tensor | None:
    if isinstance(label, Image.Image):
        return read_mask(label, size)
    if label is None:
        if labelled:
            raise DataError(f"{what} has no label; give pairs (image, label), or task=OwnOutputs() to do without")
        return None
    try:
        return torch.as_tensor(label).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        if not labelled:
            return None
        raise DataError(
            f"the label of {what} is {label!r:.60}, a {type(label).__name__}; give the index of its class, or the "
            "numbers that the task takes"
        ) from error


def _join(labels: list[Tensor], name: str) -> Tensor:
    shapes = {tuple(label.shape[1:]) for label in labels}
    if len(shapes) > 1 and all(label.ndim == 2 and not label.is_floating_point() for label in labels):  # of tokens
        longest = max(label.shape[1] for label in labels)
        return torch.cat([functional.pad(label, (0, longest - label.shape[1]), value=IGNORED) for label in labels])
    if len(shapes) > 1:
        raise DataError(
            f"labels of {name!r} have different shapes, such as {' and '.join(map(str, sorted(shapes)[:2]))}"
        )
    return torch.cat(labels)


def _within(dataset: Any) -> list[Any]:
    """Return a dataset and those that it is made of, as ``Subset`` and ``ConcatDataset`` are."""
    several = getattr(dataset, "datasets", None)
    inner = [getattr(dataset, "dataset", None), *(several if isinstance(several, list | tuple) else ())]
    return [dataset, *(one for part in inner if is_dataset(part) for one in _within(part))]


def describe_transforms(dataset: Any, collate: Callable[..., Any] | None = None) -> str:
    """Describe in words how a dataset transforms its images and labels."""
    found: list[str] = []
    for one in _within(dataset):
        kept = getattr(one, "__dict__", {})
        told = [
            kept.get("transform"),
            kept.get("target_transform"),
            (kept.get("_format_kwargs") or {}).get("transform"),
        ]
        found += [_say(how) for how in (told if any(told) else [kept.get("transforms")]) if how is not None]
    found += [f"collated by {_say(collate)}"] if collate is not None else []
    words = ", ".join(dict.fromkeys(found))
    return words if len(words) <= _TOLD else f"{words[:_TOLD]}…"


def _say(how: object) -> str:
    name = getattr(how, "__qualname__", None)
    return str(name) if name is not None else re.sub(r"\s+", " ", re.sub(r" at 0x[0-9a-f]+", "", repr(how)))


def _classes(dataset: Any) -> tuple[str, ...]:
    """Return the names of the classes if a dataset has them, as torchvision's do, and labels are left alone."""
    for one in _within(dataset):
        features = getattr(one, "features", None)  # of the library datasets; others may call anything so
        kinds = features.values() if isinstance(features, Mapping) else ()
        named = [kind.names for kind in kinds if hasattr(kind, "names")]
        names = named[0] if len(named) == 1 else getattr(one, "classes", None)
        if getattr(one, "target_transform", None) is not None:
            return ()
        if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
            return tuple(names)
    return ()
