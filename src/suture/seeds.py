"""What makes a result reproducible: seeds derived from what they are for, and sums that one thread takes."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from types import CodeType, FunctionType

import torch
from torch import Tensor


def digest(*parts: object) -> str:
    """SHA-256 over the ``repr`` of the parts, in hexadecimal; addresses in memory do not count."""
    return hashlib.sha256(re.sub(r" at 0x[0-9a-f]+", "", repr(parts)).encode()).hexdigest()


def identity(thing: object) -> object:
    """What tells a setting from every other, as plain values: its class and its content, not its ``repr``.

    The same in every process. A dataclass is its fields, another object what it would be pickled from, a function its
    code, and whatever has a ``fingerprint`` is that.
    """
    match thing:
        case None | bool() | int() | float() | complex() | str() | bytes():
            return thing
        case list() | tuple():
            return [identity(item) for item in thing]
        case dict():
            return ["dict", *((identity(key), identity(value)) for key, value in thing.items())]
        case set() | frozenset():
            return ["set", *sorted(repr(identity(item)) for item in thing)]
        case type():
            return f"{thing.__module__}.{thing.__qualname__}"
        case Tensor():
            content = thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            return ["tensor", str(thing.dtype), tuple(thing.shape), digest(content)]
        case FunctionType():
            return identity([thing.__code__, thing.__defaults__, [c.cell_contents for c in thing.__closure__ or ()]])
        case CodeType():
            return identity([thing.co_code, thing.co_names, thing.co_consts])
    if hasattr(thing, "fingerprint"):
        return thing.fingerprint
    if is_dataclass(thing):
        return [identity(type(thing)), *((f.name, identity(getattr(thing, f.name))) for f in fields(thing))]
    reduced = thing.__reduce_ex__(2)
    return reduced if isinstance(reduced, str) else [identity(type(thing)), *map(identity, reduced[1:3])]


def derive_seed(*parts: object) -> int:
    """A seed in [0, 2⁶³) that depends on the parts alone (their ``repr``), the same in every process."""
    return int(digest(*parts)[:16], 16) >> 1


def generator(*parts: object) -> torch.Generator:
    """A CPU generator seeded by ``derive_seed``."""
    return torch.Generator().manual_seed(derive_seed(*parts))


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, since the bits of a sum depend on how many share it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
