"""A run: it brings plan, store and runner together.

``run`` makes a queue of the trials that are planned (``Work``), lets a runner measure them, and makes the table.

The queue asks the store first, so that nothing known is done again, and takes the lock of whatever it hands out, so
that several processes can share a store. A package that sends jobs of its own through a runner makes another
``StoredQueue``.
"""

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

import pandas as pd

from suture.common.constants import ACTIVATIONS
from suture.common.devices import parse_device
from suture.common.errors import OutputError, RunnerError, StoreError, SutureError
from suture.common.validation import check_kind
from suture.core.activations.cache import Activations
from suture.core.network.network import Network
from suture.core.stitched import At, Seam, check_networks
from suture.core.stitches import Stitch
from suture.data import Data
from suture.fits import Fit
from suture.measurement.scores.scores import Score
from suture.measurement.tables.described import Record
from suture.measurement.tables.in_short import in_short
from suture.measurement.tables.records import describe_trial
from suture.measurement.tables.table import save, say_warnings, table_of
from suture.measurement.trials.controls import DEFAULT, Control
from suture.measurement.trials.measure import attempt, measure
from suture.measurement.trials.plans import Settings, plan_seam
from suture.measurement.trials.trial import Measurement, Trial, check_plan
from suture.runs.progress import LOG, AlsoLogged, Progress, choose_bar
from suture.runs.runners.local import Local
from suture.runs.runners.tasks import Job, Measuring, Outcome, Runner
from suture.runs.store.store import TABLE, TRIALS, Locks, Store, settings_of, told_by


def run(
    plan: Iterable[Trial],
    *,
    store: str | Path | Store | None = None,
    on: Runner | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    retry: bool = False,
    extend: bool = False,
    until_converged: bool = False,
    command: str | None = None,
) -> pd.DataFrame:
    """Measure the trials of a plan; return the table, one row per trial and score, in the plan's order.

    With ``store``, a folder, everything measured is kept there at once, and what is there is not measured again: a run
    that was stopped continues, and several processes may share the work of one store. ``on`` says where trials run:
    ``Local()`` by default, or ``Ray()``; the scores are the same, bit for bit. ``device`` is ``"cpu"``, ``"cuda"`` or
    ``"cuda:1"``, by default where the networks are; on a GPU scores differ a little (docs/how-to/costs.md), and
    the table's column ``device`` tells, but the keys are the same. Activations are removed from the store when the run
    is over; they stay if it was stopped. A trial that fails is recorded
    (``status`` is ``failed``, ``error`` says why), does not stop the others, and is measured again only with ``retry``,
    or if the failure may be of the machine (memory, a disk, a lock, a damaged file).
    ``extend`` lets a store take trials of another plan than its own. ``until_converged`` measures every trial
    whose fit has not converged once more with four, then with sixteen times the work allowed: such a trial has the key
    of that fit, and its row takes the place of the other's. ``command`` is how a shell would
    continue the run, for people who find the folder. ``progress`` hears how far it is: a bar on a terminal and
    lines in a notebook by default, else nothing; ``runners.Lines()`` writes lines, ``runners.Silent()`` nothing.

    Raises ``DataError`` if the plan has no trial, ``StoreError`` if the folder is another run's, ``OutputError``
    if it cannot be written to, ``RunnerError`` if trials cannot run, ``DeviceError`` if the device is not there or too
    small for a trial; an interruption at the keyboard ends it within seconds, as ``Interrupted``.
    """
    runner, device = choose_runner(on, device)
    if store is None and (retry or extend):
        raise StoreError(f"{'retry' if retry else 'extend'}=True is for a store; give store=FOLDER, or leave it out")
    shown, trials = progress if progress is not None else choose_bar(), check_plan(plan)
    opened = store if store is None or isinstance(store, Store) else Store.make(store)
    work = Work(trials, opened, shown, retry=retry, extend=extend, command=command, device=device)
    work.forgets = not until_converged  # which measures trials again when all are done
    work_off(work, runner, work.deepen if until_converged else lambda: False)
    work.clean()
    table = work.table()
    work.warn(table)  # of what a store had already
    return in_short(table)


def write_plan(plan: Sequence[Trial], store: Store, command: str | None, extend: bool) -> None:
    """Write the plan of a run into a store before it starts. Raises ``StoreError`` if the folder is another run's."""
    settings = settings_of(plan)
    store.plans.check({trial.key for trial in plan}, settings, extend)
    store.plans.add([describe_trial(trial) for trial in plan], settings | _name_command(command))


def _name_command(command: str | None) -> Record:
    return {} if command is None else {"command": command}


def preview(
    plan: Iterable[Trial],
    *,
    store: Store | None = None,
    on: Runner | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    command: str | None = None,
) -> pd.DataFrame:
    """Measure trials that are shown before those of a run, and return their rows.

    They are ordinary trials, kept in the store under their keys and measured once, but no plan and no table of the
    store has them, so nothing is concluded from them. Raises the errors of ``run``.
    """
    runner, device = choose_runner(on, device)
    shown, trials = progress if progress is not None else choose_bar(), check_plan(plan)
    work = Work(trials, store, shown, retry=False, extend=True, command=command, device=device, planned=False)
    is_fresh = bool(work.todo)
    work_off(work, runner)
    if is_fresh:  # else the activations are those of the run itself, which was stopped
        work.clean()
    return work.table()


def stitch(
    sender: Network,
    receiver: Network,
    *,
    at: At,
    data: Data,
    stitch: Stitch | str | None = None,
    fit: Fit | str | None = None,
    scores: Sequence[Score] | None = None,
    controls: Sequence[Control | str] | str = DEFAULT,
    seed: int = 0,
    device: str | None = None,
) -> Measurement:
    """Measure one seam, with its controls beside it in ``.controls``.

    ``at`` is a cut of both networks, or ``(sender cut, receiver cut)``; ``device`` is that of ``run``, and the other
    settings are those of ``curve``. Raises the errors of the plain trial; a control that fails is a ``Failure`` among
    the controls.
    """
    settings = Settings.of(stitch, fit, scores, controls, seeds=(seed,))
    if device is not None:
        check_networks(sender, receiver)
        sender, receiver = sender.to(device), receiver.to(device)
    plain, *others = plan_seam(Seam.at(sender, receiver, at), data, settings)
    cache = Activations()
    measurement = measure(plain, cache)
    return replace(measurement, controls=tuple(attempt(other, cache) for other in others))


# --- queues -----------------------------------------------------------------------------------------------------------


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


Chain = dict[int, tuple[str, int]]
"""Activations of one network on some samples: the key of those at each place, and how many trials still need them."""


@final
class Work(StoredQueue):
    """The queue of a run: its trials, and their results so far."""

    def __init__(
        self,
        plan: Sequence[Trial],
        store: Store | None,
        shown: Progress,
        *,
        retry: bool,
        extend: bool,
        command: str | None,
        device: str | None = None,
        planned: bool = True,
    ) -> None:
        super().__init__(store, retry=retry, command=command, device=device)
        self.planned = planned  # or only shown, in no plan and no table of the store
        self.forgets = True  # whether it removes activations that no trial to come needs
        self.chains: dict[tuple[str, str], Chain] = {}  # by the fingerprints of network and images
        self.needs: dict[str, list[tuple[Chain, int]]] = {}  # of trials that are to be measured, by key
        self.trials: dict[str, Trial] = {}  # by key
        self.records: dict[str, Record] = {}  # what is known of them, by key
        self.deeper: dict[str, str] = {}  # the key of the trial that goes on with another, by the key of that one
        self.rows = [describe_trial(trial) for trial in plan]  # of the table
        if store is not None and planned:
            store.forget_damage()
            write_plan(plan, store, command, extend)
            self.deeper = {trial.deepens: trial.key for trial in store.plans.trials() if trial.deepens}
            measured = store.finished() & {*self.deeper.values()}
            self.records |= {key: store.record(TRIALS, key) for key in measured if store.has(TRIALS, key)}
        self._add_trials(plan)
        self.begin(shown, len(self.trials), "trial")

    def learn(self, task: Job, record: Record) -> None:
        """Take in the record of a trial."""
        self.records[task.key] = record

    def keep(self, task: Job, outcome: Outcome) -> None:
        """Keep a measurement, and show it."""
        super().keep(task, outcome)
        self._forget(task.key)
        self.warn(table_of([(describe_trial(self.trials[task.key]), outcome.record)]))
        self.shown.updated(self.table)

    def warn(self, table: pd.DataFrame) -> None:
        """Say why networks are not to be trusted: after the first trial that shows it, before others are waited for."""
        for doubt in say_warnings(table):
            self.shown.warn(doubt)

    def _forget(self, done: str) -> None:
        """Remove the files of activations that no trial to come needs, itself or to compute those of a later cut.

        Else those of all cuts lie on the disk together. Other processes that share the store may need any.
        """
        needs = self.needs.pop(done, [])
        for chain, index in needs:
            key, count = chain[index]
            chain[index] = key, count - 1
        if not self.forgets or self.scratch is None or (self.locks is not None and self.locks.others()):
            return
        for chain in {id(chain): chain for chain, _ in needs}.values():
            files = {index: [*self.scratch.glob(f"{key}-*{ACTIVATIONS}")] for index, (key, _) in chain.items()}
            there = [index for index, found in files.items() if found]
            for index in there:
                following = min((at for at, (_, count) in chain.items() if at > index and count), default=0)
                if not chain[index][1] and (not following or any(index < at <= following for at in there)):
                    for file in files[index]:
                        file.unlink(missing_ok=True)

    def _add_trials(self, trials: Sequence[Trial]) -> None:
        """Queue the trials that are not measured, and count which activations they need."""
        for trial in trials:
            if trial.key in self.trials:
                continue
            self.trials[trial.key] = trial
            task = Measuring(trial)
            if self.take_stored(task) is not None:
                continue
            self.todo[trial.key] = task
            for need in trial.needs:
                chain = self.chains.setdefault((need.network.fingerprint, need.samples.image_fingerprint), {})
                _, count = chain.get(need.index, (need.key, 0))
                chain[need.index] = need.key, count + 1
                self.needs.setdefault(trial.key, []).append((chain, need.index))

    # --- going on -----------------------------------------------------------------------------------------------------

    def deepen(self) -> bool:
        """Plan again every trial that has not converged, with more work allowed; return whether there are any."""
        while fresh := self._find_deeper():
            described = [
                replace(trial, key=fresh[last].key, deepens=last)
                for trial in self.rows
                if (last := self._ends(trial.key)[-1]) in fresh
            ]
            self.deeper |= {key: trial.key for key, trial in fresh.items()}
            if self.store is not None:
                settings = settings_of(list(fresh.values())) | _name_command(self.command)
                self.store.plans.add(described, settings)
            before = len(self.todo)
            self._add_trials(list(fresh.values()))
            unmeasured = len(self.todo) - before
            self.shown.more(len(fresh), len(fresh) - unmeasured)
            if unmeasured:
                return True
        return False

    def _find_deeper(self) -> dict[str, Trial]:
        """Return the trials that go on with those that have not converged, by the keys of these."""
        found = {}
        for key, trial in self.trials.items():
            fit = trial.fit.deepened()
            known = self.records.get(key, {}).get("converged")
            if known is False and fit is not None and self.deeper.get(key) not in self.trials:
                found[key] = replace(trial, fit=fit)
        return found

    def _ends(self, key: str) -> list[str]:
        """Return the keys of a trial and of those that go on with it, as far as they are planned or measured."""
        found = [key]
        while (deeper := self.deeper.get(found[-1])) is not None and deeper in self.trials.keys() | self.records.keys():
            found.append(deeper)
        return found

    # --- the end ------------------------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """Return the rows of all results so far; trials planned twice, under the same names, appear once.

        A trial is shown by the deepest of its continuations that was measured.
        """
        once = {}
        for trial in self.rows:
            if trial.key in self.records:
                measured = [end for end in self._ends(trial.key) if self.records.get(end, {}).get("status") == "ok"]
                shown = replace(trial, key=measured[-1]) if measured else trial
                once[shown.key, *told_by(shown.labels).values()] = shown
        return table_of((trial, self.records[trial.key]) for trial in once.values())

    def end(self) -> None:
        """Release all locks, and write the table."""
        super().end()
        if self.store is not None and self.planned:
            with suppress(SutureError, OSError):  # the results themselves are kept
                save(self.store.table(self.records), self.store.path / TABLE)

    def say_so_far(self) -> str:
        """Return the progress in words."""
        planned = self.trials.keys()
        measured = {key for key, record in self.records.items() if record["status"] == "ok"}
        failed = len(planned & self.records.keys() - measured)
        more = f"; {failed} failed" if failed else ""
        if self.store is None:
            return f"{len(measured)} of {len(planned)} trials were measured{more}, and kept nowhere; give a store="
        done = len(planned & (measured | self.store.finished()))
        return f"{done} of {len(planned)} trials are measured and kept in {self.store.path}{more}"


# --- working them off -------------------------------------------------------------------------------------------------


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
