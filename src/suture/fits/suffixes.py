"""Which suffix to compute through: the lean one where it was seen to agree with the receiver's own.

A lean suffix (``suture.lean``) is compared with the eager one on a probe before it is used. What it may differ by depends
on what for. A descent needs its direction, and takes outputs that are off by a twentieth of what they vary by. A score
needs more, see ``suture.scoring``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from suture.lean import Lean, half_precision

MakeLean = Callable[[torch.dtype], Lean | None]
"""Makes the lean suffix in a floating type, where there is one."""

ALLOWED = {torch.float32: 1e-3}
"""The root mean square of what a lean suffix may be off by in a descent, in units of how much the outputs vary."""
ALLOWED_HALF = 0.05


@dataclass(frozen=True, eq=False)
class Chosen:
    """A suffix to descend through, and why it is not the leanest."""

    run: nn.Module
    note: str = ""

    @property
    def only_head(self) -> bool:
        """Whether nothing but pooling and a linear layer follows the cut."""
        return isinstance(self.run, Lean) and self.run.only_head


def precisions(device: torch.device) -> list[torch.dtype]:
    """The floating types to try on a device, the fastest first."""
    half = half_precision(device)
    return [torch.float32] if half is None else [half, torch.float32]


def name_of(dtype: torch.dtype) -> str:
    """The type in words."""
    return str(dtype).removeprefix("torch.")


def choose(own: nn.Module, lean: MakeLean | None, probe: Tensor) -> Chosen:
    """Give the leanest suffix that agrees with the receiver's own on a probe of represented tensors ``(n, …)``."""
    if lean is None:
        return Chosen(own)
    with torch.no_grad():
        wanted = own(probe).float()
        unit = float((wanted - wanted.mean(0)).square().mean().sqrt())
        refused = []
        for dtype in precisions(probe.device):
            made = lean(dtype)
            if made is None:
                return Chosen(own)
            off = _off(made, probe, wanted)
            if off <= ALLOWED.get(dtype, ALLOWED_HALF) * unit:
                return Chosen(made, _said(refused, name_of(dtype)))
            refused.append(f"in {name_of(dtype)} by {off / unit if unit else float('inf'):.2g}")
    return Chosen(own, _said(refused, "the receiver as it is"))


def _off(made: nn.Module, probe: Tensor, wanted: Tensor) -> float:
    try:
        return float((made(probe) - wanted).square().mean().sqrt())
    except Exception:  # a body that no other layout or type suits
        return float("inf")


def _said(refused: list[str], instead: str) -> str:
    if not refused:
        return ""
    return f"the lean suffix differs {' and '.join(refused)} of what the outputs vary by: fitted through {instead}"
