"""Measure the machine: its peak with one thread, and the cost of a piece of work.

Peaks are of matrix products, and of convolutions in the shapes of networks, in billions of floating-point operations
per second, a multiply-add counting two, the best of several runs; in float32, and in bfloat16, which few processors
compute natively.

Memory is the most that the process held. On Linux the system's own peak of the resident set (``VmHWM``) is reset before
each piece of work, so it includes torch and mapped files. Elsewhere only the peak since the process began is known.
"""

import ctypes
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from suture.common.seeds import undisturbed
from suture.core.network.network import Network

SIDE = 1024  #: of the square matrices
BATCH = 64  #: images of a convolution
SHAPES = 6  #: the most shapes of convolutions that are measured
_SECONDS = 0.3  #: that a measurement takes, at least two runs
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Peaks:
    """GFLOP/s with one thread, by type: of products 1024 × 1024 × 1024, and of 3×3 convolutions by shape.

    The shapes are those of maps, as in ``16×32×32``; a convolution has as many outputs as inputs.
    """

    products: dict[str, float]
    convolutions: dict[str, dict[str, float]]

    def convolution(self, kind: str) -> float | None:
        """Return the best of all shapes for a type; ``None`` if the networks have no maps."""
        return max((shape[kind] for shape in self.convolutions.values()), default=None)


def measure_peaks(networks: Iterable[Network]) -> Peaks:
    """Measure the machine, with convolutions in the shapes of the networks' cuts; takes some seconds."""
    with undisturbed(), torch.inference_mode():
        products = {name: _product(kind) for name, kind in _TYPES.items()}
        convolutions = {
            "×".join(map(str, shape)): {name: _convolution(shape, kind) for name, kind in _TYPES.items()}
            for shape in _shapes(networks)
        }
    return Peaks(products, convolutions)


def _shapes(networks: Iterable[Network]) -> list[tuple[int, int, int]]:
    """Return the shapes of maps at the cuts, the ``SHAPES`` that hold most work, larger maps first."""
    found = {cut.shape for network in networks for cut in network.cuts if len(cut.shape) == 3}
    shapes = [(shape[0], shape[1], shape[2]) for shape in found if min(shape[1:]) > 1]
    most = sorted(shapes, key=lambda shape: (-_operations(shape), shape))[:SHAPES]
    return sorted(most, key=lambda shape: (-shape[1], shape))


def _operations(shape: tuple[int, int, int]) -> int:
    """Return the operations of a 3×3 convolution for one image."""
    channels, height, width = shape
    return 2 * 9 * channels**2 * height * width


def _product(kind: torch.dtype) -> float:
    a, b = (torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(seed)).to(kind) for seed in (0, 1))
    return _rate(lambda: a @ b, 2 * SIDE**3)


def _convolution(shape: tuple[int, int, int], kind: torch.dtype) -> float:
    random = torch.Generator().manual_seed(0)
    images = torch.randn(BATCH, *shape, generator=random).to(kind, memory_format=torch.channels_last)
    weight = torch.randn(shape[0], shape[0], 3, 3, generator=random).to(kind, memory_format=torch.channels_last)
    return _rate(lambda: nn.functional.conv2d(images, weight, padding=1), BATCH * _operations(shape))


def _rate(work: Callable[[], Tensor], operations: int) -> float:
    """Return billions of operations per second of the fastest run; as many are made as fit into the time."""
    work()
    best, begun, runs = float("inf"), time.perf_counter(), 0
    while runs < 2 or time.perf_counter() - begun < _SECONDS:
        before = time.perf_counter()
        work()
        best, runs = min(best, time.perf_counter() - before), runs + 1
    return operations / best / 1e9


# --- what a piece of work takes -----------------------------------------------------------------------------------


@dataclass
class Spent:
    """CPU and wall seconds of the process, and bytes of memory at the worst moment."""

    cpu: float = 0.0
    wall: float = 0.0
    peak: int = 0
    since_start: bool = False  #: whether ``peak`` may be that of earlier work


@contextmanager
def spending() -> Iterator[Spent]:
    """Measure the work inside; the result is filled in at the end, also after an exception."""
    spent = Spent()
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # memory that earlier work freed would count as this work's
            ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        spent.since_start = True
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield spent
    finally:
        spent.cpu, spent.wall = time.process_time() - cpu, time.perf_counter() - wall
        spent.peak = _peak()


def _peak() -> int:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if os.name != "posix":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
