"""Labelled images, or sequences of tokens.

Images are raw, ``(N, C, H, W)``, uint8 in 0..255 or floats in [0, 1]: every
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
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.hashing import identity, keyed_as, later
from suture.common.mapped import join, pieces, take
from suture.common.seeds import digest, generator
from suture.common.validation import check_kind, check_visible_name, check_whole
from suture.data.images import (
    are_token_ids,
    as_compared,
    check_images,
    check_labels,
    has_channels_last,
    sizes,
    tensor_digest,
    things,
)
from suture.data.inputs import Inputs, content_of, counted, join_inputs, part_inputs
from suture.data.tasks import Classification, Task

SHARED = 0.1  #: of the test images, at most, may be among those trained on; real data sets repeat a few


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
            check_visible_name("the name of samples, or of a class,", one)
        if isinstance(self.images, Mapping):
            for name, value in zip(("images", "inputs"), join_inputs(self.images), strict=True):
                object.__setattr__(self, name, value)
        if isinstance(self.images, Tensor) and has_channels_last(self.images):
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
        what = f"{len(self):,} {say_sizes(self)}"
        return f"Samples({self.name!r}, {what}, {describe_task(self)})"

    def __len__(self) -> int:
        return len(self.images)

    @property
    def example(self) -> "Tensor | dict[str, Tensor]":
        """The first images, at most 4, on which a network is probed; a mapping if there are several inputs.

        If sequences are padded on the left, one of these is among them. Raises ``DataError`` for samples of two
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
            raise DataError(
                f"cannot take samples from {self.name!r}, because its pairs are broken: take first, then shuffle"
            )
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
                    f"cannot take samples from {self.name!r}, because its pairs are broken: take first, then shuffle"
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
            f"the sender's view of {name!r} is for {describe_task(sent)}, and the receiver's for "
            f"{describe_task(received)}; give both the same labels"
        )
    if received.task.labelled and not torch.equal(sent.labels, received.labels):
        pairs = zip(sent.labels, received.labels, strict=True)
        first = next(i for i, (one, other) in enumerate(pairs) if not torch.equal(one, other))
        raise DataError(
            f"sample {first} of {name!r} has one label in the sender's view and another in the receiver's; give the "
            "same samples in the same order"
        )


def say_sizes(samples: Samples) -> str:
    """Return the kind and size of the samples in words, of two views both."""
    said = f"{things(samples.images)} of {sizes(samples.images)}"
    return said if samples.sent is None else f"{say_sizes(samples.sent)} for the sender and {said} for the receiver"


def describe_task(samples: Samples) -> str:
    """Return the classes, or the name of another task, and the transforms of the images."""
    task = f"{len(samples.classes)} classes" if samples.task == Classification() else samples.task.name
    return f"{task}, through {samples.transforms}" if samples.transforms else task
