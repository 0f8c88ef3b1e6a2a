"""The work of a run: what is planned, what of it is known, and what may begin.

The one queue that ``run`` gives to runners. It asks the store first, so that nothing known is measured again; it takes
the lock of what it hands out, so that several processes can share a store; and it plans deferred trials as soon as
their networks are trained.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import final

import pandas as pd

from suture.common.errors import DataError, RunnerError, SutureError
from suture.core.network.network import Network
from suture.measurement.tables.records import Described, Record, describe_trial
from suture.measurement.tables.table import save, table_of
from suture.measurement.trials.trial import Trial
from suture.runs.runners.base import Deferred, Outcome, Task, TrainingTask
from suture.runs.runners.eta import Share
from suture.runs.runners.progress import Progress
from suture.runs.runners.tasks import Measuring
from suture.runs.store.locks import Locks
from suture.runs.store.plans import settings_of
from suture.runs.store.store import NETWORKS, TABLE, TRIALS, Store


def check_plan(plan: Iterable[Trial | Deferred | TrainingTask]) -> list[Trial | Deferred | TrainingTask]:
    """Return what is planned, as a list. Raises ``DataError`` for what is nothing to measure."""
    if isinstance(plan, Trial | Deferred | TrainingTask) or not isinstance(plan, Iterable):
        raise DataError(f"the plan is a {type(plan).__name__}; give several trials, such as what curve or matrix plans")
    items = list(plan)
    for place, item in enumerate(items, start=1):
        if not isinstance(item, Trial | Deferred | TrainingTask):
            said = f"item {place} of this plan is a {type(item).__name__}, and no trial"
            remedy = "plans add up: run(a + b)" if isinstance(item, Sequence) else "give what curve or matrix plans"
            raise DataError(f"{said}; {remedy}")
    return items


@final
class Work:
    """What is planned, what of it is known, and what may begin."""

    def __init__(
        self,
        plan: Iterable[Trial | Deferred | TrainingTask],
        store: Store | None,
        shown: Progress,
        *,
        retry: bool = False,
        extend: bool = False,
        command: str | None = None,
    ) -> None:
        self.store, self.shown, self.retry, self.command = store, shown, retry, command
        self.locks = Locks(store.path / "locks") if store is not None else None
        self.records: dict[str, Record] = {}  # of trials, by key
        self.networks: dict[str, Network] = {}  # of base models that are trained, by key
        self.weights: dict[str, bytes] = {}  # of base models that others start from, by key
        self.held: dict[str, TrainingTask] = {}  # base models whose own bases are not trained yet, by key
        self.failed: list[str] = []  # which could not be trained, and why
        self.ready: deque[Task] = deque()
        self.running = 0
        self.bases: dict[str, TrainingTask] = {}
        self.awaited: set[str] = set()  # keys of the base models that trials wait for
        self.parents: set[str] = set()  # keys of those that others start from
        self.rows: list[Described | Deferred] = []
        self.made: dict[int, list[Described]] = {}  # the trials of what came later, by its place in ``rows``
        self.trials: dict[str, Trial] = {}  # all that were planned so far, by key
        self.begun = False
        self._add_plan(list(plan), extend)
        left = len(self.ready) + len(self.held)
        total = len({trial.key for trial in self._list_described()} | self.bases.keys())
        waiting = sum(task.kind == NETWORKS for task in self.ready) + len(self.held)
        shown.begin(total, total - left, waiting)
        self.begun = True

    def _add_plan(self, plan: list[Trial | Deferred | TrainingTask], extend: bool) -> None:
        if not plan:
            raise DataError(
                "this plan has no trial: nothing to measure; check the cuts, controls and seeds it is made of"
            )
        self.rows = [
            describe_trial(item) if isinstance(item, Trial) else item
            for item in plan
            if not isinstance(item, TrainingTask)
        ]
        trials = [item for item in plan if isinstance(item, Trial)]
        self.awaited = {base.key for item in plan if isinstance(item, Deferred) for base in item.bases}
        for item in plan:
            self._list_bases(
                item.bases if isinstance(item, Deferred) else (item,) if isinstance(item, TrainingTask) else ()
            )
        if self.store is not None:
            words, settings = list(self._list_described()), self._settings(trials)
            self.store.plans.check({trial.key for trial in words} | self.bases.keys(), settings, extend)
            self.store.plans.add(words, settings, tuple(self.bases))
        for base in self.bases.values():
            if not self._take_stored(base):
                self.held[base.key] = base
        self._release()
        self._add_trials(trials)
        self._make_later()

    def _list_bases(self, bases: Iterable[TrainingTask]) -> None:
        """List base models, those first that others start from and that are not trained yet."""
        for base in bases:
            if self.store is None or not self.store.has(base.kind, base.key):
                self._list_bases(base.bases)
                self.parents |= {other.key for other in base.bases}
            self.bases.setdefault(base.key, base)

    def _release(self) -> None:
        """Let base models begin whose own bases are trained, before all trials: much waits for them."""
        free = [base for base in self.held.values() if all(other.key in self.weights for other in base.bases)]
        for base in free:
            del self.held[base.key]
        self.ready.extendleft(base.after(self.weights) for base in reversed(free))

    def _settings(self, trials: Sequence[Trial]) -> Record:
        return settings_of(trials) | ({"command": self.command} if self.command is not None else {})

    # --- the queue ----------------------------------------------------------------------------------------------------

    def take(self, apart: Collection[str | None] = ()) -> Task | None:
        """Take a task that no other process works on: see ``Queue``. Those of a sequence stay in their order."""
        in_turn = [task for task in self.ready if task.sequence is not None and task.sequence in apart]
        self.ready = deque(task for task in self.ready if task not in in_turn) if in_turn else self.ready
        try:
            return self._take()
        finally:
            self.ready.extendleft(reversed(in_turn))

    def _take(self) -> Task | None:
        for _ in range(len(self.ready)):
            task = self.ready.popleft()
            if self.locks is not None and not self.locks.take(task.key):
                self.ready.append(task)
            elif self._is_done_elsewhere(task):
                self._give_back(task)
            else:
                self.running += 1
                self.shown.working_on(task.where, task.kind, self._share(task))
                return task
        return None

    @property
    def left(self) -> int:
        """How many tasks are ready."""
        return len(self.ready)

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing more, not even after what is running."""
        return not self.ready and not (self.running and (self.held or self._find_waiting()))

    def _find_waiting(self) -> list[int]:
        return [i for i, item in enumerate(self.rows) if isinstance(item, Deferred) and i not in self.made]

    def _is_done_elsewhere(self, task: Task) -> bool:
        """Take over the task if another process has finished it since we looked."""
        if not self._take_stored(task):
            return False
        self.shown.done(task.where, self.records.get(task.key, {}).get("error"), task.kind)
        return True

    def _share(self, task: Task) -> Share | None:
        return partial(task.share, self.store.activations) if self.store is not None else None

    def _give_back(self, task: Task) -> None:
        if self.locks is not None:
            self.locks.give_back(task.key)

    # --- what is known ------------------------------------------------------------------------------------------------

    def keep(self, task: Task, outcome: Outcome) -> None:
        """Keep an outcome, on the disk if there is a store."""
        self.running -= 1
        if self.store is not None:
            self.store.keep(task.kind, task.key, outcome.record, outcome.tensors)
            if not outcome.failed:
                task.tidy(self.store.activations)
        self._learn(task, outcome.record, outcome.tensors)
        self._give_back(task)
        self.shown.done(task.where, outcome.record.get("error"), task.kind)

    def _learn(self, task: Task, record: Record, tensors: bytes | None = None) -> None:
        if task.kind == TRIALS:
            self.records[task.key] = record
            return
        assert isinstance(task, TrainingTask)
        if record["status"] == "failed":
            self.failed.append(f"{task.where}: {record['error']}")
            return
        if task.key not in self.parents | self.awaited:
            return
        if tensors is None:
            assert self.store is not None
            tensors = self.store.tensors(NETWORKS, task.key)
        if task.key in self.parents:
            self.weights[task.key] = tensors
            self._release()
        if task.key in self.awaited:
            self.networks[task.key] = task.network(tensors)
            self._make_later()

    def _make_later(self) -> None:
        """Plan the trials of networks that are there now."""
        for place in self._find_waiting():
            item = self.rows[place]
            assert isinstance(item, Deferred)
            networks = [self.networks.get(base.key) for base in item.bases]
            if None not in networks:
                trials = list(item.make(*networks))
                fresh = len({trial.key for trial in trials} - {trial.key for trial in self._list_described()})
                self.made[place] = [describe_trial(trial) for trial in trials]
                if self.store is not None:
                    self.store.plans.add(self.made[place], self._settings(trials))
                before = len(self.ready)
                self._add_trials(trials)
                if self.begun:
                    self.shown.more(fresh, fresh - (len(self.ready) - before))

    def _add_trials(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            if trial.key not in self.trials:
                self.trials[trial.key] = trial
                task = Measuring(trial)
                if not self._take_stored(task):
                    self.ready.append(task)

    def _take_stored(self, task: Task) -> bool:
        """Take a result from the store, if it is there."""
        if self.store is None:
            return False
        if self.store.has(task.kind, task.key):
            self._learn(task, self.store.record(task.kind, task.key))
            return True
        failed = None if self.retry else self.store.failure(task.kind, task.key)
        if failed is not None:
            self._learn(task, failed)
        return failed is not None

    def _list_described(self) -> Iterator[Described]:
        for place, item in enumerate(self.rows):
            yield from [item] if isinstance(item, Described) else self.made.get(place, [])

    # --- the end ------------------------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """The rows of all that is known; what was planned twice, under the same names, stands once."""
        once = {
            (trial.key, *trial.labels.values()): trial for trial in self._list_described() if trial.key in self.records
        }
        return table_of((trial, self.records[trial.key]) for trial in once.values())

    def end(self) -> None:
        """Release all locks, and write the table."""
        self.shown.end()
        if self.locks is not None and self.store is not None:
            self.locks.give_all_back()
            with suppress(SutureError, OSError):  # the results themselves are kept
                save(self.store.table(self.records), self.store.path / TABLE)

    def say_so_far(self) -> str:
        """How much is done, in words."""
        planned = {trial.key for trial in self._list_described()}
        kept = self.store.finished() if self.store is not None else set()
        done = len(planned & (self.records.keys() | kept))
        if not planned and self.store is not None:
            trained = len(self.store.finished(NETWORKS) & self.bases.keys())
            return f"{trained} of {len(self.bases)} networks are trained and kept in {self.store.path}"
        if self.store is None:
            return f"{done} of {len(planned)} trials were measured, and kept nowhere; give a store="
        return f"{done} of {len(planned)} trials are measured and kept in {self.store.path}"

    def check_bases(self) -> None:
        """Raise ``RunnerError`` if networks could not be trained, or trials could not be planned for that reason."""
        lacking = self._find_waiting()
        if self.failed and not lacking:
            more = f" {len(self.held)} more start from these." if self.held else ""
            raise RunnerError(f"{'; '.join(self.failed)};{more} all else is done")
        if lacking:
            parts = f"{len(lacking)} part{'s' if len(lacking) > 1 else ''} of the plan"
            raise RunnerError(f"{parts} could not be measured: {'; '.join(self.failed)}; all else is measured")
