"""Progress of long work: finished and running pieces, and an estimate of the time left.

All pieces of a run take about as long as each other: the mean of the times that the finished ones took, and that the
running ones will take at the rate they show. What is left, in seconds of work, is divided by how much work is done in a
second, which is more than one second's if several workers or processes share a store.

Whatever is shown, the same lines go to the logger ``suture`` of Python's ``logging``, so that a service can keep them:
failures as warnings, all else as information. Nothing is heard of them unless the program configures logging.
"""

import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from statistics import fmean
from typing import Any, TextIO

import pandas as pd
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task
from rich.progress import Progress as RichBar
from rich.table import Column
from rich.text import Text

from suture.common.errors import DataError
from suture.common.screen import Screen
from suture.common.visible import visible

LOG = logging.getLogger("suture")
LOG.addHandler(logging.NullHandler())  # or Python would print warnings of a program that configures no logging

LOOKED = 10.0  #: seconds between two looks at how far one task is
QUIET = 60.0  #: seconds without a line, after which one reports what is going on
DRAWN = 0.5  #: seconds between two drawings of the results so far
_BAR_WIDTH = 50  #: columns: the bar, the count and the times, at most

Share = Callable[[], float | None]  #: how much of a task is done, from 0 to 1, if that is known


class Progress:
    """Receives reports of progress; subclasses show them, and this class shows nothing."""

    def begin(self, total: int, done: int, noun: str = "trial") -> None:
        """Begin with ``total`` pieces of work, each called a ``noun``, of which ``done`` are known already."""

    def more(self, count: int, done: int) -> None:
        """Add ``count`` pieces, planned on the way, of which ``done`` are known already."""

    def working_on(self, what: str, share: Share | None = None) -> None:
        """Note that a piece of work begins; ``share`` returns its finished share, from 0 to 1, or ``None``."""

    def at(self, what: str, phase: str) -> None:
        """Note the current phase of a piece of work, in words."""

    def done(self, what: str, error: str | None) -> None:
        """Note that a piece of work is finished, or has failed with an ``error``."""

    def updated(self, table: Callable[[], pd.DataFrame]) -> None:
        """Note that more is known; ``table()`` makes the table of it."""

    def warn(self, said: str) -> None:
        """Note a reason not to trust the measurements, as soon as it is known."""

    def end(self) -> None:
        """Note that all work has ended."""


class Silent(Progress):
    """Shows nothing."""


class Running:
    """A task that is being done."""

    def __init__(self, what: str, share: Share | None) -> None:
        self.what, self._share, self.phase = what, share, ""
        self.begun = time.monotonic()
        self._first = self._last = (self.begun, share() if share is not None else None)  # when, and how much

    @property
    def share(self) -> float | None:
        """The finished share, as of at most ``LOOKED`` seconds ago."""
        now = time.monotonic()
        if self._share is not None and now - self._last[0] >= LOOKED:
            self._last = (now, self._share())
            self._first = self._last if self._first[1] is None else self._first
        return self._last[1]

    @property
    def gone(self) -> float:
        """Seconds since it began here."""
        return time.monotonic() - self.begun

    @property
    def left(self) -> float | None:
        """Seconds that it still needs; ``None`` until it has been seen to move."""
        share, (since, first), (now, _) = self.share, self._first, self._last
        if share is None or first is None or share <= first:
            return None
        return (now - since) * (1 - share) / (share - first)

    def __str__(self) -> str:
        share = self.share
        said = self.what if share is None else f"{share:.0%} of {self.what}"
        return f"{said}: {self.phase}" if self.phase else said


class _Shown(Progress):
    """Counts finished and running work, for lines and bars."""

    def __init__(self) -> None:
        self._warned = set[str]()  # of several runs that are shown one after the other, such as a preview
        _Shown.begin(self, 0, 0)  # nothing yet, and nothing of it is shown

    def begin(self, total: int, done: int, noun: str = "trial") -> None:
        """Count them."""
        self.begun = time.monotonic()
        self.total, self.finished, self.noun = total, done, noun
        self._took: list[float] = []  # seconds of those finished here
        self._elsewhere = 0  # how many other processes have finished
        self.running: list[Running] = []

    def more(self, count: int, done: int) -> None:
        """Count them too."""
        self.total, self.finished = self.total + count, self.finished + done

    def working_on(self, what: str, share: Share | None = None) -> None:
        """Look at the clock."""
        self.running.append(Running(what, share))

    def at(self, what: str, phase: str) -> None:
        """Remember the current step."""
        for task in self.running:
            if task.what == what:
                task.phase = phase

    def done(self, what: str, error: str | None) -> None:
        """Count it: as done here, if it began here, else by another process."""
        self.finished += 1
        task = next((task for task in self.running if task.what == what), None)
        if task is None:
            self._elsewhere += 1
        else:
            self.running.remove(task)
            self._took.append(task.gone)

    def _is_news(self, said: str) -> bool:
        is_news = said not in self._warned
        self._warned.add(said)
        return is_news

    @property
    def gone(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.begun

    @property
    def left(self) -> float | None:
        """The time left in seconds; ``None`` if it is not known yet."""
        running = [(task, task.left) for task in list(self.running)]
        took = [*self._took, *(task.gone + left for task, left in running if left is not None)]
        if not took:
            return None
        mean = fmean(took)
        worked = sum(self._took) + sum(task.gone for task, _ in running) + self._elsewhere * mean
        rest = sum(left if left is not None else max(mean - task.gone, 0.0) for task, left in running)
        rest += max(self.total - self.finished - len(running), 0) * mean
        return rest * self.gone / worked if worked and rest else None


class Lines(_Shown):
    """Plain lines, for pipes and files: one at most every ``every`` seconds, and one for each failure.

    If nothing ends for ``QUIET`` seconds, a line reports the progress of the run and of each task.
    """

    def __init__(self, stream: TextIO | None = None, every: float = 10.0) -> None:
        super().__init__()
        self.stream = stream if stream is not None else sys.stderr
        self.every = every
        self.last = time.monotonic()
        self._lock = threading.Lock()  # between the run's thread and the one that reminds
        self._ended = threading.Event()

    def begin(self, total: int, done: int, noun: str = "trial") -> None:
        """Print the number of pieces of work."""
        super().begin(total, done, noun)
        did = "measured" if noun == "trial" else "done"
        self._say(self._several(total) + (f", {done} {did} before" if done else ""))
        self._ended.set()
        self._ended = threading.Event()
        threading.Thread(target=self._remind, args=(self._ended,), name="suture-progress", daemon=True).start()

    def more(self, count: int, done: int) -> None:
        """Count them too."""
        with self._lock:
            super().more(count, done)

    def working_on(self, what: str, share: Share | None = None) -> None:
        """Print nothing; the result will be printed."""
        with self._lock:
            super().working_on(what, share)

    def done(self, what: str, error: str | None) -> None:
        """Print the progress and the time left."""
        with self._lock:
            super().done(what, error)
            if error is not None:
                self._say(_say_failure(what, error), logging.WARNING)
            if self.finished == self.total:
                self._say(f"{self._several(self.total)} in {clock(self.gone)}")
            elif time.monotonic() - self.last >= self.every:
                self._say(self._say_so_far())

    def end(self) -> None:
        """Print nothing more."""
        self._ended.set()

    def remind(self) -> None:
        """Print the progress if nothing was printed for long."""
        with self._lock:
            if self.finished < self.total and time.monotonic() - self.last >= QUIET:
                known = [str(task) for task in self.running if task.share is not None or task.phase]
                self._say("; ".join([self._say_so_far(), *known]))

    def _remind(self, ended: threading.Event) -> None:
        while not ended.wait(QUIET / 4):  # so that a line is late by a quarter at most
            self.remind()

    def warn(self, said: str) -> None:
        """Write the warning, once."""
        if self._is_news(said):
            self._say(said, logging.WARNING)

    def _say_so_far(self) -> str:
        line = f"{self.finished}/{self._several(self.total)}, {clock(self.gone)} gone"
        left = self.left
        return line if left is None else f"{line}, about {clock(left)} left"

    def _several(self, count: int) -> str:
        return f"{count} {self.noun}{'' if count == 1 else 's'}"

    def _say(self, line: str, level: int = logging.INFO) -> None:
        self.last = time.monotonic()
        self._write(visible(line), level)

    def _write(self, line: str, level: int) -> None:
        print(line, file=self.stream, flush=True)


class _Logged(Lines):
    """The lines of ``Lines``, to the logger ``suture``."""

    def _write(self, line: str, level: int) -> None:
        LOG.log(level, "%s", line)


def _in_both(name: str) -> Any:
    """Make the method of this name that calls it on both, the progress shown and the log."""

    def call(self: "AlsoLogged", *given: Any) -> None:
        for one in self.both:
            getattr(one, name)(*given)

    return call


class AlsoLogged(Progress):
    """Shows progress as another does, and logs it."""

    def __init__(self, shown: Progress) -> None:
        self.both = (shown, _Logged())

    begin, more, working_on = _in_both("begin"), _in_both("more"), _in_both("working_on")
    at, done, updated = _in_both("at"), _in_both("done"), _in_both("updated")
    warn, end = _in_both("warn"), _in_both("end")


class Bar(_Shown):
    """A bar for terminals, with the time left and the current work."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        columns = BarColumn(bar_width=16), MofNCompleteColumn(), _Said(self.time_left), _Said(self._say_doing)
        self.bar = _Above(self.say_phase, *columns, console=console, transient=True)
        self.task = self.bar.add_task("", total=None)

    def begin(self, total: int, done: int, noun: str = "trial") -> None:
        """Draw the bar."""
        super().begin(total, done, noun)
        self.bar.reset(self.task, total=total, completed=done)
        self.bar.start()

    def more(self, count: int, done: int) -> None:
        """Make the bar longer."""
        super().more(count, done)
        self.bar.update(self.task, total=self.total, completed=self.finished)

    def done(self, what: str, error: str | None) -> None:
        """Move on; failures stay on the screen."""
        super().done(what, error)
        if error is not None:
            self.console.print(_say_failure(what, error), markup=False, highlight=False, emoji=False, style="red")
        self.bar.update(self.task, completed=self.finished)

    def warn(self, said: str) -> None:
        """Write the warning above the bar, where it stays, once."""
        if self._is_news(said):
            self.console.print(visible(said), markup=False, highlight=False, emoji=False, style="yellow")

    def end(self) -> None:
        """Take the bar away."""
        self.bar.stop()

    def time_left(self) -> str:
        """Say the time gone, and an estimate of the time left once there is one."""
        gone, left = f"{clock(self.gone)} gone", self.left
        return gone if left is None else f"{gone}, {clock(left)} left"

    def _say_doing(self) -> str:
        """Say which work began last, and how far it is, in the room that there is."""
        last, room = self.running[-1:], max(self.console.width - _BAR_WIDTH, 10)
        what = str(last[0]) if last and not last[0].phase else ""
        return what if len(what) <= room else f"{what[: room - 1]}…"

    def say_phase(self) -> str:
        """Say its current phase, which takes a line of its own; empty if none was announced."""
        last = self.running[-1:]
        return str(last[0]) if last and last[0].phase else ""


class _Above(RichBar):
    """A bar above something else; above, because a screen that is too small cuts off the lower end."""

    beneath: RenderableType | None = None

    def __init__(self, say: Callable[[], str], *columns: ProgressColumn, **settings: Any) -> None:
        self.say = say
        super().__init__(*columns, **settings)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar, the current phase, and the part beneath."""
        yield from super().get_renderables()
        if said := self.say():
            yield Text(said, style="dim", no_wrap=True, overflow="ellipsis")
        if self.beneath is not None:
            yield self.beneath


class _Said(ProgressColumn):
    """A column of a bar that shows the result of a function."""

    def __init__(self, say: Callable[[], str]) -> None:
        self.say = say
        super().__init__(table_column=Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        """Draw it."""
        return Text(self.say())


class Live(Bar):
    """A bar, and beneath it a drawing by ``draw`` of the results so far."""

    def __init__(self, console: Console, draw: Callable[[pd.DataFrame], RenderableType]) -> None:
        super().__init__(console)
        self.draw = draw
        self._last = -math.inf

    def updated(self, table: Callable[[], pd.DataFrame]) -> None:
        """Draw it again, unless it was drawn just now or is not enough to draw."""
        if time.monotonic() - self._last < DRAWN:
            return
        with suppress(DataError):
            self.bar.beneath = self.draw(table())
        self._last = time.monotonic()


def choose_progress(draw: Callable[[pd.DataFrame], RenderableType] | None = None) -> Progress:
    """Return a bar if standard error is a terminal, with the drawing of the table by ``draw``; else plain lines."""
    console = Screen(stderr=True)
    if not sys.stderr.isatty() or console.is_dumb_terminal:
        return Lines()
    return Bar(console) if draw is None else Live(console, draw)


def waiting_for(what: str) -> AbstractContextManager[object]:
    """Show the reason for a wait on a terminal, before a bar can be drawn; elsewhere nothing."""
    console = Screen(stderr=True)
    return console.status(f"{what} …") if sys.stderr.isatty() and not console.is_dumb_terminal else nullcontext()


def choose_bar() -> Progress:
    """Return a bar on a terminal, lines in a notebook, else silence: a program that did not ask expects none."""
    found = choose_progress()
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    is_notebook = getattr(shell, "kernel", None) is not None
    return found if isinstance(found, Bar) or is_notebook else Silent()


def _say_failure(what: str, error: str) -> str:
    return " ".join(f"failed: {what}: {error}".split())


def clock(seconds: float) -> str:
    """Return a time in the unit that people would use: ``42 s``, ``12 min``, ``3.5 h``, ``5 days``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 99.5 * 3600 else f"{seconds / 86400:.0f} days"
