"""Tasks, and the runners that execute them.

A *task* is a piece of work with a key: measuring a trial, or a job of another package's, such as training a network. It
returns an *outcome* of plain values and tensors, which means the same in every process and on every machine. A *queue*
decides which task may begin now. A *runner* takes tasks from a queue until there are no more, and gives their outcomes
in the order in which they end. Neither a runner nor a task knows which results are kept, or where.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, final

from suture.common.constants import SHORT
from suture.common.devices import count_devices
from suture.core.activations.cache import Activations
from suture.measurement.tables.records import record, stitch_to_save
from suture.measurement.trials.measure import attempt, describe_failure
from suture.measurement.trials.trial import Failure, Trial
from suture.runs.store.store import TRIALS

POLL = 0.2  #: seconds between two looks of a runner at a queue that has nothing to give yet


@dataclass(frozen=True)
class Outcome:
    """The result of a task: a record of plain values, as JSON has them, and tensors, as safetensors has them.

    The record has at least ``status``, ``ok`` or ``failed``, and a failed one ``error`` and ``traceback``.
    """

    record: dict[str, Any]
    tensors: bytes = b""

    @property
    def failed(self) -> bool:
        """Whether the task failed."""
        return bool(self.record["status"] == "failed")

    def of_machine(self) -> "Outcome":
        """Return the same failure, as one that may be of the machine: a later run tries again."""
        return replace(self, record=self.record | {"of_machine": True})


class Job(ABC):
    """A piece of work. It can be sent to another process, and gives the same bits in any."""

    kind: ClassVar[str]  #: what it makes, as the folder of its outcome is called

    @property
    def device(self) -> str | None:
        """The device of the task; ``None`` is that of its networks."""
        return None

    @property
    @abstractmethod
    def key(self) -> str:
        """A hash of everything that decides the outcome."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The description of the task, in words."""

    @abstractmethod
    def run(self, activations: Activations) -> Outcome:
        """Do it, with one thread, and return its outcome. A failure is an outcome too: no ``Exception`` leaves it."""

    def on(self, device: str) -> "Job":
        """Return the same task, under the same key, to be done on a device; one that needs none stays as it is."""
        return self

    def for_worker(self, number: int) -> "Job":
        """Return the task as the worker of a number, 0 …, is to do it: with a GPU of its own, if it is for any."""
        if self.device != "cuda" or (count := count_devices("cuda")) < 2:
            return self
        return self.on(f"cuda:{number % count}")

    def share(self, scratch: Path) -> float | None:
        """Return its finished share, from 0 to 1, if its files in the scratch folder show it."""
        return None

    @abstractmethod
    def lost(self, reason: str) -> Outcome:
        """Return the outcome of a task whose worker died each time it was tried; ``reason`` says how."""


@final
@dataclass(frozen=True, eq=False)
class Measuring(Job):
    """Measure a trial; on a device, if one is given, else where its networks are."""

    trial: Trial
    device: str | None = None

    kind: ClassVar[str] = TRIALS

    @property
    def key(self) -> str:
        """The key of the trial."""
        return self.trial.key

    @property
    def where(self) -> str:
        """The seam in words."""
        return self.trial.where

    def run(self, activations: Activations) -> Outcome:
        """Measure it: the record, and the tensors of the stitch."""
        try:
            trial = self.trial if self.device is None else self.trial.to(self.device)
        except Exception as error:  # a user's model may raise anything on another device
            return Outcome(record(describe_failure(self.trial, error, 0.0)))
        activations.mapped.clear()
        result = attempt(trial, activations)
        if isinstance(result, Failure):
            return Outcome(record(result))
        try:
            joined, tensors = stitch_to_save(result)
            read = {"activations": sorted(key[:SHORT] for key in activations.mapped)}
            more = {"stitched": joined} if joined is not None else {}
            return Outcome(record(result) | read | more, tensors)
        except Exception as error:  # a user's stitch or score may hold anything
            return Outcome(record(describe_failure(trial, error, result.seconds)))

    def on(self, device: str) -> "Measuring":
        """Return the same, measured on a device."""
        return replace(self, device=device)

    def lost(self, reason: str) -> Outcome:
        """Return a failure without a traceback."""
        return Outcome(record(Failure(self.trial, reason, "", 0.0)))


class Queue(Protocol):
    """The tasks that are left to do."""

    def take(self) -> Job | None:
        """Take a task that may begin now; ``None`` if there is none."""

    @property
    def exhausted(self) -> bool:
        """Whether ``take`` will never give another task."""

    @property
    def left(self) -> int:
        """The number of known tasks that were not yet taken."""

    def hear(self, task: Job, phase: str) -> None:
        """Hear the current stage of a task, in words."""


Outcomes = Generator[tuple[Job, Outcome], None, None]


class Runner(ABC):
    """Where tasks run. A runner is a frozen dataclass of settings; each call of ``run`` is on its own."""

    @property
    def device(self) -> str | None:
        """The default device of tasks; ``None`` is that of their networks."""
        return None

    def prepared(self, trials: Sequence[Trial], device: str | None = None) -> "Runner":
        """Return the runner for these trials on a device, or where their networks are if none is given.

        Raises ``RunnerError`` or ``DeviceError`` if it cannot run them, before anything runs.
        """
        return self

    @abstractmethod
    def run(self, queue: Queue, scratch: Path) -> Outcomes:
        """Take tasks until the queue is exhausted; yield each with its outcome as soon as it is there.

        The queue is asked again after every outcome, since that may allow more to begin. ``scratch`` is a folder on
        this machine for files that may be lost, such as activations. Closing the generator, or an interruption, stops
        all work within seconds.
        """
