"""Memory that runs out: smaller chunks, files in its place, and a note each time."""

import errno
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from suture import Network, Samples
from suture.common.errors import FitError
from suture.common.sizes import physical_memory
from suture.core.activations import memory
from suture.core.activations.cache import CHUNK, Activations
from suture.core.activations.disk_cache import ActivationFolder
from suture.core.activations.memory import NoRoomError, available_memory, gathered, out_of_memory
from suture.core.activations.tensor_file import TensorWriter, TornError, mapped
from trained import tensor_bits

N = CHUNK + 44
REFUSALS = [
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    torch.OutOfMemoryError("MPS backend"),
    MemoryError(),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
]
OTHERS = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    ValueError("out of memory"),
    OSError(errno.EIO, ""),
]


class Hungry(nn.Module):
    """A layer that has memory for so many images; a stage of its own, so that it is run as it is written."""

    limit = N
    refusal: Exception = REFUSALS[0]

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.seen: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        if len(x) > Hungry.limit:
            raise Hungry.refusal
        return self.layer(x.flatten(1))


@cache
def network() -> Network:
    torch.manual_seed(0)
    model = nn.Sequential(Hungry(), nn.Linear(16, 16), nn.Linear(16, 3))
    return Network(model, example=samples().images[:3], name="A", stages=["0", "1", "2"])


@cache
def samples() -> Samples:
    images = torch.rand(N, 1, 4, 4, generator=torch.Generator().manual_seed(1))
    return Samples("images", images, torch.arange(N) % 3, tuple("abc"))


@cache
def wanted(cut: str) -> Tensor:
    return Activations().at(network(), cut, samples())


@pytest.fixture(autouse=True)
def plenty(monkeypatch):
    wanted("0"), wanted("1")
    monkeypatch.setattr(Hungry, "limit", N)


def seen() -> list[int]:
    (layer,) = (module for module in network()._model.modules() if isinstance(module, Hungry))
    return layer.seen


def folder_in(tmp_path: Path) -> ActivationFolder:
    return ActivationFolder(tmp_path / "activations", 2**30)


def kept(folder: ActivationFolder) -> list[Path]:
    return list(folder.path.iterdir())


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: str(error)[:30])
def test_errors_that_say_that_memory_ran_out(error):
    assert out_of_memory(error)


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: str(error)[:30])
def test_errors_that_say_something_else(error):
    assert not out_of_memory(error)


@pytest.mark.parametrize("limit", [1, 3, 64, 255])
@pytest.mark.parametrize("shared", [False, True])
def test_a_chunk_goes_through_in_parts(tmp_path, monkeypatch, limit, shared):
    folder = folder_in(tmp_path)
    own = Activations(disk=folder if shared else None)
    seen().clear()
    monkeypatch.setattr(Hungry, "limit", limit)
    got = own.at(network(), "0", samples())
    torch.testing.assert_close(got, wanted("0"))
    fits = next(size for size in (128, 64, 32, 16, 8, 4, 2, 1) if size <= limit)
    assert own.notes == [f"out of memory: activations of A at '0' on images were computed {fits} images at a time"]
    tried = [CHUNK]
    while tried[-1] > fits:
        tried.append(tried[-1] // 2)
    assert seen()[: len(tried)] == tried
    assert max(seen()[len(tried) :]) <= fits, "what was too much once is not tried again"


def test_what_may_differ_stays_with_who_computed_it_and_is_noted_each_time(tmp_path, monkeypatch):
    folder = folder_in(tmp_path)
    own = Activations(disk=folder)
    monkeypatch.setattr(Hungry, "limit", 100)
    first = own.at(network(), "0", samples())
    own.at(network(), "1", samples())
    assert kept(folder) == []
    for cut in ("0", "1"):
        assert len(own.notes) == 1
        own.notes.clear()
        own.at(network(), cut, samples())
    assert own.at(network(), "0", samples()) is first
    monkeypatch.setattr(Hungry, "limit", N)
    other = Activations(disk=folder)
    assert tensor_bits(other.at(network(), "0", samples())) == tensor_bits(wanted("0"))
    assert other.notes == []
    assert [path.suffix for path in kept(folder)] == [".safetensors"]


def test_not_even_one_image(monkeypatch):
    monkeypatch.setattr(Hungry, "limit", 0)
    said = "out of memory: the activations of A at '0' on images cannot be computed, even one image at a time"
    with pytest.raises(FitError, match=said):
        Activations().at(network(), "0", samples())


def test_other_errors_are_not_tried_again(monkeypatch):
    monkeypatch.setattr(Hungry, "limit", 100)
    monkeypatch.setattr(Hungry, "refusal", OTHERS[0])
    seen().clear()
    with pytest.raises(RuntimeError, match="mat1"):
        Activations().at(network(), "0", samples())
    assert seen() == [CHUNK]


# --- tensors that do not fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("how", ["none is free", "torch refuses"])
def test_what_memory_cannot_hold_goes_to_a_file_without_a_name(tmp_path, monkeypatch, shared, how):
    folder = folder_in(tmp_path)
    folder.budget = 10_000  # too little to keep it
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if how == "none is free":
        monkeypatch.setattr(memory, "available_memory", lambda: 100)
    else:
        monkeypatch.setattr(torch, "empty", lambda *_, **__: (_ for _ in ()).throw(REFUSALS[0]))
    own = Activations(disk=folder if shared else None)
    got = own.at(network(), "0", samples())
    monkeypatch.undo()
    assert tensor_bits(got) == tensor_bits(wanted("0"))
    assert own.notes[-1] == f"out of memory: activations of A at '0' on images (19 kB) were put into {tmp_path}"
    assert len(own.notes) == 1
    assert list(tmp_path.iterdir()) == []
    got.zero_()
    assert tensor_bits(own.at(network(), "0", samples())) == tensor_bits(wanted("0"))


def test_where_neither_memory_nor_disk_has_room(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 100)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    said = re.escape(
        f"activations of A at '0' on images take 19 kB, and {tmp_path}/nowhere cannot be written to (No such"
    )
    with pytest.raises(FitError, match=said):
        Activations().at(network(), "0", samples())


class Rows:
    rows = 3

    def __iter__(self):
        yield torch.ones(2, 4)
        raise OSError(errno.EIO, "not the folder's")


def test_what_the_rows_raise_is_not_the_folder_s(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 0)
    with pytest.raises(OSError, match="not the folder's"):
        gathered(Rows(), tmp_path)
    with pytest.raises(NoRoomError, match="No such file"):
        gathered(Rows(), tmp_path / "nowhere")


def test_a_disk_that_fills_while_rows_are_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(memory, "available_memory", lambda: 0)
    monkeypatch.setattr("suture.core.activations.tensor_file._put", full)
    with pytest.raises(NoRoomError, match="No space left"):
        gathered(Rows(), tmp_path)


def test_a_file_larger_than_memory_can_be_mapped(tmp_path):
    rows = 2 * physical_memory() // 2**20
    with open(tmp_path / "large", "w+b") as file:
        monkey = pytest.MonkeyPatch()
        with monkey.context() as patched:
            patched.setattr(
                "suture.core.activations.tensor_file._allocate", lambda descriptor, size: os.truncate(descriptor, size)
            )
            writer = TensorWriter(file.fileno(), (rows, 2**20), torch.uint8)
        writer.finish()
        tensor = mapped(file.fileno())
    tensor[-1, -3:] += 5
    assert tensor[-1, -5:].tolist() == [0, 0, 5, 5, 5]


def test_a_file_is_torn_until_it_is_finished(tmp_path):
    with open(tmp_path / "file", "w+b") as file:
        writer = TensorWriter(file.fileno(), (2, 3), torch.float32)
        writer.add(torch.ones(2, 3))
        with pytest.raises(TornError, match="header"):
            mapped(file.fileno())
        writer.finish()
        assert mapped(file.fileno()).tolist() == [[1.0] * 3] * 2


def test_the_memory_that_is_available():
    assert 0 < available_memory() <= physical_memory()


SCARCE = """
import resource, torch
from torch import nn
from suture import Network, Samples
from suture.core.activations.cache import Activations

class Wide(nn.Module):
    def forward(self, x):
        return (x.flatten(1) @ torch.ones(16, 2**20)).amax(1, keepdim=True).expand(-1, 16)

torch.set_num_threads(1)
images = torch.rand(300, 1, 4, 4)
samples = Samples("images", images, torch.arange(300) % 3, tuple("abc"))
network = Network(nn.Sequential(Wide(), nn.Linear(16, 3)), example=images[:3], name="A", stages="01")
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 500 * 2**20, resource.RLIM_INFINITY))
own = Activations()
got = own.at(network, "0", samples)
assert torch.allclose(got, images.sum((1, 2, 3))[:, None].expand(-1, 16), rtol=1e-4)
print(own.notes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
def test_memory_that_really_runs_out():
    done = subprocess.run([sys.executable, "-c", SCARCE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "out of memory: activations of A at '0' on images were computed 64 images at a time" in done.stdout
