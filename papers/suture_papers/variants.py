"""The papers' data sets: the same data with one thing changed, so that the effect on networks is known.

A variant changes the samples of a role. One that spoils a network's training (fewer samples, wrong labels, a class left
out) changes the *training* roles, fit and validation, and leaves score unchanged: the network's gaps show on the true
data. One that sets another task, or makes another kind of image, changes every role.

Random choices depend on the images, the seed and the kind of variant alone. So they are the same in every process, and
the half of the relabelled data is the relabelled half of the data. Numbers are drawn on the CPU, wherever the data are.

Sources: bansal2021, section 5 (5,000 to 25,000 samples, random labels, objects and animals) and appendix B (disjoint
halves); smith2024, appendix A (colours); oxford2025, sections 4.1 (every car labelled cat), 4.2 (no trucks) and 4.3
(MNIST-CIFAR, a region blacked out). The file is long because it is a list: each variant can be read by itself.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from suture import Data, Samples
from suture.common.errors import DataError
from suture.data.changes import Variant, class_index, list_names
from suture.data.tasks import Classification, DenseClassification
from suture.extend import check_pictures, generator, keyed_as

BASE_COLOURS = (
    (255, 0, 0),
    (0, 255, 0),
    (0, 0, 255),
    (225, 225, 0),
    (225, 0, 225),
    (0, 255, 255),
    (255, 128, 0),
    (255, 0, 128),
    (128, 0, 255),
    (128, 128, 128),
)
"""Red, green and blue of each class's colour, 0..255, in the order of the classes."""

_PAINTED = 4096  #: images painted at once, to bound memory


def order_of(samples: Samples, kind: str, seed: int) -> Tensor:
    """Return a random order of the samples, (N,) int64, which their images, a kind of choice and a seed decide."""
    return torch.randperm(len(samples), generator=generator("variant", kind, samples.image_fingerprint, seed))


def _seed(seed: int) -> str:
    return f" (seed {seed})" if seed else ""


def _everywhere(everywhere: bool) -> str:
    return " everywhere" if everywhere else ""


# --- less of the data -------------------------------------------------------------------------------------------------


def _choose(samples: Samples, kind: str, seed: int, part: slice) -> Samples:
    """Return a part of the samples' random order, in their own order."""
    indices = order_of(samples, kind, seed)[part].sort().values
    return samples.take(indices.to(samples.labels.device), samples.name)


@keyed_as("Subset")
@final
@dataclass(frozen=True)
class Subset(Variant):
    """Some of the training samples, drawn at random: ``n`` of fit and validation together.

    They keep the proportion of the two, with at least 2 of each. Those of a smaller ``n`` are among those of a larger
    one, at the same seed. Classes are not balanced. Changes the training roles. Raises ``DataError`` for an
    ``n`` below 4 or above their number.
    """

    n: int
    seed: int = 0

    everywhere = False

    @property
    def summary(self) -> str:
        """The number of samples, and the seed if it is not 0."""
        return f"{self.n} samples{_seed(self.seed)}"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return its share of the ``n`` samples."""
        validating = len(data.validation)
        total = len(data.fit) + validating
        if not 4 <= self.n <= total:
            raise DataError(
                f"cannot take {self.n} training samples of {data.name}; valid: 4 to {total}, which is all of fit "
                f"({len(data.fit)}) and validation ({validating}) together"
            )
        validated = min(max(2, (2 * self.n * validating + total) // (2 * total)), self.n - 2)
        count = self.n - validated if samples is data.fit else validated
        return _choose(samples, "subset", self.seed, slice(count))


@keyed_as("Half")
@final
@dataclass(frozen=True)
class Half(Variant):
    """One of two disjoint halves of the training data, drawn at random.

    ``which`` is 0 or 1; the two halves of a seed share no sample, together are all, and differ in size by at most 1.
    Fit and validation are both halved. Changes the training roles. Raises ``DataError`` for any other half, and if
    a role has fewer than 4 samples.
    """

    which: int = 0
    seed: int = 0

    everywhere = False

    def __post_init__(self) -> None:
        if self.which not in (0, 1) or isinstance(self.which, bool):
            raise DataError(f"no half {self.which!r} of the data; valid: 0 and 1")

    @property
    def summary(self) -> str:
        """Which half, and the seed if it is not 0."""
        return f"half {self.which}{_seed(self.seed)}"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the half of one role; of an odd number, the larger half is 1 of fit, and 0 of validation."""
        if len(samples) < 4:
            raise DataError(
                f"cannot halve {samples.name}: it has {len(samples)} samples, and each half needs 2; give it more"
            )
        middle = (len(samples) + (samples is not data.fit)) // 2
        return _choose(samples, "half", self.seed, slice(middle) if self.which == 0 else slice(middle, None))


@keyed_as("Without")
@final
@dataclass(frozen=True)
class Without(Variant):
    """The training data without all samples of some classes.

    ``classes`` are their names, separated by ``|``. The list of classes and the numbers of the others stay, so networks
    keep an output for classes that they never saw. Changes the training roles. Raises ``DataError`` for a class that
    the data lack, and if fewer than 2 samples would stay in a role.
    """

    classes: str

    everywhere = False
    tasks = (Classification(),)

    @property
    def summary(self) -> str:
        """The classes left out."""
        return f"without {' and '.join(self._names)}"

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.classes.split("|"))

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples of other classes, in their order."""
        gone = torch.tensor([class_index(name, data, self.summary) for name in self._names])
        (kept,) = torch.where(~torch.isin(samples.labels.cpu(), gone))
        if len(kept) < 2:
            raise DataError(
                f"{self.summary} leaves {len(kept)} samples in {samples.name}, and 2 are needed; leave out fewer "
                f"of its classes: {list_names(samples.classes)}"
            )
        return samples.take(kept.to(samples.labels.device), samples.name)


# --- other labels; the images stay the same tensor, so activations of the same images are shared ----------------------


@keyed_as("Relabelled")
@final
@dataclass(frozen=True)
class Relabelled(Variant):
    """Every sample of one class is labelled as another.

    ``label`` is the name of the class that loses its samples, ``to`` that of the class that gets them; the list of
    classes stays. Changes the training roles, with ``everywhere`` score too. Raises ``DataError`` for a class that the
    data lack.
    """

    label: str
    to: str
    everywhere: bool = False

    tasks = (Classification(), DenseClassification())

    def __post_init__(self) -> None:
        if self.label == self.to:
            raise DataError(f"class '{self.label}' is relabelled as itself; name another class to give it to")

    @property
    def summary(self) -> str:
        """The relabelling, in words."""
        return f"{self.label} as {self.to}{_everywhere(self.everywhere)}"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples with the one class called the other."""
        label, to = (class_index(name, data, self.summary) for name in (self.label, self.to))
        return replace(samples, labels=samples.labels.masked_fill(samples.labels == label, to))


@keyed_as("RandomLabels")
@final
@dataclass(frozen=True)
class RandomLabels(Variant):
    """A share of the training samples gets a label drawn at random.

    Exactly ``round(p · n)`` of the n samples of fit and validation together, chosen at random, get a label drawn
    uniformly from all k classes, including their own: the expected share of wrong labels is p (1 − 1/k). The samples
    of a smaller ``p`` are among those of a larger one, with the same new labels. Changes the training roles, with
    ``everywhere`` score too, by the same share. bansal2021, appendix A.2. Raises ``DataError`` for a ``p`` outside
    0 to 1.
    """

    p: float
    seed: int = 0
    everywhere: bool = False

    tasks = (Classification(),)

    def __post_init__(self) -> None:
        if not 0 <= self.p <= 1:
            raise DataError(f"the share of random labels is {self.p:g}; valid: 0 to 1, such as 0.1 for 10 %")

    @property
    def summary(self) -> str:
        """The share in percent, and the seed if it is not 0."""
        return f"{100 * self.p:g} % random labels{_seed(self.seed)}{_everywhere(self.everywhere)}"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples, some of them relabelled: those of fit and validation are drawn at once."""
        roles = [data.score] if samples is data.score else [data.fit, data.validation]
        count = sum(map(len, roles))
        random = generator("variant", "random labels", [role.image_fingerprint for role in roles], self.seed)
        order = torch.randperm(count, generator=random)
        drawn = torch.randint(len(samples.classes), (count,), generator=random)
        chosen = torch.zeros(count, dtype=torch.bool)
        chosen[order[: round(self.p * count)]] = True
        ours = slice(len(data.fit), None) if samples is data.validation else slice(len(samples))
        labels = torch.where(chosen[ours], drawn[ours], samples.labels.cpu())
        return replace(samples, labels=labels.to(samples.labels.device))


@keyed_as("SuperClasses")
@final
@dataclass(frozen=True)
class SuperClasses(Variant):
    """Classes joined to larger ones, which become the task.

    ``groups`` names each new class and what it is made of, in the order of the new labels:
    ``"animal: bird|cat; object: ship|truck"``; ``SuperClasses.of`` makes it from a mapping. Changes every role. Raises
    ``DataError`` if the groups cannot be read, if a class of the data is in none or in two, and for a class that
    the data lack.
    """

    groups: str

    tasks = (Classification(),)

    def __post_init__(self) -> None:
        names = [name for name, _ in self.members]
        if len(names) < 2 or len(set(names)) < len(names) or not all(n and all(of) for n, of in self.members):
            raise DataError(
                f"super-classes '{self.groups}': give at least two, each once, with the classes they are made of, as "
                "in 'animal: bird|cat; object: ship|truck'"
            )

    @classmethod
    def of(cls, groups: Mapping[str, Iterable[str]]) -> "SuperClasses":
        """Make the variant from the classes of each new class, in the order of the new labels."""
        return cls("; ".join(f"{name}: {'|'.join(members)}" for name, members in groups.items()))

    @property
    def members(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each new class with the names of the classes that it is made of."""
        parts = [part.partition(":") for part in self.groups.split(";")]
        return tuple((name.strip(), tuple(one.strip() for one in of.split("|"))) for name, _, of in parts)

    @property
    def summary(self) -> str:
        """The new classes."""
        return f"as {' or '.join(name for name, _ in self.members)}"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples with the larger classes."""
        table = torch.full((len(data.classes),), -1)  # the new label of every old one
        for label, (name, members) in enumerate(self.members):
            for member in members:
                old = class_index(member, data, f"super-class '{name}'")
                if table[old] >= 0:
                    raise DataError(f"super-classes of {data.name} name '{member}' twice; put it into one group")
                table[old] = label
        classes = tuple(name for name, _ in self.members)
        missed = tuple(name for name, label in zip(data.classes, table.tolist(), strict=True) if label < 0)
        if missed:
            raise DataError(
                f"super-classes of {data.name} miss {list_names(missed)}; put every class into one of "
                f"{list_names(classes)}"
            )
        return replace(samples, labels=table.to(samples.labels.device)[samples.labels], classes=classes)


OBJECTS_ANIMALS = SuperClasses.of(
    {
        "animal": ("bird", "cat", "deer", "dog", "frog", "horse"),
        "object": ("airplane", "automobile", "ship", "truck"),
    }
)
"""CIFAR-10's animals (label 0) and objects (1); bansal2021, appendix A.2, whose list forgets bird, here an animal."""


# --- grey digits in colour --------------------------------------------------------------------------------------------


@keyed_as("Grey3")
@final
@dataclass(frozen=True)
class Grey3(Variant):
    """Grey images in three equal channels, for networks that take colour. Changes every role.

    Raises ``DataError`` for images of more than one channel.
    """

    summary = "in 3 channels"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples with the grey channel three times."""
        check_pictures("grey3", samples.images)
        channels = samples.images.shape[1]
        if channels != 1:
            raise DataError(f"{data.name} has {channels} channels; grey3 is for grey images of 1: leave it out")
        return replace(samples, images=samples.images.repeat(1, 3, 1, 1))


@keyed_as("Coloured")
@dataclass(frozen=True)
class _Coloured(Variant):
    """Digits on coloured backgrounds; abstract. A network sees a class's shape, its colour, or both.

    Every pixel that is not 0 becomes white, every other the image's background colour: one of ten base colours, one for
    each class, those of Bahng et al. 2020, *Learning De-biased Representations with Biased Representations*, jittered.

    smith2024, appendix A, says that "the base RGB background values are modified by a random 10 % per image (such that
    the colour is always flat …)", and that this keeps a network from learning "specific RGB values". Read here as: each
    of R, G and B of an image is shifted by its own amount, uniform in ± 10 % of the range (± 25.5 of 255), then brought
    back into 0..255 and rounded. (Shifts in proportion to the value would leave every 0 a 0 and half of the pure
    colours exact.)

    ``jitter`` is the largest shift, a share of 255; ``seed`` decides shifts and random colours. For one seed the four
    variants draw the same shifts, and ``Digit``, ``Colour`` and ``ColourOnly`` the same colours: ``Digit`` and
    ``Colour`` are the same images with different targets. All keep the names of the classes, so that networks trained
    on one can be scored on another: class *i* of ``Colour`` is the colour that belongs to digit *i*. Images become
    uint8 with three channels. All change every role.
    """

    jitter: float = 0.1
    seed: int = 0

    kind: ClassVar[str]  #: what it is called in the names of data
    by_class: ClassVar[bool] = False  #: whether the colour is that of the class, and not drawn
    targets_colour: ClassVar[bool] = False  #: whether the label is the colour's, and not the digit's
    digits: ClassVar[bool] = True  #: whether the digit is painted

    def __post_init__(self) -> None:
        if not (math.isfinite(self.jitter) and 0 <= self.jitter <= 1):
            raise DataError(f"a jitter of {self.jitter:g}; valid: 0 to 1, such as 0.1 for 10 % of the range of colours")

    @property
    def summary(self) -> str:
        """The kind, and its differences from the paper."""
        jitter = "" if self.jitter == 0.1 else f", jitter {100 * self.jitter:g} %"
        return f"{self.kind}{jitter}{_seed(self.seed)}"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples in colour."""
        images, labels = samples.images, samples.labels
        check_pictures("colour", images)
        if not 2 <= len(data.classes) <= len(BASE_COLOURS):
            raise DataError(
                f"{data.name} has {len(data.classes)} classes, and there are {len(BASE_COLOURS)} base colours; give "
                f"data of 2 to {len(BASE_COLOURS)} classes"
            )
        if images.shape[1] != 1 and not (images.shape[1] == 3 and bool((images == images[:, :1]).all())):
            raise DataError(
                f"images of {samples.name} have {images.shape[1]} channels and are not grey; colours are painted on "
                "grey digits, such as those of mnist or digits"
            )
        random = generator("variant", "colours", samples.image_fingerprint, self.seed)
        drawn = torch.randint(len(samples.classes), (len(samples),), generator=random)
        shifts = (2 * torch.rand(len(samples), 3, generator=random) - 1) * 255 * self.jitter
        base = torch.tensor(BASE_COLOURS)[labels.cpu() if self.by_class else drawn]
        backgrounds = (base + shifts).clamp_(0, 255).round_().to(torch.uint8).to(images.device)
        white = images[:, 0] != 0 if self.digits else torch.zeros_like(images[:, 0], dtype=torch.bool)
        painted = torch.empty((len(images), 3, *images.shape[2:]), dtype=torch.uint8, device=images.device)
        for start in range(0, len(images), _PAINTED):
            part = slice(start, start + _PAINTED)
            painted[part] = torch.where(white[part, None], 255, backgrounds[part, :, None, None])
        return replace(samples, images=painted, labels=drawn.to(labels.device) if self.targets_colour else labels)


@keyed_as("Correlated")
@final
@dataclass(frozen=True)
class Correlated(_Coloured):
    """Digits whose background colour is their class's: shape and colour both tell the class."""

    kind: ClassVar[str] = "correlated"
    by_class: ClassVar[bool] = True


@keyed_as("Digit")
@final
@dataclass(frozen=True)
class Digit(_Coloured):
    """Digits on a background of any colour, drawn uniformly; the digit is the target."""

    kind: ClassVar[str] = "digit"


@keyed_as("Colour")
@final
@dataclass(frozen=True)
class Colour(_Coloured):
    """Digits on a background of any colour, drawn uniformly; the colour is the target."""

    kind: ClassVar[str] = "colour"
    targets_colour: ClassVar[bool] = True


@keyed_as("ColourOnly")
@final
@dataclass(frozen=True)
class ColourOnly(_Coloured):
    """A colour, drawn uniformly, and no digit; the colour is the target."""

    kind: ClassVar[str] = "colour only"
    targets_colour: ClassVar[bool] = True
    digits: ClassVar[bool] = False


# --- two data sets in one image ---------------------------------------------------------------------------------------


def _middle(samples: Samples, data: Data, what: str) -> int:
    """Return the first row of the lower half. Raises ``DataError`` if images are not twice as high as wide."""
    check_pictures(what, samples.images)
    height, width = samples.images.shape[2:]
    if height != 2 * width:
        raise DataError(
            f"{what}: images of {data.name} are {width}×{height}, not one above another; give stacked data, such as "
            "mnist+cifar10"
        )
    return int(width)


@keyed_as("Decorrelated")
@final
@dataclass(frozen=True)
class Decorrelated(Variant):
    """Stacked images whose upper halves are permuted at random over the whole role; labels stay the lower half's.

    Changes every role. Raises ``DataError`` for data that are not stacked.
    """

    seed: int = 0

    @property
    def summary(self) -> str:
        """The word, and the seed if it is not 0."""
        return f"decorrelated{_seed(self.seed)}"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples with the upper halves in a random order."""
        middle = _middle(samples, data, self.summary)
        images = samples.images.clone()
        order = order_of(samples, "decorrelated", self.seed).to(images.device)
        images[:, :, :middle] = samples.images[order, :, :middle]
        return replace(samples, images=images)


@keyed_as("BlackedOut")
@final
@dataclass(frozen=True)
class BlackedOut(Variant):
    """Stacked images with one half set to 0.

    ``side`` is ``upper`` or ``lower``, or the name of the data set there, as in the name of the data: ``mnist`` or
    ``cifar10`` of ``mnist+cifar10``. Changes every role. Raises ``DataError`` for any other, and for data that are not
    stacked.
    """

    side: str

    @property
    def summary(self) -> str:
        """The black part of the image."""
        return f"with {self.side} blacked out"

    def change(self, samples: Samples, data: Data) -> Samples:
        """Return the samples with one half black."""
        middle = _middle(samples, data, self.summary)
        halves = {"upper": slice(middle), "lower": slice(middle, None)}
        names = [part.partition(" ")[0] for part in data.name.split("+")]
        if len(set(names)) == len(names) == 2:
            halves |= dict(zip(names, (halves["upper"], halves["lower"]), strict=True))
        if self.side not in halves:
            valid = list_names(tuple(halves))
            raise DataError(f"{data.name} has no side '{self.side}' to black out; valid: {valid}")
        images = samples.images.clone()
        images[:, :, halves[self.side]] = 0
        return replace(samples, images=images)


VARIANTS: dict[str, type[Variant] | Variant] = {
    "subset": Subset,
    "half": Half,
    "without": Without,
    "relabelled": Relabelled,
    "random-labels": RandomLabels,
    "super-classes": SuperClasses,
    "objects-animals": OBJECTS_ANIMALS,
    "grey3": Grey3,
    "correlated": Correlated,
    "digit": Digit,
    "colour": Colour,
    "colour-only": ColourOnly,
    "decorrelated": Decorrelated,
    "blacked-out": BlackedOut,
}
"""Every variant, by its name on the command line."""
