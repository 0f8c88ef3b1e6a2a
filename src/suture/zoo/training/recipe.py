"""A recipe: the fixed settings by which a network is trained, and when training ends early."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from suture.common.errors import FitError
from suture.common.hashing import keyed_as
from suture.common.processor import half_precision
from suture.fits.recipes import SGD, OneCycle, Optimiser, Schedule
from suture.zoo.training.augment import Augmentation, Unchanged
from suture.zoo.training.objectives import LabelCrossEntropy, Objective
from suture.zoo.training.penalties import Penalty, Prune

PRECISIONS = ("float32", "fast")


@keyed_as("Plateau")
@dataclass(frozen=True)
class Plateau:
    """Until the loss plateaus (oxford2025, methods), in numbers that are ours since the paper gives none.

    The loss has plateaued when the best of the last ``patience`` epochs is not lower than the best of all epochs
    before them by more than the share ``least`` of that.
    """

    patience: int = 5
    least: float = 0.01

    def is_reached(self, losses: Sequence[float]) -> bool:
        """Return whether training ends, given the mean losses of all epochs so far; never by the first ``patience``.

        A function of the losses alone, so training that resumes from a checkpoint ends at the same epoch.
        """
        if len(losses) <= self.patience:
            return False
        before, lately = min(losses[: -self.patience]), min(losses[-self.patience :])
        return not lately < before - self.least * abs(before)


@keyed_as("Recipe")
@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    ``epochs`` or ``steps`` says for how long (with ``stop``, at most); an epoch has as many whole batches as the
    samples give, in an order of its own, and leaves out what is left over. ``schedule`` runs over all steps.
    ``augment`` acts on the raw images of a batch, ``objective`` is what falls, ``penalty`` is added to it, ``prune``
    sets weights to zero now and then, ``stop`` ends it early by the epochs' mean losses. ``precision`` is ``float32``,
    or ``fast``: the forward pass in bfloat16 if the processor has it, weights and optimiser in float32.

    Raises ``FitError`` if the settings contradict each other.
    """

    epochs: int | None = None
    batch: int = 128
    optimiser: Optimiser = SGD(lr=0.1, nesterov=True, weight_decay=5e-4)
    schedule: Schedule = OneCycle()
    steps: int | None = None
    augment: Augmentation = Unchanged()
    objective: Objective = LabelCrossEntropy()
    penalty: Penalty | None = None
    prune: Prune | None = None
    stop: Plateau | None = None
    precision: str = "float32"

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise FitError(f"epochs={self.epochs} and steps={self.steps}: a recipe needs one of them, not both")
        for name in ("epochs", "steps", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise FitError(f"{name}={value}: a recipe needs at least 1")
        if self.precision not in PRECISIONS:
            raise FitError(f"precision={self.precision!r}: give one of {', '.join(PRECISIONS)}")

    def steps_per_epoch(self, samples: int) -> int:
        """Return the number of steps in an epoch of so many samples."""
        return samples // min(self.batch, samples)

    def count_steps(self, samples: int) -> int:
        """Return the number of steps in all, if nothing ends it early."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * self.steps_per_epoch(samples)

    def in_bfloat16(self, device: torch.device) -> bool:
        """Return whether the forward pass runs in bfloat16 on a device."""
        return self.precision == "fast" and half_precision(device) is not None
