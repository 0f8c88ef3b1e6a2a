"""Trials on this machine: in a pool of worker processes with one thread each, or in this process.

Workers know nothing of this process but what they are sent, so a script needs no ``if __name__ == "__main__"``, a
notebook will do, and a worker that dies takes no other with it. They share activations through memory-mapped files.

Why the pool is our own: ``ProcessPoolExecutor`` imports ``__main__`` again, and fails everything that is running when
one process dies. loky 3.7 does the first well; for the second it needs an executor, with its threads, semaphores and a
tracker process, for each worker. That was tried: 105 lines fewer for one more dependency, and pipes of killed workers
stayed open.
"""

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from suture.common.errors import RunnerError
from suture.common.sizes import cores, free_disk, parse_size, physical_memory
from suture.common.validation import check_whole
from suture.core.activations.cache import Activations
from suture.core.activations.disk_cache import ActivationFolder
from suture.measurement.trials.trial import Trial
from suture.runs.forecast import affordable
from suture.runs.runners import worker
from suture.runs.runners.base import Outcome, Outcomes, Queue, Runner, Task
from suture.runs.runners.transport import Packer, Payload

WORTH_WORKERS = 20.0  #: seconds of work left, from which starting processes (a few seconds each) pays
POLL = 0.2  #: seconds between two looks at a queue that has nothing to give yet


@final
@dataclass(frozen=True)
class Local(Runner):
    """This machine.

    ``workers`` is the number of processes, 1 for this process alone. By default work begins in this process, and
    continues in as many as there are cores once starting them is worth it. ``ram`` and ``disk`` are budgets, in bytes
    or as ``"8 GB"``: for all that processes hold together (by default as much as the machine has), and for activations
    on the disk (by default half of what is free, at most 50 GB). A trial whose worker dies is begun again, at most
    ``retries`` times.
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
        for name in ("ram", "disk"):
            value = getattr(self, name)
            if value is not None:
                parse_size(value)

    def prepared(self, trials: Sequence[Trial]) -> "Local":
        """Return the same with as many workers as the RAM allows. Raises ``RunnerError`` if it does not allow one."""
        wanted = self.workers if self.workers is not None else cores()
        if not trials or (self.ram is None and wanted == 1):
            return self
        able = affordable(trials, self.ram_budget, wanted, strict=self.ram is not None)
        return self if able >= wanted else replace(self, workers=able)

    @property
    def ram_budget(self) -> int:
        """Bytes that all processes may hold together."""
        return parse_size(self.ram) if self.ram is not None else physical_memory()

    def disk_budget(self, folder: Path) -> int:
        """Bytes that activations may take in a folder."""
        return parse_size(self.disk) if self.disk is not None else min(free_disk(folder) // 2, 50 * 10**9)

    def run(self, queue: Queue, scratch: Path) -> Outcomes:
        """Do the tasks, here or in workers."""
        packer, first = Packer(scratch), list[Task]()
        if self.workers is None or self.workers == 1:
            yield from self._run_here(queue, scratch, packer, first)
        if first or not queue.exhausted:
            yield from self._run_in_pool(queue, scratch, packer, first)

    def _run_here(self, queue: Queue, scratch: Path, packer: Packer, first: list[Task]) -> Outcomes:
        """Do tasks in this process, until the rest is worth the start of workers; ``first`` then has one for them."""
        activations = Activations(self._cache_bytes(1), ActivationFolder(scratch, self.disk_budget(scratch)))
        begun, done, alone = time.monotonic(), 0, self.workers == 1
        while not queue.exhausted:
            task = queue.take()
            if task is None:
                time.sleep(POLL)
                continue
            if not alone and self._worth_workers(time.monotonic() - begun, done, queue.left):
                if _can_be_sent(task, packer):
                    first.append(task)
                    return
                alone = True
            yield task, task.run(activations)
            done += 1

    @staticmethod
    def _worth_workers(elapsed: float, done: int, left: int) -> bool:
        return cores() > 1 and left > 1 and elapsed * left > WORTH_WORKERS * max(done, 1)

    def _cache_bytes(self, workers: int) -> int:
        """Return the bytes of activations that a process may keep in RAM if the disk does not take them."""
        return min(4 * 2**30, self.ram_budget // (4 * workers))

    def _run_in_pool(self, queue: Queue, scratch: Path, packer: Packer, first: list[Task]) -> Outcomes:
        count = self.workers if self.workers is not None else cores()
        begin = {
            "path": sys.path,
            "scratch": str(scratch.resolve()),
            "ram": self._cache_bytes(count),
            "disk": self.disk_budget(scratch),
        }
        with _Pool(count, packer, begin, self.retries) as pool:
            running = {pool.submit(task): task.sequence for task in first}
            while running or not queue.exhausted:
                while len(running) < count and (task := queue.take(apart=running.values())) is not None:
                    running[pool.submit(task)] = task.sequence
                ended, _ = wait(running, timeout=POLL if len(running) < count else None, return_when=FIRST_COMPLETED)
                if not running:
                    time.sleep(POLL)
                for future in ended:
                    del running[future]
                    yield future.result()


def _can_be_sent(task: Task, packer: Packer) -> bool:
    try:
        for part in packer.pack(task).parts:
            packer.part(part)
    except RunnerError:
        return False
    return True


Done = tuple[Task, Outcome]


class _Pool:
    """Threads that each talk to a worker process, and start another if it dies."""

    def __init__(self, count: int, packer: Packer, begin: dict[str, object], retries: int) -> None:
        self.packer, self.begin, self.retries = packer, begin, retries
        self.threads = ThreadPoolExecutor(count, "suture")
        self.idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self.all: list[_Worker] = []
        self.starting = threading.Lock()
        self.closed = False

    def __enter__(self) -> "_Pool":
        return self

    def __exit__(self, *error: object) -> None:
        with self.starting:
            self.closed = True
            for process in self.all:
                process.kill()
        self.threads.shutdown(cancel_futures=True)

    def submit(self, task: Task) -> Future[Done]:
        """Have a task done by an idle worker, or a new one."""
        return self.threads.submit(self._do, task)

    def _do(self, task: Task) -> Done:
        payload = self.packer.pack(task)
        reason = ""
        for _ in range(self.retries + 1):
            process = self._take_worker()
            try:
                process.get_ready()
                outcome = self._ask(process, task, payload)
                self.idle.put(process)
                return task, outcome
            except (EOFError, OSError):
                reason = process.say_why_it_died()
                if self.closed:
                    break
        return task, task.lost(reason)

    def _take_worker(self) -> "_Worker":
        with contextlib.suppress(queue.Empty):
            return self.idle.get_nowait()
        with self.starting:
            if self.closed:
                raise RunnerError("the run is over")
            process = _Worker(self.begin)
            self.all.append(process)
        return process

    def _ask(self, process: "_Worker", task: Task, payload: Payload) -> Outcome:
        process.send({"parts": payload.parts}, payload.content)
        while True:
            match process.receive():
                case {"need": key}, _:
                    process.send({}, self.packer.part(key))
                case {"refused": reason}, _:
                    return task.lost(reason)
                case {"record": record}, tensors:
                    return Outcome(record, tensors)


class _Worker:
    """A process at the other end of two pipes."""

    def __init__(self, begin: dict[str, object]) -> None:
        alone = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-P", worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | alone,
            start_new_session=True,  # an interruption at the keyboard is ours to pass on
        )
        self.settings, self.ready = begin, False

    def get_ready(self) -> None:
        """Wait until it has begun. Raises ``RunnerError`` if it gives up by itself: trying again would not help."""
        if self.ready:
            return
        try:
            self.send(self.settings)
            self.receive()
            self.ready = True
        except (EOFError, OSError):
            reason = self.say_why_it_died()
            if self.process.returncode < 0:  # somebody killed it
                raise
            raise RunnerError(f"{reason}, before it could begin; Local(workers=1) runs in this process") from None

    def send(self, header: dict[str, object], content: bytes = b"") -> None:
        assert self.process.stdin is not None
        worker.send(self.process.stdin, header, content)

    def receive(self) -> worker.Message:
        assert self.process.stdout is not None
        return worker.receive(self.process.stdout)

    def say_why_it_died(self) -> str:
        """Say in words why it say_why_it_died."""
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
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
