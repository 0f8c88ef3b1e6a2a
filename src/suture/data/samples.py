"""Labelled images, or sequences of tokens, and the three roles they play in a trial.

*fit* trains a stitch, *validation* (cut from the same training data) decides when to stop and which stitch to keep,
*score* is only ever scored on. Images are raw, ``(N, C, H, W)``, uint8 in 0..255 or floats in [0, 1]: every
network brings its own preprocessing, so two networks are fed the same images, each prepared as it was trained.
``images`` may also be sequences of token ids, ``(N, T)`` int64, all of one length, or with their masks and such
``(N, columns, T)`` (``data.inputs``); what is said of images then holds for them.

A sample is *paired* with the one that its label and the receiver's activation are taken from: itself, except
in the control that breaks the pairs, where the sender sees one image and the stitch is fitted to another. Masks and
positions that the receiver reads are then that other's, as all that it is given but the stitch: what it can do
by these alone is not owed to the sender. In closed form only those positions pair that both samples have.

Samples may have two *views*: the receiver reads ``images``, and the sender reads its own samples of the same things,
``sent``, such as an image and its caption. Then samples are pairs, and their positions and tokens are not. Whatever
needs the sender's input asks ``for_sender``, which without views is the samples themselves.

Data is identified by its fingerprint, a SHA-256 over its content; the name is for people and does not enter. Leave
tensors unchanged once they are here: a fingerprint is taken once.
"""

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import identity, keyed_as, later
from suture.common.mapped import join, pieces, take
from suture.common.seeds import digest, generator
from suture.common.validation import check_kind, check_name, check_whole
from suture.data.inputs import Inputs, content_of, counted, join_inputs, part_inputs
from suture.data.tasks import Classification, Task

SHARED = 0.1  #: of the test images, at most, may be among those trained on; real data sets repeat a few
VALIDATED = 5_000  #: samples to validate on, if there are as many that are not fitted
FEW = 50  #: with fewer test images than this somebody is trying out a program, and may use any
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
    """Raise ``DataError`` for token ids if ``what`` is meant for images."""
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


def keep_apart(order: Tensor, contents: Sequence[bytes], count: int) -> tuple[Tensor, Tensor]:
    """Cut an order of samples, (N,) int64, behind the first ``count``, all copies of an image on one side.

    Later copies go where the first one is, so the front may be longer than asked; each side keeps the order. Where
    fewer than ``SHARED`` of the samples are different, images repeat by nature, such as plain colours: then, and where
    a side would keep fewer than 2, the cut goes through them.
    """
    begun: dict[bytes, int] = {}
    first = torch.tensor([begun.setdefault(contents[index], rank) for rank, index in enumerate(order.tolist())])
    is_front = first <= first.sort().values[count - 1]
    if len(begun) < SHARED * len(order) or not 2 <= int(is_front.sum()) <= len(order) - 2:
        return order[:count], order[count:]
    return order[is_front], order[~is_front]


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
        raise DataError(f"a sequence of {name!r} is masked throughout; leave it out")
    if tokens and (lowest := int((content_of(images) if there is None else content_of(images)[there]).min())) < 0:
        raise DataError(
            f"token ids of {name!r} begin at {lowest}; they are rows of an embedding and begin at 0: where sequences "
            "are filled up, give an attention_mask that is 0 there"
        )
    if images.is_floating_point():
        check_range(f"images of {name!r}", images)
    elif not tokens and images.dtype != torch.uint8:
        raise DataError(
            f"images of {name!r} have dtype {images.dtype}; they must be uint8 in 0..255 or floats in "
            "[0, 1]: convert them with images.to(torch.uint8) or images / 255"
        )


def _has_channels_last(images: Tensor) -> bool:
    """Whether images are (N, H, W, C), as arrays mostly are: of 1 or 3 channels, at the end and nowhere else."""
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
            f"images of {name!r} are uint8 and hold 0 and 1 alone; uint8 is read as 0..255, so they would be all but "
            "black: give images.float(), or images * 255"
        )
    if images.is_floating_point() and 0 < brightest < 1.001 / 255:
        raise DataError(
            f"images of {name!r} are floats of at most {brightest:g}, all but black; divide 0..255 by 255 once, not "
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


@keyed_as("Samples")
@dataclass(frozen=True, eq=False)
class Samples:
    """Labelled images under a name, each paired with itself unless told otherwise.

    ``images`` is (N, C, H, W), uint8 in 0..255 or floats in [0, 1], or token ids (N, T), int64 from 0, N at least 2;
    ``labels`` is (N,) int64, indices into ``classes``, or what another ``task`` takes; ``pairing`` is (N,) int64, for
    each sample the index of the one whose label and receiver activation it is fitted to (``None``: itself).
    ``transforms`` describes in words how the images were transformed before. A mapping of inputs, such as a
    tokeniser's ``input_ids`` and ``attention_mask``, may be given for ``images``; these are then ``(N, columns, T)``,
    and ``inputs`` says what the columns are. Images (N, H, W, C) of 1 or 3 channels and at least 8×8 pixels are turned,
    and labels (N, 1) of classes flattened. ``sent`` are the same samples, in the same order and under the same labels,
    as the sender reads them, if its view is another. Raises ``DataError`` when any of this fails.
    """

    name: str
    images: Tensor
    labels: Tensor
    classes: tuple[str, ...] = ()
    pairing: Tensor | None = None
    task: Task = Classification()
    transforms: str = ""
    inputs: Inputs = ()
    sent: "Samples | None" = later(None)

    def __post_init__(self) -> None:
        check_kind("task", self.task, Task, "a task such as Classification()")
        for one in (self.name, *self.classes):
            check_name("the name of samples, or of a class,", one)
        if isinstance(self.images, Mapping):
            for name, value in zip(("images", "inputs"), join_inputs(self.images), strict=True):
                object.__setattr__(self, name, value)
        if isinstance(self.images, Tensor) and _has_channels_last(self.images):
            object.__setattr__(self, "images", self.images.permute(0, 3, 1, 2).contiguous())
        if isinstance(self.labels, Tensor) and self.labels.shape[1:] == (1,) and self.task == Classification():
            object.__setattr__(self, "labels", self.labels[:, 0])
        check_images(self.name, self.images, self.inputs)
        if self.labels is None and self.task != Classification():
            object.__setattr__(self, "labels", self.task.default_targets(content_of(self.images)))
        if self.counted is not None and isinstance(self.labels, Tensor):
            object.__setattr__(self, "labels", self.task.ignore(self.labels, self.counted))
        check_labels(self.name, self.labels, len(self), self.classes, self.task)
        self.task.check_inputs(self.name, self.labels, content_of(self.images))
        if self.sent is not None:
            _check_views(self, self.sent)

    def __repr__(self) -> str:
        what = f"{len(self):,} {_say_sizes(self)}"
        return f"Samples({self.name!r}, {what}, {_describe_task(self)})"

    def __len__(self) -> int:
        return len(self.images)

    @property
    def example(self) -> "Tensor | dict[str, Tensor]":
        """The first images, at most 4, on which a network is probed; a mapping if there are several inputs.

        If sequences are filled up on the left, one that is stands among them. Raises ``DataError`` for samples of two
        views, of which each network has its own example.
        """
        if self.sent is not None:
            raise DataError(
                f"{self.name!r} has a view for each network, so there are two examples: for the sender's network "
                "data.for_sender.example, for the receiver's data.for_receiver.example"
            )
        rows = list(range(min(len(self), 4)))
        if self.counted is not None and bool(self.counted[rows, 0].all()):
            rows = [*(~self.counted[:, 0]).nonzero().flatten()[:1].tolist(), *rows][:4]
        return part_inputs(self.images[rows], self.inputs)

    @property
    def for_sender(self) -> "Samples":
        """The samples as the sender reads them: each its own, whatever partner the stitch is fitted to."""
        return self if self.sent is None else self.sent

    @property
    def for_receiver(self) -> "Samples":
        """The samples as the receiver reads them, without the sender's view."""
        if self.sent is None:
            return self
        if ("for receiver", 0) not in self._made:
            self._made["for receiver", 0] = replace(self, sent=None)
        return self._made["for receiver", 0]

    @cached_property
    def counted(self) -> Tensor | None:
        """Which positions of sequences count, bool (N, T); ``None`` if all do."""
        return counted(self.images, self.inputs) if self.inputs else None

    @cached_property
    def extremes(self) -> Tensor:
        """Samples that show whether a network takes all: the first image, or sequences with the extreme token ids."""
        if not are_token_ids(self.images):
            return self.images[:1]
        ids = content_of(self.images)
        highest, lowest = (int(part.argmax()) for part in (ids.amax(1), -ids.amin(1)))
        return self.images[[highest, lowest]]

    @cached_property
    def contents(self) -> tuple[bytes, ...]:
        """A hash of each sample, the same for the same image as bytes and as floats (``as_compared``).

        A sample of two views is the same as another if both views are.
        """
        if self.sent is not None:
            return tuple(map(bytes.__add__, self.for_receiver.contents, self.sent.contents))
        rows = chain.from_iterable(as_compared(part) for part in pieces(self.images))
        return tuple(hashlib.blake2b(row.numpy().data, digest_size=8).digest() for row in rows)

    @cached_property
    def copies(self) -> tuple[bytes, ...]:
        """A mark of each sample, the same for those that must lie on one side of a cut: copies of one image.

        With views, those are samples that share either view, directly or through others, as five captions of one image
        do. A view that repeats by nature, with fewer than ``SHARED`` of its samples different, ties nothing together.
        """
        views = () if self.sent is None else (self.for_receiver.contents, self.sent.contents)
        tied = [contents for contents in views if len(set(contents)) >= SHARED * len(self)]
        if not tied:
            return self.contents
        marks = list(range(len(self)))  # a forest: each sample points to an earlier one that is tied to it

        def root(index: int) -> int:
            while marks[index] != index:
                marks[index] = marks[marks[index]]
                index = marks[index]
            return index

        for contents in tied:
            first: dict[bytes, int] = {}
            for index, content in enumerate(contents):
                one, other = root(first.setdefault(content, index)), root(index)
                marks[max(one, other)] = min(one, other)
        return tuple(self.contents[root(index)] for index in range(len(self)))

    def count_among(self, known: Container[bytes]) -> int:
        """Return how many samples have their ``contents`` among these."""
        return sum(content in known for content in self.contents)

    @property
    def paired_labels(self) -> Tensor:
        """The labels to fit to, (N,) int64: each sample's partner's."""
        return self.labels if self.pairing is None else self.labels[self.pairing]

    @cached_property
    def image_fingerprint(self) -> str:
        """SHA-256 over dtype, shape and values of the images, in hexadecimal, whatever their layout.

        Of two views it is the receiver's.
        """
        return tensor_digest(self.images)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over images, both views of them, labels, classes and pairing, in hexadecimal; no name enters."""
        pairing = None if self.pairing is None else tensor_digest(self.pairing)
        told = () if self.task == Classification() else (identity(self.task),)  # which came later
        told = (*told, identity(self.inputs)) if self.inputs else told
        told = told if self.sent is None else (*told, ("sent", self.sent.fingerprint))
        return digest(self.image_fingerprint, tensor_digest(self.labels), self.classes, pairing, *told)

    def take(self, indices: Tensor, name: str) -> "Samples":
        """Copy the samples at ``indices``, (M,) int64, in that order, under another name.

        Raises ``DataError`` if pairs are broken: a partner may be left behind.
        """
        if self.pairing is not None:
            raise DataError(f"cannot take samples from {self.name!r}, its pairs are broken: take first, then shuffle")
        sent = None if self.sent is None else self.sent.take(indices, name)
        return replace(self, name=name, images=take(self.images, indices), labels=self.labels[indices], sent=sent)

    def followed_by(self, others: "Samples", name: str) -> "Samples":
        """Copy these samples and others behind them, under another name."""
        images, labels = join(self.images, others.images), torch.cat([self.labels, others.labels])
        sent = None if self.sent is None else self.sent.followed_by(others.for_sender, name)
        return replace(self, name=name, images=images, labels=labels, sent=sent)

    def first(self, count: int) -> "Samples":
        """Return the first samples, the same object each time; if that is all of them, ``self``.

        Samples that are cut short have it in their name: ``digits/score[:100]``. Raises ``DataError`` if the number is
        below 2 or above their number, or if pairs are broken.
        """
        if not 2 <= check_whole("fit and score", count) <= len(self):
            raise DataError(f"cannot limit {self.name!r} to {count}; valid: 2 to {len(self)}, all it has")
        if count == len(self):
            return self
        if ("first", count) not in self._made:
            if self.pairing is not None:
                raise DataError(
                    f"cannot take samples from {self.name!r}, its pairs are broken: take first, then shuffle"
                )
            images, labels = self.images[:count], self.labels[:count].clone()
            sent, name = None if self.sent is None else self.sent.first(count), f"{self.name}[:{count}]"
            self._made["first", count] = replace(self, name=name, images=images, labels=labels, sent=sent)
        return self._made["first", count]

    def shuffled(self, seed: int) -> "Samples":
        """Break every pair: the same images and labels, each sample paired with another.

        The pairing is one random cycle through all samples, drawn uniformly among the (N − 1)! there
        are, from a seed derived from the fingerprint and ``seed``; a cycle of N ≥ 2 has no fixed point. A
        partner may by chance share the sample's class.
        """
        if ("shuffled", seed) not in self._made:
            order = torch.randperm(len(self), generator=generator("shuffled pairs", self.fingerprint, seed))
            pairing = torch.empty_like(order)
            pairing[order] = order.roll(-1)
            self._made["shuffled", seed] = replace(self, name=f"{self.name} shuffled", pairing=pairing)
        return self._made["shuffled", seed]

    @cached_property
    def _made(self) -> "dict[tuple[str, int], Samples]":
        """The results of ``first``, ``shuffled`` and such, whose images need not be hashed for every trial."""
        return {}


@dataclass(frozen=True, eq=False)
class Data:
    """A data set in its three roles, of one image shape (C, H, W), or length of sequences, and the same classes.

    Samples to fit and to validate on lie in random order, as ``load_data`` and ``split`` bring them, because the first
    few serve as a random sample of all. Raises ``DataError`` if the roles differ in shape or classes, or two of them
    share images, if all that is fitted is of one class, and if no class of it is scored.
    """

    name: str
    fit: Samples
    validation: Samples
    score: Samples
    apart: bool = False  #: whether validation was a part of score (``validated_apart``), and is filled up by nothing
    counted: bool = False  #: whether somebody said how many are fitted (``limited``), so that no plan chooses

    def __post_init__(self) -> None:
        for samples in (self.validation, self.score):
            self._check_like_fit(samples)
        if self.fit.sent is not None:
            _ = self.for_sender, self.for_receiver  # each of which is checked by itself
        self._check_apart("validation", self.fit)
        self._check_apart("score", self.fit, self.validation)
        self._check_classes()

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(getattr(self, role)):,} {role}" for role in ("fit", "validation", "score"))
        return f"Data({self.name!r}, {counts} {_say_sizes(self.fit)}, {_describe_task(self.fit)})"

    @property
    def example(self) -> "Tensor | dict[str, Tensor]":
        """The first raw images of the fit data, at most 4; a mapping if there are several inputs.

        Raises ``DataError`` for data of two views, each of which has its own: ``for_sender.example``.
        """
        return self.fit.example

    @cached_property
    def for_sender(self) -> "Data":
        """The data as the sender reads them; without views the same."""
        return self._view("for_sender")

    @cached_property
    def for_receiver(self) -> "Data":
        """The data as the receiver reads them; without views the same."""
        return self._view("for_receiver")

    def _view(self, role: str) -> "Data":
        if self.fit.sent is None:
            return self
        return replace(self, **{part: getattr(getattr(self, part), role) for part in ("fit", "validation", "score")})

    @cached_property
    def training(self) -> Samples:
        """Fit and validation samples together, in this order: the training data of a network that a stitch will join.

        Raises ``DataError`` if pairs are broken: a network is trained on images with their own labels.
        """
        if self.fit.pairing is not None or self.validation.pairing is not None:
            raise DataError(f"cannot join fit and validation of {self.name!r}, their pairs are broken: join first")
        return self.fit.followed_by(self.validation, f"{self.fit.name.removesuffix('/fit')}/training")

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes; a label is an index into them."""
        return self.fit.classes

    @classmethod
    def split(cls, name: str, train: Samples, test: Samples, validation_fraction: float = 0.1) -> "Data":
        """Cut validation from the training samples; test samples become score, shuffled if they are sorted by class.

        The cut is a random permutation seeded by the training samples' fingerprint, so every trial shares it:
        its first ``validation_fraction`` is validation, the rest, in its random order, is fit. All copies of an image
        are on one side, unless images repeat by nature (``keep_apart``). Test samples keep their order, unless the
        first few would all be of one class. Raises ``DataError`` when either side of the cut would get fewer than 2
        samples, and what ``Data`` refuses.
        """
        count = round(validation_fraction * len(train)) if 0 < validation_fraction < 1 else 0
        if not 2 <= count <= len(train) - 2:
            raise DataError(
                f"validation_fraction={validation_fraction:g} of {train.name!r} ({len(train)} samples) "
                "leaves fewer than 2 to fit or to validate on; give a fraction in (0, 1) that leaves both 2"
            )
        order = torch.randperm(len(train), generator=generator("validation", train.fingerprint))
        validated, fitted = keep_apart(order, train.copies, count)
        made = cls(
            name,
            fit=train.take(fitted, f"{name}/fit"),
            validation=train.take(validated, f"{name}/validation"),
            score=replace(_mix_classes(test), name=f"{name}/score"),
        )
        made._check_apart("score", made.fit, made.validation, may_repeat=False)
        return made

    def limited(self, fit: int | None = None, score: int | None = None) -> "Data":
        """Keep the first ``fit`` and ``score`` samples; ``None`` keeps all.

        Once you say how many to fit, be it all, no plan chooses fewer.

        Validation stays whole, since what a fit stops and chooses by must tell small gains; if it has fewer than
        ``VALIDATED`` samples, samples that are then not fitted are added, but no copies of fitted ones unless the two
        roles share images already. Samples that are cut short have it in their name (``digits/fit[:100]``). Raises
        ``DataError`` when a number is below 2 or above their number.
        """
        fitted = self.fit if fit is None else self.fit.first(fit)
        return Data(
            self.name,
            fit=fitted,
            validation=self._extend_validation(fitted),
            score=self.score if score is None else self.score.first(score),
            apart=self.apart,
            counted=self.counted or fit is not None,
        )

    def validated_apart(self, count: int) -> "Data":
        """Validate on ``count`` of the samples to score, drawn at random, and score only the others.

        For networks that were trained on the samples to validate on, as most published ones were: they know those by
        heart. The samples that were to validate on are left out. Both roles say so in their names, as
        ``digits/score (100 to validate on)`` and ``digits/score (without 100)``, and so does every table. The draw is
        seeded by the score samples' fingerprint; copies of an image stay on one side. Raises ``DataError`` if
        either side would get fewer than 2 samples.
        """
        if not 2 <= check_whole("validated_apart", count) <= len(self.score) - 2:
            raise DataError(
                f"{count} of the {len(self.score):,} samples of {self.score.name!r} to validate on leave fewer than 2 "
                "on one side; give a number between"
            )
        order = torch.randperm(len(self.score), generator=generator("apart", self.score.fingerprint))
        apart, left = keep_apart(order, self.score.copies, count)
        validation = self.score.take(apart.sort().values, f"{self.score.name} ({count:,} to validate on)")
        score = self.score.take(left.sort().values, f"{self.score.name} (without {count:,})")
        return Data(self.name, self.fit, validation, score, apart=True, counted=self.counted)

    def _extend_validation(self, fitted: Samples) -> Samples:
        """Return the samples to validate on if only these are fitted."""
        more = VALIDATED - len(self.validation)
        if self.apart or more <= 0 or len(fitted) == len(self.fit):
            return self.validation
        contents, known = self.fit.contents, set(fitted.contents)
        if self.validation.count_among(set(contents)) > SHARED * len(self.validation):
            known.clear()  # images repeat by nature, as plain colours do
        rest = [index for index in range(len(fitted), len(self.fit)) if contents[index] not in known][:more]
        if not rest:
            return self.validation
        images = join(self.validation.images, take(self.fit.images, torch.tensor(rest)))
        labels = torch.cat([self.validation.labels, self.fit.labels[rest]])
        name, sent = f"{self.validation.name} and {len(rest):,} not fitted", self.validation.sent
        if sent is not None:
            sent = sent.followed_by(self.fit.for_sender.take(torch.tensor(rest), name), name)
        return replace(self.validation, name=name, images=images, labels=labels, sent=sent)

    def _check_apart(self, role: str, *others: Samples, may_repeat: bool = True) -> None:
        """Raise ``DataError`` if more than ``SHARED`` of a role's images are among those of others; a few may be.

        Data may be made of few images, as variants are: what repeats among the others ``may_repeat`` in the role.
        """
        asked: Samples = getattr(self, role)
        if len(asked) < FEW:
            return
        known = Counter(content for other in others for content in other.contents)
        shared = asked.count_among(known)
        repeated = sum(count for count in known.values() if count > 1) / known.total() if may_repeat else 0.0
        if shared > (SHARED + repeated) * len(asked):
            what, names = things(asked.images), " or ".join(other.name for other in others)
            raise DataError(
                f"{shared:,} of the {len(asked):,} {what} of {asked.name!r} are also in {names}: the samples "
                f"that are scored must not fit or choose a stitch; give each role {what} of its own (Data.split cuts "
                "validation from the samples to fit)"
            )

    def _check_classes(self) -> None:
        """Raise ``DataError`` if the fit data are all of one class, or none of their classes is scored."""
        if len(self.score) < FEW or self.fit.task != Classification():
            return
        fitted, scored = (set(samples.labels.tolist()) for samples in (self.fit, self.score))
        if len(fitted) == 1 < len(self.classes):
            raise DataError(
                f"all {len(self.fit):,} samples to fit of {self.name!r} are of class {fitted.pop()}; give samples of "
                "every class, in random order"
            )
        if not scored & (fitted | set(self.validation.labels.tolist())):
            raise DataError(
                f"no class that {self.name!r} scores ({_some(scored)}) is among those that it fits ({_some(fitted)}); "
                "number the classes of both alike"
            )

    def _check_like_fit(self, samples: Samples) -> None:
        expected, got = tuple(self.fit.images.shape[1:]), tuple(samples.images.shape[1:])
        ours = self.fit.images
        if (samples.sent is None) != (self.fit.sent is None):
            one, other = (samples, self.fit) if samples.sent is None else (self.fit, samples)
            raise DataError(
                f"{other.name!r} has a view for each network, and {one.name!r} has one view; give all roles both views"
            )
        if are_token_ids(samples.images) != are_token_ids(ours):
            what, those = things(samples.images), things(ours)
            raise DataError(f"{samples.name!r} has {what}, and {self.fit.name!r} {those}; they must be alike")
        if samples.inputs != self.fit.inputs:
            names = [", ".join(one.name for one in part.inputs) or "one input" for part in (samples, self.fit)]
            raise DataError(f"{samples.name!r} has {names[0]}, and {self.fit.name!r} {names[1]}; they must be alike")
        if got != expected and are_token_ids(ours):
            raise DataError(
                f"sequences of {samples.name!r} are {sizes(samples.images)} long and those of {self.fit.name!r} "
                f"{sizes(ours)}; cut them to one length, or fill them up with an attention_mask"
            )
        if got != expected:
            raise DataError(
                f"images of {samples.name!r} are {got} and those of {self.fit.name!r} {expected} (channels, "
                "height, width); they must agree: resize them (load_data(…, size=…)) or repeat grey channels"
            )
        if samples.task != self.fit.task:
            raise DataError(
                f"{samples.name!r} is for {samples.task}, and {self.fit.name!r} for {self.fit.task}; they must be alike"
            )
        if samples.classes != self.fit.classes:
            raise DataError(
                f"classes of {samples.name!r} are {samples.classes} and those of {self.fit.name!r} "
                f"{self.fit.classes}; they must be the same, in the same order"
            )


def _say_sizes(samples: Samples) -> str:
    """Return the kind and size of the samples in words, of two views both."""
    said = f"{things(samples.images)} of {sizes(samples.images)}"
    return said if samples.sent is None else f"{_say_sizes(samples.sent)} for the sender and {said} for the receiver"


def _check_views(received: Samples, sent: Samples) -> None:
    """Raise ``DataError`` unless the sender's view is of the same samples as the receiver's."""
    check_kind("sent", sent, Samples, "the same samples as the sender reads them, Samples(…)")
    name = received.name
    if len(sent) != len(received):
        raise DataError(
            f"the sender's view of {name!r} has {len(sent):,} samples and the receiver's {len(received):,}; give both "
            "views of the same samples, in the same order"
        )
    if sent.sent is not None or sent.pairing is not None:
        raise DataError(f"the sender's view of {name!r} has views or pairs of its own; give plain samples")
    if sent.task != received.task or sent.classes != received.classes:
        raise DataError(
            f"the sender's view of {name!r} is for {_describe_task(sent)}, and the receiver's for "
            f"{_describe_task(received)}; give both the same labels"
        )
    if received.task.labelled and not torch.equal(sent.labels, received.labels):
        pairs = zip(sent.labels, received.labels, strict=True)
        first = next(i for i, (one, other) in enumerate(pairs) if not torch.equal(one, other))
        raise DataError(
            f"sample {first} of {name!r} has one label in the sender's view and another in the receiver's; give the "
            "same samples in the same order"
        )


def _describe_task(samples: Samples) -> str:
    """Return the classes, or the name of another task, and the transforms of the images."""
    task = f"{len(samples.classes)} classes" if samples.task == Classification() else samples.task.name
    return f"{task}, through {samples.transforms}" if samples.transforms else task


def _mix_classes(samples: Samples) -> Samples:
    """Shuffle samples that lie class by class, because the first few of them would be of few classes.

    That is so if there is one run of each class, or if there are fewer than a quarter of the runs that chance makes.
    """
    labels = samples.labels
    if samples.task != Classification():
        return samples
    runs = 1 + int((labels[1:] != labels[:-1]).sum())
    shares = labels.bincount().double() / max(1, len(labels))
    by_chance = len(labels) * float(1 - shares.square().sum())
    if not 1 < runs == int((shares > 0).sum()) < len(labels) and runs >= by_chance / 4:
        return samples
    order = torch.randperm(len(labels), generator=generator("class by class", samples.fingerprint))
    return samples.take(order, samples.name)


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


def _some(labels: Iterable[int]) -> str:
    """Return a few labels in words."""
    first, *more = sorted(labels)
    return f"{first}" if not more else f"{first} … {more[-1]}"


def tensor_digest(tensor: Tensor) -> str:
    """Return a SHA-256 over dtype, shape and values; a tensor that is not contiguous is copied a part at a time."""
    content = hashlib.sha256(repr((tensor.dtype, tuple(tensor.shape))).encode())
    for part in pieces(tensor):
        content.update(part.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()
