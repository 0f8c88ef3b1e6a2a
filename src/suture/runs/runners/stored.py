"""A queue whose outcomes are kept, and the loop in which a runner works it off.

The queue asks the store first, so that nothing known is done again, and takes the lock of whatever it hands out, so
that several processes can share a store. That of a run is ``run.Work``; a package that sends jobs of its own through a
runner makes another.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from suture.common.devices import parse_device
from suture.common.errors import OutputError, RunnerError
from suture.common.validation import check_kind
from suture.measurement.tables.described import Record
from suture.runs.progress import LOG, AlsoLogged, Progress
from suture.runs.runners.local import Local
from suture.runs.runners.tasks import Job, Measuring, Outcome, Runner
from suture.runs.store.store import Locks, Store


class Interrupted(KeyboardInterrupt):
    """A run that was interrupted; the message has the progress and how to continue."""


class StoredQueue(ABC):
    """Tasks, the store that keeps their outcomes if there is one, and the locks of those at work."""

    def __init__(self, store: Store | None, *, retry: bool, command: str | None, device: str | None) -> None:
        self.store, self.retry, self.command, self.device = store, retry, command, device
        self.locks = Locks(store.path / "locks") if store is not None else None
        self.shown = Progress()  # nothing is told before all is counted
        self.scratch: Path | None = None  # where activations lie while a runner is at work
        self.todo: dict[str, Job] = {}  # by key, in the order in which they are to begin
        self.running: dict[str, Job] = {}

    def begin(self, shown: Progress, total: int, noun: str) -> None:
        """Tell ``shown`` how many there are, and how many of them are known already."""
        self.shown = AlsoLogged(shown)
        self.shown.begin(total, total - len(self.todo), noun)

    # --- the hooks ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def learn(self, task: Job, record: Record) -> None:
        """Take in a result: of this process, of another, or of an earlier run."""

    @abstractmethod
    def say_so_far(self) -> str:
        """Describe the progress, and where the results are kept."""

    def can_start(self, task: Job) -> bool:
        """Return whether a task may begin, given the results so far and the running tasks."""
        return True

    def complete(self, task: Job) -> Job:
        """Return a task that is about to begin, under the same key, with whatever it needs of others."""
        return task

    # --- the queue ----------------------------------------------------------------------------------------------------

    def take(self) -> Job | None:
        """Take a task that may begin now, and that no other process works on; ``None`` if there is none."""
        while (task := next(filter(self._claim, self.todo.values()), None)) is not None:
            done_elsewhere = self.take_stored(task)  # since we looked
            del self.todo[task.key]
            if done_elsewhere is not None:
                self._release(task, done_elsewhere)
                continue
            task = self.complete(task)
            task = task if self.device is None else task.on(self.device)
            self.running[task.key] = task
            share = partial(task.share, self.store.activations) if self.store is not None else None
            self.shown.working_on(task.where, share)
            return task
        return None

    def _claim(self, task: Job) -> bool:
        """Take the lock of a task, if it may begin; return whether it is ours."""
        return self.can_start(task) and (self.locks is None or self.locks.take(task.key))

    def _release(self, task: Job, record: Record) -> None:
        """Give back the lock of a task that is done, and report it to ``shown``."""
        if self.locks is not None:
            self.locks.give_back(task.key)
        self.shown.done(task.where, record.get("error"))

    def hear(self, task: Job, phase: str) -> None:
        """Show the current stage of a task."""
        self.shown.at(task.where, phase)

    @property
    def left(self) -> int:
        """The number of tasks that were not yet taken."""
        return len(self.todo)

    @property
    def exhausted(self) -> bool:
        """Whether no task is left, not even after the running ones."""
        return not (self.running and self.todo) and not any(map(self.can_start, self.todo.values()))

    def keep(self, task: Job, outcome: Outcome) -> None:
        """Keep an outcome, on the disk if there is a store."""
        del self.running[task.key]
        if self.store is not None:
            self.store.keep(task.kind, task.key, outcome.record, outcome.tensors)
        self.learn(task, outcome.record)
        self._release(task, outcome.record)

    def take_stored(self, task: Job) -> Record | None:
        """Take in the result that the store has of a task, and return it; ``None`` if there is none.

        A failure that may be of the machine is none: it may succeed now.
        """
        if self.store is None:
            return None
        if self.store.has(task.kind, task.key):
            known: Record | None = self.store.record(task.kind, task.key)
        else:
            known = None if self.retry else self.store.failure(task.kind, task.key)
            known = None if known is not None and known.get("of_machine") else known
        if known is not None:
            self.learn(task, known)
        return known

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Release all locks."""
        self.shown.end()
        if self.locks is not None:
            self.locks.give_all_back()

    def clean(self) -> None:
        """Remove the activations of a run that is over, unless another process goes on in its store."""
        if self.store is not None and self.locks is not None and not self.locks.others():
            self.store.clean()


def choose_runner(on: Runner | None, device: str | None) -> tuple[Runner, str | None]:
    """Return a runner, ``Local()`` if none is given, and the device, that of the runner if none is given.

    Raises ``RunnerError`` if it is not a runner, ``DeviceError`` if no device has that name.
    """
    check_kind("on", on, Runner | None, "where trials run, such as Local() or Ray()", RunnerError)
    runner = on if on is not None else Local()
    device = device if device is not None else runner.device
    if device is not None:
        parse_device(device)
    return runner, device


def work_off(queue: StoredQueue, runner: Runner, more: Callable[[], bool] = lambda: False) -> None:
    """Let a runner do all tasks of a queue, and then those that ``more`` adds, as long as it returns true.

    Raises ``Interrupted`` for an interruption at the keyboard, and the errors of the runner, with how to continue.
    """
    go_on = f"continue with: {queue.command}" if queue.command is not None else "the same call continues from there"
    try:
        while not queue.exhausted or more():
            trials = tuple(task.trial for task in queue.todo.values() if isinstance(task, Measuring))
            runner = runner.prepared(trials, queue.device)
            with _scratch(queue.store) as queue.scratch, closing(runner.run(queue, queue.scratch)) as outcomes:
                for task, outcome in outcomes:
                    queue.keep(task, outcome)
    except KeyboardInterrupt:
        remedy = f"; {go_on}" if queue.store is not None else ""
        LOG.warning("interrupted: %s", queue.say_so_far())
        raise Interrupted(f"interrupted: {queue.say_so_far()}{remedy}") from None
    except (OutputError, RunnerError) as error:
        if not queue.running:  # nothing had begun
            raise
        raise type(error)(f"{error}. {queue.say_so_far()}; {go_on}") from error
    finally:
        queue.end()


@contextmanager
def _scratch(store: Store | None) -> Iterator[Path]:
    """Yield a folder for files that may be lost: the store's, or one that is removed afterwards."""
    if store is not None:
        yield store.activations
        return
    with tempfile.TemporaryDirectory(prefix="suture-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
