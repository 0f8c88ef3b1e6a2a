"""A device that pretends: it computes on the processor, bit for bit, but refuses tensors that are not on it, as a GPU.

So what can go wrong on a GPU for want of a ``.to(device)`` goes wrong here. It is no model of a GPU's own rounding,
memory or speed. torch calls such devices ``privateuseone``, and has one in a process, which stays.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from suture.common import devices

NAME = "pretend"
MEMORY = 8 * 2**30  #: bytes that it says are free, until a test says another number
ATEN = torch.ops.aten


class Pretending(Tensor):
    """A tensor that says it is on the device, and holds one on the processor."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Pretending":
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device(NAME, 0),
        )
        made.inner = inner
        return made  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"Pretending({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        _check_together(func, args, leaves)
        asked = kwargs.get("device")
        if asked is not None:
            kwargs["device"] = torch.device("cpu")
        wrappers = {id(leaf.inner): leaf for leaf in leaves if isinstance(leaf, Pretending)}
        plain = {id(leaf): leaf for leaf in leaves if not isinstance(leaf, Pretending)}
        out = func(*tree_map(_bare, args), **tree_map(_bare, kwargs))
        leaves_it = asked is not None and torch.device(asked).type == "cpu"

        def dressed(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or id(leaf) in plain or leaves_it:
                return leaf
            return wrappers[id(leaf)] if id(leaf) in wrappers else Pretending(leaf)

        return tree_map(dressed, out)


def _bare(leaf: Any) -> Any:
    return leaf.inner if isinstance(leaf, Pretending) else leaf


def _check_together(func: Any, args: Any, leaves: list[Tensor]) -> None:
    """Refuse tensors of the processor beside those of the device, but for what GPUs take: copies, numbers, indices."""
    if func.overloadpacket in (ATEN.copy_, ATEN._to_copy):
        return
    may_index = func.overloadpacket in (ATEN.index, ATEN.index_put_, ATEN._index_put_impl_, ATEN.index_put)
    if may_index and isinstance(args[0], Pretending):
        return
    for leaf in leaves:
        if not isinstance(leaf, Pretending) and leaf.ndim:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but {func} got one on cpu and one on {NAME}:0"
            )


class _Device:
    """What torch asks of the module of a device, as ``torch.cuda``."""

    free = MEMORY

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def get_rng_state(self, device: object = None) -> Tensor:
        return torch.empty(0, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: object = None) -> None:
        pass

    def get_device_name(self, device: object = None) -> str:
        return "a device that pretends"

    def mem_get_info(self, device: object = None) -> tuple[int, int]:
        return self.free, MEMORY

    def memory_reserved(self, device: object = None) -> int:
        return 0

    memory_allocated = memory_reserved


def _empty(size: Any, dtype: Any = None, memory_format: Any = None, **_: object) -> Tensor:
    return Pretending(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format))


def _empty_strided(size: Any, stride: Any, dtype: Any = None, **_: object) -> Tensor:
    return Pretending(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _bare(target).copy_(_bare(source))
    return target


def install() -> str:
    """Make the device known to torch and to Suture, once in a process; return its name."""
    if NAME not in devices.KINDS:
        _setup_privateuseone_for_python_backend(NAME, _Device())
        library.impl("empty.memory_format", _empty, "PrivateUse1")
        library.impl("empty_strided", _empty_strided, "PrivateUse1")
        library.impl("_copy_from", _copy_from, "PrivateUse1")
        devices.KINDS.append(NAME)
    return NAME


library = torch.library.Library("aten", "IMPL")  # torch forgets what it was told when this goes
