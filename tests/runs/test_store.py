"""The store: whole or not at all, never written twice, and what it refuses."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pandas.testing import assert_frame_equal

import suture
from suture import curve, load_stitched, run
from suture.common.errors import OutputError, StoreError
from suture.common.sealed import from_json, to_json
from suture.core.activations.cache import Activations
from suture.fits import Converged, LeastSquares, TaskLoss
from suture.measurement.tables.records import describe_trial
from suture.measurement.trials import controls
from suture.measurement.trials.versions import DECLARED
from suture.runs.runners import Runner
from suture.runs.runners.tasks import Measuring
from suture.runs.store.files import flush
from suture.runs.store.inspect import status, verify
from suture.runs.store.store import TRIALS, Locks, Store
from trained import few_digits, hybrids

OK = {"status": "ok", "scores": {}, "curve": [1, 2], "value": 0.1}


def plan(**settings):
    settings = {"fit": LeastSquares(), "at": ("embed", "hidden"), "controls": (controls.itself,)} | settings
    return curve(*hybrids(), data=few_digits(), **settings)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.make(tmp_path / "run")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_to_flush_a_folder_leaves_nothing_open(tmp_path, monkeypatch):
    opened, plain = [], os.open
    monkeypatch.setattr(os, "open", lambda *given: opened.append(plain(*given)) or opened[-1])
    flush(tmp_path)
    for descriptor in opened:
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(descriptor)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_a_trial_is_a_folder_whose_files_sha256sum_can_check(tmp_path):
    trials = plan(fit=TaskLoss(steps=4, check=2))
    run(trials, store=tmp_path)
    folder = tmp_path / "trials" / trials[0].key
    assert names(folder) == ["curve.json", "done", "measurement.json", "stitch.safetensors", "stitched.json"]
    subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "done"], cwd=folder, check=True)
    assert [point["step"] for point in json.loads((folder / "curve.json").read_text())] == [0, 2, 4]


def test_a_kept_trial_is_a_stitched_network_on_disk(tmp_path):
    a, b = hybrids()
    trials = plan()
    run(trials, store=tmp_path)
    loaded = load_stitched(tmp_path / "trials" / trials[0].key, a, b)
    made = suture.measure(trials[0]).stitched
    images = few_digits().score.images
    with torch.no_grad():
        assert torch.equal(loaded(images), made(images))


@pytest.mark.slow
def test_the_table_of_a_store_is_that_of_the_run(tmp_path):
    table = run(plan(controls=controls.DEFAULT, seeds=2), store=tmp_path)
    assert_frame_equal(Store(tmp_path).table(), table)


def test_records_have_no_numbers_that_json_has_not(tmp_path):
    run(plan(controls=controls.DEFAULT), store=tmp_path)
    for path in tmp_path.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=lambda name, path=path: pytest.fail(f"{name} in {path}"))


def test_what_is_finished_is_never_written_again(store):
    store.keep(TRIALS, "k", OK, b"first")
    store.keep(TRIALS, "k", OK, b"second")
    assert store.tensors(TRIALS, "k") == b"first"
    assert names(store.path / "trials") == ["k"]


def test_what_lost_its_end_on_the_way_is_written_again(store):
    """As a copy that was interrupted leaves it."""
    store.keep(TRIALS, "k", OK, b"first")
    (store.path / "trials" / "k" / "done").unlink()
    assert store.finished() == set()
    store.keep(TRIALS, "k", OK, b"second")
    assert store.finished() == {"k"}
    assert store.tensors(TRIALS, "k") == b"second"
    assert [name for name in os.listdir(store.path / "trials") if name.startswith(".")] == []


def test_a_success_ends_a_failure_and_not_the_reverse(store):
    failed = {"status": "failed", "error": "e"}
    store.keep(TRIALS, "k", failed, b"")
    assert store.failures() == {"k": failed}
    assert store.finished() == set()
    store.keep(TRIALS, "k", OK, b"")
    store.keep(TRIALS, "k", failed, b"")
    assert store.failures() == {}
    assert store.finished() == {"k"}


def test_many_at_once_leave_one_whole_result(store):
    threads = [threading.Thread(target=store.keep, args=(TRIALS, "k", OK | {"by": i}, b"%d" % i)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.record(TRIALS, "k")["by"] == int(store.tensors(TRIALS, "k"))
    assert names(store.path / "trials") == ["k"]


def test_a_writer_that_stops_in_the_middle_leaves_nothing_that_counts(store, monkeypatch):
    monkeypatch.setattr(os, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        store.keep(TRIALS, "k", OK, b"")
    assert store.finished() == set()


def test_leavings_of_the_dead_are_swept_once_nobody_can_be_writing_them(store):
    for name, age in (("dead", 10_000), ("alive", 10)):
        part = store.path / "trials" / f".k.{name}.part"
        part.mkdir()
        os.utime(part, (time.time() - age,) * 2)
    assert verify(store.path) == ()
    Store.make(store.path)
    assert names(store.path / "trials") == [".k.alive.part"]


# --- a disk that refuses ----------------------------------------------------------------------------------------------


class Full:
    """``os.fsync`` of a disk that is full ``times`` over."""

    def __init__(self, times: int, number: int = errno.ENOSPC) -> None:
        self.times, self.number, self.sync = times, number, os.fsync

    def __call__(self, file: int) -> None:
        self.times -= 1
        if self.times >= 0:
            raise OSError(self.number, os.strerror(self.number))
        self.sync(file)


def test_cached_activations_go_before_a_result_does(store, monkeypatch):
    cached = store.activations / "key.activations.safetensors"
    images = store.activations / "images.safetensors"  # that workers share
    cached.write_bytes(b"much")
    images.write_bytes(b"little")
    monkeypatch.setattr(os, "fsync", Full(1))
    store.keep(TRIALS, "k", OK, b"")
    assert store.finished() == {"k"}
    assert not cached.exists()
    assert images.exists()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "No space left on device; free some space on the disk"),
        (errno.EROFS, "Read-only file system; make it writable, or name another folder"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_refuses_stops_the_run_and_loses_nothing(tmp_path, monkeypatch, number, said):
    trials = plan()
    run(trials[:2], store=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Full(1000, number))
        with pytest.raises(OutputError, match=f"cannot write to .*: {said}"):
            run(trials, store=tmp_path)
    assert Store(tmp_path).finished() == {trial.key for trial in trials[:2]}
    assert [name for name in names(tmp_path / "trials") if name.startswith(".")] == []
    table = run(trials, store=tmp_path)
    assert_frame_equal(table.drop(columns="seconds"), run(trials).drop(columns="seconds"))


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_store_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"nowhere does not exist; give the folder"):
        Store(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"is not a folder of a run: it has no suture.json"):
        Store(tmp_path)


def test_a_store_of_another_format_is_refused_and_left_alone(tmp_path):
    (tmp_path / "suture.json").write_text('{"format": 99}')
    for opened in (Store, Store.make, lambda path: run(plan(), store=path)):
        with pytest.raises(StoreError, match="is a store of format 99, and this version of Suture reads format 2"):
            opened(tmp_path)
    assert names(tmp_path) == ["suture.json"]


def test_a_damaged_label_is_refused(tmp_path):
    (tmp_path / "suture.json").write_text('{"for')
    with pytest.raises(StoreError, match=r"suture.json is damaged; delete it"):
        Store.make(tmp_path)


def test_a_store_measured_by_another_version_of_a_part_is_read_and_not_added_to(tmp_path, monkeypatch):
    table = run(plan(), store=tmp_path)
    before = DECLARED["measurement"]
    monkeypatch.setitem(DECLARED, "measurement", 1000)
    with pytest.raises(StoreError, match=rf"was measured by measurement {before} \(now 1000\): numbers may differ"):
        run(plan(), store=tmp_path, extend=True)
    assert_frame_equal(Store(tmp_path).table(), table)


def test_a_new_version_of_a_part_leaves_stores_alone_that_did_not_use_it(tmp_path, monkeypatch):
    table = run(plan(), store=tmp_path)
    assert "Converged" not in " ".join(table["versions"])
    monkeypatch.setattr(Converged, "version", 1000)
    assert_frame_equal(run(plan(), store=tmp_path), table)


def test_a_table_without_a_store_is_not_overwritten(tmp_path):
    (tmp_path / "table.parquet").write_bytes(b"of an earlier version")
    with pytest.raises(StoreError, match=r"has a table\.parquet and no run"):
        run(plan(), store=tmp_path)
    assert (tmp_path / "table.parquet").read_bytes() == b"of an earlier version"


def test_a_damaged_record_is_named_and_measured_again_by_the_next_run(tmp_path):
    trials = plan()
    before = run(trials, store=tmp_path)
    (tmp_path / "trials" / trials[1].key / "measurement.json").write_text('{"status"')
    with pytest.raises(StoreError, match=f"{trials[1].key}/measurement.json is damaged .*begin the run again"):
        Store(tmp_path).table()
    again = run(trials, store=tmp_path)
    assert_frame_equal(again.drop(columns="seconds"), before.drop(columns="seconds"), check_exact=True)
    assert len(Store(tmp_path).table()) == len(again)


# --- plans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("plans/notes.json", "{}", r"notes.json is damaged \(it lacks 'settings', 'trials'\)"),
        ("plans/notes.json", "[]", r"notes.json is damaged \(it holds a list, not a mapping of names\)"),
    ],
)
def test_a_file_that_is_another_is_named(tmp_path, name, content, said):
    store = Store.make(tmp_path / "run")
    (store.path / name).parent.mkdir(parents=True, exist_ok=True)
    (store.path / name).write_text(content)
    with pytest.raises(StoreError, match=f"{said}; 'suture verify'"):
        Store(store.path).table()


def test_plans_add_up_in_order_each_row_once(store):
    words = [describe_trial(trial) for trial in plan()]
    store.plans.add(words[:2], {"fit": "f", "command": "go on"})
    store.plans.add(words, {"fit": "f", "command": "go on, wider"})
    store.plans.add(words[1:3], {"fit": "f"})
    assert store.plans.trials() == words
    assert store.plans.settings() == {"fit": "f", "command": "go on"}
    assert store.plans.command() == "go on, wider"


def test_the_command_that_goes_on_is_the_last_that_planned_what_is_left(store):
    words = [describe_trial(trial) for trial in plan()]
    store.plans.add(words, {"command": "all"})
    store.plans.add(words[:1], {"command": "a part"})
    assert store.plans.command() == store.plans.command([words[0].key]) == "a part"
    assert store.plans.command([words[1].key]) == "all"
    assert status(store.path).command == "a part"
    store.keep(TRIALS, words[0].key, OK, b"")
    assert status(store.path).command == "all"


def test_a_plan_that_an_older_version_wrote_with_networks_is_read_for_its_trials(store):
    words = [describe_trial(trial) for trial in plan()]
    store.plans.add(words[:2], {"fit": "f", "command": "go on"})
    (path,) = store.plans.folder.iterdir()
    path.write_text(to_json(from_json(path.read_bytes()) | {"bases": ["a network's key"], "later": True}))
    assert store.plans.trials() == words[:2]
    assert store.plans.keys() == {one.key for one in words[:2]}
    store.plans.check({one.key for one in words}, {})
    assert (status(store.path).planned, status(store.path).command) == (2, "go on")


def test_the_same_trial_under_other_labels_is_another_row(store):
    trial = plan()[0]
    words = [describe_trial(replace(trial, study=study)) for study in ("one", "two")]
    store.plans.add(words, {})
    assert store.plans.trials() == words


# --- who is at what ---------------------------------------------------------------------------------------------------


def test_a_claim_is_one_processes_and_ends_with_it(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from suture.runs.store.store import Locks; "
        "c = Locks(Path(sys.argv[1])); print(c.take('k'), flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "True\n"
    mine = Locks(tmp_path)
    assert not mine.take("k")
    assert mine.others() == 1
    other.kill()
    other.wait()
    other.stdout.close()
    assert mine.take("k")
    assert mine.others() == 0
    mine.give_all_back()
    assert names(tmp_path) == []


def test_what_another_claims_is_left_to_it_and_its_result_taken(tmp_path):
    trials = plan()
    alone = run(trials)
    run(trials[:1], store=tmp_path)
    others = Locks(tmp_path / "locks")
    assert others.take(trials[1].key)

    class Elsewhere(Runner):
        """Does all that it gets; then the other process ends its own."""

        def run(self, queue, scratch):
            seen = []
            while (task := queue.take()) is not None:
                seen.append(task.key)
                yield task, task.run(Activations())
            assert seen == [trial.key for trial in trials[2:]]
            assert not queue.exhausted
            outcome = Measuring(trials[1]).run(Activations())
            Store(tmp_path).keep(TRIALS, trials[1].key, outcome.record, outcome.tensors)
            others.give_all_back()
            assert queue.take() is None
            assert queue.exhausted

    found = run(trials, store=tmp_path, on=Elsewhere())
    assert_frame_equal(found.drop(columns="seconds"), alone.drop(columns="seconds"))


@pytest.mark.slow
def test_two_processes_share_the_trials_of_a_store(tmp_path):
    command = [sys.executable, __file__, str(tmp_path)]
    places = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen(command, env=places, stdout=subprocess.PIPE) for _ in range(2)]
    counts = [int(process.communicate(timeout=300)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    trials = plan(seeds=8)
    assert sum(counts) == len(trials), "none was measured twice"
    assert_frame_equal(Store(tmp_path).table().drop(columns="seconds"), run(trials).drop(columns="seconds"))


if __name__ == "__main__":
    kept = []
    original = Store.keep
    Store.keep = lambda self, kind, key, *rest: (kept.append(key), original(self, kind, key, *rest))[1]  # type: ignore
    run(plan(seeds=8), store=sys.argv[1])
    print(len(kept))


@pytest.mark.parametrize(("folder", "said"), [("file", "there is a file in its place"), ("file/run", "file is a file")])
def test_a_store_is_a_folder(tmp_path, folder, said):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=rf"cannot write to .*{folder}: .*{said}.*; move that away, or name another"):
        Store.make(tmp_path / folder)


def test_a_record_with_half_a_character_can_be_kept():
    from suture.runs.store.files import text

    said = "file \udcff broke"
    assert from_json(text({"error": said}).encode("utf-8")) == {"error": said}
