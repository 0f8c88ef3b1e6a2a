"""Measuring a trial, as a task."""

from dataclasses import dataclass
from typing import ClassVar, final

from suture.core.activations.cache import Activations, Need
from suture.measurement.tables.records import record, stitch_to_save
from suture.measurement.trials.measure import attempt, describe_failure
from suture.measurement.trials.trial import Failure, Measurement, Trial
from suture.runs.runners.base import Outcome, Task
from suture.runs.store.store import TRIALS


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
        return _make_outcome(attempt(self.trial, activations))

    def lost(self, reason: str) -> Outcome:
        """Return a failure whose worker is not there to say more."""
        return Outcome(record(Failure(self.trial, reason, "", 0.0)))


def _make_outcome(result: Measurement | Failure) -> Outcome:
    if isinstance(result, Failure):
        return Outcome(record(result))
    try:
        joined, tensors = stitch_to_save(result)
        return Outcome(record(result) | ({"stitched": joined} if joined is not None else {}), tensors)
    except Exception as error:  # a user's stitch or score may hold anything
        return Outcome(record(describe_failure(result.trial, error, result.seconds)))
