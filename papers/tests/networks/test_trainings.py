"""Trainings through the runners: each once, in their order, whoever shares the store, and whatever is killed."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from faulty import Faulty
from suture.common.errors import RunnerError, StoreError
from suture.core.activations.cache import Activations
from suture.measurement.tables.records import describe_trial
from suture.runs.progress import Lines, Silent
from suture.runs.runners import Interrupted, Local, Outcome, Runner
from suture.runs.store.inspect import status, verify
from suture.runs.store.store import NETWORKS, Store
from suture_papers.training import TrainingTask, Untrained, train_networks
from trained import few_digits, hybrids

HERE = Local(workers=1)


@dataclass(frozen=True, eq=False)
class Ready(TrainingTask):
    """A training that notes when it is done, and what it was given."""

    name: str
    notes: Path
    starts: "tuple[Ready, ...]" = ()
    breaks: bool = False
    given: bytes = b""

    kind: ClassVar[str] = NETWORKS

    @property
    def key(self):
        return f"key-of-{self.name}"

    @property
    def where(self):
        return f"making {self.name}"

    @property
    def bases(self):
        return self.starts

    def after(self, tensors):
        given = b"".join(tensors[start.key] for start in self.starts)
        return type(self)(self.name, self.notes, self.starts, self.breaks, given)

    def run(self, activations):
        with open(self.notes, "a") as file:
            file.write(self.name)
        return self.lost("broken") if self.breaks else Outcome({"status": "ok"}, self.given + self.name.encode())

    def lost(self, reason):
        return Outcome({"status": "failed", "error": reason, "traceback": ""})

    def network(self, tensors):
        return dict(zip("AB", hybrids(), strict=True))[tensors.decode()]


class Telling(Silent):
    """Writes down what it is told."""

    def __init__(self):
        self.heard = []

    def begin(self, total, done, noun="trial"):
        self.heard.append((total, done, noun))

    def working_on(self, what, share=None):
        self.heard.append((what, share()))

    def done(self, what, error):
        self.heard.append((what, error))


class InTurn(Runner):
    """Takes all that it can get, and does it in the order in which it got it."""

    def run(self, queue, scratch):
        taken = []
        while taken or not queue.exhausted:
            while (task := queue.take()) is not None:
                taken.append(task)
            task = taken.pop(0)
            yield task, task.run(Activations())


def test_each_network_is_trained_once_and_read_from_the_store(tmp_path):
    notes, told = tmp_path / "notes", Telling()
    store = Store.make(tmp_path / "run")
    a, b = Ready("A", notes), Ready("B", notes)
    train_networks([a, b, a], store, on=HERE)
    train_networks([b, a], store, on=HERE, progress=told)
    assert notes.read_text() == "AB"
    assert told.heard == [(2, 2, "network")]
    assert store.finished(NETWORKS) == {a.key, b.key}
    assert [one.load(store) for one in (b, a)] == [*hybrids()[::-1]]


def test_a_network_is_trained_after_those_that_it_starts_from_and_with_their_weights(tmp_path):
    notes = tmp_path / "notes"
    a, b = Ready("A", notes), Ready("B", notes)
    both = Ready("C", notes, (a, b))
    store = Store.make(tmp_path / "run")
    train_networks([Ready("D", notes, (both,)), both], store, on=Faulty(seed=1))
    assert sorted(notes.read_text()[:2]) == ["A", "B"]
    assert notes.read_text()[2:] == "CD"
    assert store.tensors(NETWORKS, "key-of-D") == b"ABCD"


def test_a_network_that_others_start_from_is_not_trained_where_none_of_these_is_lacking(tmp_path):
    notes = tmp_path / "notes"
    store = Store.make(tmp_path / "run")
    store.keep(NETWORKS, "key-of-B", {"status": "ok"}, b"B")
    train_networks([Ready("B", notes, (Ready("A", notes),))], store, on=HERE)
    assert not notes.exists()


def test_trainings_that_were_stopped_go_on(tmp_path):
    notes = tmp_path / "notes"
    trainings = [Ready(name, notes) for name in "ABC"]
    said = r"interrupted: 2 of 3 networks are trained and kept in .*/run; continue with: suture zoo train"
    with pytest.raises(Interrupted, match=said):
        train_networks(trainings, tmp_path / "run", on=Faulty(stops_after=2), command="suture zoo train")
    train_networks(trainings, tmp_path / "run", on=HERE)
    assert sorted(notes.read_text()) == ["A", "B", "C"]


def test_where_one_fails_the_others_are_trained_and_the_failure_named(tmp_path):
    notes, told = tmp_path / "notes", Telling()
    broken = Ready("A", notes, breaks=True)
    trainings = [Ready("C", notes, (broken,)), Ready("B", notes)]
    with pytest.raises(Untrained, match=r"^making A: broken; 1 more start from these; all else is done$") as caught:
        train_networks(trainings, tmp_path / "run", on=HERE, progress=told)
    assert isinstance(caught.value, RunnerError)
    assert caught.value.keys == {"key-of-A", "key-of-C"}
    assert ("making A", "broken") in told.heard
    assert Store(tmp_path / "run").finished(NETWORKS) == {"key-of-B"}
    with pytest.raises(Untrained, match="making A: broken"):  # by what is known
        train_networks(trainings, tmp_path / "run", on=HERE)
    assert notes.read_text() == "AB"
    mended = [Ready("C", notes, (Ready("A", notes),))]
    train_networks(mended, tmp_path / "run", on=HERE, retry=True)
    assert notes.read_text() == "ABAC"
    assert not Store(tmp_path / "run").failures(NETWORKS)


def test_nothing_is_trained_into_a_store_of_other_versions(tmp_path, monkeypatch):
    from suture import curve
    from suture.fits import LeastSquares
    from suture.measurement.trials.versions import DECLARED

    store = Store.make(tmp_path / "run")
    settings = {"data": few_digits(), "fit": LeastSquares(), "at": "embed", "controls": ()}
    store.plans.add([describe_trial(trial) for trial in curve(*hybrids(), **settings)], {})
    train_networks([Ready("A", tmp_path / "notes")], store, on=HERE)
    monkeypatch.setitem(DECLARED, "cuts", 1000)
    with pytest.raises(StoreError, match="numbers may differ"):
        train_networks([Ready("B", tmp_path / "notes")], store, on=HERE)
    assert (tmp_path / "notes").read_text() == "A"


def test_progress_is_told_networks_and_how_far_each_is(tmp_path):
    class Halfway(Ready):
        def share(self, scratch):
            return 0.5 if scratch == tmp_path / "run/activations" else None

    told, notes = Telling(), tmp_path / "notes"
    train_networks([Halfway("A", notes), Ready("B", notes)], tmp_path / "run", progress=told, on=InTurn())
    working = [("making A", 0.5), ("making B", None)]
    assert told.heard == [(2, 0, "network"), *working, ("making A", None), ("making B", None)]


def test_lines_count_networks(tmp_path, capsys):
    train_networks([Ready("A", tmp_path / "notes")], tmp_path / "run", progress=Lines(), on=HERE)
    assert capsys.readouterr().err == "1 network\n1 network in 0 s\n"


def test_networks_of_a_store_are_no_trials_and_a_damaged_one_is_trained_again(tmp_path):
    notes, store = tmp_path / "notes", Store.make(tmp_path / "run")
    trainings = [Ready("A", notes), Ready("B", notes)]
    train_networks(trainings, store, on=HERE)
    found = status(store.path)
    assert (found.planned, found.missing, found.complete) == (0, 0, False)
    (store.path / NETWORKS / "key-of-B" / "model.safetensors").write_bytes(b"X")
    (damaged,) = verify(store.path)
    assert damaged.remedy == "nothing to do: the next run trains it again"
    train_networks(trainings, store, on=HERE)
    assert notes.read_text() == "ABB"
    assert verify(store.path) == ()


def test_trainings_leave_the_activations_of_a_run_that_goes_on(tmp_path):
    store = Store.make(tmp_path / "run")
    image = store.activations / f"{'0' * 64}.safetensors"
    for lacking in (True, False):
        image.touch()
        train_networks([Ready("A", tmp_path / "notes")], store, on=HERE)
        assert image.exists() != lacking


# --- sequences --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Chapter(TrainingTask):
    """One of several parts of a book; the next goes on from it. The first waits for that of another book, beside it."""

    book: str
    number: int
    notes: Path

    @property
    def key(self):
        return f"{self.book}{self.number}"

    where = key

    @property
    def sequence(self):
        return self.book

    def run(self, activations):
        begun = time.time()
        if self.number == 0:
            self.notes.with_name(f"{self.book} has begun").touch()
            while len(list(self.notes.parent.glob("* has begun"))) < 2 and time.time() < begun + 60:
                time.sleep(0.05)
        with open(self.notes, "a") as file:
            file.write(f"{self.book} {self.number} {begun} {time.time()}\n")
        return Outcome({"status": "ok"}, b"weights")

    def lost(self, reason):
        return Outcome({"status": "failed", "error": reason, "traceback": ""})

    def network(self, tensors):
        raise AssertionError("nothing waits for it")


@pytest.mark.slow
def test_parts_of_a_sequence_are_done_one_after_another_and_other_things_beside_them(tmp_path):
    notes = tmp_path / "notes"
    train_networks([Chapter(book, i, notes) for book in "ab" for i in range(3)], tmp_path / "run", on=Local(workers=2))
    rows = [line.split() for line in notes.read_text().splitlines()]
    parts = {(book, int(i)): (float(begun), float(ended)) for book, i, begun, ended in rows}
    for book in "ab":
        assert all(parts[book, i][1] <= parts[book, i + 1][0] for i in range(2))
    assert parts["a", 0][0] < parts["b", 0][1]
    assert parts["b", 0][0] < parts["a", 0][1]


# --- killed, and shared -----------------------------------------------------------------------------------------------


class Dies(Ready):
    """Kills its own process the first time."""

    def run(self, activations):
        outcome = super().run(activations)
        if self.notes.read_text().count(self.name) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome


@pytest.mark.kills
def test_a_training_whose_worker_dies_is_begun_again(tmp_path):
    notes, store = tmp_path / "notes", Store.make(tmp_path / "run")
    train_networks([Dies("A", notes), Ready("B", notes)], store, on=Local(workers=2, retries=1))
    assert sorted(notes.read_text()) == ["A", "A", "B"]
    assert store.finished(NETWORKS) == {"key-of-A", "key-of-B"}


class Slow(Ready):
    def run(self, activations):
        time.sleep(0.2)
        return super().run(activations)


def sharing(folder: Path) -> "subprocess.Popen[bytes]":
    """Another process that trains ten networks into a store."""
    places = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    return subprocess.Popen([sys.executable, __file__, str(folder)], env=places)


def several(folder: Path) -> list[Ready]:
    start = Slow("a", folder / "notes")
    return [Slow(name, folder / "notes", (start,)) for name in "bcdefghij"]


@pytest.mark.slow
def test_two_processes_share_the_trainings_of_a_store(tmp_path):
    processes = [sharing(tmp_path) for _ in range(2)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    assert sorted((tmp_path / "notes").read_text()) == list("abcdefghij"), "none was trained twice"
    assert len(Store(tmp_path / "run").finished(NETWORKS)) == 10


@pytest.mark.kills
def test_a_driver_that_is_killed_loses_the_training_at_work_alone(tmp_path):
    child, notes = sharing(tmp_path), tmp_path / "notes"
    while not notes.exists() or len(notes.read_text()) < 3:
        assert child.poll() is None
        time.sleep(0.05)
    child.kill()
    child.wait()
    kept = Store(tmp_path / "run").finished(NETWORKS)
    assert len(kept) >= 2
    train_networks(several(tmp_path), tmp_path / "run", on=HERE)
    assert len(Store(tmp_path / "run").finished(NETWORKS)) == 10
    written = notes.read_text()
    assert all(written.count(key[-1]) == 1 for key in kept)
    assert len(written) <= 11


if __name__ == "__main__":
    train_networks(several(Path(sys.argv[1])), Path(sys.argv[1]) / "run", on=HERE)
