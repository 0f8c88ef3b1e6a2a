"""Memory that runs out: how it shows, and what is done where a tensor does not fit.

Linux promises more memory than there is and kills who takes it, so a tensor that would not fit is refused here before
it is asked for. A tensor that is refused is put into an unnamed file, mapped into memory, which goes with the tensor.
"""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from math import prod
from pathlib import Path
from typing import Protocol

import torch
from filelock import Timeout
from torch import Tensor

from suture.common.sizes import physical_memory
from suture.core.activations.tensor_file import TensorWriter, mapped

_SAID = ("can't allocate memory", "cannot allocate memory", "not enough memory", "out of memory", "alloc_failed")


class NoRoomError(Exception):
    """A folder does not take a tensor; says why."""


@contextmanager
def refusals(folder: Path) -> Iterator[None]:
    """Raise ``NoRoomError`` for what a folder may refuse; a ``Timeout`` says that somebody else holds a lock."""
    try:
        yield
    except Timeout:
        raise
    except (OSError, NotImplementedError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise NoRoomError(f"{folder} cannot be written to ({reason or error})") from error


class Chunks(Protocol):
    """The rows of a tensor, a few at a time."""

    @property
    def rows(self) -> int:
        """How many rows there are in all, at least one."""

    def __iter__(self) -> Iterator[Tensor]: ...


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)


def available_memory() -> int:
    """The bytes of RAM that this process may still take without driving others out, as far as the system says."""
    total = physical_memory()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return max(0, min(free["MemAvailable"], total - held))
    except (OSError, KeyError, ValueError, IndexError):
        return total


def gathered(chunks: Chunks, folder: Path) -> tuple[Tensor, bool]:
    """Put rows together in RAM or, where that is refused, in an unnamed file in the folder; also whether in the file.

    Raises ``NoRoomError`` where the folder has no room either, and whatever the chunks raise.
    """
    rest = iter(chunks)
    first = next(rest)
    shape = (chunks.rows, *first.shape[1:])
    out = _empty(shape, first.dtype)
    if out is None:
        return _in_file(chain((first,), rest), shape, first.dtype, folder), True
    done = 0
    for chunk in chain((first,), rest):
        out[done : done + len(chunk)] = chunk
        done += len(chunk)
    return out, False


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    """A new tensor in RAM, ``None`` where that is refused."""
    if prod(shape) * dtype.itemsize > available_memory():
        return None
    try:
        return torch.empty(shape, dtype=dtype)
    except Exception as error:
        if not out_of_memory(error):
            raise
        return None


def _in_file(chunks: Iterator[Tensor], shape: tuple[int, ...], dtype: torch.dtype, folder: Path) -> Tensor:
    with ExitStack() as stack:
        with refusals(folder):
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder, buffering=0))
            writer = TensorWriter(file.fileno(), shape, dtype)
        for chunk in chunks:
            with refusals(folder):
                writer.add(chunk)
        with refusals(folder):
            writer.finish()
            return mapped(file.fileno())
