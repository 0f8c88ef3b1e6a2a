"""The cost of the store and the runners beside the work itself, and the gain of a second worker.

python benchmarks/overheads.py [store] [runners] [resume] [workers] [--trials 10000]

Ratios and medians of one run, interleaved where two things are compared. Nothing else should run meanwhile.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import suture
from suture.core.activations.cache import Activations
from suture.core.network.network import Network
from suture.fits import LeastSquares, TaskLoss
from suture.measurement.trials.plans import Plan
from suture.runs.runners import Job, Local, Outcome, Queue, Runner
from suture.runs.runners.tasks import Measuring
from suture.runs.store.inspect import status, verify
from suture.runs.store.store import TRIALS, Store
from suture_papers.networks.architectures import convnet
from suture_papers.training import Recipe, train


def networks(epochs: int = 2) -> tuple[suture.Data, Network, Network]:
    data = suture.load_data("digits")
    a, b = (
        Network(train(lambda: convnet(8), data.fit, Recipe(epochs=epochs), seed), example=data.example, name=name)
        for seed, name in enumerate("AB")
    )
    return data, a, b


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# --- the store --------------------------------------------------------------------------------------------------------


def of_the_store(repeats: int = 5) -> dict[str, Any]:
    """Milliseconds a trial: writing one result, and a plan with a store against the same without."""
    data, a, b = networks()
    plan = suture.curve(a, b, data=data.limited(fit=300, score=260), fit=LeastSquares())
    outcome = Measuring(plan[0]).run(Activations())
    here = Local(workers=1)
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        store = Store.make(Path(folder) / "keep")
        kept = [timed(lambda i=i: store.keep(TRIALS, f"key{i}", outcome.record, outcome.tensors)) for i in range(300)]
        suture.run(plan, on=here)
        for i in range(repeats):
            without = timed(lambda: suture.run(plan, on=here))
            pairs.append((without, timed(lambda i=i: suture.run(plan, store=Path(folder) / f"run{i}", on=here))))
    return {
        "trials": len(plan),
        "ms to keep a result": _ms(kept),
        "ms a trial without a store": _ms([without / len(plan) for without, _ in pairs]),
        "ms a trial with a store": _ms([with_ / len(plan) for _, with_ in pairs]),
        "ms a trial more": _ms([(with_ - without) / len(plan) for without, with_ in pairs]),
    }


def _ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e3, 2)


# --- the runners ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Nothing(Job):
    """A task without work."""

    number: int

    kind: ClassVar[str] = TRIALS
    where: ClassVar[str] = "nothing"

    @property
    def key(self) -> str:
        return f"nothing{self.number}"

    def run(self, activations: Activations) -> Outcome:
        return Outcome({"status": "ok"}, b"x" * 10_000)

    def lost(self, reason: str) -> Outcome:
        return Outcome({"status": "failed", "error": reason})


class Tasks(Queue):
    def __init__(self, count: int) -> None:
        self.tasks = [Nothing(i) for i in range(count)]

    def take(self) -> Job | None:
        return self.tasks.pop() if self.tasks else None

    @property
    def exhausted(self) -> bool:
        return not self.tasks

    @property
    def left(self) -> int:
        return len(self.tasks)


def of_the_runners(count: int = 500) -> dict[str, Any]:
    """Seconds until the first outcome, and milliseconds a task after it, for tasks that do nothing."""
    runners: dict[str, Runner] = {"one process": Local(workers=1), "two workers": Local(workers=2)}
    found = {}
    if hasattr(suture, "Ray"):
        runners["Ray, two cores of this machine"] = suture.Ray()
    for name, runner in runners.items():
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            outcomes: Iterator[Any] = runner.run(Tasks(count), Path(folder))
            next(outcomes)
            first = time.perf_counter() - begun
            rest = timed(lambda outcomes=outcomes: list(outcomes))
        found[name] = {"s to the first": round(first, 2), "ms a task": round(rest / (count - 1) * 1e3, 2)}
    return found


# --- resuming ---------------------------------------------------------------------------------------------------------


def of_resuming(trials: int) -> dict[str, Any]:
    """Seconds to go on with a folder in which all trials of a plan are measured."""
    data, a, b = networks()
    few = data.limited(fit=300, score=260)
    cut = a.cuts.names[-1]
    planned = []
    making = timed(
        lambda: planned.append(suture.curve(a, b, data=few, at=cut, fit=LeastSquares(), controls=(), seeds=trials))
    )
    plan: Plan = planned[0]
    keys = timed(lambda: [trial.key for trial in plan])
    outcome = Measuring(plan[0]).run(Activations())
    found: dict[str, Any] = {"trials": trials, "s to plan": round(making, 2), "s to hash the trials": round(keys, 2)}
    with tempfile.TemporaryDirectory() as folder:
        store = Store.make(folder)
        for trial in plan[:-1]:
            store.keep(TRIALS, trial.key, outcome.record | {"trial": trial.key}, outcome.tensors)
        found["s to go on, one trial missing"] = round(timed(lambda: suture.run(plan, store=folder)), 2)
        found["s to go on, none missing"] = round(timed(lambda: suture.run(plan, store=folder)), 2)
        found["s for the table"] = round(timed(lambda: Store(folder).table()), 2)
        found["s for the status"] = round(timed(lambda: status(folder)), 2)
        found["s to verify"] = round(timed(lambda: verify(folder)), 2)
        found["MB"] = round(sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file()) / 1e6, 1)
    return found


# --- two workers ------------------------------------------------------------------------------------------------------


def of_workers(repeats: int = 3) -> dict[str, Any]:
    """Wall seconds of one plan by one process, by one worker and by two, interleaved; the tables must be the same."""
    data, a, b = networks(epochs=4)
    plan = suture.curve(a, b, data=data, fit=TaskLoss(steps=300), seeds=1)
    ways = {"one process": Local(workers=1), "two workers": Local(workers=2), "by default": Local()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    tables = []
    for _ in range(repeats):
        for name, runner in ways.items():
            folder = tempfile.mkdtemp()
            seconds[name].append(timed(lambda r=runner, f=folder: tables.append(suture.run(plan, store=f, on=r))))
            shutil.rmtree(folder)
    assert all(table.drop(columns="seconds").equals(tables[0].drop(columns="seconds")) for table in tables)
    medians = {name: round(statistics.median(times), 1) for name, times in seconds.items()}
    alone = medians["one process"]
    return {
        "trials": len(plan),
        "cores": os.cpu_count(),
        "wall seconds": medians,
        "speed-up": {name: round(alone / time, 2) for name, time in medians.items() if name != "one process"},
        "same tables": True,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["store", "runners", "resume", "workers"])
    parser.add_argument("--trials", type=int, default=10_000)
    given = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "store": of_the_store,
        "runners": of_the_runners,
        "resume": lambda: of_resuming(given.trials),
        "workers": of_workers,
    }
    for what in given.what:
        print(what, json.dumps(parts[what](), indent=2, ensure_ascii=False), flush=True)
