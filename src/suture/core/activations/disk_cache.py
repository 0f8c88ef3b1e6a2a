"""Activations on disk, for all processes of a machine: a cache in a folder, bounded in bytes.

Every tensor is a safetensors file, named by its key and by the machine and the torch that computed it, because its bits
may depend on these. It is written a few rows at a time, and renamed once it is whole: no reader sees a part of it.
Readers map it into memory, so that the pages of the file serve all processes; the mapping is private, so changing such
a tensor changes neither the file nor what others see. A lock per key, of the operating system, makes others wait for
the process that computes it, and ends with that process. There can be no deadlock: a process that holds the lock of a
cut waits for locks of earlier cuts only.

The header has a hash of the content, which a process compares before it first uses a file: one that is damaged is
removed, and computed again.

The budget bounds the files, those that are being written included. The least recently used file is removed first; a
process that has it mapped keeps it.
"""

import hashlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from itertools import chain
from math import prod
from pathlib import Path
from typing import final

import torch
from filelock import FileLock, Timeout
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from suture.common.atomic import draft, publish
from suture.common.constants import ACTIVATIONS as SUFFIX
from suture.common.mapped import header
from suture.common.processor import processor
from suture.common.seeds import digest
from suture.common.sizes import free_disk, parse_size

_LOCK = ".activations.lock"
_POLL = 0.01  #: seconds between two looks at a lock that is taken


def disk_budget(asked: int | str | None, folder: Path) -> int:
    """Return the bytes that activations may take in a folder: by default half of the free disk, at most 50 GB."""
    return parse_size(asked) if asked is not None else min(free_disk(folder) // 2, 50 * 10**9)


class NoRoomError(Exception):
    """The folder does not take a tensor; says why."""


@final
class ActivationFolder:
    """Tensors by key in a folder that processes share; ``budget`` is in bytes.

    The folder is made when something is first kept. Whatever else lies in it is left alone.
    """

    def __init__(self, path: str | Path, budget: int) -> None:
        self.path = Path(path)
        self.budget = budget

    def find(self, key: str, wait: bool = False) -> Tensor | None:
        """Map a tensor; ``None`` if it is not here. With ``wait``, wait first for a process that is computing it now.

        A damaged file is removed.
        """
        path = self._file(key)
        if wait and not path.exists() and self._lock_file(path.name).exists():
            with suppress(NoRoomError), self._locked(path.name):
                pass
        with suppress(OSError):
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
            if _is_sound(path):
                return load_file(path)["activations"]
            path.unlink()
        return None

    def get(self, key: str, rows: int, compute: Callable[[], Iterator[Tensor]]) -> Tensor | None:
        """Map a tensor of so many rows; if it is not here, write the chunks of ``compute`` under a lock.

        Gives ``None`` if the budget has no room for it. At no time is more than one chunk in RAM. Raises
        ``NoRoomError`` if the folder refuses it, and whatever computing raises.
        """
        path = self._file(key)
        if (found := self.find(key)) is not None:
            return found
        with self._locked(path.name):
            if (found := self.find(key)) is not None:
                return found
            for left in self.path.glob(f".{path.name}.*"):  # by a process that was killed: the key is ours
                left.unlink(missing_ok=True)
            chunks = compute()
            first = next(chunks)
            shape, dtype = (rows, *first.shape[1:]), first.dtype
            content = _begin_hash(path, shape, dtype)
            with draft(path) as temporary:
                with _refusals(self.path):
                    begin = header("activations", shape, dtype, sha256=content.hexdigest())
                    if not self._take_room(temporary, len(begin) + prod(shape) * dtype.itemsize):
                        return None
                with open(temporary, "r+b") as file:
                    file.seek(len(begin))
                    for chunk in chain([first], chunks):  # what the network raises here is not the folder's
                        data = chunk.contiguous().view(-1).view(torch.uint8).numpy().data
                        content.update(data)
                        with _refusals(self.path):
                            file.write(data)
                            file.flush()
                    file.seek(0)
                    file.write(header("activations", shape, dtype, sha256=content.hexdigest()))
                with _refusals(self.path):
                    publish(temporary, path)
            _SOUND.add(_state(path))
            return load_file(path)["activations"]

    def check(self) -> list[str]:
        """Return the names of the files that are damaged, or were changed after they were written."""
        paths = sorted(self.path.glob(f"*{SUFFIX}"))
        with ThreadPoolExecutor() as pool:  # to hash sets the other threads free
            return [path.name for path, sound in zip(paths, pool.map(_is_sound, paths), strict=True) if not sound]

    def clear(self) -> None:
        """Remove everything except the files that a process is writing now."""
        with suppress(NoRoomError), self._locked("room"):
            self._remove_dead_drafts()
            for _, _, path in _oldest_first(self.path.glob(f"*{SUFFIX}")):
                path.unlink(missing_ok=True)
            for path in self.path.glob(f"*{_LOCK}"):  # of processes that were killed
                with suppress(Timeout), self._locked(path.name.removesuffix(_LOCK), wait=False):
                    pass

    def _take_room(self, temporary: Path, needed: int) -> bool:
        """Reserve the disk space for a draft at once, so that a full disk is known before any work.

        The least recently used files are removed to stay within the budget. Says whether the draft is within it.
        """
        with self._locked("room"):
            self._remove_dead_drafts()
            files = _oldest_first(self.path.glob(f"*{SUFFIX}"))
            drafts = _oldest_first(self.path.glob(f".*{SUFFIX}.*.part"))
            excess = sum(size for _, size, _ in (*files, *drafts)) + needed - self.budget
            if needed > self.budget or excess > sum(size for _, size, _ in files):
                return False
            for _, size, path in files:
                if excess > 0:
                    path.unlink(missing_ok=True)
                    excess -= size
            with open(temporary, "xb") as file:
                if hasattr(os, "posix_fallocate"):  # not on macOS
                    os.posix_fallocate(file.fileno(), 0, needed)
                else:
                    file.truncate(needed)
        return True

    def _remove_dead_drafts(self) -> None:
        """Remove the unfinished files of killed processes: the locks of these keys are free."""
        for path in self.path.glob(f".*{SUFFIX}.*.part"):
            with suppress(Timeout, NoRoomError, OSError), self._locked(path.name[1:].split(SUFFIX)[0], wait=False):
                path.unlink(missing_ok=True)

    def _file(self, key: str) -> Path:
        return self.path / f"{key}-{_machine()}{SUFFIX}"

    def _lock_file(self, name: str) -> Path:
        return self.path / f"{name.removesuffix(SUFFIX)}{_LOCK}"

    @contextmanager
    def _locked(self, name: str, wait: bool = True) -> Iterator[None]:
        """Keep every other process and thread out. Raises ``NoRoomError`` if there can be no locks here."""
        with _refusals(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self._lock_file(name), poll_interval=_POLL, fallback_to_soft=False)
            lock.acquire(blocking=wait)
        try:
            yield
        finally:
            with suppress(OSError):
                self._lock_file(name).unlink()  # while it is held: those who wait for it see that, and look again
            with suppress(OSError):
                lock.release()


_SOUND: set[tuple[Path, int, int, int]] = set()  # what this process wrote, or has compared with its hash


def _is_sound(path: Path) -> bool:
    """Return whether a file still holds the content that was written, or is gone; it is read only if it has changed."""
    try:
        if (state := _state(path)) in _SOUND:
            return True
        with safe_open(path, "pt") as file:
            written = file.metadata()["sha256"]
        tensor = load_file(path)["activations"]
        content = _begin_hash(path, tuple(tensor.shape), tensor.dtype)
        content.update(tensor.view(-1).view(torch.uint8).numpy().data)
    except FileNotFoundError:  # another process just removed it, to make room
        return True
    except OSError:
        raise
    except Exception:  # a damaged file fails wherever the damage is
        return False
    if content.hexdigest() == written:
        _SOUND.add(state)
        return True
    return False


def _state(path: Path) -> tuple[Path, int, int, int]:
    found = path.stat()
    return path, found.st_ino, found.st_size, found.st_mtime_ns


def _begin_hash(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> "hashlib._Hash":
    """Begin the hash of a file's content. It includes the name, so a copy under another name does not pass."""
    return hashlib.sha256(f"{path.name} {shape} {dtype}".encode())


@contextmanager
def _refusals(folder: Path) -> Iterator[None]:
    """Raise ``NoRoomError`` if the folder refuses to be written to; a ``Timeout`` means a lock is held."""
    try:
        yield
    except Timeout:
        raise
    except (OSError, NotImplementedError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise NoRoomError(f"{folder} cannot be written to ({reason or error})") from error


def _oldest_first(paths: Iterable[Path]) -> list[tuple[int, int, Path]]:
    """Return the last use of each file, by its time of access, its size, and the file; the oldest first."""
    found = []
    for path in paths:
        with suppress(FileNotFoundError):  # another process may just have removed it
            status = path.stat()
            found.append((status.st_atime_ns, status.st_size, path))
    return sorted(found)


@cache
def _machine() -> str:
    """Return a digest of the software and processor, on which the bits of a result may depend besides its key."""
    return digest(torch.__version__, platform.machine(), processor())[:12]
