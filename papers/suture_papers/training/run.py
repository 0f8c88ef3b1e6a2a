"""Networks trained as trials are measured: by the same runners, each once, and kept in a store.

A training is a job under a key of its own. What the store has is not trained again, what was killed goes on from its
checkpoints in the store's scratch folder, and several processes may share the trainings of one store.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import ClassVar, final

from suture import Network, Store
from suture.common.errors import RunnerError
from suture.extend import (
    NETWORKS,
    Job,
    Outcome,
    Progress,
    Record,
    Runner,
    StoredQueue,
    choose_bar,
    choose_runner,
    work_off,
)


class TrainingTask(Job):
    """The training of a network."""

    kind: ClassVar[str] = NETWORKS

    @property
    def bases(self) -> "tuple[TrainingTask, ...]":
        """The networks that must be trained before."""
        return ()

    def after(self, tensors: Mapping[str, bytes]) -> "TrainingTask":
        """Return the same task, under the same key, with the tensors of its ``bases``, by their keys."""
        return self

    @property
    def sequence(self) -> str | None:
        """The name of a sequence of trainings that continue each other's work on the disk, one at a time."""
        return None

    def tidy(self, scratch: Path) -> None:
        """Remove its files from the scratch folder, now that its outcome is kept."""

    @abstractmethod
    def network(self, tensors: bytes) -> Network:
        """Return the network with these weights, the tensors of its outcome."""

    def load(self, store: Store) -> Network:
        """Return the trained network that a store has. Raises ``StoreError`` if it has none, or a damaged one."""
        return self.network(store.tensors(NETWORKS, self.key))


class Untrained(RunnerError):
    """Networks that could not be trained, and those that start from them; ``keys`` are theirs, ``reasons`` say why."""

    def __init__(self, reasons: str, keys: Collection[str]) -> None:
        self.reasons, self.keys = reasons, frozenset(keys)
        super().__init__(f"{reasons}; all else is done")


@final
class Trainings(StoredQueue):
    """The queue of trainings: those first that others start from, and of a sequence one at a time."""

    def __init__(
        self, bases: Iterable[TrainingTask], store: Store, *, retry: bool, command: str | None, device: str | None
    ) -> None:
        super().__init__(store, retry=retry, command=command, device=device)
        self.kept = store
        self.bases: dict[str, TrainingTask] = {}  # by key, those first that others start from
        self.trained: set[str] = set()
        self.failed: list[str] = []  # which networks could not be trained, and why
        self._add(bases)
        self.todo = {key: base for key, base in self.bases.items() if self.take_stored(base) is None}

    def _add(self, bases: Iterable[TrainingTask]) -> None:
        for base in bases:
            if not self.kept.has(NETWORKS, base.key):
                self._add(base.bases)
            self.bases.setdefault(base.key, base)

    def can_start(self, task: Job) -> bool:
        """Return whether all that it starts from is trained, and nothing of its sequence is at work."""
        assert isinstance(task, TrainingTask)
        busy = {other.sequence for other in self.running.values() if isinstance(other, TrainingTask)}
        return all(base.key in self.trained for base in task.bases) and task.sequence not in busy - {None}

    def complete(self, task: Job) -> Job:
        """Return a training with the weights that it starts from."""
        assert isinstance(task, TrainingTask)
        return task.after({base.key: self.kept.tensors(NETWORKS, base.key) for base in task.bases})

    def keep(self, task: Job, outcome: Outcome) -> None:
        """Keep a network, and remove the checkpoints that led to it."""
        super().keep(task, outcome)
        if isinstance(task, TrainingTask) and not outcome.failed:
            task.tidy(self.kept.activations)

    def learn(self, task: Job, record: Record) -> None:
        """Note that a network is trained, or why not."""
        if record["status"] == "failed":
            self.failed.append(f"{task.where}: {record['error']}")
        else:
            self.trained.add(task.key)

    def say_so_far(self) -> str:
        """Say how many are trained, and where they are kept."""
        trained = len(self.kept.finished(NETWORKS) & self.bases.keys())
        return f"{trained} of {len(self.bases)} networks are trained and kept in {self.kept.path}"

    def check(self) -> None:
        """Raise ``Untrained`` if there are networks that could not be trained."""
        if self.failed:
            more = f"; {len(self.todo)} more start from these" if self.todo else ""
            raise Untrained("; ".join(self.failed) + more, self.bases.keys() - self.trained)


def train_networks(
    bases: Iterable[TrainingTask],
    store: str | Path | Store,
    *,
    on: Runner | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    retry: bool = False,
    command: str | None = None,
) -> None:
    """Train the networks that a store lacks, and those that they start from; the settings are those of ``suture.run``.

    A network that failed is trained again only with ``retry``. ``base.load(store)`` gives the trained network.

    Raises ``Untrained``, a ``RunnerError``, if some could not be trained; all others are trained first. Raises
    ``StoreError`` if the store was measured by other versions of the parts, and ``Interrupted``, ``OutputError`` and
    ``DeviceError`` as ``suture.run`` does.
    """
    runner, device = choose_runner(on, device)
    store = store if isinstance(store, Store) else Store.make(store)
    store.plans.check(set(), {}, extend=True)  # what is trained is to be stitched there
    queue = Trainings(bases, store, retry=retry, command=command, device=device)
    lacking = len(queue.todo)
    if queue.bases:
        queue.begin(progress if progress is not None else choose_bar(), len(queue.bases), "network")
        work_off(queue, runner)
    if lacking:  # else the activations may be those of a run that was stopped, which goes on with them
        queue.clean()
    queue.check()
