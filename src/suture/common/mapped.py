"""Large tensors in files mapped into memory, so that only the parts being read occupy RAM.

Such a file has no name any more once it is mapped: the system removes it with the last tensor that lies in it, however
the process ends. It lies in the folder that ``TMPDIR`` names, else in ``/var/tmp``, because ``/tmp`` is often memory.
"""

import ctypes
import hashlib
import json
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from suture.common.errors import DataError
from suture.common.sealed import SEAL
from suture.common.sizes import free_disk, in_words

LARGE = 2**28  #: bytes from which on a tensor gets a file; CIFAR-10 in bytes (154 MB) stays in RAM
ROWS = 256  #: copied at once
_ALIGNED = 64  #: bytes; torch's own tensors begin at such addresses, and the bits of a product may depend on it
_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.uint8: "U8",
}


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Return a tensor to be filled: in RAM or, if it is ``LARGE``, in a file of its own.

    Raises ``DataError`` if the disk has no room for it.
    """
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < LARGE or torch.device(device).type != "cpu":
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    folder = os.environ.get("TMPDIR") or ("/var/tmp" if os.path.isdir("/var/tmp") else tempfile.gettempdir())
    try:
        handle, path = tempfile.mkstemp(prefix="suture-", dir=folder)
        try:
            if hasattr(os, "posix_fallocate"):  # so that a full disk is known before any work; not on macOS
                os.posix_fallocate(handle, 0, nbytes)
            else:
                os.ftruncate(handle, nbytes)
            found = torch.from_file(path, shared=True, size=prod(shape), dtype=dtype)
        finally:
            os.close(handle)
            os.unlink(path)
    except OSError as error:
        raise DataError(
            f"data of {in_words(nbytes)} do not fit into {folder} ({error.strerror}; {in_words(free_disk(folder))} are "
            "free); free some, or name a folder on another disk in the environment variable TMPDIR"
        ) from error
    return found.view(tuple(shape))


def header(name: str, shape: Sequence[int], dtype: torch.dtype, **metadata: str) -> bytes:
    """Return the header of a safetensors file of one tensor; its length depends on that of the metadata alone.

    Raises ``NotImplementedError`` for a type that such files do not have.
    """
    if dtype not in _TYPES:
        raise NotImplementedError(f"tensors of {dtype} cannot be written to a file")
    tensor = {"dtype": _TYPES[dtype], "shape": tuple(shape), "data_offsets": [0, prod(shape) * dtype.itemsize]}
    text = json.dumps({"__metadata__": metadata, name: tensor}).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def save_sealed(path: Path, name: str, tensor: Tensor) -> None:
    """Write a tensor to a sealed safetensors file, a few rows at a time."""
    begin, sha = header(name, tensor.shape, tensor.dtype, **SEAL), hashlib.sha256()
    sha.update(begin)
    with open(path, "wb") as file:
        file.write(begin)
        for part in pieces(tensor):
            content = part.cpu().contiguous().view(-1).view(torch.uint8).numpy().data
            sha.update(content)
            file.write(content)
        file.seek(begin.index(b"sha256:") + len(b"sha256:"))
        file.write(sha.hexdigest().encode())


def load_mapped(path: Path, name: str) -> Tensor:
    """Map the only tensor of a safetensors file; changes of the tensor do not reach the file.

    Raises ``ValueError`` or ``LookupError`` if the file is not such a file.
    """
    with open(path, "rb") as file:
        begin = 8 + int.from_bytes(file.read(8), "little")
        found = json.loads(file.read(begin - 8))[name]
    dtype, shape = {name: dtype for dtype, name in _TYPES.items()}[found["dtype"]], tuple(found["shape"])
    end = begin + prod(shape) * dtype.itemsize
    if path.stat().st_size != end:
        raise ValueError(f"{path} does not have the size that its header gives")
    return torch.from_file(str(path), shared=False, size=end, dtype=torch.uint8)[begin:].view(dtype).view(shape)


def is_mapped(tensor: Tensor) -> bool:
    """Return whether a tensor lies in a file that was mapped here."""
    return tensor.device.type == "cpu" and tensor.untyped_storage().filename is not None


def pieces(tensor: Tensor, rows: int = ROWS) -> Iterator[Tensor]:
    """Yield the rows of a tensor, so many at a time; those of a file leave the RAM again."""
    for part in torch.split(tensor.detach(), rows):
        yield part
        release(part)


def fill(tensor: Tensor, parts: Iterable[Tensor]) -> Tensor:
    """Fill the rows of a tensor, from the first on, with parts that come one after the other, and return it."""
    done = 0
    for part in parts:
        place = tensor[done : done + len(part)]
        place.copy_(part.detach())
        release(place)
        done += len(part)
    return tensor


def take(tensor: Tensor, indices: Tensor) -> Tensor:
    """Return the rows at ``indices``, (M,) int64, in that order, where ``empty`` puts them."""

    def parts() -> Iterator[Tensor]:
        for some in torch.split(indices, ROWS):
            yield tensor[some]
            release(tensor)

    return fill(empty((len(indices), *tensor.shape[1:]), tensor.dtype, tensor.device), parts())


def join(first: Tensor, second: Tensor) -> Tensor:
    """Return the rows of two tensors, one behind the other, where ``empty`` puts them."""
    shape = (len(first) + len(second), *first.shape[1:])
    return fill(empty(shape, first.dtype, first.device), chain(pieces(first), pieces(second)))


def release(tensor: Tensor) -> None:
    """Let the system take back the RAM of a mapped tensor, whose values stay in its file."""
    if tensor.nbytes and is_mapped(tensor):
        start = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        with suppress(AttributeError):  # not on every system
            madvise = ctypes.CDLL(None).madvise
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(tensor.data_ptr() + tensor.nbytes - start), 4)  # DONTNEED
