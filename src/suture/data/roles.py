"""The three roles that samples play in a trial.

*fit* trains a stitch, *validation* (cut from the same training data) decides when to stop and which stitch to keep,
*score* is only ever scored on.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.mapped import join, take
from suture.common.seeds import generator
from suture.common.validation import check_whole
from suture.data.images import are_token_ids, sizes, things
from suture.data.samples import SHARED, Samples, describe_task, say_sizes
from suture.data.tasks import Classification

VALIDATED = 5_000  #: samples to validate on, if there are as many that are not fitted
FEW = 50  #: with fewer test images than this somebody is trying out a program, and may use any


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
        return f"Data({self.name!r}, {counts} {say_sizes(self.fit)}, {describe_task(self.fit)})"

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
                "leaves fewer than 2 to fit or to validate on; give more samples, or a fraction in (0, 1) that leaves "
                "both 2"
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
                f"{sizes(ours)}; cut them to one length, or pad them and give an attention_mask"
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


def _some(labels: Iterable[int]) -> str:
    """Return a few labels in words."""
    first, *more = sorted(labels)
    return f"{first}" if not more else f"{first} … {more[-1]}"
