"""Activations on disk, for all processes of a machine: a cache in a folder, bounded in bytes.

Every tensor is a file named by its key, and by the machine and the torch that computed it, since bits may depend on
these. It appears whole or not at all, and who finds it maps it (see ``tensorfiles``). A lock per key, of the operating
system, makes others wait for who is computing it; it ends with the process that holds it, however that ends, and what
that process had begun to write is swept away by the next that needs room. Nobody holds two keys but in falling order
of the cut, so nobody waits for somebody who waits for them.

The budget bounds the files that have names, drafts included. What was used longest ago goes first; who has it mapped
keeps it until the tensor goes.
"""

import errno
import os
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Protocol, TypeVar, final

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from suture.common.atomic import draft, publish
from suture.common.processor import processor
from suture.common.seeds import digest
from suture.common.sizes import in_words
from suture.core.activations.memory import Chunks, NoRoomError, refusals
from suture.core.activations.tensor_file import TensorWriter, TornError, file_size, intact, mapped

_SUFFIX, _LOCK = ".activations.safetensors", ".activations.lock"  # other files in the folder are not its own
_FULL = (errno.ENOSPC, errno.EDQUOT)
Written = TypeVar("Written")
_POLL = 0.01  #: seconds between two looks at a lock that somebody else holds


class OverBudgetError(NoRoomError):
    """There is no room for a tensor within the budget, or not while others are writing."""


class Draft(Chunks, Protocol):
    """Rows of which one knows, once all are there, whether they are what every process would have computed."""

    @property
    def exact(self) -> bool:
        """Whether others may use them."""


@final
class ActivationFolder:
    """Tensors by key in a folder that processes share; ``budget`` is in bytes.

    The folder is made when something is first kept. Whatever else lies in it is left alone.
    """

    def __init__(self, path: str | Path, budget: int) -> None:
        self.path = Path(path)
        self.budget = budget

    def find(self, key: str) -> Tensor | None:
        """Map a tensor, ``None`` where it is not here. A torn file, as a power loss may leave, is removed."""
        path = self._file(key)
        try:
            with open(path, "rb") as file:
                with suppress(OSError):
                    os.utime(file.fileno())
                return mapped(file.fileno())
        except TornError:
            with suppress(OSError):
                path.unlink()
        except OSError:
            pass
        return None

    def awaited(self, key: str) -> Tensor | None:
        """Find a tensor, after waiting for whoever is computing it now."""
        found = self.find(key)
        if found is not None or not self._lock_file(_stem(key)).exists():
            return found
        with suppress(NoRoomError), self.alone(key):
            pass
        return self.find(key)

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Keep every other process and thread out of this key. Raises ``NoRoomError`` where there are no locks."""
        with self._locked(_stem(key)):
            yield

    def write(self, key: str, chunks: Draft) -> Tensor:
        """Write a tensor and map it, while ``alone``; it is kept for others if it is exact.

        At no time is more than one chunk in RAM. Raises ``NoRoomError`` where the folder refuses it,
        ``OverBudgetError`` where the budget does, and whatever the chunks raise.
        """
        path, writer = self._file(key), None
        for left in self.path.glob(f".{path.name}.*"):  # by somebody who was killed: the key is ours
            left.unlink(missing_ok=True)
        with draft(path) as temporary:
            descriptor = -1
            try:
                for chunk in chunks:
                    with refusals(self.path):
                        if writer is None:
                            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
                            writer = self._begin(descriptor, (chunks.rows, *chunk.shape[1:]), chunk.dtype)
                        self._insist(partial(writer.add, chunk), chunk.nbytes)
                assert writer is not None
                with refusals(self.path):
                    writer.finish()
                    tensor = mapped(descriptor)
                    if chunks.exact:
                        publish(temporary, path)
                return tensor
            finally:
                if descriptor >= 0:
                    os.close(descriptor)

    def check(self) -> list[str]:
        """Give the names of the files that are torn, or altered since they were written."""
        wrong = []
        for path in sorted(self.path.glob(f"*{_SUFFIX}")):
            with suppress(FileNotFoundError):
                if not intact(path):
                    wrong.append(path.name)
        return wrong

    def clear(self) -> None:
        """Remove all but what some process is writing now."""
        with suppress(NoRoomError), self._locked("room"):
            self._sweep()
            for _, _, path in self._files():
                path.unlink(missing_ok=True)
            for path in self.path.glob(f"*{_LOCK}"):
                with suppress(Timeout), self._locked(path.name.removesuffix(_LOCK), wait=False):
                    pass

    def _begin(self, descriptor: int, shape: tuple[int, ...], dtype: torch.dtype) -> TensorWriter:
        """Take the room for a tensor, from what was used longest ago where it must be."""
        needed = file_size(shape, dtype)
        with self._locked("room"):
            self._make_room(needed)
            return self._insist(lambda: TensorWriter(descriptor, shape, dtype), needed)

    def _insist(self, write: Callable[[], Written], needed: int) -> Written:
        """Write; where the disk is full, remove what was used longest ago and write again."""
        try:
            return write()
        except OSError as error:
            if error.errno not in _FULL:
                raise
        self._free(needed)
        return write()

    def _make_room(self, needed: int) -> None:
        """Remove what was used longest ago until ``needed`` bytes more are within the budget."""
        self._sweep()
        if needed <= self.budget:
            self._free(self._held() + needed - self.budget)
        if self._held() + needed > self.budget:
            raise OverBudgetError(f"{in_words(needed)} do not fit into the {in_words(self.budget)} of {self.path}")

    def _free(self, wanted: int) -> None:
        for _, size, path in self._files():
            if wanted <= 0:
                return
            with suppress(OSError):
                path.unlink(missing_ok=True)
                wanted -= size

    def _held(self) -> int:
        return sum(size for _, size, _ in (*self._files(), *_listed(self._drafts())))

    def _files(self) -> list[tuple[int, int, Path]]:
        """Every tensor that is kept, used longest ago first: when it was used, its size, its file."""
        return sorted(_listed(self.path.glob(f"*{_SUFFIX}")))

    def _drafts(self) -> Iterator[Path]:
        return self.path.glob(f".*{_SUFFIX}.*.part")

    def _sweep(self) -> None:
        """Remove the drafts of those who died: nobody holds their locks."""
        for path in self._drafts():
            with suppress(Timeout, NoRoomError, OSError), self._locked(path.name.split(".")[1], wait=False):
                path.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.path / f"{_stem(key)}{_SUFFIX}"

    def _lock_file(self, name: str) -> Path:
        return self.path / f"{name}{_LOCK}"

    @contextmanager
    def _locked(self, name: str, wait: bool = True) -> Iterator[None]:
        with refusals(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._lock_file(name), poll_interval=_POLL, fallback_to_soft=False)
            lock.acquire(blocking=wait)
        try:
            yield
        finally:
            with suppress(OSError):
                self._lock_file(name).unlink()  # while it is held: who waits for it sees that, and looks again
            with suppress(OSError):
                lock.release()


def _listed(paths: Iterable[Path]) -> Iterator[tuple[int, int, Path]]:
    """When each file was used, its size, and the file."""
    for path in paths:
        with suppress(OSError):  # another process may just have removed it
            status = path.stat()
            yield status.st_mtime_ns, status.st_size, path


def _stem(key: str) -> str:
    return f"{key}-{_machine()}"


@cache
def _machine() -> str:
    """What the bits of a result may depend on besides its key."""
    return digest(torch.__version__, platform.machine(), processor())[:12]
