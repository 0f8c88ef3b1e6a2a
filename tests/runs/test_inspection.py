"""What is damaged in a store is found and named, and only that; what is repaired is measured again, and only that."""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

import suture
from faulty import Faulty
from suture import curve, run
from suture.common.errors import StoreError
from suture.fits import LeastSquares
from suture.measurement.trials import controls
from suture.runs.progress import Silent
from suture.runs.runners import Interrupted, Local
from suture.runs.runners.run import Work
from suture.runs.runners.transport import Packer
from suture.runs.store.files import text
from suture.runs.store.inspect import status, verify
from suture.runs.store.store import FILES, NETWORKS, TRIALS, Locks, Store
from suture_papers.networks.base_model import BaseModel
from suture_papers.networks.recipes import DIGITS
from suture_papers.training import Checkpoints, TrainingProgress, train_networks
from trained import convnets, few_digits, hybrid, hybrids

HERE = Local(workers=1)


def plan() -> list[suture.Trial]:
    """Six trials: four of two networks, and two of a network that is stitched to itself."""
    a, b = hybrids()
    c, _ = convnets()
    settings = {"data": few_digits(), "fit": LeastSquares()}
    first = curve(a, b, at=("embed", "hidden"), controls=(controls.itself,), **settings)
    return [*first, *curve(c, c, at=("flatten",), controls=(controls.untrained_sender,), **settings)]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pd.DataFrame]:
    """A store of all that ``plan`` gives and of a network with the name of one of these, and its table."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    network = BaseModel("zoo:convnet,width=2", few_digits().fit, replace(DIGITS, epochs=1), name=convnets()[0].name)
    train_networks([network], folder, on=HERE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Work, "clean", lambda work: None)  # as a run leaves it that was stopped
        patched.setattr(Work, "_forget", lambda work, done: None)
        return folder, run(plan(), store=folder, on=HERE, command="suture curve A B --out 'a folder'")


@pytest.fixture
def folder(kept: tuple[Path, pd.DataFrame], tmp_path: Path) -> Path:
    return shutil.copytree(kept[0], tmp_path / "run")


def flip(path: Path, place: float = 0.5) -> Path:
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(content)
    return path


def cut(path: Path) -> Path:
    os.truncate(path, path.stat().st_size // 2)
    return path


def gone(path: Path) -> Path:
    path.unlink()
    return path


def a(folder: Path, kind: str) -> Path:
    """The first result of a kind."""
    return min(path for path in (folder / kind).iterdir() if path.suffix != ".lock")


def test_a_sound_store_has_no_findings(folder: Path) -> None:
    assert verify(folder) == ()


PARTS = [(kind, name) for kind, names in FILES.items() for name in (*names, "done")]
PARTS += [(TRIALS, "curve.json"), (TRIALS, "stitched.json")]


@pytest.mark.slow
def test_damage_to_any_file_of_a_result_is_found_and_counts_as_not_measured(folder: Path) -> None:
    for kind, name in PARTS:
        for damage in (flip, cut, gone):
            sound = shutil.copytree(a(folder, kind), folder.parent / "sound")
            path = damage(a(folder, kind) / name)
            found = verify(folder)
            case = f"{kind} {name} {damage.__name__}"
            assert {finding.path for finding in found} <= set(path.parent.iterdir()) | {path}, case
            assert path in {finding.path for finding in found} or name == "done", case
            assert all(f"the next run {AGAIN[kind]} it again" in finding.remedy for finding in found), case
            assert not Store(folder).has(kind, path.parent.name), case
            shutil.rmtree(path.parent)
            sound.rename(path.parent)
            assert verify(folder) == (), case


AGAIN = {TRIALS: "measures", NETWORKS: "trains"}


def test_one_flipped_bit_is_found_wherever_it_is(folder: Path) -> None:
    for name in ("measurement.json", "stitch.safetensors", "done"):
        for place in (0.0, 0.1, 0.4, 0.5, 0.9, 1.0):
            path = flip(a(folder, TRIALS) / name, place)
            assert len(verify(folder)) == 1 or name == "done", (name, place)
            assert verify(folder), (name, place)
            flip(path, place)


def test_the_trials_that_read_it_are_named(folder: Path) -> None:
    bad = flip(a(folder, TRIALS) / "curve.json")
    network = flip(a(folder, NETWORKS) / "model.safetensors")
    trial, base = verify(folder)
    (labels,) = (said.labels for said in Store(folder).plans.trials() if said.key == bad.parent.name)
    assert (trial.path, base.path) == (bad, network)
    assert labels["receiver_cut"] in trial.trials[0]
    assert base.trials == ("C flatten → C flatten", "C flatten → C flatten (untrained sender)")


def test_checksums_of_other_files_than_a_result_has_are_found(folder: Path) -> None:
    path = a(folder, NETWORKS) / "done"
    text = path.read_text()
    for altered in (text + "x", text.partition("\n")[2], ""):
        path.write_text(altered)
        assert [finding.path for finding in verify(folder)] == [path], altered


def test_a_damaged_label_is_an_error_that_says_what_to_do(folder: Path) -> None:
    label = (folder / "suture.json").read_text()
    for content in ("{}", "[]", '{"format": 1'):
        (folder / "suture.json").write_text(content)
        with pytest.raises(StoreError, match=r"suture\.json is damaged; delete it, and start the run again"):
            verify(folder)
    (folder / "suture.json").unlink()
    told = Told()
    run(plan(), store=folder, on=HERE, progress=told)
    assert told.worked == []
    assert (folder / "suture.json").read_text() == label


def test_a_folder_that_is_no_store_or_of_another_format_is_an_error(folder: Path, tmp_path: Path) -> None:
    for look in (status, verify):
        with pytest.raises(StoreError, match=r"does not exist; give the folder"):
            look(tmp_path / "nowhere")
        with pytest.raises(StoreError, match="is not a folder of a run"):
            look(tmp_path)
    (folder / "suture.json").write_text('{"format": 7, "measuring": 1}')
    for look in (status, verify):
        with pytest.raises(StoreError, match="of format 7, and this version of Suture reads format 2"):
            look(folder)


def renamed(path: Path) -> Path:
    path.write_text(path.read_text().replace('"sender": "A"', '"sender": "Z"'))
    return path


def test_a_damaged_plan_is_found_and_written_anew_by_the_next_run(
    kept: tuple[Path, pd.DataFrame], folder: Path
) -> None:
    path = a(folder, "plans")
    before = path.read_text()
    for damage in (flip, cut, renamed, lambda path: path.write_text("[]") and path):
        damage(path)
        assert [finding.path for finding in verify(folder)] == [path]
        path.write_text(before)
    path.unlink()
    told = Told()
    again = run(plan(), store=folder, on=HERE, progress=told, extend=True)
    assert told.known == told.total > 0
    assert_frame_equal(again, kept[1])
    assert verify(folder) == ()


def test_results_without_any_plan_are_said_to_have_none(folder: Path) -> None:
    shutil.rmtree(folder / "plans")
    (folder / "plans").mkdir()
    (finding,) = verify(folder)
    assert finding.path == folder / "plans"
    assert "start the run again" in finding.remedy


def test_a_record_of_a_failure_that_cannot_be_read_is_found(folder: Path) -> None:
    path = folder / "failed" / TRIALS / "0123456789.json"
    for content in ("", "[]", "{"):
        path.write_text(content)
        (finding,) = verify(folder)
        assert finding.path == path
    path.write_text('{"status": "failed", "error": "no", "trial": "0123456789"}')
    assert verify(folder) == ()


def test_damaged_activations_are_found(folder: Path) -> None:
    paths = {flip(path, 1.0) for path in (folder / "activations").glob("*.safetensors")}
    found = verify(folder)
    assert {finding.path for finding in found} == paths
    assert {finding.problem for finding in found} == {"has changed since it was written"}
    assert all(finding.trials for finding in found)
    assert max(len(finding.trials) for finding in found) > 1  # an untrained sender's are read by one trial alone


def test_a_damaged_table_is_found(folder: Path) -> None:
    cut(folder / "table.parquet")
    (finding,) = verify(folder)
    assert finding.path == folder / "table.parquet"


class Told(Silent):
    """Counts what is measured."""

    def begin(self, total, done, noun="trial"):
        self.total, self.known = total, done

    def __init__(self) -> None:
        self.worked: list[str] = []

    def working_on(self, what, share=None):
        self.worked.append(what)


def test_the_next_run_measures_just_what_was_damaged(kept: tuple[Path, pd.DataFrame], folder: Path) -> None:
    first, second, third, *_ = sorted((folder / TRIALS).iterdir())
    flip(first / "stitch.safetensors")
    flip(first / "curve.json")
    gone(second / "done")
    shutil.rmtree(third)
    (folder / "failed" / TRIALS / f"{third.name}.json").write_text("{")
    told = Told()
    again = run(plan(), store=folder, on=HERE, progress=told)
    assert len(told.worked) == 3
    assert_frame_equal(again.drop(columns="seconds"), kept[1].drop(columns="seconds"))
    assert verify(folder) == ()
    assert status(folder).complete


# How far a run is


def test_the_status_of_a_run_that_is_over(folder: Path) -> None:
    found = status(folder)
    assert (found.planned, found.measured, found.failed, found.missing, found.running) == (6, 6, 0, 0, 0)
    assert found.complete
    assert found.command == "suture curve A B --out 'a folder'"
    assert found.errors == {}
    kept = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    locks = sum(path.stat().st_size for path in (folder / "locks").rglob("*"))
    assert found.result_bytes + found.activation_bytes + locks == kept
    cached = [path for path in (folder / "activations").rglob("*") if path.is_file()]
    assert found.activation_bytes == sum(path.stat().st_size for path in cached) > 100_000


def test_a_run_that_is_over_keeps_no_activations(kept: tuple[Path, pd.DataFrame], folder: Path) -> None:
    others = Locks(folder / "locks")
    others.take("another's")
    run(plan(), store=folder, on=HERE)
    assert status(folder).activation_bytes > 100_000
    others.give_all_back()
    results = status(folder).result_bytes
    again = run(plan(), store=folder, on=HERE)
    assert (status(folder).activation_bytes, status(folder).result_bytes) == (0, results)
    assert_frame_equal(again, kept[1])


def test_the_status_of_a_run_that_was_stopped_and_goes_on_elsewhere(tmp_path: Path) -> None:
    begun = time.time()
    with pytest.raises(Interrupted):
        run(plan(), store=tmp_path / "run", on=Faulty(seed=3, stops_after=2))
    found = status(tmp_path / "run")
    assert found.measured == 2
    assert found.missing == found.planned - found.measured
    assert (found.complete, found.command, found.running) == (False, None, 0)
    assert begun - 1 < found.last_change.timestamp() < time.time() + 1
    other = Locks(tmp_path / "run" / "locks")
    other.take("this")
    other.take("that")
    assert status(tmp_path / "run").running == 2
    other.give_all_back()
    assert status(tmp_path / "run").running == 0
    assert verify(tmp_path / "run") == ()


def test_the_status_counts_failures_by_their_messages(tmp_path: Path) -> None:
    trials = list(plan())[:4]
    run(trials, store=tmp_path / "run", on=Faulty(failing=1.0))
    found = status(tmp_path / "run")
    assert (found.measured, found.failed, found.missing, found.complete) == (0, 4, 0, True)
    assert list(found.errors.values()) == [4]
    run(trials[:1], store=tmp_path / "run", on=HERE, retry=True)
    found = status(tmp_path / "run")
    assert (found.measured, found.failed, found.missing) == (1, 3, 0)
    assert verify(tmp_path / "run") == ()


def test_a_store_in_which_nothing_was_planned_yet_is_empty_and_not_complete(tmp_path: Path) -> None:
    Store.make(tmp_path / "run")
    found = status(tmp_path / "run")
    assert (found.planned, found.missing, found.complete) == (0, 0, False)
    assert verify(tmp_path / "run") == ()


@pytest.mark.slow
def test_the_networks_and_data_of_a_run_are_not_needed(folder: Path) -> None:
    program = f"from suture.runs.store.inspect import *; s = status({str(folder)!r}); print(s.measured, verify(s.path))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "6 ()\n"
    assert hybrid(0) is not None


# One bit, anywhere


def notices(folder: Path) -> bool:
    """Whether ``verify`` or reading the table notices that something is damaged."""
    try:
        return bool(verify(folder)) or Store(folder).table().empty
    except suture.SutureError:
        return True


@pytest.mark.parametrize("flips", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_one_flipped_bit_anywhere_in_a_store_is_noticed(folder: Path, flips: int) -> None:
    (folder / "failed" / TRIALS / f"{'0' * 20}.json").write_text(text({"status": "failed", "error": "no"}))
    Checkpoints(folder / "activations" / "training" / "net", {}).save(
        linear := torch.nn.Linear(3, 2), torch.optim.SGD(linear.parameters()), TrainingProgress(), keep=False
    )
    packer = Packer(folder / "activations")
    packer.part(packer.pack(few_digits().fit).parts[-1])
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    assert not notices(folder)
    chance = random.Random(flips)
    for number in range(flips):  # each file in turn, since most bytes are activations
        path = files[number % len(files)]
        content = path.read_bytes()
        bit = chance.randrange(8 * len(content))
        path.write_bytes(content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :])
        assert notices(folder), f"bit {bit} of {path.relative_to(folder)}"
        path.write_bytes(content)
    assert not notices(folder)


def test_a_changed_digit_is_in_no_table(folder: Path) -> None:
    path = a(folder, TRIALS) / "measurement.json"
    digit = re.search(r'"value": 0\.\d', path.read_text())
    assert digit is not None
    flip(path, (digit.end() - 1) / (path.stat().st_size - 1))
    with pytest.raises(
        StoreError, match=r"measurement\.json is damaged \(it has changed since it was written\); begin the run"
    ):
        Store(folder).table()


def test_a_result_under_another_key_is_no_result(folder: Path) -> None:
    first, second, *_ = sorted((folder / TRIALS).iterdir())
    shutil.rmtree(first)
    shutil.copytree(second, first)
    assert [finding.path.parent for finding in verify(folder)] == [first]
    assert not Store(folder).has(TRIALS, first.name)


def test_trials_that_read_damaged_activations_are_named_and_measured_again(
    kept: tuple[Path, pd.DataFrame], folder: Path
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in (folder / TRIALS).iterdir()}
    path = max(
        (folder / "activations").glob("*.safetensors"), key=lambda path: len(Store(folder).find_readers([path.name]))
    )
    flip(path, 1.0)
    readers = Store(folder).find_readers([path.name]).keys()
    assert 1 < len(readers) < len(before)
    (finding,) = verify(folder)
    assert (finding.path, len(finding.trials)) == (path, len(readers))
    told = Told()
    again = run(plan(), store=folder, on=HERE, progress=told)
    assert len(told.worked) == len(readers)
    after = {name: (folder / TRIALS / name).stat().st_mtime_ns for name in before}
    assert {name for name in before if after[name] != before[name]} == set(readers)
    assert_frame_equal(again.drop(columns="seconds"), kept[1].drop(columns="seconds"))
    assert verify(folder) == ()
