"""Progress of one training: epochs, the loss, images a second, and the time left."""

import sys
import time
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichBar

from suture.runs.runners.progress import clock

_REDRAWN = 0.1  #: seconds between two looks at the bar
_WIDE = 100  #: columns from which there is room for the time gone


class Following(Protocol):
    """Is told how a training goes on; what it is told is what ``BaseModel.train`` tells."""

    def told(self, epoch: int, loss: float) -> None:
        """An epoch, from 1, has ended with this mean loss."""

    def watch(self, step: int, steps: int) -> None:
        """So many steps are done, of so many."""

    def end(self) -> None:
        """There is no more to come."""


class _Pace:
    """How far a training is and how fast it goes, from what was done since this process began or went on with it."""

    def __init__(self, per_epoch: int, batch: int) -> None:
        self.per_epoch, self.batch = per_epoch, batch
        self.step = self.steps = self.before = 0
        self.begun: float | None = None
        self.loss: float | None = None

    def watch(self, step: int, steps: int) -> None:
        """The first step that is seen is where the pace is taken from."""
        if self.begun is None:
            self.begun, self.before = time.monotonic(), step
        self.step, self.steps = step, steps

    @property
    def gone(self) -> float:
        """Seconds since the first step."""
        return time.monotonic() - self.begun if self.begun is not None else 0.0

    @property
    def epochs(self) -> str:
        """``3.4 of 15`` epochs."""
        done, whole = self.step / self.per_epoch, self.steps / self.per_epoch
        return f"{done:.{0 if self.step % self.per_epoch == 0 else 1}f} of {whole:.{0 if whole % 1 == 0 else 1}f}"

    @property
    def rate(self) -> str:
        """Images a second, once that can be told."""
        done = self.step - self.before
        return f"{done * self.batch / self.gone:,.0f} images/s" if done and self.gone else ""

    @property
    def left(self) -> str:
        """The time left, once that can be told."""
        done = self.step - self.before
        return f"{clock(self.gone / done * (self.steps - self.step))} left" if done and self.gone else ""


class TrainingLines:
    """Plain lines, for pipes and files: one for every epoch, and between them one at most every ``every`` seconds."""

    def __init__(self, per_epoch: int, batch: int, stream: TextIO | None = None, every: float = 10.0) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.every = every
        self.pace = _Pace(per_epoch, batch)
        self.last = time.monotonic()

    def told(self, epoch: int, loss: float) -> None:
        """Keep the loss for the line that the epoch's last step gives."""
        self.pace.loss = loss

    def watch(self, step: int, steps: int) -> None:
        """Say how far it is, where an epoch has ended or nothing was said for long."""
        self.pace.watch(step, steps)
        if step % self.pace.per_epoch == 0 or step == steps or time.monotonic() - self.last >= self.every:
            self._say()

    def end(self) -> None:
        """Say nothing more."""

    def _say(self) -> None:
        self.last = time.monotonic()
        pace = self.pace
        loss = f"loss {pace.loss:.4f}" if pace.loss is not None else ""
        left = f"about {pace.left}" if pace.left and pace.step < pace.steps else ""
        parts = [f"epoch {pace.epochs}", loss, pace.rate, left]
        print(", ".join(part for part in parts if part), file=self.stream, flush=True)


class TrainingBar:
    """A bar for terminals."""

    def __init__(self, per_epoch: int, batch: int, console: Console) -> None:
        self.pace = _Pace(per_epoch, batch)
        self.wide = console.width >= _WIDE
        self.bar = RichBar(
            BarColumn(bar_width=16), TextColumn("{task.description}", markup=False), console=console, transient=True
        )
        self.task = self.bar.add_task("", total=None)
        self.drawn = 0.0
        self.bar.start()

    def told(self, epoch: int, loss: float) -> None:
        """Show the loss of the epoch that has ended."""
        self.pace.loss = loss

    def watch(self, step: int, steps: int) -> None:
        """Move on."""
        self.pace.watch(step, steps)
        if time.monotonic() - self.drawn < _REDRAWN and step < steps:
            return
        self.drawn = time.monotonic()
        pace = self.pace
        loss = f"loss {pace.loss:.3f}" if pace.loss is not None else ""
        gone = f"{clock(pace.gone)} gone" if self.wide else ""
        parts = [f"epoch {pace.epochs}", loss, pace.rate, gone, pace.left]
        self.bar.update(self.task, completed=step, total=steps, description=", ".join(part for part in parts if part))

    def end(self) -> None:
        """Take the bar away."""
        self.bar.stop()


def following(per_epoch: int, batch: int) -> Following:
    """Choose a bar where standard error is a terminal, else plain lines; ``batch`` is that of the images."""
    console = Console(stderr=True)
    if sys.stderr.isatty() and not console.is_dumb_terminal:
        return TrainingBar(per_epoch, batch, console)
    return TrainingLines(per_epoch, batch)
