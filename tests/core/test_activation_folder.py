"""Activations on disk: the same bits, computed once for all processes, within a budget, whatever the disk does."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from suture import Network, Samples, measure
from suture.common.constants import CHUNK
from suture.common.errors import FitError
from suture.core.activations import disk_cache
from suture.core.activations.cache import PAGE, Activations, Need
from suture.core.activations.disk_cache import ActivationFolder
from suture.data.noise import ClusteredNoise
from suture.fits import TaskLoss
from suture.measurement.trials import controls
from suture.measurement.trials.plans import curve
from trained import bits, few_digits, hybrids, tensor_bits

ROOMY = 2**30
CUTS = ("one", "two", "three")
N = CHUNK + 44
EACH = N * 16 * 4  #: bytes of the activations at each cut
passes: Counter[str] = Counter()


class Logged(nn.Module):
    """A layer that notes, here and in a file for other processes, that images passed; it may wait for a sign."""

    notes = False  #: once the network is made and looked at

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.layer = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        if Logged.notes and len(x) > 3:  # not a probe
            passes[self.name] += len(x)
            if "SUTURE_LOG" in os.environ:
                log = Path(os.environ["SUTURE_LOG"])
                with open(log, "a") as file:
                    file.write(f"{self.name} {len(x)}\n")
                while len(x) < CHUNK and not log.with_suffix(".go").exists():  # the second chunk waits
                    time.sleep(0.01)
        return self.layer(x).relu()


@cache
def network() -> Network:
    torch.manual_seed(0)
    model = nn.Sequential()
    for name in CUTS:
        model.add_module(name, Logged(name))
    model.add_module("head", nn.Linear(16, 3))
    whole = nn.Sequential()
    whole.add_module("flatten", nn.Flatten())
    for name, layer in model.named_children():
        whole.add_module(name, layer)
    Logged.notes = False
    made = Network(whole, example=torch.rand(3, 1, 4, 4), name="A", stages=["flatten", *CUTS, "head"])
    made.look_at(samples().images)
    Logged.notes = True
    return made


@cache
def samples(seed: int = 1) -> Samples:
    images = torch.rand(N, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    return Samples(f"images/{seed}", images, torch.arange(N) % 3, tuple("abc"))


@cache
def wanted() -> dict[str, str]:
    return {cut: tensor_bits(Activations().at(network(), cut, samples())) for cut in CUTS}


def found(folder: ActivationFolder, *cuts: str) -> tuple[dict[str, str], list[str]]:
    """The bits of activations, in a cache of their own, and its notes."""
    own = Activations(disk=folder)
    return {cut: tensor_bits(own.at(network(), cut, samples())) for cut in cuts}, own.notes


def key(cut: str) -> str:
    return Need(network(), samples(), network().cuts.find(cut).index).key


def files(folder: ActivationFolder) -> list[str]:
    return sorted(path.name for path in folder.path.iterdir()) if folder.path.exists() else []


def held(folder: ActivationFolder) -> int:
    return sum(path.stat().st_size for path in folder.path.iterdir())


@pytest.fixture
def folder(tmp_path):
    wanted()
    passes.clear()
    return ActivationFolder(tmp_path / "activations", ROOMY)


# --- the same bits ----------------------------------------------------------------------------------------------------


@given(
    asked=st.lists(st.tuples(st.sampled_from([*CUTS, "output"]), st.sampled_from([1, 2]), st.booleans()), max_size=9),
    ram=st.sampled_from([0, EACH, ROOMY]),
    budget=st.sampled_from([0, EACH - 1, EACH + 500, 2 * EACH + 999, ROOMY]),
)
def test_the_bits_do_not_depend_on_the_folder(tmp_path_factory, asked, ram, budget):
    """Two processes' caches ask in turn, and spoil what they are given."""
    shared = ActivationFolder(tmp_path_factory.mktemp("folder") / "activations", budget)
    caches = [Activations(ram, shared), Activations(ram, ActivationFolder(shared.path, budget))]
    for cut, seed, which in asked:
        ask = lambda own, cut=cut, seed=seed: (  # noqa: E731
            own.outputs(network(), samples(seed)) if cut == "output" else own.at(network(), cut, samples(seed))
        )
        given_back = ask(caches[which])
        assert tensor_bits(given_back) == tensor_bits(ask(Activations()))
        given_back.fill_(7)
        assert not shared.path.exists() or held(shared) <= max(budget, 0)
    assert shared.check() == []


@pytest.mark.slow
def test_trials_have_the_same_bits_with_a_folder(folder):
    a, b = hybrids()
    chosen = (controls.itself, controls.shuffled_pairs, controls.clustered_noise)
    fit = TaskLoss(steps=10, check=4, batch=48)
    plan = curve(a, b, at=("conv", "hidden"), data=few_digits(), fit=fit, controls=chosen)
    alone = [bits(measure(trial)) for trial in plan]
    caches = [Activations(disk=folder), Activations(disk=ActivationFolder(folder.path, 60_000))]
    for own in caches:
        assert [bits(measure(trial, own)) for trial in plan] == alone
    assert len(files(folder)) > 1


def test_each_layer_runs_once_for_all_who_share_a_folder(folder):
    for _ in range(2):
        for cut in CUTS:
            assert found(folder, cut)[0][cut] == wanted()[cut]
        found(folder, *reversed(CUTS))
    assert passes == Counter(dict.fromkeys(CUTS, N))


def test_what_is_found_begins_where_a_tensor_in_memory_would(folder):
    found(folder, "one")
    tensor = folder.find(key("one"))
    assert tensor.data_ptr() % 64 == 0
    assert tensor.stride() == torch.empty(tensor.shape).stride()


def test_files_are_safetensors(folder):
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 3)).to(dtype)
        own = Network(model, example=samples().example, name="A")
        tensor = Activations(disk=folder).at(own, "1", samples())
        (path,) = folder.path.iterdir()
        assert torch.equal(load_file(path)["activations"], tensor)
        assert tensor.dtype == dtype
        folder.clear()


def test_who_changes_what_was_found_changes_it_for_nobody(folder):
    own = Activations(disk=folder)
    mine = own.at(network(), "one", samples())
    other = Activations(disk=folder).at(network(), "one", samples())
    mine.zero_()
    assert tensor_bits(other) == wanted()["one"]
    assert tensor_bits(own.at(network(), "one", samples())) == wanted()["one"]
    assert folder.check() == []


def test_a_page_is_kept_and_less_is_not(folder):
    few = Samples("few", samples().images[:64], samples().labels[:64], samples().classes)
    own = Activations(disk=folder)
    assert own.at(network(), "one", few).nbytes == PAGE
    assert len(files(folder)) == 1
    own.outputs(network(), few)
    assert len(files(folder)) == 1


def test_noise_is_drawn_and_no_file_is_written(folder):
    noise = ClusteredNoise((16,), 3)
    drawn = Activations(disk=folder).at(noise, "", samples())
    assert tensor_bits(drawn) == tensor_bits(noise.activations(samples()))
    assert files(folder) == []


def test_other_labels_have_other_noise(folder):
    noise, own = ClusteredNoise((16,), 3), Activations(disk=folder)
    others = Samples("others", samples().images, (samples().labels + 1) % 3, samples().classes)
    assert tensor_bits(own.at(noise, "", samples())) != tensor_bits(own.at(noise, "", others))


def test_another_machine_computes_its_own(folder, monkeypatch):
    found(folder, "one")
    monkeypatch.setattr(disk_cache, "_machine", lambda: "another")
    found(folder, "one")
    assert passes["one"] == 2 * N
    assert len(files(folder)) == 2


# --- its budget -------------------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_goes_first_and_stays_with_who_has_it(folder):
    small = ActivationFolder(folder.path, 2 * EACH + 1000)
    one = Activations(disk=small).at(network(), "one", samples())
    found(small, "two")
    for age, path in enumerate(sorted(folder.path.iterdir(), key=lambda path: path.name.startswith(key("one")))):
        os.utime(path, (1 - age, 1 - age))
    found(small, "one")
    Activations(disk=small).at(network(), "one", samples(2))
    assert key("one") in (left := {name[:64] for name in files(small)})
    assert key("two") not in left
    assert len(left) == 2
    small.clear()
    assert files(small) == []
    assert tensor_bits(one) == wanted()["one"]


def test_what_alone_exceeds_the_budget_is_computed_in_memory(folder):
    small = ActivationFolder(folder.path, EACH - 1)
    assert found(small, "one") == ({"one": wanted()["one"]}, [])
    assert files(small) == []


def test_what_others_are_writing_takes_room_too_until_they_die(folder):
    small = ActivationFolder(folder.path, 2 * EACH)
    with small._locked("busy"):
        folder.path.joinpath(".busy.activations.safetensors.0.part").write_bytes(bytes(EACH))
        assert found(small, "one") == ({"one": wanted()["one"]}, [])
        assert list(folder.path.glob("*.safetensors")) == []
    found(small, "one")
    assert [name[:64] for name in files(small)] == [key("one")]


def test_clear_leaves_what_is_being_written(folder):
    found(folder, "one", "two")
    folder.path.joinpath(".dead-x.activations.safetensors.0.part").write_bytes(b"0")
    with folder._locked("busy"):
        folder.path.joinpath(".busy.activations.safetensors.0.part").write_bytes(b"0")
        folder.clear()
        assert files(folder) == [".busy.activations.safetensors.0.part", "busy.activations.lock"]
    folder.clear()
    assert files(folder) == []


def test_what_others_put_into_the_folder_is_left_alone(folder):
    others = ["0123.safetensors", ".0123.safetensors.0.part", "0123.lock"]
    folder.path.mkdir()
    for name in others:
        folder.path.joinpath(name).write_bytes(bytes(EACH))
    small = ActivationFolder(folder.path, EACH + 1000)
    found(small, *CUTS)
    assert small.check() == []
    assert len(files(small)) == 4
    small.clear()
    assert files(small) == sorted(others)


# --- files that are damaged, disks that are full ----------------------------------------------------------------------


def damaged(folder: ActivationFolder, how: str) -> Path:
    found(folder, "one")
    passes.clear()
    (path,) = folder.path.iterdir()
    content = path.read_bytes()
    torn = {"short": content[:-1], "long": content + b"0", "empty": b"", "none": b"\xff" * len(content)}
    torn["altered"] = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes(torn[how])
    return path


def test_a_torn_file_is_computed_anew(folder):
    for how in ("short", "long", "empty", "none"):
        path = damaged(folder, how)
        assert folder.check() == [path.name], how
        assert found(folder, "one") == ({"one": wanted()["one"]}, []), how
        assert passes["one"] == N, how
        assert folder.check() == [], how


def test_an_altered_file_is_named(folder):
    path = damaged(folder, "altered")
    assert folder.check() == [path.name]


def test_where_the_disk_is_full_memory_does(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    got, notes = found(folder, "one")
    assert got["one"] == wanted()["one"]
    assert len(notes) == 1
    assert notes[0].endswith(f"{folder.path} cannot be written to (No space left on device)")
    assert files(folder) == []


def test_where_there_can_be_no_folder_memory_does(tmp_path):
    tmp_path.joinpath("file").write_text("no folder")
    nowhere = ActivationFolder(tmp_path / "file", ROOMY)
    got, notes = found(nowhere, "one", "three")
    assert got == {cut: wanted()[cut] for cut in ("one", "three")}
    assert [note.partition(":")[0] for note in notes] == [
        f"activations of A at '{cut}' on images/1 (19 kB) were not kept on disk" for cut in ("one", "three")
    ]
    assert nowhere.check() == []
    nowhere.clear()


def test_what_is_not_finite_leaves_nothing_behind(folder):
    class Log(nn.Module):
        def forward(self, x):
            return x.flatten(1).log()

    bright = samples().images.clamp(0.1)
    dark = bright.clone()
    dark[-1] = 0
    own = Network(nn.Sequential(Log(), nn.Linear(16, 3)), example=bright[:3], name="L")
    shown = Samples("dark", dark, samples().labels, samples().classes)
    with pytest.raises(FitError, match="the activations of L at '0' on dark are not finite"):
        Activations(disk=folder).at(own, "0", shown)
    assert files(folder) == []


def test_what_the_user_s_code_raises_is_not_the_disk_s(folder):
    class Reads(nn.Module):
        fails = False

        def forward(self, x):
            if Reads.fails:
                raise FileNotFoundError(errno.ENOENT, "No such file", "weights")
            return x.flatten(1)

    own = Network(nn.Sequential(Reads(), nn.Linear(16, 3)), example=samples().example[:3], name="R", stages="01")
    own.look_at(samples().images)
    Reads.fails = True
    with pytest.raises(FileNotFoundError, match="weights"):
        Activations(disk=folder).at(own, own.cuts[0], samples())
    assert files(folder) == []


# --- several at once --------------------------------------------------------------------------------------------------


class Held(nn.Module):
    """A layer whose second chunk waits for a sign."""

    begun, go = threading.Event(), threading.Event()
    waits = False

    def forward(self, x: Tensor) -> Tensor:
        if Held.waits and len(x) < CHUNK:
            Held.begun.set()
            assert Held.go.wait(30)
        passes["held"] += len(x) > 3
        return x.flatten(1) * 2


def test_who_wants_a_later_cut_waits_for_the_earlier_one_that_is_being_computed(folder):
    Held.begun.clear()
    Held.go.clear()
    Held.waits = False
    own = Network(
        nn.Sequential(Held(), nn.Linear(16, 16), nn.Linear(16, 3)),
        example=samples().example[:3],
        name="H",
        stages="012",
    )
    own.look_at(samples().images)
    Held.waits = True
    passes.clear()
    got = {}

    def ask(cut: str) -> None:
        got[cut] = Activations(disk=folder).at(own, cut, samples())

    threads = [threading.Thread(target=ask, args=(cut,)) for cut in ("0", "0", "1")]
    threads[0].start()
    assert Held.begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.2)
    assert got == {}
    Held.go.set()
    for thread in threads:
        thread.join(30)
    assert sorted(got) == ["0", "1"]
    assert passes["held"] == 2, "two chunks, once"


def elsewhere(folder: str, cut: str) -> None:
    """What another process does."""
    print(found(ActivationFolder(folder, ROOMY), cut)[0][cut])


def process(folder: ActivationFolder, cut: str, log: Path) -> "subprocess.Popen[str]":
    here = Path(__file__)
    paths = os.pathsep.join([str(here.parent), *sys.path])
    environment = os.environ | {"PYTHONPATH": paths, "SUTURE_LOG": str(log)}
    code = f"import {here.stem}; {here.stem}.elsewhere({str(folder.path)!r}, {cut!r})"
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.slow
def test_two_processes_at_once_compute_once(folder, tmp_path):
    log = tmp_path / "log"
    log.touch()
    other, got = process(folder, "two", log), {}
    until(lambda: len(log.read_text().splitlines()) == 3)  # it waits in the first layer, with its second chunk
    asking = threading.Thread(target=lambda: got.update(found(folder, "two")[0]))
    asking.start()
    asking.join(0.2)
    assert asking.is_alive()
    log.with_suffix(".go").touch()
    assert other.communicate(timeout=60)[0].strip() == wanted()["two"]
    asking.join(30)
    assert got == {"two": wanted()["two"]}
    lines = Counter(log.read_text().splitlines())
    assert lines == Counter({f"{cut} {n}": 1 for cut in ("one", "two") for n in (CHUNK, N - CHUNK)})
    assert passes == {}


@pytest.mark.slow
def test_who_is_killed_while_writing_leaves_no_torn_file_and_no_lock(folder, tmp_path):
    log = tmp_path / "log"
    log.touch()
    killed = process(folder, "one", log)
    until(lambda: len(log.read_text().splitlines()) == 2)  # the first chunk is written
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    (left,) = folder.path.glob(".*.part")
    assert left.stat().st_size > EACH
    assert list(folder.path.glob("*.safetensors")) == []
    begun = time.monotonic()
    assert found(folder, "one") == ({"one": wanted()["one"]}, [])
    assert time.monotonic() - begun < 5
    assert [path.suffix for path in folder.path.iterdir()] == [".safetensors"]
    assert folder.check() == []
