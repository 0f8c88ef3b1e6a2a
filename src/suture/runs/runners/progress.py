"""Progress of long work: what is done, what is being done, how long the rest will take."""

import sys
import threading
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task
from rich.progress import Progress as RichBar
from rich.table import Column
from rich.text import Text

from suture.runs.runners.eta import Eta, Running, Share
from suture.runs.store.store import NETWORKS, TRIALS

_DONE = {"trial": "measured", "network": "trained"}
BOTH = ("network or trial", "networks and trials")  #: what a run counts that trains networks too
_BAR_WIDTH = 50  #: columns: the bar, the count and the times, at most


class Progress:
    """Hears how work proceeds, and by itself shows nothing."""

    def begin(self, total: int, done: int, networks: int = 0) -> None:
        """So many are to be done, trials most often, of which ``done`` are known already.

        So many ``networks`` of the others are to be trained.
        """

    def more(self, count: int, done: int) -> None:
        """So many more trials are planned now that their networks are trained, of which ``done`` are known already."""

    def working_on(self, what: str, kind: str = TRIALS, share: Share | None = None) -> None:
        """This one, in words, begins; ``share`` tells how much of it is done, from 0 to 1, as far as it can."""

    def done(self, what: str, error: str | None, kind: str = TRIALS) -> None:
        """This one, in words, is done, or has failed."""

    def end(self) -> None:
        """All work has ended."""


class Silent(Progress):
    """Shows nothing."""


class Lines(Progress):
    """Plain lines, for pipes and files: one at most every ``every`` seconds, and one for each failure.

    If nothing ends for ``quiet`` seconds, a line says how far the run and its trainings are.
    They count what ``noun`` says, of which several are ``plural``: trials, and networks if the run trains some.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        every: float = 10.0,
        noun: str = "trial",
        plural: str | None = None,
        quiet: float = 60.0,
    ) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.every, self.noun, self.plural, self.quiet = every, noun, plural or f"{noun}s", quiet
        self.total = self.finished = 0
        self.eta = Eta()
        self.last = time.monotonic()
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def begin(self, total: int, done: int, networks: int = 0) -> None:
        """Say how many there are."""
        self.total, self.finished = total, done
        if networks and self.noun == "trial":
            self.noun, self.plural = BOTH
        self.eta.begin(_count_kinds(total - done, networks))
        before = f", {done} {_DONE.get(self.noun, 'done')} before" if done else ""
        self._say(self._count(total) + before)
        self._ended.set()
        self._ended = threading.Event()
        threading.Thread(target=self._remind, args=(self._ended,), name="suture-progress", daemon=True).start()

    def more(self, count: int, done: int) -> None:
        """Count them too."""
        with self._lock:
            self.total, self.finished = self.total + count, self.finished + done
            self.eta.more(count - done)

    def working_on(self, what: str, kind: str = TRIALS, share: Share | None = None) -> None:
        """Say nothing; the result will be said."""
        with self._lock:
            self.eta.working_on(what, kind, share)

    def done(self, what: str, error: str | None, kind: str = TRIALS) -> None:
        """Say how far it is and how long the rest will take."""
        with self._lock:
            self.finished += 1
            self.eta.done(what, kind)
            if error is not None:
                self._say(_say_failure(what, error))
            if self.finished == self.total:
                self._say(f"{self._count(self.total)} in {clock(self.eta.gone)}")
            elif time.monotonic() - self.last >= self.every:
                self._say(self._say_so_far())

    def end(self) -> None:
        """Say nothing more."""
        self._ended.set()

    def remind(self) -> None:
        """Say how far it is if nothing was said for long."""
        with self._lock:
            if self.finished < self.total and time.monotonic() - self.last >= self.quiet:
                trainings = [_say_share(task) for task in self.eta.running if task.share is not None]
                self._say("; ".join([self._say_so_far(), *trainings]))

    def _remind(self, ended: threading.Event) -> None:
        while not ended.wait(self.quiet / 4):
            self.remind()

    def _say_so_far(self) -> str:
        line = f"{self.finished}/{self._count(self.total)}, {clock(self.eta.gone)} gone"
        left = self.eta.left
        return line if left is None else f"{line}, {'about' if left.whole else 'at least'} {clock(left.seconds)} left"

    def _count(self, count: int) -> str:
        return f"{count} {self.noun if count == 1 else self.plural}"

    def _say(self, line: str) -> None:
        self.last = time.monotonic()
        print(line, file=self.stream, flush=True)


class Bar(Progress):
    """A bar for terminals, with the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.eta = Eta()
        self.bar = RichBar(
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            _TimeLeft(self.eta),
            _Doing(self.eta, console),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=None)

    def begin(self, total: int, done: int, networks: int = 0) -> None:
        """Draw the bar."""
        self.eta.begin(_count_kinds(total - done, networks))
        self.bar.reset(self.task, total=total, completed=done)
        self.bar.start()

    def more(self, count: int, done: int) -> None:
        """Make the bar longer."""
        task = self.bar.tasks[self.task]
        self.eta.more(count - done)
        self.bar.update(self.task, total=(task.total or 0) + count, completed=task.completed + done)

    def working_on(self, what: str, kind: str = TRIALS, share: Share | None = None) -> None:
        """Show which trial is being measured."""
        self.eta.working_on(what, kind, share)

    def done(self, what: str, error: str | None, kind: str = TRIALS) -> None:
        """Move on; failures stay on the screen."""
        if error is not None:
            self.console.print(_say_failure(what, error), markup=False, highlight=False, emoji=False, style="red")
        self.eta.done(what, kind)
        self.bar.advance(self.task)

    def end(self) -> None:
        """Take the bar away."""
        self.bar.stop()


class _TimeLeft(ProgressColumn):
    """The time gone, and what the rest will take as soon as that is known."""

    def __init__(self, pace: Eta) -> None:
        self.eta = pace
        super().__init__(table_column=Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        """Draw both."""
        gone, left = f"{clock(self.eta.gone)} gone", self.eta.left
        return Text(gone if left is None else f"{gone}, {'' if left.whole else '≥ '}{clock(left.seconds)} left")


class _Doing(ProgressColumn):
    """What was begun last, and how far it is, if that is known."""

    def __init__(self, pace: Eta, console: Console) -> None:
        self.eta, self.console = pace, console
        super().__init__(table_column=Column(no_wrap=True))

    def render(self, task: Task) -> Text:
        """Draw it, in the room that there is."""
        running = self.eta.running
        what = _say_share(running[-1]) if running else ""
        room = max(self.console.width - _BAR_WIDTH, 10)
        return Text(what if len(what) <= room else f"{what[: room - 1]}…")


def _count_kinds(count: int, networks: int) -> dict[str, int]:
    return {TRIALS: count - networks, NETWORKS: networks}


def _say_share(task: Running) -> str:
    share = task.share
    return task.what if share is None else f"{share:.0%} of {task.what}"


def choose_progress(noun: str = "trial", plural: str | None = None) -> Progress:
    """Return a bar if standard error is a terminal, else plain lines, which count what ``noun`` says."""
    console = Console(stderr=True)
    return Bar(console) if sys.stderr.isatty() and not console.is_dumb_terminal else Lines(noun=noun, plural=plural)


def choose_bar() -> Progress:
    """Return a bar if standard error is a terminal, else silence: a program that did not ask for lines expects none."""
    found = choose_progress()
    return found if isinstance(found, Bar) else Silent()


def _say_failure(what: str, error: str) -> str:
    return " ".join(f"failed: {what}: {error}".split())


def clock(seconds: float) -> str:
    """Put a time into the unit that people would use: ``42 s``, ``12 min``, ``3.5 h``, ``5 days``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 99.5 * 3600 else f"{seconds / 86400:.0f} days"
