"""Reproducibility: seeds derived from their purpose, and sums that one thread takes.

torch is imported where it is used: ``digest`` also serves commands that only read a run, which need not wait for it.
"""

import hashlib
import importlib
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

_state = random.getstate()
importlib.import_module("rich.style")  # draws from Python's generator when it is first imported, sooner or later
random.setstate(_state)


def digest(*parts: object) -> str:
    """Return a SHA-256 over the ``repr`` of the parts, in hexadecimal; whole numbers of NumPy's count as Python's."""
    return hashlib.sha256(repr(_as_python(parts)).encode()).hexdigest()


def _as_python(part: Any) -> Any:
    if isinstance(part, np.integer):
        return int(part)
    if type(part) in (list, tuple):
        return type(part)(map(_as_python, part))
    return {_as_python(key): _as_python(value) for key, value in part.items()} if type(part) is dict else part


def derive_seed(*parts: object) -> int:
    """Return a seed in [0, 2⁶³) that depends on the parts alone (their ``repr``), the same in every process."""
    return int(digest(*parts)[:16], 16) >> 1


def generator(*parts: object) -> "torch.Generator":
    """Return a CPU generator seeded by ``derive_seed``."""
    import torch

    return torch.Generator().manual_seed(derive_seed(*parts))


@contextmanager
def drawing(device: "torch.device", seed: int | None = None) -> Iterator[None]:
    """Allow draws from torch's global generators, of the CPU and this device; seed them first if a seed is given."""
    import torch

    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        if seed is not None:
            torch.manual_seed(seed)
        yield


_Switch = tuple[Callable[[], Any], Callable[[Any], object], Any]  # how to read it and to set it, and to what


def _attribute(thing: Any, name: str, wanted: object) -> _Switch:
    return partial(getattr, thing, name), partial(setattr, thing, name), wanted


@cache
def _list_switches() -> list[_Switch]:
    import torch

    on_cpu: Any = torch.backends.mkldnn
    on_gpu: Any = torch.backends.cudnn
    attention = torch.backends.cuda  # whose switches hold on the CPU, too
    convolutions = on_gpu.conv, on_gpu.rnn  # in TF32 on a GPU, unless torch is told otherwise
    products = (on_cpu.matmul, on_cpu.conv, on_cpu.rnn, torch.backends.cuda.matmul, *convolutions)  # may be lowered

    def has_tf32() -> bool:
        return any(product.fp32_precision == "tf32" for product in convolutions)

    return [
        (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
        (has_tf32, partial(setattr, on_gpu, "allow_tf32"), False),  # the older setting, which torch wants to agree
        *(_attribute(product, "fp32_precision", "ieee") for product in products),
        _attribute(on_gpu, "deterministic", True),
        _attribute(on_gpu, "benchmark", False),
        _attribute(on_gpu, "enabled", True),
        _attribute(on_cpu, "enabled", True),
        *(
            (partial(torch.is_autocast_enabled, on), partial(torch.set_autocast_enabled, on), False)
            for on in ("cpu", "cuda")
        ),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0),
        (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, True),
        (attention.flash_sdp_enabled, attention.enable_flash_sdp, True),
        (attention.mem_efficient_sdp_enabled, attention.enable_mem_efficient_sdp, True),
        (attention.cudnn_sdp_enabled, attention.enable_cudnn_sdp, True),
        (attention.math_sdp_enabled, attention.enable_math_sdp, True),
        (lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal, False),  # which torch does not tell
    ]


@contextmanager
def undisturbed(threads: int | None = 1) -> Iterator[None]:
    """Compute under fixed settings, whatever the program around has set: the same trial gives the same bits.

    With one thread, since the bits of a sum depend on how many share it (``None`` keeps how many there are); without
    autocast; products and convolutions of float32 in float32; new tensors in float32, on the CPU if no device is named;
    with oneDNN, with all kernels of attention, and with numbers too small to be normal; on a GPU, convolutions by an
    algorithm that gives the same bits each time.

    Environment variables that libraries read when they are loaded are out of reach. Those by which they choose their
    kernels (``ATEN_CPU_CAPABILITY``, ``ONEDNN_MAX_CPU_ISA``, ``ONEDNN_DEFAULT_FPMATH_MODE``, ``MKL_CBWR``) make a
    machine another one, whose last digits may differ; ``processor()`` names them. Nor are hooks on all modules undone,
    as ``torch.nn.modules.module.register_module_forward_hook`` sets.
    """
    import torch

    switches = _list_switches()
    count = torch.get_num_threads()
    torch.set_num_threads(count if threads is None else threads)
    before = [get() for get, _, _ in switches]
    for _, put, wanted in switches:
        put(wanted)
    try:
        with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
            yield
    finally:
        torch.set_num_threads(count)
        for (_, put, _), found in zip(switches, before, strict=True):
            put(found)
