"""What a worker process of Ray does: it computes activations, and does tasks.

Activations come to a task as they lie in the memory that the workers of a node share, without a copy. A fit or a score
that changes them in place, which none may, would change them for everybody. So a checksum goes with them; who finds at
the end that they are not what they were does his work again with activations of his own. Whatever changed stays so:
what is right at the end was right all the time.
"""

import platform
import sys
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from suture.common.errors import RunnerError
from suture.core.activations.cache import Activations, Need
from suture.core.saving import suture_version
from suture.measurement.trials.trial import VERSION
from suture.runs.runners.base import Outcome, Task
from suture.runs.runners.transport import Payload, Unpacker
from suture.runs.runners.worker import KEPT

_ALL = 2**62  # bytes: a task keeps all that it has computed until it ends

_parts: dict[str, Any] = {}  # references to the parts of the payload that is being opened


def _fetch(key: str) -> bytes:
    import ray

    content: bytes = ray.get(_parts[key])
    return content


_unpacker = Unpacker(_fetch, KEPT)


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor as Ray stores it: bytes that all processes of a node can see, and a checksum of them."""

    dtype: str
    shape: tuple[int, ...]
    content: np.ndarray[Any, np.dtype[np.uint8]]
    checksum: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Stored":
        """Store a tensor of the CPU."""
        content = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), content, zlib.crc32(content.data))

    @property
    def tensor(self) -> Tensor:
        """The tensor, without a copy."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it must not be written to, as the module says
            return torch.frombuffer(self.content, dtype=getattr(torch, self.dtype)).view(self.shape)

    @property
    def intact(self) -> bool:
        """Whether it is unchanged."""
        return zlib.crc32(self.content.data) == self.checksum


@dataclass(frozen=True)
class Driver:
    """The process that began the run: where it imports from, and what must be the same wherever results are made."""

    path: tuple[str, ...]
    versions: Mapping[str, str]

    @classmethod
    def this(cls) -> "Driver":
        """This process."""
        return cls(
            tuple(sys.path), {"suture": suture_version(), "measuring code": str(VERSION), "torch": torch.__version__}
        )


def compute(
    payload: Payload, parts: Mapping[str, Any], driver: Driver, start: int, source: Stored | None
) -> Stored | None:
    """Compute activations, from those at the cut of index ``start`` if these are given.

    ``None`` if that fails: the task that needs them then computes them itself, and says what is wrong.
    """
    _prepare(driver)
    try:
        need = _open(payload, parts)
        assert isinstance(need, Need)
        activations = Activations(_ALL)
        if source is not None:
            activations.supply(Need(need.network, need.samples, start), source.tensor)
        tensor = activations.get(need)
        if source is not None and not source.intact:
            activations = Activations(_ALL)
            tensor = activations.get(need)
        return None if activations.notes else Stored.of(tensor)
    except Exception:
        return None


def do(
    payload: Payload, parts: Mapping[str, Any], driver: Driver, *supplied: Stored | None
) -> tuple[Outcome, list[int]]:
    """Do a task with what is supplied of its needs; return its outcome, and which of these were changed meanwhile."""
    _prepare(driver)
    task = _open(payload, parts)
    assert isinstance(task, Task)
    activations = Activations(_ALL)
    for need, stored in zip(task.needs, supplied, strict=bool(supplied)):
        if stored is not None:
            activations.supply(need, stored.tensor)
    outcome = task.run(activations)
    changed = [place for place, stored in enumerate(supplied) if stored is not None and not stored.intact]
    return (task.run(Activations(_ALL)) if changed else outcome), changed


def _prepare(driver: Driver) -> None:
    """Compute with one thread, and as the driver does."""
    torch.set_num_threads(1)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # those of libraries; ours are errors
    sys.path += [folder for folder in driver.path if folder not in sys.path]
    for name, here in Driver.this().versions.items():
        if here != driver.versions[name]:
            raise RunnerError(
                f"{platform.node()} has {name} {here}, and the process that began the run {driver.versions[name]}, "
                "so their results may differ; install the same on all nodes"
            )


def _open(payload: Payload, parts: Mapping[str, Any]) -> object:
    _parts.clear()
    _parts.update(parts)
    return _unpacker.unpack(payload)
