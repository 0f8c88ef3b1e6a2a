"""The pool: the same bits as one process, and a worker that dies takes nothing with it."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from pandas.testing import assert_frame_equal

from suture import curve, run
from suture.common.errors import OutputError, RunnerError
from suture.core.activations.cache import Activations
from suture.fits import Fit, FitReport, LeastSquares, TaskLoss
from suture.measurement.trials import controls
from suture.runs.progress import Silent
from suture.runs.runners import Interrupted, Job, Local, Outcome, Runner
from suture.runs.store.store import Store
from trained import few_digits, hybrids


def plan(**settings):
    settings = {"fit": TaskLoss(steps=6, check=3), "at": ("embed", "hidden")} | settings
    return curve(*hybrids(), data=few_digits(), **settings)


@dataclass(frozen=True)
class Dies(Fit):
    """Kills its own process at two seams: at one the first time only, at the other always."""

    notes: str

    def fit(self, problem, stitch):
        once, always = (problem.where.endswith(where) for where in ("at hidden", "hidden (itself)"))
        if once or always:
            with open(self.notes, "a") as file:
                file.write(f"{'once' if once else 'always'} ")
            if always or Path(self.notes).read_text().split().count("once") == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return LeastSquares().fit(problem, stitch)


@dataclass(frozen=True)
class Sleeps(Fit):
    """Says who it is, and takes very long."""

    notes: str

    def fit(self, problem, stitch):
        with open(self.notes, "a") as file:
            file.write(f"{os.getpid()} ")
        time.sleep(600)
        return FitReport()


@pytest.mark.slow
def test_a_pool_gives_the_bits_of_one_process(tmp_path, monkeypatch):
    here = run(plan(), on=Local(workers=1))
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the working folder was run')")
    monkeypatch.chdir(tmp_path)
    assert (here["status"] == "ok").all()
    pooled = run(plan(), on=Local(workers=2), store=tmp_path)
    assert_frame_equal(pooled.drop(columns="seconds"), here.drop(columns="seconds"), check_exact=True)


class Hearing(Silent):
    def __init__(self):
        self.heard = []

    def at(self, what, phase):
        self.heard.append((what, phase))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_what_is_done_of_a_trial_is_heard_wherever_it_is_done(tmp_path, workers, monkeypatch):
    monkeypatch.setattr("suture.common.phases.EVERY", 0.0)
    trials, hearing = plan(controls=()), Hearing()
    run(trials, on=Local(workers=workers), store=tmp_path, progress=hearing)
    for trial in trials:
        phases = [phase for what, phase in hearing.heard if what == trial.where]
        assert {"closed form", "scoring", "step 1 of at most 6"} <= {*phases}
        assert ("step 6 of at most 6" in phases) == (workers == 1)  # a worker tells no two steps within half a second
    assert f"activations of A at 'embed' on {trials[0].fit_data.name}" in {phase for _, phase in hearing.heard}


@pytest.mark.kills
def test_a_trial_whose_worker_dies_is_begun_again_and_fails_alone_where_that_does_not_help(tmp_path):
    notes = tmp_path / "notes"
    found = run(plan(fit=Dies(str(notes)), controls=(controls.itself,)), on=Local(workers=2, retries=1))
    assert sorted(notes.read_text().split()) == ["always"] * 2 + ["once"] * 2
    failed = found[found["status"] == "failed"]
    assert set(failed["error"]) == {
        "the worker process was killed by signal 9, as the system does when memory runs out"
    }
    assert list(failed["control"] + " at " + failed["receiver_cut"]) == ["itself at hidden"] * 2
    alone = run(plan(fit=Dies(str(notes)), controls=()), on=Local(workers=1))
    assert_frame_equal(
        found[found["control"] == ""].drop(columns="seconds").reset_index(drop=True), alone.drop(columns="seconds")
    )


@pytest.mark.slow
def test_a_full_disk_is_no_dead_worker(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("suture.runs.runners.transport.save_sealed", full)
    with pytest.raises(OutputError, match="No space left on device; free some space"):
        run(plan(controls=()), store=tmp_path / "run", on=Local(workers=2, retries=1))
    assert not Store(tmp_path / "run").failures()


@pytest.mark.kills
def test_an_interruption_stops_the_workers_within_seconds(tmp_path):
    notes = tmp_path / "notes"
    child = sleeper(notes)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=20)
    assert b"interrupted: 0 of 12 trials are measured" in said
    assert [process for process in notes.read_text().split() if alive(int(process))] == []


@pytest.mark.kills
def test_workers_leave_with_a_driver_that_is_killed(tmp_path):
    notes = tmp_path / "notes"
    child = sleeper(notes)
    child.kill()
    child.communicate()
    for _ in range(50):
        left = [process for process in notes.read_text().split() if alive(int(process))]
        if not left:
            break
        time.sleep(0.1)
    assert left == []


def sleeper(notes: Path) -> "subprocess.Popen[bytes]":
    """A driver whose two workers are at a trial each."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, __file__, str(notes), str(notes.with_name("run"))]
    child = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    while not notes.exists() or len(notes.read_text().split()) < 2:
        assert child.poll() is None
        time.sleep(0.1)
    return child


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass(frozen=True)
class Few(Runner):
    """The smallest runner."""

    def run(self, queue, scratch):
        while (task := queue.take()) is not None:
            yield task, task.run(Activations())


@pytest.mark.slow
def test_a_runner_of_ones_own_is_a_few_lines():
    assert_frame_equal(
        run(plan(fit=LeastSquares()), on=Few()).drop(columns="seconds"),
        run(plan(fit=LeastSquares())).drop(columns="seconds"),
    )


@dataclass(frozen=True, eq=False)
class Naps(Job):
    number: int

    kind: ClassVar[str] = "trials"
    where: ClassVar[str] = "a nap"

    @property
    def key(self):
        return str(self.number)

    def run(self, activations):
        return Outcome({"status": "ok", "process": os.getpid()})

    def lost(self, reason):
        return Outcome({"status": "failed", "error": reason})


class Naptime:
    """A queue that has nothing to give at first."""

    def __init__(self, count):
        self.tasks, self.asked = [Naps(i) for i in range(count)], 0

    def take(self):
        self.asked += 1
        return self.tasks.pop() if self.tasks and self.asked > 2 else None

    @property
    def exhausted(self):
        return not self.tasks

    @property
    def left(self):
        return len(self.tasks)

    def hear(self, task, phase):
        pass


@pytest.mark.parametrize("workers", [None, 1])
def test_a_queue_may_have_nothing_yet(tmp_path, workers):
    assert len(list(Local(workers=workers).run(Naptime(3), tmp_path))) == 3


@pytest.mark.slow
def test_workers_begin_where_the_rest_is_worth_it(tmp_path, monkeypatch):
    monkeypatch.setattr("suture.runs.runners.local.WORTH_WORKERS", 0.0)
    monkeypatch.setattr("suture.runs.runners.local.cores", lambda: 2)
    monkeypatch.setattr(
        "suture.runs.runners.local.Local._worth_workers", staticmethod(lambda elapsed, done, left: done == 2)
    )
    queue = Naptime(6)
    processes = [outcome.record["process"] for _, outcome in Local().run(queue, tmp_path)]
    assert processes[:2] == [os.getpid()] * 2
    assert os.getpid() not in processes[2:]
    assert len(processes) == 6


@pytest.mark.kills
def test_a_worker_that_is_killed_before_it_begins_is_replaced(tmp_path, monkeypatch):
    started = []

    class Doomed(subprocess.Popen):
        def __init__(self, *args, **settings):
            super().__init__(*args, **settings)
            started.append(self)
            if len(started) == 1:
                self.kill()

    monkeypatch.setattr("suture.runs.runners.local.subprocess.Popen", Doomed)
    assert len(list(Local(workers=2).run(Naptime(3), tmp_path))) == 3
    assert started[0].returncode == -signal.SIGKILL


@dataclass(frozen=True)
class Unsendable(Fit):
    """Holds what cannot be pickled."""

    lock: object

    def fit(self, problem, stitch):
        return LeastSquares().fit(problem, stitch)


@pytest.mark.slow
def test_what_cannot_be_sent_is_an_error_where_workers_were_asked_for_and_else_done_here(monkeypatch):
    trials = plan(fit=Unsendable(threading.Lock()), controls=())
    with pytest.raises(RunnerError, match=r"cannot be sent to another process: .*Local\(workers=1\)"):
        run(trials, on=Local(workers=2))
    monkeypatch.setattr("suture.runs.runners.local.Local._worth_workers", staticmethod(lambda *_: True))
    assert (run(trials)["status"] == "ok").all()


def test_starting_workers_must_be_worth_it():
    worth = Local._worth_workers
    assert not worth(0.0, 0, 1000)
    assert not worth(1.0, 1, 10)
    assert worth(1.0, 1, 30) == worth(10.0, 10, 30)
    assert not worth(100.0, 1, 1)


@pytest.mark.slow
def test_workers_that_cannot_begin_are_an_error_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("suture.runs.runners.local.sys.path", ["/nowhere"])
    with pytest.raises(RunnerError, match=r"ended with exit code 1 .* before it could begin; Local\(workers=1\)"):
        list(Local(workers=2).run(Naptime(3), tmp_path))


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"workers": 0}, "give at least 1"), ({"retries": -1}, "give 0 or more"), ({"ram": "much"}, "much")],
)
def test_wrong_settings_are_refused(settings, said):
    with pytest.raises(Exception, match=said):
        Local(**settings)


if __name__ == "__main__":
    try:
        run(plan(fit=Sleeps(sys.argv[1])), store=sys.argv[2], on=Local(workers=2), progress=Silent())
    except Interrupted as stopped:
        sys.exit(str(stopped))
