"""One tensor in a safetensors file: written a few rows at a time, and read by mapping the file into memory.

Neither takes RAM that the machine could not take back: what is written goes to the file at once, and what is mapped are
pages of the file, which all processes of a machine share. A mapping is private: who writes to such a tensor gets pages
of their own, and neither the file nor anybody else sees it. A file that is unlinked stays readable where it is mapped.

The mapping asks for no reserve of RAM (``MAP_NORESERVE``), without which Linux refuses to map, writable, a file that is
larger than its memory; this is why the header is read here, and not by the safetensors library.
"""

import errno
import hashlib
import json
import mmap
import os
from math import prod
from pathlib import Path
from typing import final

import torch
from torch import Tensor

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_BY_NAME = {name: dtype for dtype, name in TYPES.items()}
_TENSOR = "activations"
_ALIGNED = 64  #: bytes; torch's own tensors begin at such addresses, and the bits of a product may depend on it
_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_NO_ALLOCATION = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class TornError(ValueError):
    """A file that is not what its header says."""


@final
class TensorWriter:
    """Writes a tensor of known shape, from its first row to its last, to an empty file that is open for writing.

    Room for all of it is taken at once. Raises ``OSError`` where there is none, ``TypeError`` for a type of number that
    has no name in safetensors.
    """

    def __init__(self, descriptor: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self._descriptor, self._shape, self._dtype = descriptor, shape, dtype
        self._content = hashlib.sha256()
        self._end = len(_header(shape, dtype, "0" * 64))
        _allocate(descriptor, file_size(shape, dtype))

    def add(self, rows: Tensor) -> None:
        """Write the next rows. Where that fails they can be written again."""
        data = memoryview(rows.detach().contiguous().view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        _put(self._descriptor, data, self._end)
        self._content.update(data)
        self._end += len(data)

    def finish(self) -> None:
        """Write the header, with a hash of the rows; before this the file is torn."""
        _put(self._descriptor, memoryview(_header(self._shape, self._dtype, self._content.hexdigest())), 0)


def file_size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The bytes of the file of a tensor."""
    return len(_header(shape, dtype, "0" * 64)) + prod(shape) * dtype.itemsize


def mapped(descriptor: int) -> Tensor:
    """Map the tensor of an open file. Raises ``TornError`` unless the file is as long as its header says."""
    start, shape, dtype, _ = _description(descriptor)
    size = start + prod(shape) * dtype.itemsize
    if hasattr(mmap, "MAP_PRIVATE"):
        flags, readable = mmap.MAP_PRIVATE | _NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        pages = mmap.mmap(descriptor, size, flags=flags, prot=readable)
    else:
        pages = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    return torch.frombuffer(pages, dtype=dtype, count=prod(shape), offset=start).view(shape)


def intact(path: Path) -> bool:
    """Whether a file holds what was once written, by the hash in its header."""
    with open(path, "rb") as file:
        try:
            start, _, _, content = _description(file.fileno())
        except TornError:
            return False
        file.seek(start)
        return hashlib.file_digest(file, "sha256").hexdigest() == content


def _header(shape: tuple[int, ...], dtype: torch.dtype, content: str) -> bytes:
    """The length of the description and the description, blanks after it: as long whatever the hash is."""
    if dtype not in TYPES:
        raise TypeError(f"tensors of {dtype} cannot be written to a file")
    tensor = {"dtype": TYPES[dtype], "shape": shape, "data_offsets": [0, prod(shape) * dtype.itemsize]}
    text = json.dumps({"__metadata__": {"sha256": content}, _TENSOR: tensor}).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def _description(descriptor: int) -> tuple[int, tuple[int, ...], torch.dtype, str]:
    """Where the rows begin, their shape and type, and the hash of them."""
    size = os.fstat(descriptor).st_size
    try:
        length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
        if not 0 < length <= size - 8:
            raise ValueError("a header longer than the file")
        header = json.loads(os.pread(descriptor, length, 8))
        tensor, content = header[_TENSOR], str(header["__metadata__"]["sha256"])
        shape, dtype = tuple(map(int, tensor["shape"])), _BY_NAME[tensor["dtype"]]
    except (ValueError, KeyError, TypeError) as error:
        raise TornError(f"its header cannot be read: {error}") from error
    if size != 8 + length + prod(shape) * dtype.itemsize:
        raise TornError(f"it has {size:,} bytes, not what its header says")
    return 8 + length, shape, dtype, content


def _allocate(descriptor: int, size: int) -> None:
    """Take the room that a file will need, where the system can, so that a full disk is known before any work."""
    if not hasattr(os, "posix_fallocate"):
        os.truncate(descriptor, size)
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NO_ALLOCATION:
            raise
        os.truncate(descriptor, size)


def _put(descriptor: int, data: memoryview, offset: int) -> None:
    while len(data):
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
