"""What makes a result reproducible: seeds derived from what they are for, and sums that one thread takes."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch


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


def generator(*parts: object) -> torch.Generator:
    """Return a CPU generator seeded by ``derive_seed``."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@contextmanager
def drawing(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Let torch's global generators, of the CPU and this device, be drawn from; seed them first if told to."""
    with torch.random.fork_rng([] if device.type == "cpu" else [device], device_type=device.type):
        if seed is not None:
            torch.manual_seed(seed)
        yield


_ON_CPU: Any = torch.backends.mkldnn
_ON_GPU: Any = torch.backends.cudnn
_CONVOLUTIONS = _ON_GPU.conv, _ON_GPU.rnn  #: in TF32 on a GPU, unless torch is told otherwise
_PRODUCTS = (_ON_CPU.matmul, _ON_CPU.conv, _ON_CPU.rnn, torch.backends.cuda.matmul, *_CONVOLUTIONS)
"""Whose float32 may be lowered."""


@contextmanager
def undisturbed(threads: int | None = 1) -> Iterator[None]:
    """Compute as always, whatever the program around has set: the same trial gives the same bits.

    With one thread, since the bits of a sum depend on how many share it (``None`` keeps how many there are); without
    autocast; products and convolutions of float32 in float32; new tensors in float32, on the CPU if no device is named;
    on a GPU, convolutions by an algorithm that gives the same bits each time.
    """
    before, kind = torch.get_num_threads(), torch.get_default_dtype()
    products = [product.fp32_precision for product in _PRODUCTS]
    chosen = _ON_GPU.deterministic, _ON_GPU.benchmark
    casts = {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}
    torch.set_num_threads(before if threads is None else threads)
    torch.set_default_dtype(torch.float32)
    _ON_GPU.allow_tf32 = False  # the older setting of the same, which parts of torch ask for and want to agree
    for product in _PRODUCTS:
        product.fp32_precision = "ieee"
    _ON_GPU.deterministic, _ON_GPU.benchmark = True, False
    for device in casts:
        torch.set_autocast_enabled(device, False)
    try:
        with nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu"):
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_default_dtype(kind)
        _ON_GPU.allow_tf32 = "tf32" in products[-len(_CONVOLUTIONS) :]
        for product, precision in zip(_PRODUCTS, products, strict=True):
            product.fp32_precision = precision
        _ON_GPU.deterministic, _ON_GPU.benchmark = chosen
        for device, on in casts.items():
            torch.set_autocast_enabled(device, on)
