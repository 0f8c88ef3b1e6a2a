"""What holds a network's weights down while it trains: penalties that the loss carries, and pruning.

oxford2025, section 4.4: a simple network is trained with L1 and intermittent random pruning, a complex one with L2.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from suture.common.errors import FitError
from suture.common.hashing import keyed_as


@keyed_as("Penalty")
class Penalty(ABC):
    """A function of the weights that is added to the loss."""

    @abstractmethod
    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the penalty of all of the trained parameters together, by name; a scalar in nats, differentiable."""


@keyed_as("L1")
@dataclass(frozen=True)
class L1(Penalty):
    """``weight`` · Σ |w|, over all weights and biases (oxford2025, equation 4).

    The paper gives no ``weight``. At 0 the penalty's gradient is 0.
    """

    weight: float

    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """``weight`` times the sum of the magnitudes."""
        return self.weight * _join(parameters).abs().sum()


@keyed_as("L2")
@dataclass(frozen=True)
class L2(Penalty):
    """``weight`` · Σ w², over all weights and biases (oxford2025, equation 5).

    The paper gives no ``weight``. With ``SGD`` it is a ``weight_decay`` of twice as much.
    """

    weight: float

    def __call__(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """``weight`` times the sum of the squares."""
        return self.weight * _join(parameters).square().sum()


@keyed_as("Prune")
@dataclass(frozen=True)
class Prune:
    """Intermittent random pruning: every ``every`` steps a ``share`` of the weights, chosen at random, is set to zero.

    oxford2025 gives no numbers: these are ours. Weights are the parameters of two or more dimensions, so biases and
    norms stay. What was set to zero may grow again: whatever the optimiser remembers of it, such as momentum, is left
    alone. Raises ``FitError`` for a share outside 0-1, as a percentage is.
    """

    share: float = 0.1
    every: int = 500

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise FitError(f"Prune(share={self.share:g}): share is between 0 and 1")

    def __call__(self, parameters: Mapping[str, Tensor], step: int, random: torch.Generator) -> bool:
        """After ``step`` steps (from 1), prune in place if it is time, and say whether it was.

        Of each weight of n entries exactly ``round(share · n)`` are chosen, some of which may be zero already, from a
        generator of the CPU, weight after weight in the order of ``parameters``.
        """
        if step < 1 or step % self.every:
            return False
        for parameter in parameters.values():
            if parameter.dim() >= 2:
                chosen = torch.randperm(parameter.numel(), generator=random)[: round(self.share * parameter.numel())]
                pruned = torch.zeros(parameter.numel(), dtype=torch.bool).index_fill_(0, chosen, True)
                parameter.detach().masked_fill_(pruned.view(parameter.shape).to(parameter.device), 0)
        return True


def _join(parameters: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([parameter.flatten() for parameter in parameters.values()])
