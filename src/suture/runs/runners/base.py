"""What runs, and what runs it.

A *task* is a piece of work with a key: measuring a trial, training a base model. It gives an *outcome* of plain values
and tensors, which means the same in every process and on every machine. A *queue* says which task may begin now. A
*runner* takes tasks from a queue until there are no more, and gives their outcomes in the order in which they end. What
is kept, and where, neither a runner nor a task knows.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from suture.core.activations.cache import Activations, Need
from suture.core.network.network import Network
from suture.measurement.trials.trial import Trial


@dataclass(frozen=True)
class Outcome:
    """What a task gave: a record of plain values, as JSON has them, and tensors, as safetensors has them.

    The record has at least ``status``, ``ok`` or ``failed``, and a failed one ``error`` and ``traceback``.
    """

    record: dict[str, Any]
    tensors: bytes = b""

    @property
    def failed(self) -> bool:
        """Whether the task failed."""
        return bool(self.record["status"] == "failed")


class Task(ABC):
    """A piece of work. It can be sent to another process, and gives the same bits in any."""

    kind: ClassVar[str]  #: what it makes, as the folder of its outcome is called

    @property
    @abstractmethod
    def key(self) -> str:
        """A hash of everything that decides the outcome."""

    @property
    @abstractmethod
    def where(self) -> str:
        """What it is, in words."""

    @property
    def needs(self) -> tuple[Need, ...]:
        """The activations that it will ask for, as far as that is known."""
        return ()

    @property
    def sequence(self) -> str | None:
        """The name of a sequence of tasks that continue each other's work on the disk; ``None`` for any other task."""
        return None

    @abstractmethod
    def run(self, activations: Activations) -> Outcome:
        """Do it, with one thread, and return its outcome. A failure is an outcome too: no ``Exception`` leaves it."""

    @abstractmethod
    def lost(self, reason: str) -> Outcome:
        """Return the outcome of a task whose worker died each time it was tried; ``reason`` says how."""

    def share(self, scratch: Path) -> float | None:
        """Return how much of it is done, from 0 to 1, if its files in the scratch folder tell."""
        return None

    def tidy(self, scratch: Path) -> None:  # noqa: B027
        """Remove its files from the scratch folder, now that its outcome is kept."""


class TrainingTask(Task):
    """The training of a network."""

    @property
    def bases(self) -> "tuple[TrainingTask, ...]":
        """The networks that must be trained before."""
        return ()

    def after(self, tensors: Mapping[str, bytes]) -> "TrainingTask":
        """The same task, under the same key, with the tensors of its ``bases``, by their keys."""
        return self

    @abstractmethod
    def network(self, tensors: bytes) -> Network:
        """Return the network with these weights, the tensors of its outcome."""


@dataclass(frozen=True, eq=False)
class Deferred:
    """Trials of networks that the run trains: ``make(*networks)``, as soon as the ``bases`` are done."""

    bases: tuple[TrainingTask, ...]
    make: Callable[..., Iterable[Trial]]


class Queue(Protocol):
    """What is to be done."""

    def take(self, apart: Collection[str | None] = ()) -> Task | None:
        """Take a task that may begin, of none of the sequences ``apart``; ``None`` if there is none."""

    @property
    def exhausted(self) -> bool:
        """Whether ``take`` will never give another task."""

    @property
    def left(self) -> int:
        """How many tasks are known of that were not yet taken."""


Outcomes = Generator[tuple[Task, Outcome], None, None]


class Runner(ABC):
    """Where tasks run. A runner is a frozen dataclass of settings; each call of ``run`` is on its own."""

    def prepared(self, trials: Sequence[Trial]) -> "Runner":
        """Return the runner for these trials; raises ``RunnerError`` if it cannot run them, before anything runs."""
        return self

    @abstractmethod
    def run(self, queue: Queue, scratch: Path) -> Outcomes:
        """Take tasks until the queue is exhausted; give each with its outcome as soon as that is there.

        The queue is asked again after every outcome, since that may allow more to begin. ``scratch`` is a folder on
        this machine for what may be lost, such as activations. Closing the generator, or an interruption, stops all
        work within seconds.
        """
