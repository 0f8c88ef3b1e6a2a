"""What a piece of work takes of the machine: CPU and wall seconds, and the most memory that the process held meanwhile.

On Linux the system's own peak of the resident set (``VmHWM``) is set back before each piece of work; it has all that
the process holds, torch and mapped files included. Elsewhere, or where that is not allowed, there is only the peak
since the process began, which later work cannot lower.
"""

import ctypes
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Spent:
    """Seconds of all of the process's CPU time and of wall time, and bytes of memory at the worst moment."""

    cpu: float = 0.0
    wall: float = 0.0
    peak: int = 0
    since_start: bool = False  #: whether ``peak`` may be that of earlier work


@contextmanager
def spending() -> Iterator[Spent]:
    """Measure what is done meanwhile; what is given is filled in the end, also where that is an exception."""
    spent = Spent()
    _let_go()
    spent.since_start = not _forget_peak()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        yield spent
    finally:
        spent.cpu, spent.wall = time.process_time() - cpu, time.perf_counter() - wall
        spent.peak = _peak()


def _let_go() -> None:
    """Give back what earlier work no longer uses, so that it does not count as the next one's."""
    gc.collect()
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def _forget_peak() -> bool:
    """Set the system's peak back to what is held now; whether it could be."""
    try:
        _RESET.write_text("5", encoding="utf-8")
    except OSError:
        return False
    return _STATUS.exists()


def _peak() -> int:
    with suppress(OSError):
        for line in _STATUS.read_text(encoding="utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if os.name != "posix":
        return 0
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
