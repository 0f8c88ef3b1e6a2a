"""The suffix that a fit descends through: the receiver's own, or the cheapest fused one that agrees with it.

A fused suffix (``suture.core.fused``) is compared with the eager one on a probe before it is used. What it may differ
by depends on its use: a descent only needs a direction, and takes outputs that are off by a twentieth of what they vary
by. A score needs more: see ``measurement.trials.measure``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suture.common.formatting import first_line
from suture.common.processor import half_precision
from suture.core.fused import Fused
from suture.core.network.segments import Frozen

ALLOWED = 1e-3  #: root mean square by which a fused suffix may be off in float32, if outputs vary by 1
ALLOWED_HALF = 0.05  #: the same in 16 bits

MakeFused = Callable[[torch.dtype], Fused | None]
"""Makes the fused suffix in a floating type, if there is one."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """A suffix to descend through, and why it is not the cheapest."""

    run: nn.Module
    note: str = ""

    @property
    def only_head(self) -> bool:
        """Whether nothing but pooling and a linear layer follows the cut, or nothing at all."""
        if isinstance(self.run, Fused):
            return self.run.only_head
        return isinstance(self.run, Frozen) and not self.run.segments


def choose_suffix(own: nn.Module, fused: MakeFused | None, probe: Tensor) -> Chosen:
    """Return the cheapest suffix that agrees with the receiver's own on a probe of represented tensors ``(n, …)``."""
    if fused is None:
        return Chosen(own)
    with torch.no_grad():
        wanted = own(probe).float()
        unit = float((wanted - wanted.mean(0)).square().mean().sqrt())
        refused: list[str] = []
        for dtype in (half_precision(probe.device), torch.float32):  # the fastest first
            if dtype is None:
                continue
            name, made = str(dtype).removeprefix("torch."), fused(dtype)
            if made is None:
                return Chosen(own)
            try:
                off = float((made(probe) - wanted).square().mean().sqrt())
            except Exception as error:  # a user's layer may refuse another memory layout or floating type
                refused.append(f"does not run in {name} ({first_line(error)})")
                continue
            if off <= (ALLOWED if dtype == torch.float32 else ALLOWED_HALF) * unit:
                return Chosen(made, _explain(refused, name))
            apart = off / unit if unit else float("inf")
            refused.append(f"differs in {name} by {apart:.2g} of what the outputs vary by")
    return Chosen(own, _explain(refused, "the receiver itself"))


def _explain(refused: list[str], instead: str) -> str:
    if not refused:
        return ""
    return f"the fused suffix {' and '.join(refused)}: fitted through {instead}"
