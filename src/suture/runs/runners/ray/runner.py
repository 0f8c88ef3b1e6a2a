"""Trials on a cluster of Ray.

The activations that a trial needs are tasks of their own, whose results, references to what may not be there yet, are
handed on: to the activations at later cuts, which are computed from them, and to the trials. So a prefix runs once in
the whole cluster however many trials want it, and none waits for what it does not need. Networks and data are put once
into the memory that the nodes share, and fetched once by each.

Ray schedules, begins again what died, and computes anew what a dead node took along. Only this process, which began the
run, knows what was planned and keeps results.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from suture.common.errors import RunnerError, SutureError
from suture.common.sizes import parse_size
from suture.core.activations.cache import Need
from suture.core.network.network import Network
from suture.measurement.trials.trial import Trial
from suture.runs.runners.base import Outcome, Outcomes, Queue, Runner, Task
from suture.runs.runners.ray import actors as remote
from suture.runs.runners.ray.cluster import check_address, check_resources, connect, count_slots
from suture.runs.runners.transport import Packer

POLL = 0.2  #: seconds between two looks at a queue that has nothing to give yet
LOOK = 2.0  #: seconds between two looks at how large the cluster is
AHEAD = 2  #: tasks handed out for each that can run, so that no worker waits for the next


@final
@dataclass(frozen=True)
class Ray(Runner):
    """A cluster of Ray; the scores are those of one process, bit for bit.

    ``address`` is ``"host:6379"``, ``"ray://host:10001"``, or ``"auto"`` for a cluster that this machine belongs to. By
    default it is the cluster that this process is connected to already (by ``ray.init`` with what it needs there, such
    as a ``runtime_env``), else one of this machine's cores, which ends with the run. What trials consist of must be
    importable on every node, or defined in the script itself.

    ``cpus_per_trial`` and ``gpus_per_trial`` are what Ray sets aside for a trial, which computes with one thread. The
    networks run where they are: to use GPUs, put them on ``"cuda"`` before, and say ``gpus_per_trial=0.25``. A trial
    whose worker or node dies is begun again, at most ``retries`` times. ``activations`` bounds those that the cluster
    keeps for later trials, in bytes or as ``"8 GB"``; by default half of the memory that Ray has for objects.
    """

    address: str | None = None
    cpus_per_trial: float = 1
    gpus_per_trial: float = 0
    retries: int = 3
    activations: int | str | None = None

    def __post_init__(self) -> None:
        for name, least in (("cpus_per_trial", 0), ("gpus_per_trial", 0), ("retries", 0)):
            if getattr(self, name) < least:
                raise RunnerError(f"Ray({name}={getattr(self, name)}): give {least} or more")
        if self.cpus_per_trial + self.gpus_per_trial == 0:
            raise RunnerError("Ray(cpus_per_trial=0, gpus_per_trial=0): a trial needs one of them")
        if self.gpus_per_trial > 1 and self.gpus_per_trial % 1:
            raise RunnerError(f"Ray(gpus_per_trial={self.gpus_per_trial}): give a share of one, or a whole number")
        if self.activations is not None:
            parse_size(self.activations)

    def prepared(self, trials: Sequence[Trial]) -> "Ray":
        """Return itself. Raises ``RunnerError`` if Ray is not there, or would give no GPU to a network on one."""
        check_address(self.address)
        for network in (network for trial in trials for network in trial.seam.networks if network.device.type != "cpu"):
            if not self.gpus_per_trial:
                raise RunnerError(
                    f"{network.name} is on {network.device}, and Ray(gpus_per_trial=0) gives its trials no GPU; say "
                    "Ray(gpus_per_trial=0.25), for instance, or make it of a model on the CPU"
                )
            if network.device.index:
                raise RunnerError(
                    f"{network.name} is on {network.device}, and Ray calls the GPU that it gives a trial 'cuda:0'; "
                    "make it of a model that is there"
                )
        return self

    @property
    def needed(self) -> dict[str, float]:
        """What one trial takes, as Ray calls it."""
        return {"CPU": self.cpus_per_trial, "GPU": self.gpus_per_trial}

    def run(self, queue: Queue, scratch: Path) -> Outcomes:
        """Do the tasks on the cluster; ``scratch`` is not used, since activations lie in the cluster's memory.

        Raises ``RunnerError`` if there is no cluster, or none of its nodes has what a trial takes.
        """
        with connect(self.address, self.retries) as ray:
            check_resources(ray, self.needed)
            flight = _Flight(ray, self)
            try:
                yield from flight.outcomes(queue)
            finally:
                flight.cancel()


class _Flight:
    """What was handed to the cluster and is not back."""

    def __init__(self, ray: Any, settings: Ray) -> None:
        self.ray, self.settings = ray, settings
        options = {"num_cpus": settings.cpus_per_trial, "max_retries": settings.retries, "retry_exceptions": False}
        self.options = {False: options | {"num_gpus": 0}, True: options | {"num_gpus": settings.gpus_per_trial}}
        self.compute, self.do = ray.remote(remote.compute), ray.remote(remote.do)
        self.driver = ray.put(remote.Driver.this())
        self.packer = Packer()
        self.parts: dict[str, Any] = {}
        self.kept: OrderedDict[str, tuple[Any, int]] = OrderedDict()  # activations, and their bytes
        self.budget = self._budget()
        self.running: dict[Any, tuple[Task, bool]] = {}  # whether it was given activations
        self.failed: deque[tuple[Task, Outcome]] = deque()  # which could not even be sent
        self.window, self.looked = 0, -LOOK

    def _budget(self) -> int:
        if self.settings.activations is not None:
            return parse_size(self.settings.activations)
        return int(self.ray.cluster_resources().get("object_store_memory", 0)) // 2

    def outcomes(self, queue: Queue) -> Iterator[tuple[Task, Outcome]]:
        """Keep the cluster busy; give what it has done."""
        while True:
            while len(self.running) < self._window() and (task := queue.take()) is not None:
                self._submit(task, supplied=True)
            while self.failed:
                yield self.failed.popleft()
            if self.running:
                ended, _ = self.ray.wait(list(self.running), timeout=POLL)
                yield from (done for ref in ended if (done := self._finish(ref)) is not None)
            elif queue.exhausted:
                return
            else:
                time.sleep(POLL)

    def _window(self) -> int:
        """How many tasks may be with the cluster, which may have grown meanwhile, or shrunk."""
        if time.monotonic() - self.looked >= LOOK:
            self.window, self.looked = max(2, AHEAD * count_slots(self.ray, self.settings.needed)), time.monotonic()
        return self.window

    # --- there --------------------------------------------------------------------------------------------------------

    def _submit(self, task: Task, supplied: bool) -> None:
        try:
            sent = self._pack(task)
            given = self._request(task) if supplied else []
        except SutureError as error:
            self.failed.append((task, task.lost(str(error))))
            return
        ref = self.do.options(name=task.where, **self.options[True]).remote(*sent, *given)
        self.running[ref] = task, any(one is not None for one in given)

    def _pack(self, thing: Task | Need) -> tuple[Any, ...]:
        """A thing as a worker reads it."""
        payload = self.packer.pack(thing)
        for key in payload.parts:
            if key not in self.parts:
                self.parts[key] = self.ray.put(self.packer.part(key))
        return payload, {key: self.parts[key] for key in payload.parts}, self.driver

    def _request(self, task: Task) -> list[Any]:
        """References to what a task needs, ``None`` for what it is to compute for itself."""
        for need in sorted(task.needs, key=lambda need: need.index):
            if need.key in self.kept:
                self.kept.move_to_end(need.key)
            elif need.nbytes <= self.budget:
                self._compute(need)
        found = [self.kept.get(need.key, (None, 0))[0] for need in task.needs]
        self._evict()
        return found

    def _compute(self, need: Need) -> None:
        """Have activations computed, from the nearest earlier cut whose activations are kept, or will be."""
        start, source = 0, None
        for index in range(need.index - 1, 0, -1):
            start, source = index, self.kept.get(Need(need.network, need.samples, index).key, (None, 0))[0]
            if source is not None:
                break
        on_gpu = isinstance(need.network, Network) and need.network.device.type != "cpu"
        work = self.compute.options(name=f"activations {need.where}", **self.options[on_gpu])
        self.kept[need.key] = work.remote(*self._pack(need), start, source), need.nbytes

    def _evict(self) -> None:
        """Let go of what was not used for longest; Ray keeps what the tasks that it has wait for."""
        used = sum(nbytes for _, nbytes in self.kept.values())
        while used > self.budget:
            _, (_, nbytes) = self.kept.popitem(last=False)
            used -= nbytes

    # --- and back -----------------------------------------------------------------------------------------------------

    def _finish(self, ref: Any) -> tuple[Task, Outcome] | None:
        """Return a task and its outcome; ``None`` if it was begun again."""
        task, supplied = self.running.pop(ref)
        raised = self.ray.exceptions
        try:
            outcome, changed = self.ray.get(ref)
        except RunnerError as error:  # the worker is not what it should be
            raise RunnerError(str(getattr(error, "cause", error))) from error
        except (raised.RayTaskError, raised.ObjectLostError) as error:
            if supplied:  # what it needs is lost
                self._submit(task, supplied=False)
                return None
            cause = getattr(error, "cause", error)
            return task, task.lost(f"{type(cause).__name__}: {cause}")
        except raised.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            return task, task.lost(f"its worker died, and again when it was retried {self.settings.retries}×: {reason}")
        for place in changed:
            self.kept.pop(task.needs[place].key, None)
        return task, outcome

    def cancel(self) -> None:
        """End what is running, at once."""
        if self.ray.is_initialized():
            for ref in (*self.running, *(ref for ref, _ in self.kept.values())):
                self.ray.cancel(ref, force=True)
