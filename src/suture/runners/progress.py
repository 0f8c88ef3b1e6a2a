"""Progress of long work: what is done, what is being done, how long the rest will take."""

import sys
import time
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as RichBar
from rich.table import Column
from rich.text import Text

_DONE = {"trial": "measured", "network": "trained"}
_BAR_WIDTH = 50  #: columns: the bar, the count and the times, at most


class Progress(Protocol):
    """Is told how work goes on."""

    def begin(self, total: int, done: int) -> None:
        """So many are to be done, trials most often, of which ``done`` are known already."""

    def more(self, count: int, done: int) -> None:
        """So many more are planned now that their networks are trained, of which ``done`` are known already."""

    def working_on(self, what: str) -> None:
        """This one, in words, begins."""

    def done(self, what: str, error: str | None) -> None:
        """This one, in words, is done, or has failed."""

    def end(self) -> None:
        """There is no more to come."""


class Silent:
    """Shows nothing."""

    def begin(self, total: int, done: int) -> None:
        """Show nothing."""

    def more(self, count: int, done: int) -> None:
        """Show nothing."""

    def working_on(self, what: str) -> None:
        """Show nothing."""

    def done(self, what: str, error: str | None) -> None:
        """Show nothing."""

    def end(self) -> None:
        """Show nothing."""


class Lines:
    """Plain lines, for pipes and files: one at most every ``every`` seconds, and one for each failure.

    They count what ``noun`` says, of which several are ``plural``.
    """

    def __init__(
        self, stream: TextIO | None = None, every: float = 10.0, noun: str = "trial", plural: str | None = None
    ) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.every, self.noun, self.plural = every, noun, plural or f"{noun}s"
        self.total = self.finished = self.before = 0
        self.begun = self.last = self.paced = time.monotonic()
        self.renewed = False  # whether what comes now goes at another pace

    def begin(self, total: int, done: int) -> None:
        """Say how many there are."""
        self.total, self.finished, self.before = total, done, done
        self.begun = self.paced = time.monotonic()
        before = f", {done} {_DONE.get(self.noun, 'done')} before" if done else ""
        self._say(self._count(total) + before)

    def more(self, count: int, done: int) -> None:
        """Count them too; once the network is done that they waited for, they set the pace, and not its training."""
        self.total, self.finished, self.before = self.total + count, self.finished + done, self.before + done
        self.renewed = True

    def working_on(self, what: str) -> None:
        """Say nothing; the result will be said."""

    def done(self, what: str, error: str | None) -> None:
        """Say how far it is and how long the rest will take."""
        self.finished += 1
        now = time.monotonic()
        if self.renewed:
            self.before, self.paced, self.renewed = self.finished, now, False
        elapsed = now - self.begun
        if error is not None:
            self._say(_failed(what, error))
        if self.finished == self.total:
            self._say(f"{self._count(self.total)} in {clock(elapsed)}")
        elif now - self.last >= self.every:
            line = f"{self.finished}/{self._count(self.total)}, {clock(elapsed)} gone"
            if self.finished > self.before:
                left = (now - self.paced) / (self.finished - self.before) * (self.total - self.finished)
                line += f", about {clock(left)} left"
            self._say(line)

    def end(self) -> None:
        """Say nothing more."""

    def _count(self, count: int) -> str:
        return f"{count} {self.noun if count == 1 else self.plural}"

    def _say(self, line: str) -> None:
        self.last = time.monotonic()
        print(line, file=self.stream, flush=True)


class Bar:
    """A bar for terminals, with the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar = RichBar(
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            _TimeLeft(table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=None)
        self.renewed = False  # whether what comes now goes at another pace

    def begin(self, total: int, done: int) -> None:
        """Draw the bar."""
        self.bar.reset(self.task, total=total, completed=done, before=done, paced=0.0)
        self.bar.start()

    def more(self, count: int, done: int) -> None:
        """Make the bar longer; what it now has more of sets the pace, as in ``Lines``."""
        task = self.bar.tasks[self.task]
        before = task.fields.get("before", 0) + done
        self.bar.update(self.task, total=(task.total or 0) + count, completed=task.completed + done, before=before)
        self.renewed = True

    def working_on(self, what: str) -> None:
        """Show which trial is being measured."""
        room = max(self.console.width - _BAR_WIDTH, 10)
        self.bar.update(self.task, description=what if len(what) <= room else f"{what[: room - 1]}…")

    def done(self, what: str, error: str | None) -> None:
        """Move on; failures stay on the screen."""
        if error is not None:
            self.console.print(_failed(what, error), markup=False, highlight=False, emoji=False, style="red")
        self.bar.advance(self.task)
        if self.renewed:
            task = self.bar.tasks[self.task]
            self.bar.update(self.task, before=task.completed, paced=task.elapsed or 0.0)
            self.renewed = False

    def end(self) -> None:
        """Take the bar away."""
        self.bar.stop()


class _TimeLeft(ProgressColumn):
    """The time gone and, after the first trial, what the rest will take at the pace since ``paced``."""

    def render(self, task: Task) -> Text:
        """Draw both."""
        gone = task.elapsed or 0.0
        done = task.completed - task.fields.get("before", 0)
        if done <= 0 or task.total is None:
            return Text(f"{clock(gone)} gone")
        left = (gone - task.fields.get("paced", 0.0)) / done * (task.total - task.completed)
        return Text(f"{clock(gone)} gone, {clock(left)} left")


def shown(noun: str = "trial", plural: str | None = None) -> Progress:
    """Choose a bar where standard error is a terminal, else plain lines, which count what ``noun`` says."""
    console = Console(stderr=True)
    return Bar(console) if sys.stderr.isatty() and not console.is_dumb_terminal else Lines(noun=noun, plural=plural)


def bar_or_silent() -> Progress:
    """A bar where standard error is a terminal, else silence: what a program that did not ask for lines expects."""
    found = shown()
    return found if isinstance(found, Bar) else Silent()


def _failed(what: str, error: str) -> str:
    return " ".join(f"failed: {what}: {error}".split())


def clock(seconds: float) -> str:
    """Put a time into the unit that people would use: ``42 s``, ``12 min``, ``3.5 h``, ``5 days``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 99.5 * 3600 else f"{seconds / 86400:.0f} days"
