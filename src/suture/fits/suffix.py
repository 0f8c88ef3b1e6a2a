"""Which suffix to compute through: the fused one where it was seen to agree with the receiver's own.

A fused suffix (``suture.core.fused``) is compared with the eager one on a probe before it is used. What it may differ
by depends on what for. A descent needs its direction, and takes outputs that are off by a twentieth of what they vary
by. A score needs more, see ``scores.outputs``.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from suture.common.processor import half_precision
from suture.core.fused import Fused
from suture.core.network.network import Frozen

MakeFused = Callable[[torch.dtype], Fused | None]
"""Makes the fused suffix in a floating type, where there is one."""

ALLOWED = {torch.float32: 1e-3}
"""The root mean square of what a fused suffix may be off by in a descent, in units of how much the outputs vary."""
ALLOWED_HALF = 0.05


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


def precisions(device: torch.device) -> list[torch.dtype]:
    """The floating types to try on a device, the fastest first."""
    half = half_precision(device)
    return [torch.float32] if half is None else [half, torch.float32]


def name_of(dtype: torch.dtype) -> str:
    """The type in words."""
    return str(dtype).removeprefix("torch.")


def choose(own: nn.Module, fused: MakeFused | None, probe: Tensor) -> Chosen:
    """Give the cheapest suffix that agrees with the receiver's own on a probe of represented tensors ``(n, …)``."""
    if fused is None:
        return Chosen(own)
    with torch.no_grad():
        wanted = own(probe).float()
        unit = float((wanted - wanted.mean(0)).square().mean().sqrt())
        refused: list[str] = []
        for dtype in precisions(probe.device):
            made = fused(dtype)
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
    return f"the fused suffix differs {' and '.join(refused)} of what the outputs vary by: fitted through {instead}"


@dataclass(frozen=True, eq=False)
class Ask:
    """Represented tensors ``(n, *receiver shape)`` whose cross-entropy with labels ``(n,)`` somebody wants to know."""

    represented: Tensor
    labels: Tensor
    gradient: bool  #: whether also that of their mean by the represented tensors


@dataclass(frozen=True, eq=False)
class Answer:
    """The loss of every sample in nats ``(n,)`` and, where asked for, the gradient of their mean."""

    losses: Tensor
    gradient: Tensor | None


_T = TypeVar("_T")
Asking = Generator[Ask, Answer, _T]
"""Work that asks for losses as it goes, and ends in a result."""


def answers(run: nn.Module, asks: Sequence[Ask]) -> list[Answer]:
    """Answer several at once, in one pass through a suffix; all of them want the gradient, or none does."""
    wanted = asks[0].gradient
    sizes = [len(ask.labels) for ask in asks]
    together = asks[0].represented if len(asks) == 1 else torch.cat([ask.represented for ask in asks])
    labels = asks[0].labels if len(asks) == 1 else torch.cat([ask.labels for ask in asks])
    with torch.set_grad_enabled(wanted):
        given = together.detach().requires_grad_(wanted)
        losses = nn.functional.cross_entropy(run(given), labels, reduction="none")
        parts = torch.split(losses, sizes)
        if not wanted:
            return [Answer(part, None) for part in parts]
        (gradient,) = torch.autograd.grad(torch.stack([part.mean() for part in parts]).sum(), given)
    return [Answer(p.detach(), g) for p, g in zip(parts, torch.split(gradient, sizes), strict=True)]


def driven(work: Asking[_T], run: nn.Module) -> _T:
    """Do work alone, with every question put through the suffix."""
    try:
        ask = next(work)
        while True:
            ask = work.send(answers(run, [ask])[0])
    except StopIteration as done:
        result: _T = done.value
        return result
