"""Gradient descent on the task: the stitch is trained to make the stitched network right.

bansal2021, section 2 and appendix A: the infimum of the task loss over the family is approximated by Adam with a cosine
schedule. The labels are the data's, or what the receiver itself says of each image.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.fits.base import Problem, Side
from suture.fits.descent import GradientDescent, Loss


@keyed_as("Targets")
class Targets(ABC):
    """What the stitched network is to say of every image, by the data or by the receiver."""

    @abstractmethod
    def of(self, side: Side) -> Tensor:
        """Return class indices (n,), or probabilities (n, classes)."""


@keyed_as("HardLabels")
@final
@dataclass(frozen=True)
class HardLabels(Targets):
    """The labels of the data."""

    def of(self, side: Side) -> Tensor:
        """Return the labels (n,)."""
        return side.labels


@keyed_as("SoftLabels")
@final
@dataclass(frozen=True)
class SoftLabels(Targets):
    """The receiver's own probabilities, ``softmax(outputs / temperature)`` (Hinton et al. 2015, section 2).

    The stitched network is then asked to do what the receiver does, errors included, and no label is used. Raises
    ``FitError`` for a temperature that is not above 0.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise FitError(f"SoftLabels(temperature={self.temperature}): the temperature must be above 0")

    def of(self, side: Side) -> Tensor:
        """Return the probabilities (n, classes)."""
        return (side.outputs().float() / self.temperature).softmax(1)


@keyed_as("TaskLoss")
@final
@dataclass(frozen=True)
class TaskLoss(GradientDescent):
    """Cross-entropy with the labels, or with ``SoftLabels`` of the receiver, in nats; by gradient descent.

    The settings are those of ``GradientDescent``.
    """

    targets: Targets = HardLabels()

    def loss(self, problem: Problem, side: Side, device: torch.device) -> Loss:
        """Return the mean cross-entropy of the stitched network's outputs."""
        targets = self.targets.of(side)

        def of(represented: Tensor, chosen: Tensor) -> Tensor:
            logits: Tensor = problem.suffix(represented)
            return nn.functional.cross_entropy(logits, targets[chosen].to(logits.device))

        return of
