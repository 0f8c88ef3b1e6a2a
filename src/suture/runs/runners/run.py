"""A run: it brings plan, store and runner together.

``run`` makes a queue of what is planned (``Work``), lets a runner do its tasks, and keeps every outcome. The queue asks
the store first, so that nothing known is measured again; it takes the lock of what it hands out, so that several
processes can share a store; and it plans deferred trials as soon as their networks are trained.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import final

import pandas as pd

from suture.common.devices import parse_device
from suture.common.errors import DataError, OutputError, RunnerError, StoreError, SutureError
from suture.common.validation import check_kind
from suture.core.activations.cache import Activations
from suture.core.network.network import Network
from suture.core.stitched import At, Seam, check_networks
from suture.core.stitches import Stitch
from suture.data import Data
from suture.fits import Fit
from suture.measurement.scores.scores import Score
from suture.measurement.tables.in_short import in_short
from suture.measurement.tables.records import Described, Record, describe_trial
from suture.measurement.tables.table import save, table_of
from suture.measurement.trials.controls import DEFAULT, Control
from suture.measurement.trials.measure import attempt, measure
from suture.measurement.trials.plans import Settings, plan_seam
from suture.measurement.trials.trial import Measurement, Trial
from suture.runs.progress import Progress, choose_bar
from suture.runs.runners.local import Local
from suture.runs.runners.tasks import Deferred, Job, Measuring, Outcome, Runner, TrainingTask
from suture.runs.store.store import NETWORKS, TABLE, TRIALS, Locks, Store, settings_of, told_by

Item = Trial | Deferred | TrainingTask


class Interrupted(KeyboardInterrupt):
    """A run that was interrupted; it says how much is done and how to continue."""


def run(
    plan: Iterable[Item],
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

    A plan may also have trainings, which give no row, and ``Deferred`` trials, planned when their networks are trained.
    With ``store``, a folder, everything measured is kept there at once, and what is there is not measured again: a run
    that was stopped continues, and several processes may share the work of one store. ``on`` says where trials run:
    ``Local()`` by default, or ``Ray()``; the scores are the same, bit for bit. ``device`` is ``"cpu"``, ``"cuda"`` or
    ``"cuda:1"``, by default where the networks are; on a GPU scores differ a little (docs/runs.md says how much), and
    the table's column ``device`` tells, but the keys are the same. Activations are removed from the store when the run
    is over; they stay if it was stopped. A trial that fails is recorded
    (``status`` is ``failed``, ``error`` says why), does not stop the others, and is measured again only with ``retry``.
    ``extend`` lets a store take trials of another plan than its own. ``until_converged`` measures every trial
    whose fit has not converged once more with four, then with sixteen times the work allowed: such a trial has the key
    of that fit, and its row takes the place of the other's. ``command`` is how a shell would
    continue the run, for people who find the folder. ``progress`` hears how far it is: a bar on a terminal and
    lines in a notebook by default, else nothing; ``runners.Lines()`` writes lines, ``runners.Silent()`` nothing.

    Raises ``DataError`` if the plan has no trial, ``StoreError`` if the folder is another run's, ``OutputError``
    if it cannot be written to, ``RunnerError`` if trials cannot run, ``DeviceError`` if the device is not there or too
    small for a trial; an interruption at the keyboard ends it within seconds, as ``Interrupted``.
    """
    check_kind("on", on, Runner | None, "where trials run, such as Local() or Ray()", RunnerError)
    if store is None and (retry or extend):
        raise StoreError(f"{'retry' if retry else 'extend'}=True is for a store; give store=FOLDER, or leave it out")
    shown, items = progress if progress is not None else choose_bar(), _check_plan(plan)
    runner = on if on is not None else Local()
    device = device if device is not None else runner.device
    if device is not None:
        parse_device(device)
    opened = store if store is None or isinstance(store, Store) else Store.make(store)
    work = Work(items, opened, shown, retry=retry, extend=extend, command=command, device=device)
    go_on = f"go on with: {command}" if command is not None else "the same call goes on from there"
    try:
        while not work.exhausted or (until_converged and work.deepen()):
            unmeasured = tuple(task.trial for task in work.todo.values() if isinstance(task, Measuring))
            runner = runner.prepared(unmeasured, device)
            with _scratch(opened) as scratch, closing(runner.run(work, scratch)) as outcomes:
                for task, outcome in outcomes:
                    work.keep(task, outcome)
    except KeyboardInterrupt:
        remedy = f"; {go_on}" if opened is not None else ""
        raise Interrupted(f"interrupted: {work.say_so_far()}{remedy}") from None
    except (OutputError, RunnerError) as error:
        if not work.running:  # nothing had begun
            raise
        raise type(error)(f"{error}. {work.say_so_far()}; {go_on}") from error
    finally:
        work.end()
    work.check_bases()
    work.clean()
    return in_short(work.table())


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
    settings are those of ``curve``. Raises what the plain trial raises; a control that fails is a ``Failure`` among the
    controls.
    """
    settings = Settings.of(stitch, fit, scores, controls, seeds=(seed,))
    if device is not None:
        check_networks(sender, receiver)
        sender, receiver = sender.to(device), receiver.to(device)
    plain, *others = plan_seam(Seam.at(sender, receiver, at), data, settings)
    cache = Activations()
    measurement = measure(plain, cache)
    return replace(measurement, controls=tuple(attempt(other, cache) for other in others))


def _check_plan(plan: Iterable[Item]) -> list[Item]:
    """Return what is planned, as a list. Raises ``DataError`` if there is something else in it, or nothing."""
    if isinstance(plan, Item) or not isinstance(plan, Iterable):
        raise DataError(f"the plan is a {type(plan).__name__}; give several trials, such as what curve or matrix plans")
    items = list(plan)
    for place, item in enumerate(items, start=1):
        if not isinstance(item, Item):
            said = f"item {place} of this plan is a {type(item).__name__}, and no trial"
            remedy = "plans add up: run(a + b)" if isinstance(item, Sequence) else "give what curve or matrix plans"
            raise DataError(f"{said}; {remedy}")
    if not items:
        raise DataError("this plan has no trial: nothing to measure; check the cuts, controls and seeds it is made of")
    return items


def _is_control(task: Job) -> bool:
    return isinstance(task, Measuring) and bool(task.trial.control)


@contextmanager
def _scratch(store: Store | None) -> Iterator[Path]:
    """A folder for what may be lost: the store's, or one that is removed afterwards."""
    if store is not None:
        yield store.activations
        return
    with tempfile.TemporaryDirectory(prefix="suture-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@final
class Work:
    """The queue of a run: what is planned, what of it is known, and what may begin."""

    def __init__(
        self,
        plan: Sequence[Item],
        store: Store | None,
        shown: Progress,
        *,
        retry: bool,
        extend: bool,
        command: str | None,
        device: str | None = None,
    ) -> None:
        self.store, self.retry, self.command, self.device = store, retry, command, device
        self.locks = Locks(store.path / "locks") if store is not None else None
        self.shown = Progress()  # nothing is told before all is counted
        self.trials: dict[str, Trial] = {}  # all that were planned so far, by key
        self.records: dict[str, Record] = {}  # what is known of them, by key
        self.weights: dict[str, bytes] = {}  # of trained networks that others start from, by key
        self.networks: dict[str, Network] = {}  # trained networks that are stitched, by key
        self.deeper: dict[str, str] = {}  # the key of the trial that goes on with another, by the key of that one
        self.failed: list[str] = []  # which networks could not be trained, and why
        self.todo: dict[str, Job] = {}  # by key, trainings first, because much waits for them
        self.running: dict[str, Job] = {}
        # The rows of the table, a list for each item of the plan; trials that are not planned yet stand for theirs.
        self.rows: list[list[Described] | Deferred] = [
            [describe_trial(item)] if isinstance(item, Trial) else item
            for item in plan
            if not isinstance(item, TrainingTask)
        ]
        self.bases: dict[str, TrainingTask] = {}  # all networks to train, those first that others start from
        for item in plan:
            if not isinstance(item, Trial):
                self._add_bases(item.bases if isinstance(item, Deferred) else (item,))
        trials = [item for item in plan if isinstance(item, Trial)]
        if store is not None:
            store.forget_damage()
            settings = self._settings(trials)
            store.plans.check({trial.key for trial in trials} | self.bases.keys(), settings, extend)
            store.plans.add(list(self._described()), settings, tuple(self.bases))
            self.deeper = {trial.deepens: trial.key for trial in store.plans.trials() if trial.deepens}
            measured = store.finished() & {*self.deeper.values()}
            self.records |= {key: store.record(TRIALS, key) for key in measured if store.has(TRIALS, key)}
        self.todo |= self.bases
        for base in self.bases.values():
            if self._take_stored(base):
                del self.todo[base.key]
        self._add_trials(trials)
        self._plan_deferred()
        if shown.draws:  # who watches sees the pairs first, then their controls
            self.todo = dict(sorted(self.todo.items(), key=lambda item: _is_control(item[1])))
        self.shown, total, networks = shown, len(self.trials) + len(self.bases), len(self.bases)
        shown.begin(total, total - len(self.todo), networks, networks - len(self._find_trainings()))

    def _add_bases(self, bases: Iterable[TrainingTask]) -> None:
        for base in bases:
            if self.store is None or not self.store.has(base.kind, base.key):
                self._add_bases(base.bases)
            self.bases.setdefault(base.key, base)

    def _settings(self, trials: Sequence[Trial]) -> Record:
        return settings_of(trials) | ({"command": self.command} if self.command is not None else {})

    # --- the queue ----------------------------------------------------------------------------------------------------

    def take(self) -> Job | None:
        """Take a task that may begin now, and that no other process works on; ``None`` if there is none."""
        while (task := next(filter(self._claim, self.todo.values()), None)) is not None:
            done_elsewhere = self._take_stored(task)  # since we looked
            del self.todo[task.key]
            if done_elsewhere:
                self._release(task)
                continue
            share = None
            if isinstance(task, TrainingTask):
                task = task.after(self.weights)
                share = partial(task.share, self.store.activations) if self.store is not None else None
            task = task if self.device is None else task.on(self.device)
            self.running[task.key] = task
            self.shown.working_on(task.where, task.kind, share)
            return task
        return None

    def _claim(self, task: Job) -> bool:
        """Take the lock of a task, if it may begin; say whether it is ours."""
        sequence = task.sequence if isinstance(task, TrainingTask) else None
        busy = (other.sequence for other in self.running.values() if isinstance(other, TrainingTask))
        if not self._can_start(task) or (sequence is not None and sequence in busy):
            return False
        return self.locks is None or self.locks.take(task.key)

    def _release(self, task: Job) -> None:
        """Give back the lock of a task that is done, and tell ``shown``."""
        if self.locks is not None:
            self.locks.give_back(task.key)
        self.shown.done(task.where, self.records.get(task.key, {}).get("error"), task.kind)

    def _can_start(self, task: Job) -> bool:
        return not isinstance(task, TrainingTask) or all(base.key in self.weights for base in task.bases)

    @property
    def left(self) -> int:
        """How many tasks were not yet taken."""
        return len(self.todo)

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing more, not even after what is running."""
        more = self.running and (self.todo or self._find_waiting())
        return not more and not any(map(self._can_start, self.todo.values()))

    # --- what is known ------------------------------------------------------------------------------------------------

    def keep(self, task: Job, outcome: Outcome) -> None:
        """Keep an outcome, on the disk if there is a store."""
        del self.running[task.key]
        if self.store is not None:
            self.store.keep(task.kind, task.key, outcome.record, outcome.tensors)
            if isinstance(task, TrainingTask) and not outcome.failed:
                task.tidy(self.store.activations)
        self._learn(task, outcome.record, outcome.tensors)
        self._release(task)
        self.shown.updated(self.table)

    def _take_stored(self, task: Job) -> bool:
        """Take over a result that is in the store; say whether there is one."""
        if self.store is None:
            return False
        if self.store.has(task.kind, task.key):
            self._learn(task, self.store.record(task.kind, task.key))
            return True
        failed = None if self.retry else self.store.failure(task.kind, task.key)
        if failed is not None:
            self._learn(task, failed)
        return failed is not None

    def _learn(self, task: Job, record: Record, tensors: bytes | None = None) -> None:
        """Take in a result; its tensors are read from the store if they are needed and not given."""
        if not isinstance(task, TrainingTask):
            self.records[task.key] = record
            return
        if record["status"] == "failed":
            self.failed.append(f"{task.where}: {record['error']}")
            return
        begins = any(task.key == base.key for other in self._find_trainings() for base in other.bases)
        stitched = any(task.key == base.key for _, item in self._find_waiting() for base in item.bases)
        if tensors is None and self.store is not None and (begins or stitched):
            tensors = self.store.tensors(NETWORKS, task.key)
        if begins and tensors is not None:
            self.weights[task.key] = tensors
        if stitched and tensors is not None:
            self.networks[task.key] = task.network(tensors)
            self._plan_deferred()

    def _plan_deferred(self) -> None:
        """Plan the trials of networks that are there now."""
        for place, item in self._find_waiting():
            if all(base.key in self.networks for base in item.bases):
                trials = list(item.make(*(self.networks[base.key] for base in item.bases)))
                described = [describe_trial(trial) for trial in trials]
                if self.store is not None:
                    self.store.plans.add(described, self._settings(trials), later=True)
                known, before = len(self.trials), len(self.todo)
                self._add_trials(trials)
                fresh, unmeasured = len(self.trials) - known, len(self.todo) - before
                self.rows[place] = described
                self.shown.more(fresh, fresh - unmeasured)

    def _find_trainings(self) -> list[TrainingTask]:
        return [task for task in self.todo.values() if isinstance(task, TrainingTask)]

    def _find_waiting(self) -> list[tuple[int, Deferred]]:
        return [(place, item) for place, item in enumerate(self.rows) if isinstance(item, Deferred)]

    def _add_trials(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            if trial.key not in self.trials:
                self.trials[trial.key] = trial
                task = Measuring(trial)
                if not self._take_stored(task):
                    self.todo[trial.key] = task

    # --- going on -----------------------------------------------------------------------------------------------------

    def deepen(self) -> bool:
        """Plan every trial that has not converged once more, with more work allowed; say if any is to be measured."""
        while fresh := self._find_deeper():
            described = [
                replace(trial, key=fresh[last].key, deepens=last)
                for trial in self._described()
                if (last := self._ends(trial.key)[-1]) in fresh
            ]
            self.deeper |= {key: trial.key for key, trial in fresh.items()}
            if self.store is not None:
                self.store.plans.add(described, self._settings(list(fresh.values())))
            before = len(self.todo)
            self._add_trials(list(fresh.values()))
            unmeasured = len(self.todo) - before
            self.shown.more(len(fresh), len(fresh) - unmeasured)
            if unmeasured:
                return True
        return False

    def _find_deeper(self) -> dict[str, Trial]:
        """The trials that go on with those that have not converged, by the keys of these."""
        found = {}
        for key, trial in self.trials.items():
            fit = trial.fit.deepened()
            known = self.records.get(key, {}).get("converged")
            if known is False and fit is not None and self.deeper.get(key) not in self.trials:
                found[key] = replace(trial, fit=fit)
        return found

    def _ends(self, key: str) -> list[str]:
        """The keys of a trial and of those that go on with it, as far as they are planned or measured."""
        found = [key]
        while (deeper := self.deeper.get(found[-1])) is not None and deeper in self.trials.keys() | self.records.keys():
            found.append(deeper)
        return found

    def _find_shown(self, key: str) -> str:
        """The key of the deepest that was measured, of a trial and those that go on with it; its own if none was."""
        measured = [end for end in self._ends(key) if self.records.get(end, {}).get("status") == "ok"]
        return measured[-1] if measured else key

    def _described(self) -> Iterator[Described]:
        return (trial for row in self.rows if not isinstance(row, Deferred) for trial in row)

    # --- the end ------------------------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """The rows of all that is known; what was planned twice, under the same names, stands once."""
        known = (trial for trial in self._described() if trial.key in self.records)
        known = (replace(trial, key=self._find_shown(trial.key)) for trial in known)
        once = {(trial.key, *told_by(trial.labels).values()): trial for trial in known}
        return table_of((trial, self.records[trial.key]) for trial in once.values())

    def end(self) -> None:
        """Release all locks, and write the table."""
        self.shown.end()
        if self.locks is not None and self.store is not None:
            self.locks.give_all_back()
            with suppress(SutureError, OSError):  # the results themselves are kept
                save(self.store.table(self.records), self.store.path / TABLE)

    def clean(self) -> None:
        """Remove the activations of a run that is over, unless another process goes on in its store."""
        if self.store is not None and self.locks is not None and not self.locks.others():
            self.store.clean()

    def say_so_far(self) -> str:
        """How much is done, in words."""
        planned = self.trials.keys()
        measured = {key for key, record in self.records.items() if record["status"] == "ok"}
        failed = len(planned & self.records.keys() - measured)
        more = f"; {failed} failed" if failed else ""
        if self.store is None:
            return f"{len(measured)} of {len(planned)} trials were measured{more}, and kept nowhere; give a store="
        if not planned:
            trained = len(self.store.finished(NETWORKS) & self.bases.keys())
            return f"{trained} of {len(self.bases)} networks are trained and kept in {self.store.path}"
        done = len(planned & (measured | self.store.finished()))
        return f"{done} of {len(planned)} trials are measured and kept in {self.store.path}{more}"

    def check_bases(self) -> None:
        """Raise ``RunnerError`` if networks could not be trained, or trials could not be planned for that reason."""
        waiting = len(self._find_waiting())
        if waiting:
            parts = f"{waiting} part{'s' if waiting > 1 else ''} of the plan"
            raise RunnerError(f"{parts} could not be measured: {'; '.join(self.failed)}; all else is measured")
        if self.failed:
            more = f" {len(self.todo)} more start from these." if self.todo else ""
            raise RunnerError(f"{'; '.join(self.failed)};{more} all else is done")
