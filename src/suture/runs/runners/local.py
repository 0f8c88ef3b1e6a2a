"""Trials on this machine: in a pool of worker processes with one thread each, or in this process.

Workers know nothing of this process but what they are sent, so a script needs no ``if __name__ == "__main__"``, a
notebook will do, and a worker that dies takes no other with it. They share activations through memory-mapped files.

Why the pool is our own: ``ProcessPoolExecutor`` imports ``__main__`` again, and fails everything that is running when
one process dies. loky 3.7 does the first well; for the second it needs an executor, with its threads, semaphores and a
tracker process, for each worker. That was tried: 105 lines fewer for one more dependency, and pipes of killed workers
stayed open.
"""

import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import final

import torch

from suture.common.devices import CPU, count_devices, find_device
from suture.common.errors import RunnerError, may_be_of_machine
from suture.common.phases import heard_by
from suture.common.sizes import cores, parse_size, physical_memory
from suture.common.validation import check_whole
from suture.core.activations.cache import Activations
from suture.core.activations.disk_cache import ActivationFolder, disk_budget
from suture.measurement.trials.trial import Trial
from suture.runs.forecast import check_device_memory, estimate_memory
from suture.runs.runners.tasks import POLL, Job, Outcome, Outcomes, Queue, Runner
from suture.runs.runners.transport import Packer, Payload, Unpacker

WORTH_WORKERS = 20.0  #: seconds of work left, from which starting processes (a few seconds each) pays


@final
@dataclass(frozen=True)
class Local(Runner):
    """This machine, and its GPUs.

    ``workers`` is the number of processes, 1 for this process alone. By default work begins in this process, and
    continues in as many as there are cores once starting them is worth it. ``ram`` and ``disk`` are budgets, in bytes
    or as ``"8 GB"``: for all that processes hold together (by default as much as the machine has), and for activations
    on the disk (by default half of what is free, at most 50 GB). A trial whose worker dies is begun again, at most
    ``retries`` times. On GPUs there is by default one process for each; more share them in turns.
    """

    workers: int | None = None
    ram: int | str | None = None
    disk: int | str | None = None
    retries: int = 2

    def __post_init__(self) -> None:
        if self.workers is not None and check_whole("workers", self.workers) < 1:
            raise RunnerError(f"Local(workers={self.workers}): give at least 1, which is this process alone")
        if self.retries < 0:
            raise RunnerError(f"Local(retries={self.retries}): give 0 or more")
        for size in (self.ram, self.disk):
            if size is not None:
                parse_size(size)

    def prepared(self, trials: Sequence[Trial], device: str | None = None) -> "Local":
        """Return the same with as many workers as the RAM, or the GPUs, allow.

        Raises ``RunnerError`` if the RAM does not allow one, ``DeviceError`` if the device is not there or too small.
        """
        places = {find_device(device)} if device is not None else {trial.device for trial in trials}
        for place in places - {CPU}:
            check_device_memory(trials, place)
            if self.workers is None:
                return replace(self, workers=count_devices(place.type) if device == place.type else 1)
        wanted = self.workers if self.workers is not None else cores()
        if not trials or (self.ram is None and wanted == 1):
            return self
        memory = estimate_memory(trials, None if self.disk is None else parse_size(self.disk))
        if self.ram is None and memory.of(1) > self.ram_budget:  # an estimate refuses nobody who set no budget
            return replace(self, workers=1)
        able = memory.fits_in(self.ram_budget)
        return self if able >= wanted else replace(self, workers=able)

    @property
    def ram_budget(self) -> int:
        """Bytes that all processes may hold together."""
        return parse_size(self.ram) if self.ram is not None else physical_memory()

    def run(self, queue: Queue, scratch: Path) -> Outcomes:
        """Do the tasks, here or in workers."""
        packer, disk = Packer(scratch), disk_budget(self.disk, scratch)
        if self.workers is None or self.workers == 1:
            activations = Activations(self._cache_bytes(1), ActivationFolder(scratch, disk))
            yield from self._run_here(queue, packer, activations)
        if not queue.exhausted:
            yield from self._run_in_pool(queue, packer, scratch, disk)

    def _run_here(self, queue: Queue, packer: Packer, activations: Activations) -> Outcomes:
        """Do tasks in this process, until the rest is worth the start of workers, and can be sent to them."""
        begun, done, alone = time.monotonic(), 0, self.workers == 1
        while not queue.exhausted:
            task = queue.take()
            if task is None:
                time.sleep(POLL)
                continue
            with heard_by(partial(queue.hear, task)):
                outcome = task.run(activations)
            yield task, outcome
            done += 1
            if not alone and self._worth_workers(time.monotonic() - begun, done, queue.left):
                if _can_be_sent(task, packer):
                    return
                alone = True

    @staticmethod
    def _worth_workers(elapsed: float, done: int, left: int) -> bool:
        return cores() > 1 and left > 1 and elapsed * left > WORTH_WORKERS * max(done, 1)

    def _cache_bytes(self, workers: int) -> int:
        """Return the bytes of activations that a process may keep in RAM if the disk does not take them."""
        return min(4 * 2**30, self.ram_budget // (4 * workers))

    def _run_in_pool(self, queue: Queue, packer: Packer, scratch: Path, disk: int) -> Outcomes:
        count = self.workers if self.workers is not None else cores()
        sharing = math.ceil(count / max(1, count_devices("cuda")))
        settings = [os.getpid(), str(scratch.resolve()), self._cache_bytes(count), disk, sharing]
        workers: list[_Worker] = []
        try:
            while True:
                busy = {worker.pipe: worker for worker in workers if worker.task is not None}
                while len(busy) < count and (task := queue.take()) is not None:
                    worker = next((worker for worker in workers if worker.task is None), None)
                    if worker is None:
                        worker = _Worker(settings, packer)
                        workers.append(worker)
                    worker.begin(task.for_worker(workers.index(worker)), self.retries)
                    busy[worker.pipe] = worker
                if not busy and queue.exhausted:
                    return
                for pipe in wait(list(busy), POLL if len(busy) < count else None):
                    worker = busy[pipe]  # type: ignore[index]
                    task, outcome = worker.task, worker.listen(queue)
                    if outcome is not None:
                        assert task is not None
                        yield task, outcome
        finally:
            for worker in workers:
                worker.kill()


def _can_be_sent(task: Job, packer: Packer) -> bool:
    try:
        for part in packer.pack(task).parts:
            packer.part(part)
    except RunnerError:
        return False
    return True


class _Worker:
    """A worker process as its driver sees it, started again when it dies; it does one task at a time."""

    def __init__(self, settings: list[object], packer: Packer) -> None:
        self.settings, self.packer = settings, packer
        self.task: Job | None = None
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = Pipe()
        alone = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        given = json.dumps([theirs.fileno(), *self.settings])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, given, *map(str, sys.path)],
            stdin=subprocess.DEVNULL,
            stdout=2,  # whatever user code prints there goes to standard error
            pass_fds=[theirs.fileno()],
            env=os.environ | alone,
            start_new_session=True,  # an interruption at the keyboard is ours to pass on
        )
        theirs.close()
        self.ready = False

    def begin(self, task: Job, retries: int) -> None:
        """Hand it a task, now or once it has started."""
        self.payload = self.packer.pack(task)
        self.task, self.retries = task, retries
        if self.ready:
            with contextlib.suppress(OSError):  # it is dead: ``listen`` will see
                self.pipe.send(self.payload)

    def listen(self, queue: Queue) -> Outcome | None:
        """Read a message of the worker, and answer it or pass it to the queue; return the outcome of a task that ended.

        Raises ``RunnerError`` if it cannot start, because trying again would not help.
        """
        assert self.task is not None
        outcome: Outcome | None = None
        try:
            match self.pipe.recv():
                case "ready":
                    self.ready = True
                    self.pipe.send(self.payload)
                case "part", key:
                    self.pipe.send_bytes(self.packer.part(key))
                case "phase", what:
                    queue.hear(self.task, what)
                case "refused", reason, of_machine:
                    lost = self.task.lost(reason)
                    outcome = lost.of_machine() if of_machine else lost
                case Outcome() as outcome:
                    pass
        except (EOFError, OSError):
            reason = self._say_why_it_died()
            if not self.ready and self.process.returncode >= 0:  # nobody killed it
                raise RunnerError(f"{reason}, before it could begin; Local(workers=1) runs in this process") from None
            if self.retries == 0:
                outcome = self.task.lost(reason).of_machine()
            self.retries -= 1
            self._start()
        if outcome is not None:
            self.task = None
        return outcome

    def _say_why_it_died(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.kill()
        code = self.process.returncode
        if code >= 0:
            return f"the worker process ended with exit code {code} (what it said is on standard error)"
        memory = ", as the system does when memory runs out" if code == -9 else ""
        return f"the worker process was killed by signal {-code}{memory}"

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()


# --- in the worker ----------------------------------------------------------------------------------------------------

_PROGRAM = "import json, sys; sys.path[:] = sys.argv[2:]; from suture.runs.runners import local; " + (
    "local.work(*json.loads(sys.argv[1]))"
)


def work(pipe: int, parent: int, scratch: str, ram: int, disk: int, sharing: int) -> None:
    """Do the tasks that the driver sends, until it is gone; ``sharing`` workers share a GPU, if there is one."""
    driver = Connection(pipe)
    os.set_inheritable(pipe, False)  # so that no program that a task starts keeps it open
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # those of libraries; ours are errors

    def fetch(key: str) -> bytes:
        driver.send(("part", key))
        return driver.recv_bytes()

    unpacker, activations = Unpacker(fetch), Activations(ram, ActivationFolder(scratch, disk), sharing)
    with contextlib.suppress(EOFError, OSError):  # the driver is gone
        driver.send("ready")
        while True:
            payload: Payload = driver.recv()
            try:
                task = unpacker.unpack(payload)
            except Exception as error:  # a module that is not here, weights that are others
                driver.send(("refused", f"{type(error).__name__}: {error}", may_be_of_machine(error)))
                continue
            assert isinstance(task, Job)
            with heard_by(lambda what: driver.send(("phase", what))):
                outcome = task.run(activations)
            driver.send(outcome)


def _leave_with(parent: int) -> None:
    """End this process when its driver has gone, even in the middle of a task: nobody would receive its result."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
