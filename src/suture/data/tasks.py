"""Tasks: the meaning of a network's outputs, the targets, and the loss by which a stitch is fitted.

A task is a property of the data, ``Samples.task``. The targets of a sample are its ``labels``, whose first axis is the
samples'. Everything below a measurement sees outputs and targets as tensors and asks the task for

- ``losses``: the loss of every sample, in nats or the task's own unit, which is descended on;
- ``errors``: how wrong every sample is, by which the best of several stitches is chosen;
- ``positions``: how many predictions of a sample count, so that a long text weighs more than a short one;
- ``chance`` and ``guess``: the score of a network that has learned nothing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor
from torch.nn import functional

from suture.common.constants import CLASSIFICATION
from suture.common.errors import DataError
from suture.common.hashing import keyed_as, later

LARGE = 2**22  #: outputs of a text from which on its tokens are scored as rows, which has other bits
IGNORED = -100  #: the label of a position that does not count, as in torch's ``cross_entropy``


@keyed_as("Task")
class Task(ABC):
    """The meaning of outputs and targets. Tasks are frozen dataclasses; equal settings are equal tasks."""

    name: ClassVar[str]  #: in tables
    labelled: ClassVar[bool] = True  #: whether there is nothing to learn from inputs that come without labels
    copies: ClassVar[bool] = False  #: whether targets are the receiver's own outputs, and no labels are read

    @abstractmethod
    def check(self, name: str, targets: Tensor, classes: Sequence[str]) -> None:
        """Raise ``DataError`` unless these can be the targets of samples that are called ``name``."""

    def check_inputs(self, name: str, targets: Tensor, inputs: Tensor) -> None:  # noqa: B027  # most can be anything
        """Raise ``DataError`` if the targets cannot be meant for these images, or token ids."""

    @abstractmethod
    def check_outputs(self, shape: tuple[int, ...], targets: Tensor, classes: Sequence[str]) -> str:
        """Return the reason why outputs ``(n, *shape)`` do not suit the targets; empty if they do."""

    def chance(self, targets: Tensor) -> float | None:
        """Return the first default score of a constant answer; ``None`` if that is not known."""
        return None

    def guess(self, shape: tuple[int, ...], targets: Tensor, known: Tensor) -> float | None:
        """Return the first default score of who knows these other targets alone, for outputs ``(n, *shape)``.

        It is what a network is compared with that may have learned nothing; by default the chance level.
        """
        return self.chance(targets)

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample, the mean over its positions: ``(n,)``."""

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the error of every sample, ``(n,)``; by default its loss."""
        return self.losses(outputs, targets)

    def positions(self, targets: Tensor) -> Tensor:
        """Return how many predictions of every sample count, ``(n,)``."""
        return torch.ones(len(targets), device=targets.device)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of all positions, a scalar to descend on."""
        counts = self.positions(targets).to(outputs.device)
        return (self.losses(outputs, targets) * counts).sum() / counts.sum().clamp(min=1)

    def scale(self, targets: Tensor) -> float:
        """Return the size of a typical error, in the unit of ``errors``, to tell a small gain from a large one."""
        return 1.0

    def default_targets(self, inputs: Tensor) -> Tensor:
        """Return the targets of inputs that came without. Raises ``DataError`` if there can be none."""
        raise DataError(f"{self} needs labels, and there are none; give them beside the inputs")

    def ignore(self, targets: Tensor, counted: Tensor) -> Tensor:
        """Return targets that do not count where a mask, bool ``(n, T)``, says so, if each position has one."""
        return targets

    def name_classes(self, targets: Sequence[Tensor]) -> tuple[str, ...]:
        """Return names for the classes of targets, of training and test data, if the task has classes."""
        return ()


@keyed_as("Classification")
@final
@dataclass(frozen=True)
class Classification(Task):
    """One class per sample: outputs ``(n, classes)``, targets ``(n,)`` int64. Losses are cross-entropies in nats."""

    name: ClassVar[str] = CLASSIFICATION

    def check(self, name: str, targets: Tensor, classes: Sequence[str]) -> None:
        """Raise ``DataError`` unless every target is the index of a class."""
        if targets.ndim != 1:
            raise DataError(
                f"labels of {name!r} have shape {tuple(targets.shape)}; one class index each is needed, or name what "
                "they are: task=DenseClassification(), MultiLabel(), Regression() …"
            )
        _check_indices(name, targets, classes)

    def check_outputs(self, shape: tuple[int, ...], targets: Tensor, classes: Sequence[str]) -> str:
        """Return the reason why outputs do not suit the targets."""
        if len(shape) == 1 and shape[0] == len(classes):
            return ""
        return f"{len(classes)} classes need outputs (n, {len(classes)}), and these are {_batch(shape)}"

    def chance(self, targets: Tensor) -> float:
        """Return the share of the commonest class."""
        return float(torch.bincount(targets).max()) / len(targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of every sample."""
        return functional.cross_entropy(outputs, targets, reduction="none")

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return which samples have another class's output as their largest, bool ``(n,)``."""
        return outputs.argmax(1) != targets

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return functional.cross_entropy(outputs, targets)


@keyed_as("DenseClassification")
@final
@dataclass(frozen=True)
class DenseClassification(Task):
    """A class per position: outputs ``(n, classes, …)`` or ``(n, …, classes)``, targets ``(n, …)`` int64.

    Positions whose target is ``IGNORED`` do not count. Losses are cross-entropies in nats per position. Where there are
    as many positions as classes, as of ``(n, 7, 7)``, a shape does not tell which axis is which: ``classes`` does,
    ``"first"`` for ``(n, classes, …)`` and ``"last"`` for ``(n, …, classes)``. Raises ``DataError`` for other words.
    """

    classes: Literal["first", "last"] | None = later(None)

    name: ClassVar[str] = "dense classification"

    def __post_init__(self) -> None:
        if self.classes not in ("first", "last", None):
            raise DataError(f"DenseClassification(classes={self.classes!r}): give 'first' or 'last', or leave it out")

    def check(self, name: str, targets: Tensor, classes: Sequence[str]) -> None:
        """Raise ``DataError`` unless every target is the index of a class, or ignored."""
        if targets.ndim < 2:
            raise DataError(f"labels of {name!r} have shape {tuple(targets.shape)}; one for each position is needed")
        _check_indices(name, targets, classes, ignored=True)
        _check_some_count(name, targets)

    def ignore(self, targets: Tensor, counted: Tensor) -> Tensor:
        """Return the targets, ``IGNORED`` where nothing counts."""
        return ignore_masked(targets, counted)

    def name_classes(self, targets: Sequence[Tensor]) -> tuple[str, ...]:
        """Return ``"0"`` to the highest target."""
        return tuple(map(str, range(max(int(part.max()) for part in targets) + 1)))

    def check_outputs(self, shape: tuple[int, ...], targets: Tensor, classes: Sequence[str]) -> str:
        """Return the reason why outputs do not suit the targets."""
        places = tuple(targets.shape[1:])
        layouts = {"first": (len(classes), *places), "last": (*places, len(classes))}
        allowed = layouts if self.classes is None else {self.classes: layouts[self.classes]}
        if list(allowed.values()).count(shape) == 2:
            return _say_ambiguous(shape)
        if shape in allowed.values():
            return ""
        wanted = " or ".join(map(_batch, allowed.values()))
        return f"labels {_batch(places)} of {len(classes)} classes need outputs {wanted}, and these are {_batch(shape)}"

    def chance(self, targets: Tensor) -> float:
        """Return the share of the commonest class among the positions that count."""
        return Classification().chance(targets[targets != IGNORED])

    def lay_out(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return outputs as ``(n, classes, positions)``. Raises ``DataError`` if they may be laid out in two ways."""
        shape, places = outputs.shape[1:], targets.shape[1:]
        if self.classes is None and shape[1:] == shape[:-1] == places:
            raise DataError(_say_ambiguous(shape))
        is_first = shape[1:] == places if self.classes is None else self.classes == "first"
        return outputs.flatten(2) if is_first else outputs.flatten(1, -2).transpose(1, 2)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of every sample's positions."""
        return _mean_of(_nats(self.lay_out(outputs, targets), targets), targets)

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of every sample's positions that are named wrong."""
        return _mean_of((self.lay_out(outputs, targets).argmax(1) != targets.flatten(1)).float(), targets)

    def positions(self, targets: Tensor) -> Tensor:
        """Return how many positions are not ignored."""
        return count_positions(targets)


@keyed_as("NextToken")
@final
@dataclass(frozen=True)
class NextToken(Task):
    """The next token of a text: outputs ``(n, T, vocabulary)``, targets ``(n, T)`` int64, which are the token ids.

    The outputs at a position are compared with the target at the next. Targets of ``IGNORED`` (padding) do not count.
    ``bytes_per_token``, if the tokens have a length in bytes, gives bits per byte. Losses are nats per token.
    """

    bytes_per_token: float | None = None

    name: ClassVar[str] = "next token"
    labelled: ClassVar[bool] = False

    def check(self, name: str, targets: Tensor, classes: Sequence[str]) -> None:
        """Raise ``DataError`` unless targets are token ids, or ignored, of at least two positions."""
        if targets.ndim != 2 or targets.shape[1] < 2:
            raise DataError(
                f"targets of {name!r} have shape {tuple(targets.shape)}; they must be the token ids, (n, T) with T of "
                "at least 2"
            )
        if targets.dtype != torch.int64 or int(targets[targets != IGNORED].min()) < 0:
            raise DataError(f"targets of {name!r} must be token ids from 0, int64, or {IGNORED} where they are padding")
        _check_some_count(name, targets[:, 1:])

    def check_inputs(self, name: str, targets: Tensor, inputs: Tensor) -> None:
        """Raise ``DataError`` if the targets are the token ids moved by one place, which is done here."""
        if targets.shape != inputs.shape or not targets.is_cpu:
            return
        following, own = (targets[:, :-1], inputs[:, 1:]), (targets, inputs)
        moved, same = (bool((a == b)[a != IGNORED].all()) for a, b in (following, own))
        if moved and not same:
            raise DataError(
                f"targets of {name!r} are its token ids moved by one place, and {self} would move them once more; give "
                "the token ids themselves, or None"
            )

    def ignore(self, targets: Tensor, counted: Tensor) -> Tensor:
        """Return the targets, ``IGNORED`` where nothing counts, and behind that: padding on the left tells nothing."""
        before = functional.pad(counted[:, :-1], (1, 0), value=True)
        return ignore_masked(targets, counted & before)

    def default_targets(self, inputs: Tensor) -> Tensor:
        """Return the token ids themselves, ``IGNORED`` where they are padding."""
        return inputs.masked_fill(inputs < 0, IGNORED) if int(inputs.min()) < 0 else inputs

    def check_outputs(self, shape: tuple[int, ...], targets: Tensor, classes: Sequence[str]) -> str:
        """Return the reason why outputs do not suit the targets."""
        length, highest = targets.shape[1], int(targets.max())
        if len(shape) == 2 and shape[0] == length and shape[1] > highest:
            return ""
        return (
            f"token ids (n, {length}) up to {highest} need outputs (n, {length}, vocabulary) with a vocabulary above "
            f"that, and these are {_batch(shape)}"
        )

    def chance(self, targets: Tensor) -> float:
        """Return the entropy of the predicted tokens in nats: the loss if each is named as often as it comes."""
        following = targets[:, 1:]
        counts = following[following != IGNORED].bincount().double()
        return float(torch.special.entr(counts / counts.sum()).sum())

    def guess(self, shape: tuple[int, ...], targets: Tensor, known: Tensor) -> float:
        """Return the loss in nats of who names each token as often as it comes among those known.

        The best constant answer to few tokens is better than any model, because it has seen them (``chance``).
        """
        following, seen = (part[:, 1:] for part in (targets, known))
        counts = seen[seen != IGNORED].bincount(minlength=shape[-1]).double() + 1
        return float((counts.sum().log() - counts[following[following != IGNORED]].log()).mean())

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return nats per token of every document."""
        following = targets[:, 1:]
        if outputs.shape[1:].numel() < LARGE:
            return _mean_of(_nats(outputs[:, :-1].transpose(1, 2), following), following)
        # A token a row: six times as fast with 50,000 words, and nothing is copied into another order.
        rows, wanted = outputs[:, :-1].flatten(0, 1), following.flatten()
        nats = functional.cross_entropy(rows, wanted, reduction="none", ignore_index=IGNORED)
        return _mean_of(nats.reshape(following.shape), following)

    def positions(self, targets: Tensor) -> Tensor:
        """Return how many tokens are predicted."""
        return count_positions(targets[:, 1:])


@keyed_as("MultiLabel")
@final
@dataclass(frozen=True)
class MultiLabel(Task):
    """Any number of labels per sample: outputs ``(n, labels)``, targets ``(n, labels)`` of 0 and 1.

    Losses are binary cross-entropies of the sigmoids, in nats per label.
    """

    name: ClassVar[str] = "multi-label"

    def check(self, name: str, targets: Tensor, classes: Sequence[str]) -> None:
        """Raise ``DataError`` unless targets are 0 or 1 for every class, and each class has both."""
        if targets.ndim != 2 or targets.shape[1] != len(classes):
            raise DataError(
                f"labels of {name!r} have shape {tuple(targets.shape)}; {len(classes)} classes need (n, {len(classes)})"
            )
        if not bool(((targets == 0) | (targets == 1)).all()):
            raise DataError(f"labels of {name!r} must be 0 or 1, one for each class")

    def name_classes(self, targets: Sequence[Tensor]) -> tuple[str, ...]:
        """Return ``"0"``, ``"1"`` … for every column."""
        return tuple(map(str, range(targets[0].shape[-1])))

    def check_outputs(self, shape: tuple[int, ...], targets: Tensor, classes: Sequence[str]) -> str:
        """Return the reason why outputs do not suit the targets."""
        if shape == tuple(targets.shape[1:]):
            return ""
        return f"{len(classes)} labels need outputs (n, {len(classes)}), and these are {_batch(shape)}"

    def chance(self, targets: Tensor) -> float | None:
        """Return the mean share of samples that have a label, over the labels that any has."""
        shares = targets.double().mean(0)
        return float(shares[shares > 0].mean()) if shares.any() else None

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean binary cross-entropy of every sample's labels."""
        wanted = targets.to(outputs.dtype)
        return functional.binary_cross_entropy_with_logits(outputs, wanted, reduction="none").mean(1)

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of every sample's labels that are named wrong."""
        return ((outputs > 0) != (targets > 0)).float().mean(1)


@keyed_as("Regression")
@final
@dataclass(frozen=True)
class Regression(Task):
    """Numbers: outputs ``(n, k)``, targets ``(n, k)`` floats. Losses are mean squared errors."""

    name: ClassVar[str] = "regression"

    def check(self, name: str, targets: Tensor, classes: Sequence[str]) -> None:
        """Raise ``DataError`` unless targets are finite floats that vary."""
        if targets.ndim != 2 or not targets.is_floating_point() or not bool(targets.isfinite().all()):
            raise DataError(f"targets of {name!r} are {_kind(targets)}; they must be finite floats (n, k)")
        if float(targets.double().var(0, correction=0).min()) == 0:
            raise DataError(f"a target of {name!r} is the same for all samples; leave it out")

    def check_outputs(self, shape: tuple[int, ...], targets: Tensor, classes: Sequence[str]) -> str:
        """Return the reason why outputs do not suit the targets."""
        wanted = tuple(targets.shape[1:])
        return (
            "" if shape == wanted else f"targets {_batch(wanted)} need as many outputs, and these are {_batch(shape)}"
        )

    def chance(self, targets: Tensor) -> float:
        """Return 0, the R² of the mean."""
        return 0.0

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of every sample."""
        return (outputs - targets.to(outputs.dtype)).square().mean(1)

    def scale(self, targets: Tensor) -> float:
        """Return the variance of the targets, which is the error of predicting their mean."""
        return float(targets.double().var(0, correction=0).mean())


@keyed_as("OwnOutputs")
@final
@dataclass(frozen=True)
class OwnOutputs(Task):
    """The receiver's own outputs are the targets, and no label is used: for towers without a head, and unlabelled data.

    ``meaning`` is the meaning of the outputs. ``"embeddings"``: the loss is 1 − cosine, over the positions that a mask
    leaves. ``"logits"`` ``(n, classes)``: the loss is the divergence KL(receiver ‖ stitched) in nats, and a sample is
    wrong if the largest output is another's.
    """

    meaning: Literal["embeddings", "logits"] = "embeddings"

    name: ClassVar[str] = "own outputs"
    labelled: ClassVar[bool] = False
    copies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.meaning not in ("embeddings", "logits"):
            raise DataError(f"OwnOutputs({self.meaning!r}): outputs are 'embeddings' or 'logits'")

    def check(self, name: str, targets: Tensor, classes: Sequence[str]) -> None:
        """Accept anything, because labels are not read."""

    def ignore(self, targets: Tensor, counted: Tensor) -> Tensor:
        """Return the outputs, ``IGNORED`` at positions that do not count; one vector of a sample has no positions."""
        return targets if targets.ndim < 3 else ignore_masked(targets, counted)

    def default_targets(self, inputs: Tensor) -> Tensor:
        """Return zeros, which are not read."""
        return torch.zeros(len(inputs), dtype=torch.int64)

    def check_outputs(self, shape: tuple[int, ...], targets: Tensor, classes: Sequence[str]) -> str:
        """Return the reason why outputs cannot be copied; empty if they can."""
        if self.meaning == "logits" and len(shape) != 1:
            return f"logits are (n, classes), and these are {_batch(shape)}"
        return "" if math.prod(shape) > 1 else "one number has no direction to be compared"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 − cosine of the two outputs of every sample, or how far they diverge in nats."""
        if self.meaning == "embeddings":
            ignored, targets = targets == IGNORED, targets.to(outputs.dtype)
            one, other = (part.masked_fill(ignored, 0).flatten(1) for part in (outputs, targets))
            return 1 - functional.cosine_similarity(one, other, dim=1)
        wanted = targets.to(outputs.dtype).log_softmax(1)
        return (wanted.exp() * (wanted - outputs.log_softmax(1))).sum(1)

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 − cosine, or which samples have another largest output than the receiver."""
        if self.meaning == "embeddings":
            return self.losses(outputs, targets)
        return outputs.argmax(1) != targets.argmax(1)


# --- positions --------------------------------------------------------------------------------------------------------


def count_positions(targets: Tensor) -> Tensor:
    """Return how many targets of every sample are not ignored, ``(n,)``."""
    return (targets.flatten(1) != IGNORED).sum(1).float()


def ignore_masked(targets: Tensor, counted: Tensor) -> Tensor:
    """Return targets ``(n, T, …)``, ``IGNORED`` where a mask ``(n, T)`` leaves them out; others as they are."""
    if targets.shape[:2] != counted.shape:
        return targets
    return targets.masked_fill(~counted.reshape(*counted.shape, *[1] * (targets.ndim - 2)), IGNORED)


def _nats(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy at every position, 0 where it is ignored: ``(n, positions)``."""
    return functional.cross_entropy(outputs, targets.flatten(1), reduction="none", ignore_index=IGNORED)


def _mean_of(values: Tensor, targets: Tensor) -> Tensor:
    """Return every sample's mean over positions ``(n, positions)`` that count; 0 if none does."""
    counts = targets.flatten(1) != IGNORED
    return (values * counts).sum(1) / counts.sum(1).clamp(min=1)


# --- what is said of wrong targets ------------------------------------------------------------------------------------


def _check_indices(name: str, targets: Tensor, classes: Sequence[str], ignored: bool = False) -> None:
    if targets.dtype != torch.int64:
        raise DataError(
            f"labels of {name!r} have dtype {targets.dtype}; they must be class indices of dtype torch.int64: "
            "convert integers with labels.long()"
        )
    known = targets[targets != IGNORED] if ignored else targets
    low, high = (int(bound) for bound in torch.aminmax(known)) if known.numel() else (0, 0)
    if low < 0 or high >= len(classes):
        raise DataError(
            f"labels of {name!r} range from {low} to {high}; its {len(classes)} classes allow 0 to "
            f"{len(classes) - 1}: name every class in classes, let labels begin at 0, and leave out samples without one"
        )


def _check_some_count(name: str, targets: Tensor) -> None:
    if bool((targets.flatten(1) == IGNORED).all(1).any()):
        raise DataError(f"every position of a sample of {name!r} is ignored; leave the sample out")


def _say_ambiguous(shape: Sequence[int]) -> str:
    return (
        f"in outputs {_batch(shape)} either the first or the last axis may be that of the classes; say which: "
        "task=DenseClassification(classes='last'), or 'first'"
    )


def _kind(targets: Tensor) -> str:
    return f"{targets.dtype} {tuple(targets.shape)}"


def _batch(shape: Sequence[int]) -> str:
    return f"(n, {', '.join(map(str, shape))})"
