"""When training ends before its last epoch."""

from collections.abc import Sequence
from dataclasses import dataclass

from suture.common.errors import FitError
from suture.common.hashing import keyed_as


@keyed_as("Plateau")
@dataclass(frozen=True)
class Plateau:
    """Until the loss plateaus (oxford2025, methods), in numbers that are ours since the paper gives none.

    The loss has plateaued when the best of the last ``patience`` epochs is not lower than the best of all epochs
    before them by more than the share ``least`` of that. Raises ``FitError`` for a patience below 1 or a share
    outside 0-1.
    """

    patience: int = 5
    least: float = 0.01

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise FitError(f"Plateau(patience={self.patience}): patience must be at least 1 epoch")
        if not 0 <= self.least < 1:
            raise FitError(f"Plateau(least={self.least:g}): least is a share of the loss, at least 0 and below 1")

    def is_reached(self, losses: Sequence[float]) -> bool:
        """Whether training ends, given the mean training losses of all epochs so far; never by the first ``patience``.

        A function of the losses alone, so training that resumes from a checkpoint ends at the same epoch.
        """
        if len(losses) <= self.patience:
            return False
        before, lately = min(losses[: -self.patience]), min(losses[-self.patience :])
        return not lately < before - self.least * abs(before)
