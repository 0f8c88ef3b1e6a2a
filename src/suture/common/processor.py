"""The processor of this machine and its instruction set: on another one the last digits of a result may differ."""

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

_CHOOSING = ("ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_CBWR")


@cache
def processor() -> str:
    """Return the processor's name, and the widest vectors that PyTorch uses on it: ``AMD EPYC (AVX2)``.

    Environment variables by which libraries choose other kernels are named, too.
    """
    chosen = [f"{name}={os.environ[name]}" for name in _CHOOSING if name in os.environ]
    return f"{_name()} ({', '.join([torch.backends.cpu.get_cpu_capability(), *chosen])})"


def _name() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown"


def half_precision(device: torch.device) -> torch.dtype | None:
    """Return the type of 16 bits that a device computes in faster than in float32; ``None`` if it has none."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else None
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # there is no public way to ask
    there = any(getattr(torch.cpu, check, lambda: False)() for check in checks)
    return torch.bfloat16 if device.type == "cpu" and there else None
