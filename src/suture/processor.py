"""The processor of this machine: on another one the last digits of a result may differ."""

import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch


@cache
def processor() -> str:
    """The processor's name, and the widest vectors that PyTorch uses on it: ``AMD EPYC (AVX2)``."""
    return f"{_name()} ({torch.backends.cpu.get_cpu_capability()})"


def _name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"
