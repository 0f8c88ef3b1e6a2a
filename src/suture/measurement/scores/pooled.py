"""The scores of tasks other than one class per sample, and which scores a task has by default.

Many are not a mean of one number per sample: nats per token weigh a long text more than a short one, and an average
precision needs all samples at once. Such a score θ is a function of weights w, one for each sample, that does not
change if all grow alike. Its value for a sample is taken to be

    θ + n · ∂θ/∂wᵢ    at w = 1

the infinitesimal jackknife (Efron & Tibshirani 1993, section 22; Jaeckel 1972). The mean of these values is θ itself
(Euler), and their spread over the root of n is its standard error by the delta method. So intervals over samples, and
paired differences, are those of any other score, and one independent sample is a document or an image, not a token or
a pixel.
"""

import math
from abc import abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.nn import functional

from suture.common.hashing import keyed_as, later
from suture.common.mapped import pieces, release
from suture.core.activations.cache import PART
from suture.data.tasks import (
    IGNORED,
    Classification,
    DenseClassification,
    MultiLabel,
    NextToken,
    OwnOutputs,
    Regression,
    Task,
    count_positions,
)
from suture.measurement.scores.scores import Accuracy, CrossEntropy, Score

SUMMARISED = 64  #: samples that are summarised at once, in float64, at most
EXACT = 1e-12  #: what rounding adds to a value


@keyed_as("OfTask")
class _OfTask(Score):
    """A score that reads outputs as its ``task`` lays them out."""

    task: Task

    def for_task(self, task: Task) -> Score:
        """Return the score with the layout of the data's task, if that has one and the score has none of its own."""
        unsettled = isinstance(task, DenseClassification) and self.task == DenseClassification() != task
        return replace(self, task=task) if unsettled else self  # type: ignore[type-var]


@keyed_as("Pooled")
class Pooled(Score):
    """A score of all samples together: ``summarise`` each, ``combine`` the rows under weights."""

    pooled: ClassVar[bool] = True

    @property
    def compares_samples(self) -> bool:
        """Whether it has values of its own in place of those of ``summarise`` and ``combine``."""
        return type(self).per_sample is not Pooled.per_sample

    @abstractmethod
    def summarise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's statistics for the score, ``(n, k)`` float64, from float64 outputs and targets."""

    @abstractmethod
    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the score, a scalar, of rows ``(n, k)`` with weights ``(n,)``, of which only ratios matter."""

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return values, ``(n,)`` float64, whose mean is the score and whose spread is its uncertainty."""
        return self.settle(self.gather(logits, labels))

    def gather(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the statistics of some samples, ``(n, k)`` float64."""
        parts = (torch.split(each, _count_at_once(logits)) for each in (logits, labels))
        return torch.cat([self.summarise(outputs.double(), targets) for outputs, targets in zip(*parts, strict=True)])

    def settle(self, rows: Tensor) -> Tensor:
        """Return the values, ``(n,)`` float64, of the statistics of all samples."""
        with torch.enable_grad():
            weights = torch.ones(len(rows), dtype=torch.float64, device=rows.device, requires_grad=True)
            score = self.combine(rows, weights)
            (slopes,) = torch.autograd.grad(score, weights)
        values = score.detach() + len(rows) * slopes
        whole = values.round()
        return torch.where((values - whole).abs() < EXACT, whole, values)  # so that a perfect score is known as one


def _count_at_once(outputs: Tensor) -> int:
    """Return how many samples are taken at once in float64: ``SUMMARISED``, or fewer if their outputs are large."""
    return max(1, min(SUMMARISED, PART // (8 * max(1, outputs[0].numel())))) if len(outputs) else SUMMARISED


def _share(rows: Tensor, weights: Tensor) -> Tensor:
    """Return Σ w · first column / Σ w · second column."""
    above, below = (weights @ rows).unbind()
    return above / below


# --- per position -----------------------------------------------------------------------------------------------------


@keyed_as("PositionAccuracy")
@final
@dataclass(frozen=True)
class PositionAccuracy(_OfTask, Pooled):
    """The fraction of all positions whose class is named, of ``DenseClassification``."""

    task: DenseClassification = later(DenseClassification())

    name: ClassVar[str] = "accuracy"
    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool] = True

    def summarise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the numbers of right positions and of positions."""
        right = (self.task.lay_out(outputs, targets).argmax(1) == targets.flatten(1)).sum(1)
        return torch.stack([right.double(), count_positions(targets).double()], 1)

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return right positions over positions."""
        return _share(rows, weights)


@keyed_as("MeanIoU")
@final
@dataclass(frozen=True)
class MeanIoU(_OfTask, Pooled):
    """Intersection over union of a class's predicted and true positions, over all samples; the mean over classes.

    Classes that are neither predicted nor present do not count.
    """

    task: DenseClassification = later(DenseClassification())

    name: ClassVar[str] = "mIoU"
    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool] = True

    def summarise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return for every class the intersection, and after them the unions, in positions."""
        laid = self.task.lay_out(outputs, targets)
        counted = (targets.flatten(1) != IGNORED)[:, None]
        classes = torch.arange(laid.shape[1], device=laid.device)[:, None]
        named, there = (laid.argmax(1)[:, None] == classes) & counted, targets.flatten(1)[:, None] == classes
        return torch.cat([(named & there).sum(2), (named | there).sum(2)], 1).double()

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the mean over classes."""
        both, either = (weights @ rows).chunk(2)
        return (both[either > 0] / either[either > 0]).mean()


@keyed_as("OfPositions")
class _OfPositions(_OfTask, Pooled):
    """A score made of the nats of all positions that count."""

    higher_is_better: ClassVar[bool] = False

    @property
    def gathered_as(self) -> Hashable:
        """The task, since all such scores of one gather the same."""
        return type(self).summarise, self.task

    def summarise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return nats and positions."""
        counts = self.task.positions(targets).double()
        return torch.stack([self.task.losses(outputs, targets) * counts, counts], 1)


@keyed_as("PositionLoss")
@final
@dataclass(frozen=True)
class PositionLoss(_OfPositions):
    """The cross-entropy of all positions that count, in nats per position or token."""

    task: Task

    name: ClassVar[str] = "loss"
    unit: ClassVar[str] = "nats"

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return nats over positions."""
        return _share(rows, weights)


@keyed_as("Perplexity")
@final
@dataclass(frozen=True)
class Perplexity(_OfPositions):
    """e to the nats per token: of how many tokens, equally likely, the next one is as hard to tell."""

    task: NextToken = NextToken()

    name: ClassVar[str] = "perplexity"
    unit: ClassVar[str] = "raw"

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return e to the nats over tokens."""
        return _share(rows, weights).exp()


@keyed_as("BitsPerByte")
@final
@dataclass(frozen=True)
class BitsPerByte(_OfPositions):
    """The cross-entropy in bits for each byte of text, which compares models of different tokens."""

    task: NextToken

    name: ClassVar[str] = "bits per byte"
    unit: ClassVar[str] = "bits"

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return bits over bytes."""
        assert self.task.bytes_per_token is not None
        return _share(rows, weights) / (math.log(2) * self.task.bytes_per_token)


# --- several labels, numbers ------------------------------------------------------------------------------------------


@keyed_as("MeanAveragePrecision")
@final
@dataclass(frozen=True)
class MeanAveragePrecision(Pooled):
    """The mean over labels of the average precision: Σ (recallₖ − recallₖ₋₁) · precisionₖ, as scikit-learn defines it.

    Samples of equal output share a threshold. Labels that no sample has do not count; if there are no others, there is
    nothing to score, and no sample is selected.
    """

    name: ClassVar[str] = "mAP"
    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool] = True

    def selects(self, labels: Tensor) -> Tensor:
        """Return all samples, a bool mask (n,), if any has a label; else none."""
        return torch.full((len(labels),), bool(labels.any()))

    def summarise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return outputs and targets, side by side."""
        return torch.cat([outputs, targets.double()], 1)

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the mean over labels."""
        outputs, targets = rows.chunk(2, 1)
        found = [_average_precision(*each, weights) for each in zip(outputs.T, targets.T, strict=True) if each[1].any()]
        return torch.stack(found).mean()


def _average_precision(outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    order = outputs.argsort(descending=True, stable=True)
    outputs, hits, weights = outputs[order], (weights * targets)[order], weights[order]
    last = torch.cat([outputs[1:] != outputs[:-1], outputs.new_ones(1, dtype=torch.bool)])  # of those at a threshold
    above, of_all = hits.cumsum(0)[last], weights.cumsum(0)[last]
    gained = torch.diff(above, prepend=above.new_zeros(1))
    return (gained * above / of_all).sum() / hits.sum()


@keyed_as("Explained")
@final
@dataclass(frozen=True)
class Explained(Pooled):
    """R²: the share of the targets' variance that the outputs explain, the mean over targets; below 0 if none."""

    name: ClassVar[str] = "R²"
    unit: ClassVar[str] = "raw"
    higher_is_better: ClassVar[bool] = True

    def summarise(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return squared errors and targets, side by side."""
        return torch.cat([(outputs - targets.double()).square(), targets.double()], 1)

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Return the mean over targets."""
        errors, targets = rows.chunk(2, 1)
        mean = weights @ targets / weights.sum()
        return (1 - weights @ errors / (weights @ (targets - mean).square())).mean()


@keyed_as("SampleLoss")
@final
@dataclass(frozen=True)
class SampleLoss(_OfTask):
    """The task's loss of every sample, in nats or its own unit."""

    task: Task
    name: str = "loss"
    unit: str = "nats"

    higher_is_better: ClassVar[bool] = False

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each sample, computed in float64."""
        return self.task.losses(logits.double(), labels)


# --- the receiver's own outputs ---------------------------------------------------------------------------------------


@keyed_as("OutputAgreement")
@final
@dataclass(frozen=True)
class OutputAgreement(Score):
    """The fraction of samples whose largest logit is the receiver's largest."""

    name: ClassVar[str] = "agreement"
    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool] = True

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 if both are largest at one class, else 0."""
        return (logits.argmax(1) == labels.argmax(1)).double()


@keyed_as("OutputCosine")
@final
@dataclass(frozen=True)
class OutputCosine(Score):
    """The cosine between an embedding and the receiver's own of the same sample."""

    name: ClassVar[str] = "cosine"
    unit: ClassVar[str] = "raw"
    higher_is_better: ClassVar[bool] = True

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cosine of each sample, over the positions that a mask leaves."""
        ignored = labels == IGNORED
        found, own = (x.double().masked_fill(ignored, 0).flatten(1) for x in (logits, labels))
        return functional.cosine_similarity(found, own, dim=1)


@keyed_as("Recall")
@final
@dataclass(frozen=True)
class Recall(Score):
    """Recall at 1: the fraction of samples whose embedding is nearest, by cosine, to the receiver's own of that sample.

    It is looked for among those of all samples that are scored, and so is lower the more there are. Where several are
    equally near, a sample counts if its own is among them.
    """

    name: ClassVar[str] = "recall@1"
    unit: ClassVar[str] = "fraction"
    higher_is_better: ClassVar[bool] = True
    compares_samples: ClassVar[bool] = True

    def per_sample(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 if the nearest is the sample's own, else 0; each is compared where its own mask leaves it."""
        block = max(SUMMARISED, PART // (8 * max(1, logits[0].numel())))  # of the receiver's own, in float64
        hits = []
        for chosen in torch.arange(len(logits)).split(_count_at_once(logits)):  # type: ignore[no-untyped-call]
            found = logits[chosen].double().flatten(1)
            near = torch.cat([_cosines(found, part) for part in pieces(labels, block)], 1)
            hits.append(near[torch.arange(len(chosen)), chosen] >= near.amax(1))
            release(logits)
        return torch.cat(hits).double()


def _cosines(found: Tensor, labels: Tensor) -> Tensor:
    """Return the cosines ``(n, m)`` of vectors and targets, over the places of each target that are not ignored."""
    counts = (labels != IGNORED).flatten(1).double()
    own = functional.normalize(labels.double().flatten(1) * counts, dim=1)
    return found @ own.T / (found.square() @ counts.T).sqrt().clamp(min=1e-12)


def default_scores(task: Task) -> tuple[Score, ...]:
    """Return the default scores of a task, the main one first."""
    match task:
        case Classification():
            return Accuracy(), CrossEntropy()
        case DenseClassification():
            return PositionAccuracy(task), PositionLoss(task), MeanIoU(task)
        case NextToken():
            bits = () if task.bytes_per_token is None else (BitsPerByte(task),)
            return PositionLoss(task), Perplexity(task), *bits
        case MultiLabel():
            return MeanAveragePrecision(), SampleLoss(task)
        case Regression():
            return Explained(), SampleLoss(task, "mean squared error", "raw")
        case OwnOutputs(meaning="logits"):
            return OutputAgreement(), SampleLoss(task, "divergence")
        case OwnOutputs():
            return OutputCosine(), Recall()
    return (SampleLoss(task, unit="raw"),)
