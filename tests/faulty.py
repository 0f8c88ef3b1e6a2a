"""A runner for tests: everything that may go wrong on a cluster, on purpose and reproducibly.

Whatever relies on a run (a study, a report) should give the same on ``Faulty`` as on ``Local``::

    table = suture.run(plan, store=folder, on=Faulty(seed=1, failing=0.3))
    again = suture.run(plan, store=folder, on=Faulty(seed=2), retry=True)
"""

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import final

from suture.common.errors import RunnerError
from suture.common.seeds import derive_seed
from suture.core.activations.cache import Activations
from suture.runs.runners.tasks import Job, Outcomes, Queue, Runner

FAILED = "failed on purpose, by Faulty"


@final
@dataclass(frozen=True)
class Faulty(Runner):
    """Takes all that it can get, does it in this process in a random order, and loses some of it.

    ``seed`` decides the order and, with a task's key, who fails; ``failing`` is the share of tasks that fail, in
    [0, 1]. ``stops_after`` is how many outcomes are given before it is interrupted, as by Ctrl-C; ``None`` is never.
    Every task begins with no activations cached.
    """

    seed: int = 0
    failing: float = 0.0
    stops_after: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.failing <= 1:
            raise RunnerError(f"Faulty(failing={self.failing}): give a share between 0 and 1")

    def run(self, queue: Queue, scratch: Path) -> Outcomes:
        """Do the tasks, out of order."""
        order, given, taken = random.Random(self.seed), 0, list[Job]()
        while taken or not queue.exhausted:
            while (task := queue.take()) is not None:
                taken.append(task)
            if not taken:
                time.sleep(0.05)
                continue
            if given == self.stops_after:
                raise KeyboardInterrupt
            task = taken.pop(order.randrange(len(taken)))
            yield task, task.lost(FAILED) if self.fails(task) else task.run(Activations())
            given += 1

    def fails(self, task: Job) -> bool:
        """Return whether a task is one of those that fail."""
        return derive_seed("unruly", self.seed, task.key) / 2**63 < self.failing
