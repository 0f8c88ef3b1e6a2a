"""Progress of long work: what is done, what is being done, how long the rest will take."""

import sys
import time
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichBar

from suture.trial import Failure, Measurement


class Progress(Protocol):
    """Is told how work goes on."""

    def begin(self, total: int) -> None:
        """``total`` trials are about to be measured."""

    def working_on(self, what: str) -> None:
        """This trial, in words, begins."""

    def done(self, result: Measurement | Failure) -> None:
        """A trial has been measured, or has failed."""

    def end(self) -> None:
        """There is no more to come."""


class Silent:
    """Shows nothing."""

    def begin(self, total: int) -> None:
        """Show nothing."""

    def working_on(self, what: str) -> None:
        """Show nothing."""

    def done(self, result: Measurement | Failure) -> None:
        """Show nothing."""

    def end(self) -> None:
        """Show nothing."""


class Lines:
    """Plain lines, for pipes and files: one at most every ``every`` seconds, and one for each failure."""

    def __init__(self, stream: TextIO | None = None, every: float = 10.0) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.every = every
        self.total = self.finished = 0
        self.begun = self.last = time.monotonic()

    def begin(self, total: int) -> None:
        """Say how many trials there are."""
        self.total, self.begun = total, time.monotonic()
        self._say(f"{total} trials")

    def working_on(self, what: str) -> None:
        """Say nothing; the result will be said."""

    def done(self, result: Measurement | Failure) -> None:
        """Say how far it is and how long the rest will take."""
        self.finished += 1
        elapsed = time.monotonic() - self.begun
        left = elapsed / self.finished * (self.total - self.finished)
        if isinstance(result, Failure):
            self._say(f"failed: {result.trial.where}: {result.error}")
        if time.monotonic() - self.last >= self.every or self.finished == self.total:
            self._say(f"{self.finished}/{self.total} trials, {_clock(elapsed)} gone, about {_clock(left)} left")

    def end(self) -> None:
        """Say nothing more."""

    def _say(self, line: str) -> None:
        self.last = time.monotonic()
        print(line, file=self.stream, flush=True)


class Bar:
    """A bar for terminals, with the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        columns = (BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"))
        self.bar = RichBar(
            *columns, TimeRemainingColumn(), TextColumn("{task.description}"), console=console, transient=True
        )
        self.task = self.bar.add_task("", total=None)

    def begin(self, total: int) -> None:
        """Draw the bar."""
        self.bar.update(self.task, total=total)
        self.bar.start()

    def working_on(self, what: str) -> None:
        """Show which trial is being measured."""
        self.bar.update(self.task, description=what)

    def done(self, result: Measurement | Failure) -> None:
        """Move on; failures stay on the screen."""
        if isinstance(result, Failure):
            self.console.print(f"failed: {result.trial.where}: {result.error}", markup=False, style="red")
        self.bar.advance(self.task)

    def end(self) -> None:
        """Take the bar away."""
        self.bar.stop()


def shown() -> Progress:
    """Choose a bar where standard error is a terminal, else plain lines."""
    console = Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines()


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
