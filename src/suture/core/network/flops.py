"""What lies up to a cut: its shape, and how many parameters and FLOPs it takes to get there.

FLOPs are those of one image in matrix products and convolutions; a multiply-add counts two. Attention is counted as the
two products that it is made of, whichever fused kernel the machine would choose.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from suture.common.errors import NetworkError
from suture.core.network.cuts import OUTPUT, Cut, Cuts
from suture.core.network.tracing import Traced


def measure_cuts(traced: Traced, model: nn.Module, probe: Tensor, name: str) -> tuple[Cuts, int]:
    """Run one image through the segments and note shape, parameters and FLOPs at every cut; also the number of outputs.

    Raises ``NetworkError`` naming the first cut where the activations are not finite.
    """
    cuts: list[Cut] = []
    x, flops = probe, 0
    read = _ParametersRead(model.parameters())
    for i, segment in enumerate(traced.segments):
        with attention_as_products(), FlopCounterMode(display=False) as counter, read:
            x = segment(x)
        flops += counter.get_total_flops()
        cut, *aliases = traced.names[i] if i < len(traced.names) else (OUTPUT,)
        if not x.isfinite().all():
            raise NetworkError(f"the activations at '{cut}' in {name} are not finite")
        shape = tuple(x.shape[1:])
        cuts.append(Cut(cut, i + 1, len(traced.names), shape, read.total, flops, tuple(aliases)))
    *inside, end = cuts
    return Cuts(inside, traced.dropped, name, end), x.shape[1]


@contextmanager
def attention_as_products() -> Iterator[None]:
    """Compute attention as plain products, which are what is counted."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class _ParametersRead(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the parameters that operations have read so far, each once."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes = {id(parameter): parameter.numel() for parameter in parameters}
        self._read: set[int] = set()

    @property
    def total(self) -> int:
        return sum(self._sizes[key] for key in self._read)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._read |= {id(leaf) for leaf in tree_leaves((args, kwargs)) if id(leaf) in self._sizes}
        return func(*args, **(kwargs or {}))
