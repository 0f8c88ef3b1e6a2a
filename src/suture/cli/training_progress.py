"""Progress of one training: epochs, the loss, images a second, and the time left."""

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TextIO, final

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichBar

from suture.runs.runners.progress import clock

_REDRAWN = 0.1  #: seconds between two looks at the bar
_WIDE = 100  #: columns from which there is room for the time gone


class AbstractTrainingProgress(ABC):
    """How far a training is and how fast it goes; its ``watch`` is called by ``BaseModel.train``.

    ``batch`` is that of the images.
    """

    last = 0.0  #: when it last showed something

    def __init__(self, per_epoch: int, batch: int) -> None:
        self.per_epoch, self.batch = per_epoch, batch
        self.step = self.steps = self.before = 0
        self.begun: float | None = None
        self.loss: float | None = None

    def watch(self, step: int, steps: int, losses: Sequence[float]) -> None:
        """Take note of the steps done, of all steps and of the epochs' mean losses, and say it when it is time."""
        self.loss = losses[-1] if losses else None
        if self.begun is None:  # of a training that goes on, the pace is that from here
            self.begun, self.before = time.monotonic(), step
        self.step, self.steps = step, steps
        if self._is_time(time.monotonic() - self.last):
            self.last = time.monotonic()
            self._show()

    @abstractmethod
    def end(self) -> None:
        """Take note that there is no more to come."""

    @abstractmethod
    def _is_time(self, waited: float) -> bool: ...

    @abstractmethod
    def _show(self) -> None: ...

    def _epochs(self) -> str:
        """Return ``epoch 3.4 of 15``."""
        done, whole = self.step / self.per_epoch, self.steps / self.per_epoch
        return f"epoch {done:.{0 if self.step % self.per_epoch == 0 else 1}f} of {whole:.{0 if whole % 1 == 0 else 1}f}"

    def _parts(self, digits: int) -> tuple[str, str, str, str]:
        """Return the loss, images a second, the time gone and the time left, as far as each can be told."""
        loss = f"loss {self.loss:.{digits}f}" if self.loss is not None else ""
        gone = time.monotonic() - self.begun if self.begun is not None else 0.0
        done = self.step - self.before
        if not (done and gone):
            return loss, "", f"{clock(gone)} gone", ""
        left = f"{clock(gone / done * (self.steps - self.step))} left"
        return loss, f"{done * self.batch / gone:,.0f} images/s", f"{clock(gone)} gone", left


@final
class TrainingLines(AbstractTrainingProgress):
    """Plain lines, for pipes and files: one for every epoch, and between them one at most every ``every`` seconds."""

    def __init__(self, per_epoch: int, batch: int, stream: TextIO | None = None, every: float = 10.0) -> None:
        super().__init__(per_epoch, batch)
        self.stream, self.every = stream if stream is not None else sys.stderr, every
        self.last = time.monotonic()

    def end(self) -> None:
        """Say nothing more."""

    def _is_time(self, waited: float) -> bool:
        return self.step % self.per_epoch == 0 or self.step == self.steps or waited >= self.every

    def _show(self) -> None:
        loss, rate, _, left = self._parts(4)
        left = f"about {left}" if left and self.step < self.steps else ""
        print(", ".join(filter(None, (self._epochs(), loss, rate, left))), file=self.stream, flush=True)


@final
class TrainingBar(AbstractTrainingProgress):
    """A bar for terminals."""

    def __init__(self, per_epoch: int, batch: int, console: Console) -> None:
        super().__init__(per_epoch, batch)
        self.wide = console.width >= _WIDE
        self.bar = RichBar(
            BarColumn(bar_width=16), TextColumn("{task.description}", markup=False), console=console, transient=True
        )
        self.task = self.bar.add_task("", total=None)
        self.bar.start()

    def end(self) -> None:
        """Take the bar away."""
        self.bar.stop()

    def _is_time(self, waited: float) -> bool:
        return self.step >= self.steps or waited >= _REDRAWN

    def _show(self) -> None:
        loss, rate, gone, left = self._parts(3)
        shown = filter(None, (self._epochs(), loss, rate, gone if self.wide else "", left))
        self.bar.update(self.task, completed=self.step, total=self.steps, description=", ".join(shown))


def following(per_epoch: int, batch: int) -> AbstractTrainingProgress:
    """Return a bar if standard error is a terminal, else plain lines."""
    console = Console(stderr=True)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        return TrainingBar(per_epoch, batch, console)
    return TrainingLines(per_epoch, batch)
