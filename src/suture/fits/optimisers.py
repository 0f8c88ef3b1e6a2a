"""Fixed settings of gradient descent: optimisers and schedules, as objects.

A schedule is a function of the step alone, so it can neither be forgotten nor stepped twice.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from suture.common.errors import FitError
from suture.common.hashing import keyed_as


@keyed_as("Optimiser")
class Optimiser(ABC):
    """Settings of an optimiser. Raises ``FitError`` if the rate is below 0 or no number."""

    lr: float

    def __post_init__(self) -> None:
        if not self.lr >= 0:
            raise FitError(f"{type(self).__name__}(lr={self.lr}): the learning rate must be at least 0")

    @abstractmethod
    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make the optimiser for these parameters."""


@keyed_as("Adam")
@dataclass(frozen=True)
class Adam(Optimiser):
    """Adam (Kingma & Ba 2015)."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make ``torch.optim.Adam``."""
        return torch.optim.Adam(parameters, self.lr, self.betas, weight_decay=self.weight_decay)


@keyed_as("AdamW")
@dataclass(frozen=True)
class AdamW(Optimiser):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.05

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make ``torch.optim.AdamW``."""
        return torch.optim.AdamW(parameters, self.lr, self.betas, weight_decay=self.weight_decay)


@keyed_as("SGD")
@dataclass(frozen=True)
class SGD(Optimiser):
    """Stochastic gradient descent with momentum."""

    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    def over(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Make ``torch.optim.SGD``."""
        return torch.optim.SGD(
            parameters, self.lr, self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov
        )


@keyed_as("Schedule")
class Schedule(ABC):
    """The learning rate over the steps, as a factor of the optimiser's rate."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """Return the factor for step 0 … ``steps`` - 1."""


@keyed_as("Constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """The same rate throughout."""

    def factor(self, step: int, steps: int) -> float:
        """Return 1."""
        return 1.0


@keyed_as("Steps")
@dataclass(frozen=True)
class Steps(Schedule):
    """The full rate, multiplied by ``factor_at_drop`` at each of the ``drops``, which are shares of all steps."""

    drops: tuple[float, ...] = (0.5, 0.75)
    factor_at_drop: float = 0.2

    def factor(self, step: int, steps: int) -> float:
        """Return ``factor_at_drop`` to the power of the drops that lie at or before this step."""
        past = sum(step >= drop * steps for drop in self.drops)
        return float(self.factor_at_drop**past)


@keyed_as("Cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """From the full rate to zero along half a cosine (Loshchilov & Hutter 2017, without restarts)."""

    def factor(self, step: int, steps: int) -> float:
        """Return ``(1 + cos(π · step / steps)) / 2``."""
        return (1 + math.cos(math.pi * step / steps)) / 2


@keyed_as("OneCycle")
@dataclass(frozen=True)
class OneCycle(Schedule):
    """Linearly up to the full rate during the first ``warmup`` share of the steps, then linearly to zero."""

    warmup: float = 0.2

    def factor(self, step: int, steps: int) -> float:
        """Return a triangle with its peak at ``warmup · steps``."""
        peak = max(1.0, self.warmup * steps)
        return (step + 1) / peak if step + 1 < peak else max(0.0, (steps - step) / max(1.0, steps - peak + 1))


def set_rate(
    optimiser: torch.optim.Optimizer, recipe: Optimiser, schedule: Schedule, step: int, steps: int, pace: float = 1.0
) -> None:
    """Set the learning rate of every group for this step; ``pace`` multiplies it."""
    for group in optimiser.param_groups:
        group["lr"] = pace * recipe.lr * schedule.factor(step, steps)
