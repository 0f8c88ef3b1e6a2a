"""Measuring a trial, as a task."""

import time
import traceback
from dataclasses import dataclass
from typing import ClassVar, final

from suture.activations import Activations, Need
from suture.records import record, stitched
from suture.runners.base import Outcome, Task
from suture.store import TRIALS
from suture.trial import Failure, Measurement, Trial, measure


@final
@dataclass(frozen=True, eq=False)
class Measuring(Task):
    """Measure a trial."""

    trial: Trial

    kind: ClassVar[str] = TRIALS

    @property
    def key(self) -> str:
        """The key of the trial."""
        return self.trial.key

    @property
    def where(self) -> str:
        """The seam in words."""
        return self.trial.where

    @property
    def needs(self) -> tuple[Need, ...]:
        """The activations that the trial asks for."""
        return self.trial.needs

    def run(self, activations: Activations) -> Outcome:
        """Measure it: the record, and the tensors of the stitch."""
        result = attempt(self.trial, activations)
        if isinstance(result, Failure):
            return Outcome(record(result))
        try:
            joined, tensors = stitched(result)
            return Outcome(record(result) | ({"stitched": joined} if joined is not None else {}), tensors)
        except Exception as error:  # a user's stitch or score may hold anything
            return Outcome(record(_failure(self.trial, error, result.seconds)))

    def lost(self, reason: str) -> Outcome:
        """A failure for which nobody is left to say more."""
        return Outcome(record(Failure(self.trial, reason, "", 0.0)))


def attempt(trial: Trial, activations: Activations) -> Measurement | Failure:
    """Measure a trial; where that fails, say why instead of raising."""
    begun = time.perf_counter()
    try:
        return measure(trial, activations)
    except Exception as error:  # a user's stitch, fit or score may raise anything
        return _failure(trial, error, time.perf_counter() - begun)


def _failure(trial: Trial, error: Exception, seconds: float) -> Failure:
    return Failure(trial, f"{type(error).__name__}: {error}", traceback.format_exc(), seconds)
